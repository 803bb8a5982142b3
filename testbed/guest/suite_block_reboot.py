#!/usr/bin/python3
# lab: one-vm disk=256M boots=2 timeout=300
"""A power cut under a connected client. After the boot a lease that has not expired has its names, keys and bytes before
the node says READY; one whose time ran out while the machine was off is gone, and what was in it cannot be found.

The disk holds the node's state, a file system, in its first part and the pool, a raw device, in the rest."""
import json
import os
import pathlib
import time

from block import MIB, BlockNode, alloc, get, leased, nqn_of, pattern, put, ready, resources, settled, sh
from checks import Suite
from fbbu_client import Client
from nvme_host import Fio, connect, device, disconnect, until, verified

STATE, POOL = "/dev/loop6", "/dev/loop7"
STATE_BYTES = 96 * MIB
SHORT_SECS = 15
MOUNTED = pathlib.Path("/mnt/state")
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
    """What FBBU's HELLO tells to be compared."""
    with leased(tenant, transport="udp") as lease, Client(lease) as client:
        return client.hello["write_verifier"]


def before_the_cut(suite):
    """Two leases with bytes in them; the machine then stops where it is."""
    sh(f"mkfs.ext4 -q -F {STATE}")
    node = BlockNode(POOL, state_dir=mounted())
    alice = node.tenant("alice")
    os.sync()
    long, short = alloc(alice, secs=600), alloc(alice, secs=SHORT_SECS)
    for lease, tag in ((long, "kept"), (short, "lost")):
        path = connect(lease)
        put(path, pattern(tag))
        suite.equal(f"before: {tag}", pattern(tag), get(path, MIB))
    with open(NOTES, "w", encoding="ascii") as notes:
        json.dump([long, short, verifier(alice)], notes)
        notes.flush()
        os.fsync(notes.fileno())
    directory = os.open(MOUNTED, os.O_RDONLY)
    os.fsync(directory)
    suite.check("before: fio is running", Fio(device(nqn_of(long)), size="1M", offset="2M").started().running())
    # Nobody is told, nothing is put away: the harness ends the guest.


def after_the_boot(suite):
    """What the next start makes of it."""
    state = mounted()
    long, short, noted = json.loads(NOTES.read_text(encoding="ascii"))
    until(lambda: time.time() * 1000 > short["expires_at_unix_ms"], SHORT_SECS + 10, "the end of the short lease")
    with BlockNode(POOL, state_dir=state) as node:
        path = connect(long)
        suite.equal("after: READY comes after the lease's own line works; its bytes", pattern("kept"), get(path, MIB))
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


def wiped(suite, node, long):
    """A lease of everything that is left finds zeros."""
    row = next(row for name, row in resources(node.operator).items() if POOL in name)
    left = row["capacity"] - long.get("capacity", 4 * MIB)
    settled(node.operator, POOL, left)
    stretch = min(left, 32 * MIB)
    with leased(node.tenant("bob"), stretch) as lease:
        path = connect(lease)
        suite.check("after: nothing of the short one is found", get(path, stretch) == bytes(stretch), "zeros")
        disconnect(nqn_of(lease))


def main():
    """The part for this boot."""
    ready()
    parts()
    with Suite(f"block across a reboot, boot {os.environ['LAB_BOOT']}") as suite:
        suite.section(before_the_cut if os.environ["LAB_BOOT"] == "1" else after_the_boot, suite)


if __name__ == "__main__":
    main()
