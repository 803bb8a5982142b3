#!/usr/bin/python3
"""Shared by the suites of block storage: modules, pools, a node, leases, test data, and the traces to compare.
Everything that these functions make is removed when the suite ends."""
import atexit
import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile

import nvmet_tree
from checks import LATE_LIMIT_MS, give_back, programs, skip, until
from fabric import ADDRESS, Node
from nvme_host import connect, controllers, disconnect

TCP_PORT, TCP6_PORT, RDMA_PORT, FBBU_PORT = 4420, 4421, 4422, 5703
ADDRESS6 = "fd00:77::1"
MODULES = ("nvmet", "nvmet-tcp", "nvmet-rdma", "nvme-tcp", "nvme-rdma", "dm-mod", "loop", "nbd", "ext4", "sch_netem")
TOOLS = ("nvme", "fio", "dmsetup", "losetup", "mkfs.ext4", "blockdev")
MIB = 1 << 20
TCP = f"tcp:{ADDRESS}:{TCP_PORT}"
TCP6 = f"tcp:[{ADDRESS6}]:{TCP6_PORT}"
RDMA = f"rdma:{ADDRESS}:{RDMA_PORT}"


def ready():
    """Loads what is needed and mounts configfs; ends the suite as not run if something is missing."""
    programs()
    for tool in TOOLS:
        if not shutil.which(tool):
            skip(tool)
    for module in MODULES:
        if run("modprobe", module).returncode:
            skip(f"kernel module {module}")
    if not nvmet_tree.ROOT.is_dir():
        sh("mount -t configfs configfs /sys/kernel/config")
    # nodad: an address that is still tentative cannot be bound to.
    run("ip", "address", "replace", f"{ADDRESS6}/64", "dev", "d0", "nodad")
    atexit.register(run, "ip", "address", "del", f"{ADDRESS6}/64", "dev", "d0")


def run(*words, **more):
    """Runs a program of the guest; never raises."""
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, **more)


def sh(line):
    """Runs a shell line that must succeed; returns its output."""
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`{line}`: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def loop_device(mebibytes, sector_bytes=512):
    """A raw device over a sparse file in memory."""
    image = tempfile.NamedTemporaryFile(prefix="backing-", dir="/dev/shm", delete=False)  # noqa: SIM115, it stays
    image.truncate(mebibytes * MIB)
    device = sh(f"losetup --find --show --sector-size {sector_bytes} --direct-io=off {image.name}")
    atexit.register(os.unlink, image.name)
    atexit.register(run, "losetup", "--detach", device)
    return device


def directory_pool(mebibytes=None):
    """A directory; with a size, on a file system of its own in memory."""
    place = tempfile.mkdtemp(prefix="pool-", dir="/dev/shm")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    if mebibytes:
        sh(f"mount -t tmpfs -o mode=700,size={mebibytes}M pool {place}")
        atexit.register(run, "umount", place)
    return place


class BlockNode(Node):
    """A node with these pools. `ports`: the NVMe-oF ports."""

    def __init__(self, *pools, ports=(TCP,), more=(), device="none", fbbu=True, **settings):
        words = [word for pool in pools for word in ("--block-pool", pool)]
        words += [word for port in ports for word in ("--nvmet", port)]
        words += ["--fbbu-listen", f"{ADDRESS}:{FBBU_PORT}"] if fbbu else []
        super().__init__(*words, *more, device=device, mem_bytes="1MiB", **settings)


def resources(fabric):
    """The node's pools, by the path of their flag, or by their id if they have no path."""
    rows = [row for row in fabric.ask("inventory")["resources"] if row["resource_type"] == "block"]
    return {row.get("name") or row["resource_id"]: row for row in rows}


def row_of(fabric, pool):
    """The inventory row of a pool, by its path."""
    return next(row for name, row in resources(fabric).items() if str(pool) in name)


def alloc(tenant, length=4 * MIB, secs=300, transport="nvme-tcp", grace_secs=0, pool=None, more=()):
    """Leases blocks. `pool`: its path, or None for any."""
    words = ["lease", "alloc", "block", "--bytes", length, "--secs", secs, "--transport", transport]
    words += ["--grace-secs", grace_secs] if grace_secs else []
    words += ["--resource", resource_of(tenant, pool)] if pool else []
    return tenant.ask(*words, *more)


