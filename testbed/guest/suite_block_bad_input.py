#!/usr/bin/python3
# lab: one-vm timeout=600
# covers: nvmet pool fallback-udp client/attach/src node/src/kinds/block
"""Impossible pools, invalid sizes and names, ports in use, a kernel without configfs or nvmet: each is refused with its
name and a remedy, and harms nothing."""
import contextlib
import os
import pathlib
import shutil
import socket

from block import MIB, BlockNode, alloc, attached, directory_pool, leased, loop_device, put, ready, resources, run, sh
from block import traces, same_traces
from checks import Suite, in_full_length, length, until
from fabric import ADDRESS, NOT_FOUND, OTHER, REFUSED, USAGE, Refused, program
from nvme_host import LISTENING, sockets

LATER = "10.77.9.1"
NOBODY = 65534
# Further host NQNs that are none.
OTHER_NAMES = ("", "x", "nqn", "nqn.2014-08.org.example:a/b", "nqn.2014-08.org.example:a\nb", "nqn.2014-08.org.example:ä", "..",
               "nqn.2014-08.org.example:a b")


class NotReady(Exception):
    """The output of a daemon that ended without being ready."""


@contextlib.contextmanager
def trying(*pools, **settings):
    """A node that may refuse to start; raises NotReady with its output."""
    try:
        node = BlockNode(*pools, fbbu=False, **settings)
    except RuntimeError as error:
        raise NotReady(str(error)) from None
    with node:
        yield node


def refused_pool(suite, name, path, *words, more=()):
    """Checks that the daemon refuses a pool: the daemon names the pool and the reason (`words`), and offers it to
    nobody."""
    try:
        with trying(path, more=more) as node:
            offered = [row for row in resources(node.operator).values() if row["capacity"]]
            said = "\n".join(node.lines)
    except NotReady as error:
        offered, said = [], str(error)
    told = [line for line in said.splitlines() if str(path) in line]
    print(f"   {name}: {(told or [said])[-1][:300]}", flush=True)
    suite.check(f"{name}: not offered", not offered, "no such resource", offered)
    suite.check(f"{name}: named, with its reason", any(all(word in line.lower() for word in words) for line in told), words, told or said[-300:])


    checked = run(program("fabricbiosd"), "check", "--state-dir", "/run/of-no-node", "--block-pool", path, "--nvmet", f"tcp:{ADDRESS}:4420", *more)
    suite.equal(f"{name}: a check refuses it too", 1, checked.returncode)
    told = [line for line in checked.stdout.splitlines() if str(path) in line]
    suite.check(f"{name}: with its reason", any(all(word in line.lower() for word in words) for line in told), words, checked.stdout)


def good(suite):
    """`fabricbiosd check` accepts the arguments of a start, and the start succeeds."""
    device, place = loop_device(16), directory_pool()
    before = pathlib.Path(device).read_bytes()
    words = [word for pool in (device, place) for word in ("--block-pool", pool)]
    checked = run(program("fabricbiosd"), "check", "--state-dir", "/run/of-no-node", *words, "--nvmet", f"tcp:{ADDRESS}:4420")
    suite.equal("a blank device and an empty directory: a check finds nothing against them", (0, 1), (checked.returncode, checked.stdout.count("\n")))
    suite.check("and changes nothing", before == pathlib.Path(device).read_bytes() and not os.listdir(place), "no byte")
    with trying(device, place) as node:
        suite.equal("the node offers both", 2, len(resources(node.operator)))
        # A running node has its own pools locked.
        checked = run(program("fabricbiosd"), "check", "--state-dir", node.state_dir, *words, "--nvmet", f"tcp:{ADDRESS}:4420")
        suite.check("a check beside it", checked.returncode == 0 and "a daemon runs" in checked.stdout, "a warning", checked.stdout)


