#!/usr/bin/python3
# lab: one-vm timeout=600
# covers: nvmet pool fallback-udp client/attach/src node/src/kinds/block
"""Blocks over UDP: a client in plain Python and `fabricctl` see the same bytes. Requests that are forged, out of bounds
or against the lease are refused. NVMe-oF and UDP are two transports of one lease that are cut together. A file system
on an attached device survives lost packets."""
import contextlib
import os
import pathlib
import secrets
import signal
import subprocess
import tempfile

import fbmu_frame as f
import block_daemon
from block import MIB, BlockNode, alloc, device_of, directory_pool, get, leased, loop_device, nqn_of, on_time, pattern, put
from block import ready, run, sh, size_of
from checks import FULL, Suite, in_full_length, until
from fabric import OTHER, program
from fbbu_client import Client, part
from fbmu_frame import Frame
from fbmu_suite import Strangers
from nvme_host import Fio, Watch, connect, failed, gone

TERM_SECS = 15
BLOCK = 4096
COUNT = 256
LOSS = "loss 2%"
# Limits of half-sent blocks: 16 for a lease, 256 for a tenant.
HALF_SENT_MAX, OF_LEASE, OF_TENANT = 8 * MIB, 16, 256


def refusals(suite, node, pools):
    """Requests that a server of blocks must refuse."""
    alice = node.tenant("alice")
    with leased(alice, COUNT * BLOCK, transport="udp", pool=pools["device"]) as lease, Client(lease) as client:
        client.write(0, pattern("mine", COUNT * BLOCK))
        suite.equal("HELLO: unit, blocks and flags", (BLOCK, COUNT, 0), tuple(client.hello[k] for k in ("unit", "resource_len", "flags")))
        strangers, count = Strangers(suite, client), client.hello["resource_len"]
        strangers.refused("past the end", f.RANGE, [(f"op {op} at {at}", client.frame(op, at, 1, bytes(BLOCK) if op == f.WRITE else b""))
                          for op in (f.READ, f.WRITE) for at in (count, 1 << 40, (1 << 64) - 1)])
        strangers.refused("senseless", f.INVALID, [
            ("READ of nothing", client.frame(f.READ, 0, 0)), ("READ of more than a datagram", client.frame(f.READ, 0, 64)),
            ("WRITE of half a block", client.frame(f.WRITE, 0, 1, bytes(BLOCK // 2))),
            ("WRITE of two, told as one", client.frame(f.WRITE, 0, 1, bytes(2 * BLOCK))),
            ("FLUSH of something", client.frame(f.FLUSH, 0, 1)), ("an operation that is none", client.frame(9, 0, 1))])
        write = lambda **more: client.frame(f.WRITE, 0, 1, b"evil" * (BLOCK // 4), **more)
        strangers.nothing("another key", [("WRITE", write().datagram(secrets.token_bytes(32))), ("no tag", write().datagram(None))])
        strangers.nothing("FBMU's magic", [("WRITE", write(magic=b"FBMU").datagram(client.place.key))], may_be_told=False)
        strangers.nothing("damaged", [("a byte of payload", f.flipped(write().datagram(client.place.key), 500))])
        parts(suite, client, strangers)
        suite.check("no byte has changed", client.read(0, COUNT) == pattern("mine", COUNT * BLOCK), "the same bytes")


def parts(suite, client, strangers):
    """Requests in parts, valid and invalid."""
    piece = lambda n, count, block=1, **more: client.frame(f.WRITE, block, 1, b"part" * (BLOCK // count // 4), part(n, count), **more)
    strangers.refused("parts that cannot be", f.INVALID, [
        ("index beyond", piece(4, 4)), ("three", client.frame(f.WRITE, 1, 1, bytes(BLOCK // 4), part(0, 3))),
        ("one", client.frame(f.WRITE, 1, 1, bytes(BLOCK), part(0, 1))), ("128 parts", piece(0, 128)),
        ("of two blocks", client.frame(f.READ, 1, 2, b"", part(0, 4))), ("PING in parts", client.frame(f.PING, reserved=part(0, 4)))])
    first, second = piece(0, 2), client.frame(f.WRITE, 2, 1, bytes(BLOCK // 2), part(1, 2))
    suite.equal("the first part of a write", f.OK, client.ask(first).status)
    strangers.refused("a part that does not agree with its write", f.INVALID, [("another block", second)])
    client.write_in_parts(3, pattern("parts", BLOCK), 4)
    suite.equal("a block written in parts", pattern("parts", BLOCK), client.read(3, 1))
    got = b"".join(client.ask(client.frame(f.READ, 3, 1, b"", part(n, 8))).payload for n in range(8))
    suite.equal("a block read in parts", pattern("parts", BLOCK), got)
    client.write(3, pattern("mine", BLOCK))


def read_only(suite, node, pools):
    """A read-only lease."""
    alice = node.tenant("alice")
    with leased(alice, COUNT * BLOCK, transport="udp", pool=pools["device"], more=("--read-only",)) as lease, Client(lease) as client:
        suite.equal("read-only: HELLO says it", 1, client.hello["flags"] & 1)
        Strangers(suite, client).refused("read-only", f.BLOCK_RO, [
            ("WRITE", client.frame(f.WRITE, 0, 1, bytes(BLOCK))), ("a part", client.frame(f.WRITE, 0, 1, bytes(BLOCK // 4), part(0, 4)))])
        suite.equal("read-only: READ", bytes(BLOCK), client.read(0, 1))


def by_fabricctl(suite, node, pools):
    """`fabricctl block read|write` and the Python client see the same bytes."""
    alice = node.tenant("alice")
    for kind, pool in pools.items():
        with leased(alice, MIB, transport="udp", pool=pool) as lease, Client(lease) as client:
            data = pattern(kind, MIB // 2)
            suite.equal(f"{kind}: fabricctl block write", 0, _ctl(alice, "write", lease, "--offset", 8192, given=data).returncode)
            suite.check(f"{kind}: read by Python", client.read(8192 // client.unit, len(data) // client.unit) == data, "the same bytes")
            client.write(0, pattern("python", 8192))
            client.flush()
            back = _ctl(alice, "read", lease, "--offset", 0, "--len", 12288).stdout
            suite.check(f"{kind}: read by fabricctl", back == pattern("python", 8192) + data[:4096], "the same bytes", back[:32])
            beyond = _ctl(alice, "read", lease, "--offset", MIB, "--len", 4096)
            suite.check(f"{kind}: past the end is refused", beyond.returncode != 0 and not beyond.stdout, "an error", beyond.returncode)


def _ctl(tenant, what, lease, *words, given=b""):
    command = [program("fabricctl"), "--node", tenant.node, "--identity", tenant.identity, "block", what, lease["lease_id"]]
    return subprocess.run([*command, *map(str, words)], input=given, capture_output=True, timeout=60, check=False)


def both(suite, node, pools):
    """One lease, two transports: the same bytes, and the same end."""
    alice = node.tenant("alice")
    for kind, pool in pools.items() if FULL else [("device", pools["device"])]:
        secs = TERM_SECS if kind == "device" else 300
        lease = alloc(alice, 2 * MIB, secs=secs, transport="both", pool=pool)
        path = connect(lease)
        with Client(lease) as client:
            put(path, pattern("nvme"))
            suite.check(f"both, {kind}: written over NVMe-oF, read over UDP", client.read(0, MIB // client.unit) == pattern("nvme"), "the same bytes")
            client.write(0, pattern("udp", 65536))
            suite.check(f"both, {kind}: written over UDP, read over NVMe-oF", get(path, 65536) == pattern("udp", 65536), "the same bytes")
            job, watch = Fio(path, offset="1M", size="1M").started(), Watch(nqn_of(lease))
            if kind == "device":
                on_time(suite, f"both, {kind}", lease, watch.report())
            else:
                alice.free(lease)
                suite.check(f"both, {kind}: NVMe-oF is cut", watch.report(), "a connection that is lost")
            suite.equal(f"both, {kind}: UDP is cut too", f.NO_LEASE, _status_of(client))
            suite.check(f"both, {kind}: fio meets errors", failed(job.report()), "an error")
        gone(nqn_of(lease))


def _status_of(client):
    """The status with which a lease that is over answers a READ. PING gets NO_LEASE too, so a PING cannot mark the end
    of the flow here."""
    frame = Frame(f.READ, client.place.lease_id, client.session << 32 | 0x7FFFFFFF, 0, 1, magic=b"FBBU")
    client.wire.waiting()
    client.wire.send(frame.datagram(client.place.key))
    data = client.wire.receive(client.give_up_secs)
    reply = data and f.genuine(data, client.place.key, b"FBBU")
    return reply and reply.status


def file_system(suite, node, pools):
    """A file system on an attached device, over a link that loses packets at an MTU of 1500."""
    alice = node.tenant("alice")
    with lossy_line(), leased(alice, 16 * MIB, transport="udp", pool=pools["device"]) as lease, tempfile.TemporaryDirectory() as place:
        name = pathlib.Path(place) / "file"
        with device_of(alice, lease) as path:
            suite.equal("attached: its size", 16 * MIB, size_of(path))
            sh(f"mkfs.ext4 -q -F -O ^has_journal {path}")
            sh(f"mount {path} {place}")
            name.write_bytes(pattern("file", MIB))
            sh(f"umount {place}")
        with device_of(alice, lease) as path:
            suite.equal("attached again: fsck finds nothing", 0, run("fsck.ext4", "-f", "-n", path).returncode)
            sh(f"mount {path} {place}")
            suite.check("attached again: the file is there", name.read_bytes() == pattern("file", MIB), "the same bytes")
            sh(f"umount {place}; mkswap {path}; swapon {path}")
            suite.refused("used as swap: detach says so", lambda: alice.ask("block", "detach", lease["lease_id"]), OTHER, None)
            sh(f"swapoff {path}")


def daemon_ends(suite, node, pools):
    """However the block daemon ends, no device is left, no write is lost without need, and the lease can be attached
    again."""
    alice = node.tenant("alice")
    place = tempfile.mkdtemp()
    with leased(alice, 16 * MIB, transport="udp", pool=pools["device"]) as lease:
        name = pathlib.Path(place) / "file"
        attach, detach = (lambda word=word: alice.ask("block", word, lease["lease_id"])["device"] for word in ("attach", "detach"))
        child = block_daemon.Child(alice, lease)
        suite.equal("SIGTERM: exit status, and the device is gone", (0, 0), (child.end(signal.SIGTERM)[0], size_of(child.device)))
        path = attach()
        suite.refused("attached: over another transport", lambda: alice.ask("block", "attach", lease["lease_id"], "--transport", "nvme-tcp"),
                      OTHER, "AttachedOtherwise")
        sh(f"mkfs.ext4 -q -F -O ^has_journal {path}; mount {path} {place}")
        name.write_bytes(pattern("file", MIB))
        os.kill(block_daemon.record(lease)["keeper_pid"], signal.SIGTERM)
        line = block_daemon.said(lease, "still mounted")
        suite.check("SIGTERM, mounted: the log names the mount point and what was done", place in line and "is stored" in line, place, line)
        until(lambda: not block_daemon.record(lease), 60, "the end of the block daemon")
        sh(f"umount {place}")
        path = attach()
        sh(f"mount {path} {place}")
        suite.check("SIGTERM, mounted: what was written is there", name.read_bytes() == pattern("file", MIB), "the same bytes")
        block_daemon.kill(lease)
        until(lambda: _errs(path), 60, "an error of the device without a block daemon")
        suite.refused("SIGKILL, mounted: detach names the mount point", detach, OTHER, None)
        other = attach()
        suite.check("SIGKILL, mounted: attached anew, as another device", other != path and size_of(other) == 16 * MIB, "another device", other)
        sh(f"umount {place}")
        suite.equal("SIGKILL, mounted: the old one is gone", 0, size_of(path))
        block_daemon.kill(lease)
        detach()
        suite.equal("SIGKILL: detach, and nothing is left", (0, {}), (size_of(other), block_daemon.record(lease)))


def _errs(path):
    """Whether a read fails, at an offset that is in no cache."""
    try:
        get(path, BLOCK, 12 * MIB)
    except OSError:
        return True
    return False


@contextlib.contextmanager
def lossy_line():
    """The loopback traffic of this machine, with loss and delay."""
    mtu = pathlib.Path("/sys/class/net/lo/mtu").read_text(encoding="ascii").strip()
    sh("ip link set lo mtu 1500")
    sh(f"tc qdisc add dev lo root netem {LOSS}")
    try:
        yield
    finally:
        sh("tc qdisc del dev lo root")
        sh(f"ip link set lo mtu {mtu}")


@in_full_length
def loud_neighbour(suite):
    """A tenant that sends halves of blocks and never the rest: the node's memory for these is bounded, another tenant
    writes in parts meanwhile, and incomplete blocks are dropped."""
    with BlockNode(loop_device(32, BLOCK), more=("--fbbu-half-sent-max", str(HALF_SENT_MAX))) as node, contextlib.ExitStack() as ends:
        loud, alice = node.tenant("loud"), node.tenant("alice")
        memory = lambda: int(sh(f"grep VmRSS /proc/{node.process.pid}/status").split()[1]) << 10
        lease_of = lambda tenant: ends.enter_context(leased(tenant, OF_LEASE * BLOCK, transport="udp"))
        clients = [ends.enter_context(Client(lease_of(loud))) for _ in range(OF_TENANT // OF_LEASE + 1)]
        half = lambda client, n=0: client.frame(f.WRITE, 1, 1, b"half" * (BLOCK // 8), part(n, 2))
        before = memory()
        said = [[client.ask(half(client)).status for _ in range(OF_LEASE + 4)] for client in clients]
        suite.equal("loud: of each lease, so many begun and others BUSY", [[f.OK] * OF_LEASE + [f.BUSY] * 4] * (len(clients) - 1), said[:-1])
        suite.equal("loud: of the tenant no more", [f.BUSY] * (OF_LEASE + 4), said[-1])
        suite.check("loud: the node's memory", memory() - before < HALF_SENT_MAX, f"less than {HALF_SENT_MAX} bytes more", memory() - before)
        with Client(lease_of(alice)) as client:
            for block in range(OF_LEASE):
                client.write_in_parts(block, pattern(f"alice {block}", BLOCK), 4)
            whole = b"".join(pattern(f"alice {block}", BLOCK) for block in range(OF_LEASE))
            suite.check("beside it: another tenant writes in parts", client.read(0, OF_LEASE) == whole, "its bytes")
        last = clients[-1]
        until(lambda: last.ask(half(last)).status == f.OK, 60, "room for the loud tenant, whose halves nobody has finished")
        suite.equal("given up: the other half is refused", f.TOO_OLD, clients[0].ask(half(clients[0], 1)).status)
        clients[0].open()
        suite.equal("given up: nothing was written", bytes(BLOCK), clients[0].read(1, 1))
        suite.equal("loud: nothing is fenced", [], node.operator.fences())


def main():
    """All sections on one node; the device has blocks of 4,096 bytes, which do not fit a datagram at an MTU of 1500."""
    ready()
    pools = {"directory": directory_pool(64), "device": loop_device(64, BLOCK)}
    with Suite("blocks over UDP") as suite, BlockNode(*pools.values()) as node:
        for section in (refusals, read_only, by_fabricctl, both, file_system, daemon_ends):
            suite.section(section, suite, node, pools)
        suite.equal("nothing is fenced", [], node.operator.fences())
        node.stop()
        suite.section(loud_neighbour, suite)


if __name__ == "__main__":
    main()
