#!/usr/bin/python3
# lab: one-vm timeout=900
# covers: fallback-udp arena node/src/kinds/memory
"""Memory over UDP through a network that loses, delays, doubles and reorders datagrams, and through a restart of the
node: the bytes arrive, late datagrams undo nothing, and no datagram is longer than the path allows.

The node lives in a network namespace of its own; a veth pair with netem at both ends joins it to this one."""
import atexit
import contextlib
import hashlib
import os
import pathlib
import subprocess
import tempfile
import time

import fabric
import fbmu_frame as f
from checks import Suite, give_back, in_full_length, length, programs, skip
from fabric import Node
from fbmu_client import Client, Place, Wire
from fbmu_suite import lease_of

HERE, THERE, SPACE = "10.78.0.2", "10.78.0.1", "fbnode"
WITHIN = ("ip", "netns", "exec", SPACE)
TROUBLE = "loss 5% delay 2ms 1ms reorder 25% duplicate 2%"
# If one exchange in ten is lost, a window that halves with each loss stays at about three requests on any machine: 64
# MiB in pieces of 1,384 bytes would take about five minutes each way.
BYTES_OF_MTU = {1500: length(8, 2) << 20, 9000: length(64, 8) << 20}
BYTES = length(64, 24) << 20
TRANSFER_SECS = 300
COUNTERS = ("FragCreates", "FragOKs", "ReasmReqds", "ReasmFails")


def steps(*lines):
    """Runs commands; ends the suite as not run at the first failure."""
    for line in lines:
        made = subprocess.run(line.split(), capture_output=True, text=True, check=False)
        if made.returncode:
            skip(f"`{line}`: {made.stderr.strip()}")


def network():
    """Makes the namespace and the veth pair."""
    steps("modprobe sch_netem", f"ip netns add {SPACE}", "ip link add n0 type veth peer name n1", f"ip link set n1 netns {SPACE}",
          f"ip addr add {HERE}/24 dev n0", f"ip -n {SPACE} addr add {THERE}/24 dev n1", f"ip -n {SPACE} link set lo up",
          "ip link set n0 up", f"ip -n {SPACE} link set n1 up")
    # The node's end of the pair is removed with the namespace.
    atexit.register(steps, f"ip netns del {SPACE}")


def path(mtu_here, mtu_there=None, trouble=TROUBLE):
    """Sets the MTUs of the two ends, and netem in both directions."""
    steps(f"ip link set n0 mtu {mtu_here}", f"ip -n {SPACE} link set n1 mtu {mtu_there or mtu_here}")
    for within, device in (([], "n0"), (list(WITHIN), "n1")):
        subprocess.run([*within, "tc", "qdisc", "del", "dev", device, "root"], capture_output=True, check=False)
        if trouble:
            steps(" ".join([*within, f"tc qdisc add dev {device} root netem limit 10000 {trouble}"]))


def counters():
    """The counters of both IP layers: fragments made and reassembled."""
    counted = {}
    for side, within in (("here", []), ("there", list(WITHIN))):
        text = subprocess.run([*within, "cat", "/proc/net/snmp"], capture_output=True, text=True, check=True).stdout
        names, numbers = [line.split()[1:] for line in text.splitlines() if line.startswith("Ip:")]
        counted.update({f"{side} {name}": int(number) for name, number in zip(names, numbers) if name in COUNTERS})
    return counted


def command(tenant, *words):
    """The command line of `fabricctl` of a tenant, as a list."""
    return [fabric.program("fabricctl"), "--node", tenant.node, "--identity", tenant.identity, *map(str, words)]


