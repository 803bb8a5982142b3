#!/usr/bin/python3
# lab: one-vm alone timeout=600
# covers: nvmet pool fallback-udp client/attach/src node/src/kinds/block
"""Pools that differ from the node's records: a journal restored from an older copy, a pool that is missing at a start,
a pool taken by force from a node whose state is lost. No tenant ever reads another tenant's bytes, and nothing is lost
that an operator has not given up."""
import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import nvmet_tree
from block import MIB, TCP, BlockNode, alloc, attached, directory_pool, get, loop_device, nqn_of, pattern, put, ready
from block import row_of, settled, sh, size_of
from checks import FULL, Suite, in_full_length, length
from fabric import UNREACHABLE, Refused, program
from nvme_host import Fio, connect, disconnect, failed, gone
from suite_block_restart import DIE_AFTER, volume_of

SECRET = pattern("secret")
ALL = ("--force",)


def kept(node, name):
    """Returns a copy of the state directory of a daemon that was killed. Its journal's process ends after it, and has this lock until then."""
    copy = node.state_dir.with_name(f"{node.state_dir.name}-{name}")
    with open(node.state_dir / "journal.redb.lock", "r+") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        shutil.copytree(node.state_dir, copy)
    return copy


def put_back(node, copy):
    """Restores the state directory from the copy."""
    shutil.rmtree(node.state_dir)
    shutil.copytree(copy, node.state_dir)


def withheld(suite, name, node, pools, *words):
    """Checks that no lease of the pools is granted, that the log has the reason, and that a tenant is refused with
    Unavailable."""
    for kind, pool in pools.items():
        row = row_of(node.operator, pool)
        suite.check(f"{name}, {kind}: shown, and nothing of it to be had", row["available"] == 0 and row["capacity"], "0 of some", row)
        print(f"   {name}, {kind}: {row}", flush=True)
        said = node.wait_for_line("withheld", str(pool), *words)
        suite.check(f"{name}, {kind}: the log says why", said, words, node.lines[-5:])
        print(f"   {said}", flush=True)
        suite.refused(f"{name}, {kind}: no lease", lambda pool=pool: alloc(node.tenant("carol"), MIB, pool=pool), UNREACHABLE, "Unavailable")


def older_copy(suite):
    """A journal without the latest lease."""
    pools = {**length({"directory": directory_pool(64)}, {}), "device": loop_device(64)}
    with BlockNode(*pools.values()) as node:
        _older_copy(suite, node, pools)


def _older_copy(suite, node, pools):
    alice, bob = node.tenant("alice"), node.tenant("bob")
    before = {kind: alloc(alice, pool=pool) for kind, pool in pools.items()}
    node.kill()
    old = kept(node, "old")
    node.start()
    later = {}
    for kind, pool in pools.items():
        alice.free(before[kind])
        settled(node.operator, pool, row_of(node.operator, pool)["capacity"])
        later[kind] = alloc(bob, pool=pool)
        path = connect(later[kind])
        put(path, SECRET)
        disconnect(nqn_of(later[kind]))
    node.kill()
    new = kept(node, "new")

    put_back(node, old)
    node.start()
    withheld(suite, "an older copy", node, pools, "older copy", "newest journal", "--force")
    for kind, pool in pools.items():
        suite.equal(f"an older copy, {kind}: what the journal does not know is not served", 0, nvmet_tree.listed(nqn_of(later[kind])))
        suite.check(f"an older copy, {kind}: a lease that is over stays over", alice.query(before[kind])["state"] == "revoked",
                    "revoked", alice.query(before[kind]))
        suite.check(f"an older copy, {kind}: what was written since is still there", SECRET[:4096] in _bytes(later[kind], pool))
    node.kill()

    if FULL:
        node.start()
        withheld(suite, "the older copy once more", node, pools, "older copy")
        node.kill()
    put_back(node, new)
    node.start()
    for kind in pools:
        path = connect(later[kind])
        suite.equal(f"the newest journal again, {kind}: the lease and its bytes", SECRET, get(path, len(SECRET)))
        disconnect(nqn_of(later[kind]))
    node.kill()

    put_back(node, old)
    node.command.extend(ALL)
    node.start()
    for kind, pool in pools.items():
        capacity = settled_row(node, pool)
        with attached(node.tenant("carol"), min(capacity, 32 * MIB), pool=pool) as (_, path):
            suite.check(f"an older copy by force, {kind}: nothing of before is found", not get(path, 8 * MIB).strip(b"\0"), "zeros")
    suite.equal("an older copy by force: nothing is fenced", [], node.operator.fences())


def settled_row(node, pool):
    """Waits until all of a pool is free; returns the number of bytes."""
    capacity = row_of(node.operator, pool)["capacity"]
    settled(node.operator, pool, capacity)
    return capacity


def _bytes(lease, pool):
    """The bytes of the file of a lease, or of the whole device."""
    return pathlib.Path(volume_of(lease, pool)).read_bytes() if os.path.isdir(pool) else get(pool, size_of(pool))


