#!/usr/bin/python3
# lab: one-vm disk=256M boots=2,3 timeout=300
# covers: nvmet pool fallback-udp node/src/kinds/block
"""A power cut under a connected client. After the boot, a lease that has not expired has its names, keys and bytes
before the node prints READY; a lease that expired while the machine was off is gone, and its bytes cannot be found.
After another boot with a clock that runs behind, nobody knows how long the machine was off, so the lease is over; this boot is in
full length only.

The first part of the disk holds a file system with the node's state and a pool; the rest of the disk is another pool, a
raw device."""
import json
import os
import pathlib
import time

import nvmet_tree
from block import MIB, RDMA, TCP, BlockNode, alloc, get, leased, nqn_of, pattern, put, ready, row_of, settled, sh
from checks import Suite, until
from fbbu_client import Client
from nvme_host import Fio, connect, device, disconnect, verified

STATE, POOL = "/dev/loop6", "/dev/loop7"
STATE_BYTES = 96 * MIB
SHORT_SECS = 15
# Less than the time by which the node backdates certificates.
CLOCK_BEHIND_SECS = 1200
MOUNTED = pathlib.Path("/mnt/state")
DIRECTORY = MOUNTED / "pool"
NOTES = MOUNTED / "leases.json"


def parts():
    """Two devices on the one disk."""
    sh(f"losetup --sizelimit {STATE_BYTES} {STATE} /dev/vda")
    sh(f"losetup --offset {STATE_BYTES} {POOL} /dev/vda")


def mounted():
    """The file system with the node's state."""
    MOUNTED.mkdir(parents=True, exist_ok=True)
    sh(f"mount {STATE} {MOUNTED}")
    return MOUNTED / "fabricbios"


def verifier(tenant):
    """The fields of the reply to HELLO that are compared."""
    with leased(tenant, transport="udp") as lease, Client(lease) as client:
        return client.hello["write_verifier"]


def before_the_cut(suite):
    """Makes two leases with bytes; then the machine stops without a shutdown."""
    sh(f"mkfs.ext4 -q -F {STATE}")
    state = mounted()
    DIRECTORY.mkdir(mode=0o700)
    node = BlockNode(POOL, DIRECTORY, state_dir=state)
    alice = node.tenant("alice")
    os.sync()
    long, short = (alloc(alice, secs=secs, pool=POOL) for secs in (600, SHORT_SECS))
    both = alloc(alice, secs=600, transport="both", pool=str(DIRECTORY))
    for lease, tag in ((long, "kept"), (both, "both"), (short, "lost")):
        path = connect(lease)
        put(path, pattern(tag))
        suite.equal(f"before: {tag}", pattern(tag), get(path, MIB))
    # From here on with another port: TCP still holds the port of the earlier leases.
    node.kill()
    node = BlockNode(POOL, DIRECTORY, state_dir=state, ports=(TCP, RDMA))
    alice = node.tenant("alice")
    late = alloc(alice, MIB, secs=600, pool=POOL, transport="nvme-rdma")
    with open(NOTES, "w", encoding="ascii") as notes:
        json.dump([long, both, short, late, verifier(alice)], notes)
        notes.flush()
        os.fsync(notes.fileno())
    directory = os.open(MOUNTED, os.O_RDONLY)
    os.fsync(directory)
    suite.check("before: fio is running", Fio(device(nqn_of(long)), size="1M", offset="2M").started().running())
    # No shutdown: the harness ends the guest.


