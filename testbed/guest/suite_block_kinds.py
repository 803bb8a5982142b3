#!/usr/bin/python3
# lab: one-vm timeout=600
# covers: nvmet pool fallback-udp client/attach/src node/src/kinds/block
"""Pools of every kind, from outside: the inventory shows the kind of each, a client's device and HELLO have the same
blocks, a read-only pool gives read-only leases, and a pool that breaks under a running daemon is degraded alone."""
import atexit
import contextlib
import errno
import os
import pathlib

import fbmu_frame as f
import nvmet_tree
from block import MIB, BlockNode, alloc, attached, directory_pool, get, leased, loop_device, pattern, put, ready
from block import row_of, run, sh, size_of
from checks import FULL, Suite, length, skip, until
from fabric import REFUSED, UNREACHABLE
from fbbu_client import Client
from fbmu_suite import Strangers
from nvme_host import connect, disconnect, gone, verified
from suite_block_stuck import kernel_name, slice_of

O_DIRECT = 0o40000
# A block daemon detaches the device 2 s before the end of the term.
SHORT_SECS = length(12, 8)
UNDER_TEST = "pool-under-test"


def removable_disk():
    """A disk of the kernel's SCSI simulation that reports a removable medium."""
    for words in (("sd_mod",), ("scsi_debug", "removable=1", "dev_size_mb=64")):
        if run("modprobe", *words).returncode:
            skip(f"kernel module {words[0]}")
    name = until(lambda: [place.name for place in pathlib.Path("/sys/block").glob("sd*")], 60, "a SCSI disk")[0]
    return f"/dev/{name}"