@in_full_length
def away(suite):
    """A pool that is missing at a start: the node starts, the other pools grant leases, and the leases of the missing
    pool wait for it."""
    place, device = directory_pool(64), loop_device(64)
    link = str(pathlib.Path(place).with_name("link-to-the-pool"))
    os.symlink(device, link)
    with BlockNode(place, link) as node:
        alice = node.tenant("alice")
        lease = alloc(alice, pool=link)
        path = connect(lease)
        put(path, SECRET)
        disconnect(nqn_of(lease))
        short = alloc(alice, secs=8, pool=link)
        node.kill()
        os.unlink(link)
        node.start()
        withheld(suite, "away", node, {"device": link}, "No such file")
        suite.equal("away: its lease goes on", "active", alice.query(lease)["state"])
        with attached(alice, MIB, pool=place) as (_, path):
            suite.check("away: another pool grants", path, "a device")
        suite.equal("away: one that runs out is fenced", "fenced", alice.wait_until(short, "fenced", "expired")["state"])
        suite.equal("away: its pool has nothing to give out", 0, row_of(node.operator, link)["available"])
        node.kill()
        os.symlink(device, link)
        node.start()
        path = connect(lease)
        suite.equal("back: the lease and its bytes", SECRET, get(path, len(SECRET)))
        disconnect(nqn_of(lease))
        alice.free(lease)
        suite.check("back: all of it is free", settled_row(node, link))
        suite.equal("back: nothing is fenced", [], node.operator.fences())


def replaced(suite):
    """Something else is in the place of a pool: an empty mount point, a blank device. It does not become a pool."""
    disk, device, blank = directory_pool(64), loop_device(64), loop_device(64)
    mount = pathlib.Path(disk).with_name("mount-point")
    mount.mkdir(mode=0o700)
    link = mount.with_name("link-to-a-disk")
    sh(f"mount --bind {disk} {mount}")
    os.symlink(device, link)
    pools = {"directory": str(mount), "device": str(link)}
    with BlockNode(*pools.values()) as node:
        alice = node.tenant("alice")
        leases = {kind: alloc(alice, pool=pool) for kind, pool in pools.items()}
        for lease in leases.values():
            put(connect(lease), SECRET)
            disconnect(nqn_of(lease))
        node.kill()
        # The kernel's target has a file of the pool open.
        sh(f"umount --lazy {mount}")
        link.unlink()
        os.symlink(blank, link)
        node.start()
        withheld(suite, "replaced", node, pools)
        suite.equal("replaced: nothing is written into the mount point", [], os.listdir(mount))
        suite.check("replaced: nor on the blank device", not get(blank, MIB).strip(b"\0"), "zeros")
        node.kill()
        sh(f"mount --bind {disk} {mount}")
        link.unlink()
        os.symlink(device, link)
        node.start()
        for kind, lease in leases.items():
            suite.equal(f"put right, {kind}: the lease and its bytes", SECRET, get(connect(lease), len(SECRET)))
            disconnect(nqn_of(lease))


@in_full_length
def taken(suite):
    """A node whose state is lost: its old exports are ended before its pools are leased."""
    pools = {"directory": directory_pool(64), "device": loop_device(64)}
    with BlockNode(*pools.values()) as node:
        leases = {kind: alloc(node.tenant("alice"), pool=pool) for kind, pool in pools.items()}
        jobs = {kind: Fio(connect(lease)).started() for kind, lease in leases.items()}
        node.kill()
    try:
        BlockNode(*pools.values()).stop()
        suite.check("without --force: refused", False)
    except RuntimeError as refusal:
        suite.check("without --force: refused, with what to do", "--force" in str(refusal), "--force", str(refusal)[-400:])
    with BlockNode(*pools.values(), more=ALL) as other:
        for kind, pool in pools.items():
            nqn = nqn_of(leases[kind])
            suite.equal(f"{kind}: what the lost node served is gone", [], [name for name in nvmet_tree.subsystems() if name == nqn])
            suite.check(f"{kind}: its client meets errors", failed(jobs[kind].report()), "an error")
            gone(nqn)
            suite.check(f"{kind}: told what was lost by force", other.wait_for_line("--force", pool), "--force", other.lines[-9:])
            capacity = settled_row(other, pool)
            with attached(other.tenant("bob"), min(capacity, 16 * MIB), pool=pool) as (_, path):
                suite.check(f"{kind}: nothing of before is found", not get(path, 8 * MIB).strip(b"\0"), "zeros")
    foreign_export(suite)


def foreign_export(suite):
    """A subsystem over a pool's device that no node has made: the node names it and leaves it alone."""
    device = loop_device(32)
    put(device, SECRET)
    foreign = nvmet_tree.Foreign(device, nqn="nqn.2014-08.org.example:over-the-pool")
    try:
        BlockNode(device, fbbu=False).stop()
        suite.check("somebody else's export of the device: refused", False)
    except RuntimeError as refusal:
        suite.check("somebody else's export of the device: named", foreign.nqn in str(refusal), foreign.nqn, str(refusal)[-400:])
    suite.equal("somebody else's export: untouched", (1, SECRET), (nvmet_tree.listed(foreign.nqn), get(device, len(SECRET))))
    foreign.remove()
    with BlockNode(device, fbbu=False) as node:
        suite.check("once it is gone, the device is a pool", row_of(node.operator, device)["available"])


