#!/usr/bin/python3
# lab: one-vm timeout=600
# covers: nvmet pool fallback-udp client/attach/src node/src/kinds/block
"""Blocks over NVMe/TCP with Debian's nvme-cli: the lease's own connect line connects, to a file of a directory and to a
slice of a device, over IPv4 and IPv6; nobody else gets in; a key changes under a connection that goes on; a freed
device disappears at the client, and nothing of it is left on the node."""
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import block_daemon
import nvmet_tree
from block import MIB, TCP, TCP6, BlockNode, alloc, attached, device_of, directory_pool, get, leased, loop_device
from block import nqn_of, pattern, run
from block import put, ready, row_of, same_traces, settled, sh, resources, size_of, traces
from block_refusals import refused, strangers
from checks import FULL, Suite, in_full_length, length, until
from fabric import NOT_FOUND, OTHER, REFUSED, Refused
from nvme_host import CONTROLLERS, Fio, attempt, connect, controllers, disconnect, failed, gone, options_of, text_of, verified

RENEW_SECS = length(15, 10)
# Short, so that a block daemon queries the lease often.
KEYS_SECS = 60
ATTACHED_SECS = length(20, 14)
SHORT_SECS = length(12, 8)
NOBODY = 65534
OWN_HOST = "nqn.2014-08.org.nvmexpress:uuid:6f0c3a52-6e0a-4a0e-9f38-2a9b8e3f4c11"
# Opens the keys of hosts as soon as they exist, also by guessed names, and reads them later: the kernel checks the
# permission when a file is opened, not when it is read. Runs until its input ends, then prints the keys that it read.
# Only in full length it looks without pauses: all other suites run slower beside it.
SNOOP = """
import glob, os, select, sys
own, pause, *places = sys.argv[1:]
held, got = {}, set()
while not select.select([sys.stdin], [], [], float(pause))[0]:
    for path in (path for hosts in places for key in ("dhchap_key", "dhchap_ctrl_key")
                 for path in (*glob.glob(f"{hosts}/*/{key}"), f"{hosts}/{own}/{key}")):
        try:
            held.setdefault(path, os.open(path, os.O_RDONLY))
        except OSError:
            pass
    for path in list(held):
        try:
            text = os.pread(held[path], 4096, 0)
        except OSError:
            os.close(held.pop(path))
            continue
        if b"DHHC" in text:
            got.add(path)
        elif text:
            os.close(held.pop(path))
print(*sorted(got))
"""