def after_the_boot(suite):
    """Checks the state after the next start."""
    state = mounted()
    long, both, short, late, noted = json.loads(NOTES.read_text(encoding="ascii"))
    until(lambda: time.time() * 1000 > short["expires_at_unix_ms"], SHORT_SECS + 10, "the end of the short lease")
    sh("rdma link delete rxe0")
    suite.check("after: the newest commits are in the journal's log", (state / "journal.redb.commits").exists())
    node = BlockNode(POOL, DIRECTORY, state_dir=state, ports=(TCP, RDMA))
    suite.equal("after: both are served when it says READY", [1, 1], [nvmet_tree.listed(nqn_of(lease)) for lease in (long, both)])
    comes_late(suite, node, late)
    path = connect(both)
    suite.equal("after: a file of a directory, over NVMe-oF", pattern("both"), get(path, MIB))
    with Client(node.tenant("alice").query(both)) as client:
        suite.equal("after: and over UDP, with the key of now", pattern("both", 65536), client.read(0, 65536 // client.unit))
    disconnect(nqn_of(both))
    path = connect(long)
    suite.equal("after: the lease's own line works; its bytes", pattern("kept"), get(path, MIB))
    again = node.tenant("alice").query(long)
    fields = ("subnqn", "hostnqn", "hostid", "dhchap_secret", "nsid")
    same = [long["binding"]["nvmeof"][f] == again["binding"]["nvmeof"][f] for f in fields]
    suite.equal("after: the same names and keys", [True] * len(fields), same)
    suite.equal("after: active", "active", again["state"])
    moved_ms = abs(again["expires_at_unix_ms"] - long["expires_at_unix_ms"])
    suite.check("after: the time off was counted", moved_ms < 2000, "the same deadline", moved_ms)
    suite.equal("after: it can be written and verified", 0, verified(path, size="1M", offset="2M")["error"])
    suite.equal("after: the short one has expired", "expired", node.tenant("alice").query(short)["state"])
    suite.check("after: the short one is not served", not os.path.exists(f"/sys/kernel/config/nvmet/subsystems/{nqn_of(short)}"))
    now = verifier(node.tenant("alice"))
    suite.check("after: FBBU's write verifier is another one", now not in (0, noted), "neither 0 nor the old one", now)
    wiped(suite, node, long)
    disconnect(nqn_of(long))
    node.kill()
    node.start()
    suite.equal("after: the daemon's restart does not change it", now, verifier(node.tenant("alice")))
    # Killed, since an orderly shutdown would end the lease.
    node.kill()
    os.sync()


def comes_late(suite, node, lease):
    """The RDMA device appears after the daemon: the transport of the lease then comes back by itself."""
    alice = node.tenant("alice")
    suite.equal("late: active, and without a transport", ("active", None), (lambda it: (it["state"], it.get("binding", {}).get("nvmeof")))(alice.query(lease)))
    sh("rdma link add rxe0 type rxe netdev d0")
    again = until(lambda: alice.query(lease).get("binding", {}).get("nvmeof"), 60, "the lease's transport")
    suite.equal("late: the same name", lease["binding"]["nvmeof"]["subnqn"], again["subnqn"])
    suite.check("late: its own line connects", connect({**lease, "binding": {"nvmeof": again}}))
    disconnect(again["subnqn"])
    alice.free(lease)


def with_a_clock_behind(suite):
    """A boot after which the wall clock shows an earlier time than the node's last record."""
    state = mounted()
    long = json.loads(NOTES.read_text(encoding="ascii"))[0]
    sh(f"date --set @{int(time.time()) - CLOCK_BEHIND_SECS}")
    with BlockNode(POOL, DIRECTORY, state_dir=state) as node:
        alice = node.tenant("alice")
        suite.check("clock behind: the lease is over", alice.query(long)["state"] in ("expired", "revoked"), "over", alice.query(long)["state"])
        suite.check("clock behind: it is not served", not os.path.exists(f"/sys/kernel/config/nvmet/subsystems/{nqn_of(long)}"))
        wiped(suite, node, {"capacity": 0})
        suite.equal("clock behind: nothing is fenced", [], node.operator.fences())


def wiped(suite, node, long):
    """A lease of all remaining bytes finds zeros."""
    row = row_of(node.operator, POOL)
    left = row["capacity"] - long.get("capacity", 4 * MIB)
    settled(node.operator, POOL, left)
    stretch = min(left, 32 * MIB)
    with leased(node.tenant("bob"), stretch, pool=POOL) as lease:
        path = connect(lease)
        suite.check("after: nothing of one that is over is found", get(path, stretch) == bytes(stretch), "zeros")
        disconnect(nqn_of(lease))


def main():
    """Runs the part for this boot."""
    ready()
    parts()
    sections = {"1": before_the_cut, "2": after_the_boot, "3": with_a_clock_behind}
    with Suite(f"block across a reboot, boot {os.environ['LAB_BOOT']}") as suite:
        suite.section(sections[os.environ["LAB_BOOT"]], suite)


if __name__ == "__main__":
    main()