def blocks(suite, node, pools):
    """Each kind of pool has the same blocks over both transports."""
    alice = node.tenant("alice")
    for kind, (pool, block_bytes, flags) in pools.items():
        row = row_of(node.operator, pool)
        wanted = block_bytes or row["block_bytes"]
        suite.equal(f"{kind}: inventory: bytes of a block, flags, health", (wanted, flags, "ok"),
                    (row["block_bytes"], row["flags"], row["health"]))
        if "read-only" in flags:
            continue
        with leased(alice, MIB, transport="both", pool=pool) as lease, Client(lease) as client:
            path = connect(lease)
            seen = [int(sh(f"blockdev {word} {path}")) for word in ("--getss", "--getsize64")]
            suite.equal(f"{kind}: NVMe-oF: bytes of a block, and of all", [wanted, MIB], seen)
            suite.equal(f"{kind}: HELLO: the same", (wanted, MIB // wanted), (client.unit, client.hello["resource_len"]))
            put(path, pattern(kind[:8], 65536))
            suite.check(f"{kind}: written over one, read over the other", client.read(0, 65536 // wanted) == pattern(kind[:8], 65536), "the same bytes")
            if kind.startswith("device"):
                suite.check(f"{kind}: past the page cache", opened_direct(node, lease), "O_DIRECT")
            disconnect(lease["binding"]["nvmeof"]["subnqn"])


def opened_direct(node, lease):
    """Whether the daemon has the lease's storage open with O_DIRECT."""
    place = pathlib.Path(f"/proc/{node.process.pid}")
    volume = f"/dev/{kernel_name(slice_of(lease))}"
    for entry in (place / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(entry)
            if lease["lease_id"] in target or target == volume:
                flags = (place / "fdinfo" / entry.name).read_text(encoding="ascii").split("flags:")[1].split()[0]
                if int(flags, 8) & O_DIRECT:
                    return True
    return False


def read_only(suite, node, pools):
    """A device that cannot be written: its leases are read-only without a request for that, and NVMe-oF is refused with
    the name of the possible transport."""
    alice, pool = node.tenant("alice"), pools["read-only device"][0]
    for name, how in (("over NVMe-oF", {"pool": pool}), ("--read-only, of a writable one", {"more": ("--read-only",)})):
        suite.refused(f"read-only device: {name}", lambda how=how: alloc(alice, MIB, **how), REFUSED, None, "FBBU")
    with leased(alice, MIB, transport="udp", pool=pool) as lease, Client(lease) as client:
        suite.check("read-only device: the lease says so, unasked", lease["effective"].get("read_only"), True, lease["effective"])
        Strangers(suite, client).refused("read-only device", f.BLOCK_RO, [("WRITE", client.frame(f.WRITE, 0, 1, bytes(client.unit)))])
        suite.check("read-only device: it can be read", client.read(0, 1) is not None)
        path = alice.ask("block", "attach", lease["lease_id"])["device"]
        suite.equal("read-only device: attached over UDP, it is read-only there, too", "1", sh(f"blockdev --getro {path}"))
        alice.ask("block", "detach", lease["lease_id"])
    writable = alloc(alice, MIB, transport="udp")
    suite.check("a lease of any pool is not from that one", not writable["effective"].get("read_only"), "writable", writable["effective"])
    alice.free(writable)


def by_hand(suite, _node, pools):
    """A read-only pool has no NVMe-oF: the kernel's target does not open a read-only device
    (docs/decisions/0008-nvmet-cut.md)."""
    place = nvmet_tree.ROOT / "subsystems" / "nqn.2014-08.org.example:read-only"
    namespace = place / "namespaces" / "1"
    for made in (place, namespace):
        made.mkdir()
    (namespace / "device_path").write_text(pools["read-only device"][0], encoding="ascii")
    try:
        (namespace / "enable").write_text("1", encoding="ascii")
        refusal = None
    except OSError as error:
        refusal = error
    suite.check("the target itself: a read-only device is not enabled", refusal and refusal.errno in (errno.EACCES, errno.EROFS), "EACCES or EROFS", refusal)
    print(f"   the target itself: {refusal}", flush=True)
    for made in (namespace, place):
        made.rmdir()


def by_itself(suite, node, pools):
    """The device over UDP, too, is detached shortly before its lease ends."""
    alice = node.tenant("alice")
    lease = alloc(alice, MIB, secs=SHORT_SECS, transport="udp", pool=pools["device, 512"][0])
    path = alice.ask("block", "attach", lease["lease_id"])["device"]
    suite.equal("attached over UDP: its size", MIB, size_of(path))
    until(lambda: size_of(path) == 0, SHORT_SECS + 10, "the device to go by itself")
    suite.equal("it went while the lease still ran", "active", alice.query(lease)["state"])
    alice.free(lease)


def loss(suite, node, pools):
    """ctrl-loss-tmo is how long the kernel tries to reconnect: the grace time and 5 s, at most 30 s."""
    alice = node.tenant("alice")
    for grace_secs, wanted in ((0, 5), (10, 15), (60, 30)):
        with leased(alice, MIB, grace_secs=grace_secs, pool=pools["device, 512"][0]) as lease:
            words = lease["binding"]["nvmeof"]["connect"].split()
            suite.equal(f"a grace time of {grace_secs} s: ctrl-loss-tmo", str(wanted), words[words.index("--ctrl-loss-tmo") + 1])
    lease = alloc(alice, MIB, pool=pools["device, 512"][0])
    connect(lease)
    alice.free(lease)
    suite.check("a lease without one: its device is gone within 12 s of the end", gone(lease["binding"]["nvmeof"]["subnqn"], 12) is not None)


def vanished(suite, node, pools):
    """A disk that is pulled out."""
    disk, good = pools["removable device"][0], pools["device, 512"][0]
    pathlib.Path(f"/sys/block/{pathlib.Path(disk).name}/device/delete").write_text("1", encoding="ascii")
    flags = until(lambda: "degraded" in row_of(node.operator, disk)["flags"], 60, f"{disk} degraded")
    suite.equal("pulled out: the inventory says so, of it alone", (True, []), (flags, row_of(node.operator, good)["flags"]))
    refused(suite, node.tenant("alice"), disk)
    with attached(node.tenant("bob"), MIB, pool=good) as (_, path):
        suite.equal("pulled out: another pool grants, and its bytes are right", 0, verified(path, size="256K")["error"])


def broken(suite):
    """A device that gives only errors, and a directory that is moved away, while the daemon runs; then both come
    back."""
    base, place, good = loop_device(64), directory_pool(64), loop_device(32)
    sectors = sh(f"blockdev --getsz {base}")
    sh(f"dmsetup create {UNDER_TEST} --table '0 {sectors} linear {base} 0'")
    # Without udev there is nothing in /dev/mapper.
    device = f"/dev/{kernel_name(UNDER_TEST)}"
    moved = place + ".moved"
    with BlockNode(device, place, good) as node:
        alice = node.tenant("alice")
        table(f"0 {sectors} error")
        suite.check("errors: no lease of it", refused(suite, alice, device))
        degraded(suite, node, "errors", device, good)
        table(f"0 {sectors} linear {base} 0")
        healthy(suite, node, "errors", device)
        if FULL:
            row = row_of(node.operator, place)
            sh(f"fallocate -l {row['capacity'] // 2} {place}/others")
            degraded(suite, node, "filled by others", place, good)
            sh(f"rm {place}/others")
            healthy(suite, node, "filled by others", place)
        sh(f"umount --lazy {place} && mv {place} {moved}")
        degraded(suite, node, "moved away", place, good)
        sh(f"mkdir -m 700 {place}")
        suite.check("moved away: nothing is granted of what stands there now", refused(suite, alice, place))
        suite.equal("moved away: nor written into it", [], os.listdir(place))
        suite.equal("nothing is fenced", [], node.operator.fences())
        suite.equal("SIGTERM", 0, node.stop())
    sh(f"dmsetup remove {UNDER_TEST}; rmdir {moved}")


def table(line):
    """Replaces the device under the pool."""
    sh(f"dmsetup suspend --noflush --nolockfs {UNDER_TEST} && dmsetup load {UNDER_TEST} --table '{line}' && dmsetup resume {UNDER_TEST}")


def refused(suite, tenant, pool):
    """Checks that a pool that cannot give a lease refuses one."""
    return suite.refused(f"{pool}: refused", lambda: alloc(tenant, MIB, pool=pool), UNREACHABLE, "Unavailable")


def degraded(suite, node, name, pool, good):
    """Checks that the inventory shows this pool and no other as degraded, and that the other pool goes on."""
    flags = until(lambda: row_of(node.operator, pool)["flags"], 60, f"{pool} degraded")
    suite.equal(f"{name}: the inventory's flags of it, and of its neighbour", (["degraded"], []), (flags, row_of(node.operator, good)["flags"]))
    with attached(node.tenant("bob"), MIB, pool=good) as (_, path):
        suite.equal(f"{name}: another pool grants, and its bytes are right", 0, verified(path, size="256K")["error"])


def healthy(suite, node, name, pool):
    """Checks that the pool is back without a restart: its next lease works, and it is not degraded any more."""
    with attached(node.tenant("carol"), MIB, pool=pool) as (_, path):
        suite.equal(f"{name}: back, it grants zeros", bytes(65536), get(path, 65536))
    suite.check(f"{name}: back, and not degraded any more", until(lambda: not row_of(node.operator, pool)["flags"], 60, f"{pool} healthy"))


def main():
    """The kinds on one node, the broken pools on another."""
    ready()
    fixed = loop_device(32)
    sh(f"blockdev --setro {fixed}")
    # Without this the next user of the loop device would get it read-only.
    atexit.register(sh, f"blockdev --setrw {fixed}")
    pools = {"directory": (directory_pool(64), None, []), "device, 512": (loop_device(64), 512, []),
             "device, 4096": (loop_device(64, 4096), 4096, []), "read-only device": (fixed, 512, ["read-only"]),
             "removable device": (removable_disk(), 512, ["removable"])}
    with Suite("kinds of pools of blocks") as suite:
        with BlockNode(*(pool for pool, *_ in pools.values())) as node:
            for section in (blocks, read_only, by_hand, by_itself, loss, vanished):
                suite.section(section, suite, node, pools)
            suite.equal("nothing is fenced", [], node.operator.fences())
            suite.equal("SIGTERM", 0, node.stop())
        suite.section(broken, suite)


if __name__ == "__main__":
    main()