def resource_of(fabric, pool):
    """The id of a pool, by its path. The id is kept: it does not change, and asking takes half a second."""
    if pool in fabric.pool_ids:
        return fabric.pool_ids[pool]
    found = [row["resource_id"] for name, row in resources(fabric).items() if pool in name]
    if len(found) != 1:
        raise LookupError(f"pool {pool}: {len(found)} resources of that name in {sorted(resources(fabric))}")
    fabric.pool_ids[pool] = found[0]
    return found[0]


def nqn_of(lease):
    """The NQN of the subsystem of a lease."""
    return lease["binding"]["nvmeof"]["subnqn"]


@contextlib.contextmanager
def leased(tenant, *words, **settings):
    """A lease; given back at the end unless it has ended already."""
    lease = alloc(tenant, *words, **settings)
    try:
        yield lease
    finally:
        give_back(tenant, lease)


@contextlib.contextmanager
def attached(tenant, *words, **settings):
    """A lease that this host is connected to by the lease's own connect line, and its device."""
    with leased(tenant, *words, **settings) as lease:
        try:
            yield lease, connect(lease)
        finally:
            if controllers(nqn_of(lease)):
                disconnect(nqn_of(lease))


@contextlib.contextmanager
def device_of(tenant, lease):
    """The block device of the lease, made by `fabricctl block attach`."""
    path = tenant.ask("block", "attach", lease["lease_id"])["device"]
    try:
        yield path
    finally:
        tenant.ask("block", "detach", lease["lease_id"])


def put(path, data, offset=0):
    """Writes and syncs, so that a device error is raised here."""
    with open(path, "r+b", buffering=0) as target:
        target.seek(offset)
        target.write(data)
        os.fsync(target.fileno())


def get(path, length, offset=0):
    """Reads from the device, not from the page cache."""
    with open(path, "rb", buffering=0) as source:
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        source.seek(offset)
        return source.read(length)


def pattern(tag, length=MIB):
    """Unique bytes: `tag` repeated."""
    unit = (f"<{tag}>".encode() + bytes(16))[:16]
    return unit * (length // 16)


def size_of(path):
    """Bytes of a block device."""
    return int(sh(f"blockdev --getsize64 {path}"))


def traces(pools=()):
    """The objects of leases in the kernel and in pools, to compare before and after."""
    mapped = sorted(line.split()[0] for line in sh("dmsetup ls").splitlines() if not line.startswith("No devices"))
    files = {pool: _listing(pool) for pool in pools if os.path.isdir(pool)}
    return {"nvmet": nvmet_tree.snapshot(), "dm": mapped, "files": files}


def _listing(pool):
    place = pathlib.Path(pool)
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


def same_traces(suite, name, before, after):
    """Checks that `after` equals `before`."""
    suite.equal(f"{name}: configfs as it was", [], nvmet_tree.difference(before["nvmet"], after["nvmet"]))
    suite.equal(f"{name}: device-mapper as it was", before["dm"], after["dm"])
    suite.equal(f"{name}: files in pools as they were", before["files"], after["files"])


def settled(fabric, pool, available, secs=60):
    """Waits until `available` bytes of a pool are free; leased bytes are wiped first."""
    free = lambda: row_of(fabric, pool)["available"] == available
    return until(free, secs, f"{available} bytes of {pool} free")


def on_time(suite, name, lease, lost_at_ms):
    """Checks that a client's connection is lost at the deadline: not before, and not much later."""
    late_ms = (lost_at_ms or 0) - lease["expires_at_unix_ms"]
    print(f"   {name}: connection lost {late_ms:+.0f} ms from the deadline", flush=True)
    suite.check(f"{name}: cut at the deadline", 0 <= late_ms < LATE_LIMIT_MS, f"0 to {LATE_LIMIT_MS} ms", late_ms)


def ways_to_end(node, tenant, term_secs):
    """The ways in which a lease ends: name, term, and a call that returns when the node has reported the end."""
    return (("free", 300, tenant.free), ("revoke", 300, node.operator.revoke),
            ("expiry", term_secs, lambda lease: tenant.wait_until(lease, "expired", "freed", timeout_secs=term_secs + 60)))