def pools(suite):
    """Paths that are no pools, or no pools at the moment."""
    place = pathlib.Path(directory_pool())
    refused_pool(suite, "absent", place / "absent", "no such file", "make the directory")
    (place / "file").write_bytes(bytes(MIB))
    refused_pool(suite, "a regular file", place / "file", "neither a directory nor a block device", "losetup")
    readonly = place / "readonly"
    readonly.mkdir()
    sh(f"mount -t tmpfs -o ro,mode=700 tmpfs {readonly}")
    refused_pool(suite, "a directory that cannot be written", readonly, "read-only file system")
    sh(f"umount {readonly}")
    refused_pool(suite, "a character device", pathlib.Path("/dev/null"), "neither a directory nor a block device")


def devices(suite):
    """Devices that another program uses."""
    mounted, place = loop_device(16), directory_pool()
    sh(f"mkfs.ext4 -q -F {mounted} && mount {mounted} {place}")
    refused_pool(suite, "a mounted device", mounted, f"mounted on {place}", "umount", more=("--force",))
    sh(f"umount {place}")
    refused_pool(suite, "a file system in the way", mounted, "force")
    busy = loop_device(16)
    sh(f"dmsetup create holder --table '0 8192 linear {busy} 0'")
    refused_pool(suite, "a device in use", busy, "in use by dm-", more=("--force",))
    sh("dmsetup remove holder")
    parted = loop_device(16)
    # One primary partition of type 83, and the signature of the partition table.
    put(parted, bytes(446) + bytes.fromhex("00000000 83000000 00080000 00100000") + bytes(48) + b"\x55\xaa")
    refused_pool(suite, "a partition table in the way", parted, "force")
    with trying(parted, more=("--force",)) as node:
        suite.check("a partition table, with --force: offered", resources(node.operator), "a resource")
        twice = "the same pool for a second node"
        try:
            with BlockNode(parted, fbbu=False, address="127.0.0.1", ports=(f"tcp:{ADDRESS}:4444",)) as other:
                rows = [row for row in resources(other.operator).values() if row["capacity"]]
                suite.equal(f"{twice} is not offered", [], rows)
        except RuntimeError as error:
            suite.check(f"{twice} is refused", parted in str(error), parted, str(error)[-300:])


def requests(suite):
    """Sizes and names."""
    pool = loop_device(32)
    with trying(pool) as node:
        alice = node.tenant("alice")
        with leased(alice, 5000) as lease:
            suite.check("5,000 bytes: rounded up, and said", lease["capacity"] >= 5000 and lease["capacity"] % 512 == 0, "a multiple of 512", lease.get("capacity"))
        told = alice.run("lease", "alloc", "block", "--bytes", 5000, "--secs", 60, "--transport", "nvme-tcp", as_json=False)
        suite.check("5,000 bytes, for people: the size is told", told.returncode == 0 and "granted" in told.stderr, "granted", told.stdout + told.stderr)
        free = next(iter(resources(node.operator).values()))["available"]
        suite.refused("more than is free", lambda: alloc(alice, free + 512), REFUSED, "CapacityExceeded")
        suite.refused("more than any machine has", lambda: alloc(alice, 1 << 62), REFUSED, "CapacityExceeded")
        suite.refused("a transport that the node does not have", lambda: alloc(alice, transport="nvme-rdma"), REFUSED)
        for name in ("nqn.2014-08.org.example:../../../tmp/x", "nqn.2014-08.org.example:" + "x" * 220, "discovery", *length(OTHER_NAMES, ())):
            before = traces()
            suite.refused(f"host NQN {name[:44]!r}", lambda name=name: alloc(alice, more=("--hostnqn", name)), code=None)
            same_traces(suite, f"host NQN {name[:44]!r}", before, traces())
        for words in (("block", "attach", "0" * 31 + "1"), ("block", "read", "0" * 31 + "1", "--offset", 0, "--len", 512)):
            suite.refused(" ".join(map(str, words[:2])) + " of a lease that does not exist", lambda words=words: alice.ask(*words), NOT_FOUND)
        for words in (("--bytes", 0, "--secs", 9), ("--bytes", 4096, "--secs", 9, "--transport", "pigeon"), ("--secs", 9)):
            suite.refused(f"usage: {words}", lambda words=words: alice.ask("lease", "alloc", "block", *words), USAGE)
        suite.equal("nothing is fenced", [], node.operator.fences())