def no_block_size(suite):
    """A directory on overlayfs, like the guest's root: the kernel's target would serve 0 bytes of a file there."""
    place = tempfile.mkdtemp(prefix="pool-", dir="/var/tmp")
    kind = sh(f"stat -f -c %T {place}").strip()
    suite.equal("a pool without a block size: on overlayfs", "overlayfs", kind)
    try:
        BlockNode(place, fbbu=False).stop()
        suite.check("a pool without a block size: refused for NVMe-oF", False)
    except RuntimeError as refusal:
        said = [word for word in (place, "cannot be leased over NVMe-oF", "overlayfs", "--fbbu-listen") if word not in str(refusal)]
        suite.equal("a pool without a block size: refused for NVMe-oF, with what to do", [], said)
    with BlockNode(place, ports=()) as node:
        suite.check("over UDP it is a pool", row_of(node.operator, place)["available"])
        lease = alloc(node.tenant("alice"), MIB, transport="udp")
        node.kill()
        over_udp, node.command = node.command, [*node.command, "--nvmet", TCP]
        flags = node.command[node.command.index("--auto-detect"):]
        said = subprocess.run([program("fabricbiosd"), "check", *flags], capture_output=True, text=True, check=False)
        refused = f"refused: --block-pool {place}: cannot be leased over NVMe-oF"
        suite.equal("a known pool without a block size: check says that a start over NVMe-oF is refused", (1, True),
                    (said.returncode, refused in said.stdout))
        try:
            node.start()
            suite.check("a known pool without a block size: refused for NVMe-oF too", False)
        except RuntimeError as refusal:
            words = [word for word in (place, "cannot be leased over NVMe-oF") if word not in str(refusal)]
            suite.equal("a known pool without a block size: refused for NVMe-oF too, and not withheld", ([], False),
                        (words, "withheld" in str(refusal)))
        node.command = over_udp
        node.start()
        suite.equal("and its lease has lost nothing", "active", node.tenant("alice").query(lease)["state"])
    shutil.rmtree(place)


def stray(suite):
    """A volume that is not on record and cannot be removed, since somebody has it open: other leases are granted beside
    it, and once it is closed, its fence is cleared."""
    pool = loop_device(32)
    with BlockNode(pool, ports=()) as node:
        node.stop()
        node.environment = {DIE_AFTER: "make volume"}
        node.start()
        with contextlib.suppress(Refused, subprocess.TimeoutExpired):
            alloc(node.tenant("alice"), transport="udp")
        suite.equal("a stray: its daemon died before it was on record", -signal.SIGABRT, node.process.wait(60))
        node.kill()
        minor = sh("dmsetup info --columns --noheadings -o minor $(dmsetup ls | grep -o '^fabricbios-[0-9a-f]*')")
        holder = os.open(f"/dev/dm-{minor}", os.O_RDONLY)
        node.environment = {}
        node.start()
        fences = node.operator.fences()
        suite.equal("a stray that is held: fenced", 1, len(fences))
        row = row_of(node.operator, pool)
        suite.equal("a stray that is held: the rest is to be had", row["capacity"] - 4 * MIB, row["available"])
        for _ in range(2):
            suite.check("a stray that is held: a lease beside it", alloc(node.tenant("bob"), transport="udp"))
        os.close(holder)
        # The node tries again by itself, and may have cleared it already.
        with contextlib.suppress(Refused):
            node.operator.ask("fence", "clear", fences[0]["resource_id"])
        suite.equal("a stray that is gone: nothing is fenced", [], node.operator.fences())
        available = row_of(node.operator, pool)["available"]
        suite.check("a stray that is gone: the rest is leased", alloc(node.tenant("bob"), available, transport="udp"))
        suite.check("a stray that is gone: its place is leased", alloc(node.tenant("bob"), transport="udp"))
    suite.equal("a stray: nothing is left", "No devices found", sh("dmsetup ls"))


def refusals(suite):
    """The refusal when the node cannot grant: it says to try again later, and names no internals of the node."""
    port = "tcp:10.77.9.9:4420"
    with BlockNode(loop_device(32), ports=(port,), fbbu=False) as node:
        try:
            alloc(node.tenant("alice"), MIB)
            suite.check("an address that is not there: refused", False)
        except Refused as refusal:
            suite.equal("an address that is not there: come again", ("Unavailable", "transient"), (refusal.code, refusal.reason_class))
            inside = [word for word in ("/dev", "/sys", "10.77.9.9", "process") if word in refusal.message]
            suite.equal("an address that is not there: nothing of the node's insides", [], inside)
        suite.check("an address that is not there: the log has it", node.wait_for_line("no binding", "listens"), "no binding", node.lines[-5:])


def main():
    """Each section has nodes of its own."""
    ready()
    with Suite("block, pools that changed") as suite:
        for section in (older_copy, away, replaced, taken, stray, no_block_size, refusals):
            suite.section(section, suite)


if __name__ == "__main__":
    main()