def write(tenant, lease, source):
    """Starts `fabricctl mem write` of a whole file."""
    with open(source, "rb") as given:
        words = ("mem", "write", lease["lease_id"], "--offset", 0, "--patience-secs", 60)
        return subprocess.Popen(command(tenant, *words), stdin=given,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(suite, name, process):
    """Waits for the process; returns whether its exit status is 0."""
    _, said = process.communicate(timeout=TRANSFER_SECS)
    return suite.check(f"{name}: exit status 0", process.returncode == 0, 0, f"{process.returncode}: {said.decode()[-400:]}")


def digest_of_lease(tenant, lease, size):
    """The hash of the bytes of `fabricctl mem read`."""
    process = subprocess.Popen(command(tenant, "mem", "read", lease["lease_id"], "--offset", 0, "--len", size),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    digest = hashlib.file_digest(process.stdout, "sha256").hexdigest()
    said = process.stderr.read().decode()
    return digest if process.wait(TRANSFER_SECS) == 0 else f"exit {process.returncode}: {said[-400:]}"


def random_file(folder, size):
    """A file of random bytes and its hash."""
    place = pathlib.Path(folder) / f"bytes-{size}"
    with open(place, "wb") as out:
        for _ in range(size >> 20):
            out.write(os.urandom(1 << 20))
    with open(place, "rb") as written:
        return place, hashlib.file_digest(written, "sha256").hexdigest()


def told(name, started, size):
    """Prints the time. Under emulation only ratios within one boot are meaningful."""
    took = time.monotonic() - started
    print(f"   {name}: {size >> 20} MiB in {took:.1f} s, {size / took / 1e6:.1f} MB/s", flush=True)


def transfers(suite, node, folder):
    """Large transfers each way, at both MTUs, and no fragment anywhere."""
    alice = node.tenant("alice")
    for mtu, size in BYTES_OF_MTU.items():
        path(mtu)
        source, digest = random_file(folder, size)
        before, lease = counters(), lease_of(alice, size, 600)
        started = time.monotonic()
        if finish(suite, f"MTU {mtu}: write of {size >> 20} MiB", write(alice, lease, source)):
            told(f"MTU {mtu}: write", started, size)
        started = time.monotonic()
        if suite.equal(f"MTU {mtu}: what is read back", digest, digest_of_lease(alice, lease, size)):
            told(f"MTU {mtu}: read", started, size)
        suite.equal(f"MTU {mtu}: fragments", before, counters())
        give_back(alice, lease)


def narrow(suite, node, _folder):
    """The far end accepts shorter packets than this end's route allows: HELLO finds the length, in both clients."""
    alice = node.tenant("alice")
    path(9000, 1500, trouble="")
    before, lease = counters(), lease_of(alice, 1 << 20)
    with Client(lease) as client:
        suite.equal("a narrow path: payload that fits", 1500 - 28 - f.FRAME_LEN, client.fits)
        client.write(0, bytes(range(256)) * 256)
    finished = subprocess.run(command(alice, "mem", "read", lease["lease_id"], "--offset", 0, "--len", 65536), capture_output=True,
                              timeout=TRANSFER_SECS, check=False)
    suite.check("a narrow path: fabricctl reads", finished.stdout == bytes(range(256)) * 256, "65536 bytes",
                f"{len(finished.stdout)} bytes, {finished.stderr[-300:]}")
    suite.equal("a narrow path: fragments", before, counters())
    give_back(alice, lease)
    path(1500)


def delayed(suite, node, _folder):
    """A WRITE that was delayed on its way, past its own retry and past a later WRITE."""
    alice = node.tenant("alice")
    path(1500, trouble="")
    lease = lease_of(alice)
    with Client(lease) as client, Wire(Place.of(lease).address) as byway:
        held, later = client.frame(f.WRITE, 0, 4, b"held"), client.frame(f.WRITE, 0, 4, b"late")
        answers = [client.ask(held), client.ask(later)]
        suite.equal("held up: the retry and the later write", [f.OK, f.OK], [answer.status for answer in answers])
        for name, wire in (("on the same way", None), ("on another way", byway)):
            client.exchange(held.datagram(client.place.key), wire=wire)
            suite.equal(f"held up, past its retry, {name}: the later bytes stay", b"late", client.read(0, 4))
        lost = client.frame(f.WRITE, 0, 4, b"lost")
        client.open()
        suite.equal("given up with its session: the same bytes anew", f.OK, client.ask(client.frame(f.WRITE, 0, 4, b"anew")).status)
        suite.equal("given up with its session: the old one comes after all", f.TOO_OLD, client.ask(lost).status)
        suite.equal("given up with its session: the later bytes stay", b"anew", client.read(0, 4))
    give_back(alice, lease)
    path(1500)


@in_full_length
def restart(suite, node, folder):
    """The daemon is killed in the middle of a transfer and starts again; the lease, its bytes and the transfer go
    on."""
    alice = node.tenant("alice")
    path(9000, trouble="delay 2ms 1ms")
    source, digest = random_file(folder, BYTES)
    lease = lease_of(alice, BYTES, 600)
    process = write(alice, lease, source)
    with Client(lease) as witness:
        while process.poll() is None and not any(witness.read(BYTES // 8, 64)):
            pass
    suite.check("restart: it comes in the middle of the transfer", process.poll() is None, "a transfer that goes on")
    node.kill()
    node.start()
    adopted = alice.query(lease)
    suite.equal("restart: the lease is adopted", ("active", "ACTIVE"), (adopted["state"], adopted["status"]))
    suite.check("restart: another key", adopted["binding"]["dp_key"] != lease["binding"]["dp_key"], "another key")
    if finish(suite, "restart: the transfer", process):
        suite.equal("restart: what is read back", digest, digest_of_lease(alice, lease, BYTES))
    with Client(adopted) as client:
        suite.check("restart: the old key is dead", not [data for data in client.exchange(
            client.frame(f.WRITE, 0, 4, b"late").datagram(Place.of(lease).key)) if f.genuine(data, Place.of(lease).key)], "nothing")
    give_back(alice, lease)


def main():
    """All sections on one node without an RDMA device, its memory in a file that outlives it."""
    programs()
    network()
    with contextlib.ExitStack() as stack:
        suite = stack.enter_context(Suite("fbmu netem"))
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        node = stack.enter_context(Node("--mem-file", f"{folder}/arena", device="none", mem_bytes="80MiB", address=THERE, within=WITHIN))
        for section in (transfers, narrow, delayed, restart):
            suite.section(section, suite, node, folder)


if __name__ == "__main__":
    main()