@contextlib.contextmanager
def snooped(suite, name):
    """Checks that meanwhile no other user has read a key of a host; a control file that every user may read is
    found."""
    with tempfile.TemporaryDirectory() as place:
        control = pathlib.Path(place) / OWN_HOST / "dhchap_key"
        control.parent.mkdir()
        control.write_text("DHHC-1:00:Y29udHJvbA==:", encoding="ascii")
        os.chmod(place, 0o755)
        words = [sys.executable, "-c", SNOOP, OWN_HOST, str(length(0, 0.01)), str(nvmet_tree.ROOT / "hosts"), place]
        snoop = subprocess.Popen(words, user=NOBODY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        yield
        suite.equal(f"{name}: keys that another user has read", f"{control}\n", snoop.communicate("")[0])


# Locks the file of the node's processes, if it can, and holds the lock until its input ends.
LOCK = """import fcntl, sys
try:
    fcntl.lockf(lock := open(sys.argv[1], "rb"), fcntl.LOCK_SH)
    print("locked", flush=True)
except PermissionError:
    print("refused", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def locked_by_another_user(suite, node):
    """A process of another user that tries to pass for a process of the node that is already at each namespace."""
    words = [sys.executable, "-c", LOCK, str(node.state_dir / "calls.lock")]
    other = subprocess.Popen(words, user=NOBODY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    suite.equal("ends: another user locks what is being removed", "refused\n", other.stdout.readline())
    yield
    other.communicate("")


def modes(suite, node, pools):
    """Only root can read keys in configfs, from the moment they exist; the same for new keys and for the keys of mutual
    authentication."""
    alice = node.tenant("alice")
    with leased(alice, secs=KEYS_SECS, pool=pools["device"], more=("--mutual-auth",)) as lease:
        for when in ("made", "rotated"):
            keys_at = (nvmet_tree.ROOT / "hosts" / lease["binding"]["nvmeof"]["hostnqn"]).glob("dhchap*key")
            found = {path.name: oct(path.stat().st_mode & 0o777) for path in keys_at}
            suite.equal(f"modes: {when}", {"dhchap_key": "0o600", "dhchap_ctrl_key": "0o600"}, found)
            alice.rotate(lease)


def transfer(suite, node, pools):
    """A connect line used unchanged, and the same bytes read back, from each kind of pool."""
    alice = node.tenant("alice")
    for kind, pool in pools.items() if FULL else [("device", pools["device"])]:
        with attached(alice, 8 * MIB, pool=pool) as (lease, path):
            suite.equal(f"{kind}: the device's size", 8 * MIB, size_of(path))
            suite.check(f"{kind}: it begins as zeros", get(path, MIB) == bytes(MIB), "zeros")
            report = verified(path, size="4M")
            suite.equal(f"{kind}: written and verified", (0, 0), (report["status"], report["error"]))
            loss = int(options_of(lease["binding"]["nvmeof"]["connect"]).get("ctrl-loss-tmo", 600))
            suite.check(f"{kind}: the line's ctrl-loss-tmo", loss <= 5, "at most grace + 5 s", loss)


def by_fabricctl(suite, node, pools):
    """`block attach` gives the device and `block detach` removes it; by itself the device is removed before the lease
    ends."""
    alice = node.tenant("alice")
    with leased(alice, 8 * MIB, pool=pools["device"]) as lease:
        with device_of(alice, lease) as path:
            suite.equal("attach: written and verified", 0, verified(path, size="1M")["error"])
            suite.equal("attach: again, the same device", path, alice.ask("block", "attach", lease["lease_id"])["device"])
        suite.check("detach: the device is gone", not controllers(nqn_of(lease)))
    short = alloc(alice, 8 * MIB, secs=SHORT_SECS, pool=pools["device"])
    alice.ask("block", "attach", short["lease_id"])
    gone(nqn_of(short))
    state = alice.ask("lease", "query", short["lease_id"])["state"]
    suite.equal("attach: detached by itself while the lease still runs", "active", state)


def keys(suite, node, pools):
    """After a rotation of the keys, the device gets a connection with the new keys before it loses the old connection;
    the connection can be made again, and I/O goes on."""
    alice = node.tenant("alice")
    for kind, more in (("one way", ()), ("both ways", ("--mutual-auth",)))[length(0, 1):]:
        with leased(alice, secs=KEYS_SECS, pool=pools["device"], more=more) as lease:
            path = alice.ask("block", "attach", lease["lease_id"])["device"]
            job = Fio(path).started()
            block_daemon.changes_keys(suite, f"keys, {kind}", alice, lease)
            _connect_again(nqn_of(lease))
            suite.check(f"keys, {kind}: connected again with the new ones, fio goes on", job.running(), "running")
            report = job.stop()
            suite.equal(f"keys, {kind}: without an error", 0, report["error"])
            suite.equal(f"keys, {kind}: written and verified after that", 0, verified(path, size="1M")["error"])
            suite.check(f"keys, {kind}: no secret in the log", "DHHC" not in block_daemon.log(lease), "none")
            alice.ask("block", "detach", lease["lease_id"])


def _connect_again(nqn):
    """Resets the connection, so that the kernel connects again."""
    place, = (CONTROLLERS / name for name in controllers(nqn))
    until(lambda: text_of(place / "state") == "live", 60, "a live controller")
    (place / "reset_controller").write_text("1", encoding="ascii")
    until(lambda: text_of(place / "state") == "live", 60, "a live controller")


def daemon_ends(suite, node, pools):
    """However the block daemon ends, the device is removed with it or with the lease, and can be attached again."""
    alice = node.tenant("alice")
    with leased(alice, 8 * MIB, pool=pools["device"]) as lease:
        again = lambda *words: alice.ask("block", "attach", lease["lease_id"], *words)
        parts = lambda told, *names: tuple(told[name] for name in names)
        for number in (signal.SIGTERM, signal.SIGINT):
            status, words = block_daemon.Child(alice, lease).end(number)
            suite.equal(f"{number.name}: exit status, and the device is gone", (0, []), (status, controllers(nqn_of(lease))))
            suite.check(f"{number.name}: said", number.name in words and "detached" in words, number.name, words)
        path = again()["device"]
        suite.refused("attached: over another transport", lambda: again("--transport", "udp"), OTHER, "AttachedOtherwise")
        suite.equal("attached: over the transport that it has", ("nvme-tcp", True), parts(again("--transport", "nvme-tcp"), "transport", "already"))
        put(path, pattern("killed"))
        block_daemon.kill(lease)
        suite.refused("SIGKILL: another transport while it is connected", lambda: again("--transport", "nvme-rdma"), OTHER, "AttachedOtherwise")
        suite.equal("SIGKILL: attach finds the same device", (path, False), parts(again(), "device", "already"))
        suite.equal("SIGKILL: and its bytes", pattern("killed"), get(path, MIB))
        disconnect(nqn_of(lease))
        suite.equal("disconnected by somebody: attach makes it anew", False, again()["already"])
        block_daemon.kill(lease)
        alice.ask("block", "detach", lease["lease_id"])
        suite.check("SIGKILL: detach does it in place of the block daemon", not controllers(nqn_of(lease)))
        again()
        block_daemon.kill(lease)
        alice.free(lease)
        print(f"   SIGKILL: no device {gone(nqn_of(lease)):.1f} s after the lease's end", flush=True)
        suite.check("SIGKILL: the device does not outlive the lease", not controllers(nqn_of(lease)))


def interrupted(suite, node, pools):
    """A block daemon is killed while it connects: detach finds the connection and ends it."""
    alice = node.tenant("alice")
    with leased(alice, 8 * MIB, pool=pools["device"]) as lease:
        place = lambda: [CONTROLLERS / name for name in controllers(nqn_of(lease))]
        detach = lambda: alice.ask("block", "detach", lease["lease_id"])
        sh("tc qdisc add dev lo root netem delay 100ms")
        try:
            child = subprocess.Popen(block_daemon.words(alice, lease), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            until(place, 60, "a controller")
            child.send_signal(signal.SIGSTOP)
            suite.refused("stopped while it connects: detach says that somebody is at it", detach, OTHER, "Busy")
            child.kill()
            child.wait()
        finally:
            sh("tc qdisc del dev lo root")
        suite.check("killed while it connects: detach finds what is left", detach()["device"])
        suite.equal("killed while it connects: no controller and no record", ([], {}), (place(), block_daemon.record(lease)))
        suite.refused("detach once more", detach, NOT_FOUND, "NotAttached")


@in_full_length
def mounted(suite, node, pools):
    """A mounted device is removed in time too: its files are stored, and the log names the mount point."""
    alice, place = node.tenant("alice"), tempfile.mkdtemp(prefix="mount point ")
    lease = alloc(alice, 16 * MIB, secs=ATTACHED_SECS, grace_secs=60, pool=pools["device"])
    path = alice.ask("block", "attach", lease["lease_id"])["device"]
    run("mkfs.ext4", "-q", "-F", path)
    run("mount", path, place)
    (pathlib.Path(place) / "file").write_bytes(pattern("file", MIB))
    suite.refused("mounted: detach", lambda: alice.ask("block", "detach", lease["lease_id"]), OTHER, None)
    gone(nqn_of(lease))
    line = block_daemon.said(lease, "still mounted")
    suite.check("mounted: the log names the mount point and what was done", place in line and "stored" in line and "umount" in line, place, line)
    run("umount", place)
    renewed = alice.renew(lease, "--secs", 60)
    with device_of(alice, renewed) as path:
        suite.equal("mounted: fsck finds nothing", 0, run("fsck.ext4", "-f", "-n", path).returncode)
        run("mount", path, place)
        suite.check("mounted: what was written is there", (pathlib.Path(place) / "file").read_bytes() == pattern("file", MIB), "the same bytes")
        run("umount", place)
    alice.free(lease)


def tenants(suite, node, pools):
    """Two tenants at the same time: each has its own bytes, and the names and keys of each open no other lease."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    with attached(alice, pool=pools["device"]) as (hers, her_path), attached(bob, pool=pools["device"]) as (his, his_path):
        put(her_path, pattern("alice"))
        put(his_path, pattern("bob"))
        suite.equal("two tenants: each its own bytes", (pattern("alice"), pattern("bob")), (get(her_path, MIB), get(his_path, MIB)))
        names = [[lease["binding"]["nvmeof"][field] for field in ("subnqn", "hostnqn", "hostid", "dhchap_secret")] for lease in (hers, his)]
        suite.check("two tenants: no name or key in common", not set(names[0]) & set(names[1]), "none")
        strangers(suite, "two tenants", hers, his)
        suite.equal("two tenants: the first goes on", pattern("alice"), get(her_path, MIB))


def own_host(suite, node, _pools):
    """A host NQN that the client brings belongs to the client's tenant alone."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    name = OWN_HOST
    with attached(alice, more=("--hostnqn", name)) as (lease, path):
        suite.equal("--hostnqn: it is the lease's", name, lease["binding"]["nvmeof"]["hostnqn"])
        put(path, pattern("own"))
        with attached(alice, more=("--hostnqn", name)) as (second, other):
            same = [lease["binding"]["nvmeof"][field] == second["binding"]["nvmeof"][field] for field in ("dhchap_secret", "hostid")]
            suite.equal("--hostnqn: one key and one host id for both leases", [True, True], same)
            suite.check("--hostnqn: two devices", path != other and get(other, 16) == bytes(16), "another device")
        suite.refused("--hostnqn of another tenant", lambda: alloc(bob, more=("--hostnqn", name)), REFUSED)
        suite.equal("--hostnqn: the first goes on", pattern("own"), get(path, MIB))


@in_full_length
def rotation(suite, node, pools):
    """A renewal with a new key: the live connection goes on, and the old key opens no new one."""
    alice = node.tenant("alice")
    with attached(alice, pool=pools["directory"], secs=RENEW_SECS, more=("--rotate-on-renew",)) as (lease, path):
        job = Fio(path).started()
        renewed = until(lambda: _renewed(alice, lease), RENEW_SECS + 5, "a renewal")
        old, new = lease["binding"]["nvmeof"], renewed["binding"]["nvmeof"]
        suite.check("renewal: another key", old["dhchap_secret"] != new["dhchap_secret"], "another key")
        suite.equal("renewal: the same names", [old[f] for f in ("subnqn", "hostnqn", "hostid")], [new[f] for f in ("subnqn", "hostnqn", "hostid")])
        status, said = attempt(options_of(new["connect"]), old["subnqn"])
        suite.check("renewal: the new key connects", status == 0, "exit 0", said)
        suite.check("renewal: fio goes on", job.running(), "running")
        report = job.stop()
        suite.equal("renewal: without an error", 0, report["error"])
        again = _reconnected(renewed)
        suite.equal("renewal: connected again by the new line", pattern("x", 16), _round(again))
        refused(suite, "renewal: the old key for another connection", options_of(old["connect"]), old["subnqn"])


def _renewed(tenant, lease):
    try:
        return tenant.renew(lease, "--secs", 300)
    except Refused as refusal:
        if refusal.code != "RenewTooEarly":
            raise
        return None


def _reconnected(lease):
    disconnect(nqn_of(lease))
    return connect(lease)


def _round(path):
    put(path, pattern("x", MIB))
    return get(path, 16)


def ended(suite, node, pools):
    """A freed device disappears at the client, which cannot connect again."""
    alice = node.tenant("alice")
    free = {pool: row_of(node.operator, pool)["available"] for pool in pools.values()}
    for kind, pool in pools.items() if FULL else [("directory", pools["directory"])]:
        lease = alloc(alice, pool=pool)
        job = Fio(connect(lease)).started()
        with locked_by_another_user(suite, node):
            alice.free(lease)
            settled(node.operator, pool, free[pool])
        report = job.report()
        suite.check(f"free, {kind}: fio meets errors", failed(report), "an error")
        print(f"   free, {kind}: no device after {gone(nqn_of(lease)):.1f} s more", flush=True)
        suite.check(f"free, {kind}: the client's device is gone", not controllers(nqn_of(lease)))
        refused(suite, f"free, {kind}: the lease's own line", options_of(lease["binding"]["nvmeof"]["connect"]), nqn_of(lease))


def six(suite):
    """The same over IPv6, with a node that has no other port."""
    with BlockNode(loop_device(16), ports=(TCP6,)) as node:
        with attached(node.tenant("alice")) as (lease, path):
            suite.check("IPv6: the line's address", ":" in lease["binding"]["nvmeof"]["traddr"], "an IPv6 address", lease["binding"]["nvmeof"]["traddr"])
            suite.equal("IPv6: written and verified", 0, verified(path, size="1M")["error"])


def main():
    """All sections on one node with both kinds of pool; the traces before and after are compared."""
    ready()
    pools = {"directory": directory_pool(64), "device": loop_device(64)}
    with Suite("block over tcp") as suite:
        before = traces()
        with BlockNode(*pools.values(), ports=(TCP, TCP6)) as node:
            free = {pool: row["available"] for pool, row in resources(node.operator).items()}
            running = traces([pools["directory"]])
            with snooped(suite, "all leases"):
                for section in (modes, transfer, by_fabricctl, daemon_ends, interrupted, keys, mounted, tenants, own_host, rotation, ended):
                    suite.section(section, suite, node, pools)
            for pool, available in free.items():
                settled(node.operator, pool, available)
            same_traces(suite, "all leases ended", running, traces([pools["directory"]]))
            suite.equal("nothing is fenced", [], node.operator.fences())
            suite.equal("SIGTERM", 0, node.stop())
        same_traces(suite, "the node is gone", before, traces())
        suite.section(six, suite)


if __name__ == "__main__":
    main()