def ports(suite):
    """Ports in use, and addresses that are added later."""
    with socket.create_server((ADDRESS, 4420)):
        words = _said(loop_device(32))
        suite.check("a port in use: said, with the address", any(f"{ADDRESS}:4420" in line and "ss -ltnp" in line for line in words),
                    f"{ADDRESS}:4420, and how to find whose", words[-3:])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((ADDRESS, 5703))
        words = _said(loop_device(32), more=("--fbbu-listen", f"{ADDRESS}:5703"))
        suite.check("FBBU's port in use: said, with the address", any(f"{ADDRESS}:5703" in line and "in use" in line for line in words),
                    f"{ADDRESS}:5703", words[-3:])
    port = f"tcp:{LATER}:4420"
    node = BlockNode(loop_device(32), ports=(port,), fbbu=False)
    with node:
        alice = node.tenant("alice")
        suite.refused("an address that is not there yet", lambda: alloc(alice, 512 * 8), None)
        sh(f"ip address add {LATER}/32 dev lo")
        until(lambda: sockets(4420, LISTENING), 60, "the port")
        with attached(alice, MIB) as (_, path):
            suite.check("once it is there, the port is", path, "a device")
        sh(f"ip address del {LATER}/32 dev lo")


def _said(pool, **settings):
    """The output of a node that cannot have all the resources of its flags."""
    try:
        with trying(pool, **settings) as node:
            return list(node.lines)
    except NotReady as error:
        return str(error).splitlines()


def attaching(suite):
    """`block attach` and `detach` that must fail: the message names the missing thing and a remedy."""
    with trying(loop_device(32)) as node:
        alice = node.tenant("alice")
        tcp, udp, both = (alloc(alice, MIB, transport=transport)["lease_id"] for transport in ("nvme-tcp", "udp", "both"))
        freed = alloc(alice, MIB)
        alice.free(freed)
        memory = alice.alloc(4096, 60)["lease_id"]
        for name, words, status, parts in (
                ("a lease of memory", ("attach", memory), USAGE, ("mem",)), ("a lease that is over", ("attach", freed["lease_id"]), NOT_FOUND, ("new lease",)),
                ("a transport that the lease has not", ("attach", udp, "--transport", "nvme-tcp"), USAGE, ("nvme-tcp", "udp")),
                ("a device in place of a lease", ("attach", "/dev/nvme0n1"), USAGE, ("/dev/nvme0n1", "lease list")),
                ("not attached", ("detach", tcp), NOT_FOUND, ("/run/fabricbios-attach", "--attach-dir")),
                ("a file in place of a directory", ("attach", tcp, "--attach-dir", "/etc/passwd"), USAGE, ("/etc/passwd", "directory"))):
            _told(suite, f"attaching, {name}", alice, ("block", *words), status, parts)
        _without_root(suite, alice, tcp)
        _without_modules(suite, alice, {"tcp": tcp, "udp": udp, "both": both})
        for lease in (tcp, udp):
            suite.check("attaching, with all modules", alice.ask("block", "attach", lease)["device"], "a device")
            alice.ask("block", "detach", lease)


def _told(suite, name, tenant, words, status, parts):
    """Checks that the command fails with this status, and that the message has all `parts`."""
    finished = tenant.run(*words)
    refusal = Refused(list(map(str, words)), finished)
    suite.check(name, refusal.status == status and all(part in refusal.message for part in parts), f"exit {status}, {parts}", str(refusal))


def _without_root(suite, alice, lease):
    own = pathlib.Path("/tmp/nobody.identity")
    shutil.copy(alice.identity, own)
    os.chown(own, NOBODY, NOBODY)
    for word in ("attach", "detach"):
        done = run("setpriv", f"--reuid={NOBODY}", "--clear-groups", program("fabricctl"), "--node", alice.node, "--identity", own, "block", word, lease)
        suite.check(f"{word} without root: said", done.returncode == OTHER and "sudo" in done.stderr, "exit 1, sudo", done.stderr)


def _without_modules(suite, alice, leases):
    modules = ("nbd", "nvme-rdma", "nvme-tcp", "nvme-fabrics")
    for module in modules:
        run("modprobe", "-r", module)
    blocked = pathlib.Path("/etc/modprobe.d/lab.conf")
    blocked.write_text("".join(f"install {module} /bin/false\n" for module in modules), encoding="ascii")
    attach = lambda transport: ("block", "attach", leases[transport])
    _told(suite, "no nvme-tcp: which modprobe, and what would do", alice, attach("tcp"), OTHER, ("modprobe nvme-tcp", "UDP"))
    _told(suite, "no nbd: which modprobe, and what would do", alice, attach("udp"), OTHER, ("modprobe nbd", "NVMe-oF"))
    _told(suite, "neither: both are told", alice, attach("both"), OTHER, ("modprobe nvme-tcp", "modprobe nbd"))
    sh("modprobe --ignore-install nvme-fabrics")
    _told(suite, "nvme-fabrics without nvme-tcp: which modprobe", alice, attach("tcp"), OTHER, ("modprobe nvme-tcp",))
    blocked.unlink()


def kernel(suite):
    """A kernel without a module: the daemon names a remedy."""
    sh("umount /sys/kernel/config")
    words = _said(loop_device(32))
    suite.check("configfs not mounted: said what to do", any("mount" in line and "configfs" in line for line in words), "mount -t configfs", words[-3:])
    sh("mount -t configfs configfs /sys/kernel/config")
    # nvmet comes last: the other modules use it.
    for module in ("nvme-loop", "nvmet-tcp", "nvmet-rdma", "nvmet"):
        run("modprobe", "-r", module)
    blocked = pathlib.Path("/etc/modprobe.d/lab.conf")
    blocked.write_text("install nvmet /bin/false\n", encoding="ascii")
    words = _said(loop_device(32))
    suite.check("nvmet not loadable: said what to do", any("modprobe nvmet" in line for line in words), "modprobe nvmet", words[-3:])
    blocked.write_text("install nvmet-tcp /bin/false\n", encoding="ascii")
    words = _said(loop_device(32))
    suite.check("nvmet-tcp not loadable: said what to do", any("modprobe nvmet-tcp" in line for line in words), "modprobe nvmet-tcp", words[-3:])
    blocked.unlink()
    with trying(loop_device(32)) as node, attached(node.tenant("alice"), MIB) as (_, path):
        suite.check("afterwards it works", path, "a device")


@in_full_length
def links(suite):
    """Foreign files in the directory of a pool, beside the files of leases and in place of one."""
    place, victim = pathlib.Path(directory_pool()), pathlib.Path(directory_pool()) / "victim"
    victim.write_bytes(b"precious" * 512)
    (place / "symbolic").symlink_to(victim)
    os.link(victim, place / "hard")
    (place / "dir").mkdir()
    node = BlockNode(place, fbbu=False)
    with node:
        for kind, make, why in (("a symbolic link", lambda path: path.symlink_to(victim), "a symbolic link"),
                                ("a hard link", lambda path: os.link(victim, path), " names")):
            lease = alloc(node.tenant("alice"), MIB)
            node.kill()
            files = [path for path in place.rglob("*") if lease["lease_id"] in path.name and path.is_file()]
            suite.equal(f"{kind}: the lease has one file", 1, len(files))
            files[0].unlink()
            make(files[0])
            before = len(node.lines)
            node.start()
            with contextlib.suppress(Refused):
                node.tenant("alice").free(lease)
            said = node.lines[before:]
            suite.check(f"{kind} in place of the file: said", any(why in line and lease["lease_id"] in line for line in said), why, said[-5:])
            suite.equal(f"{kind} in place of the file: what it leads to is untouched", b"precious" * 512, victim.read_bytes())
        suite.equal("what is not the node's is left alone", (True, True, True),
                    ((place / "symbolic").is_symlink(), (place / "hard").exists(), (place / "dir").is_dir()))
    shutil.rmtree(place, ignore_errors=True)


def main():
    """Each section has nodes of its own."""
    ready()
    with Suite("block, bad input") as suite:
        for section in (good, pools, devices, requests, attaching, ports, links, kernel):
            suite.section(section, suite)


if __name__ == "__main__":
    main()
