#!/usr/bin/python3
# lab: one-vm timeout=900
"""The daemon dies by SIGKILL under a connected client: the kernel goes on serving, the next daemon adopts, and what ran
out meanwhile is cut and wiped at its start. Killed at each of its own steps, it leaves nothing that its successor does
not adopt, remove or fence. A subsystem of somebody else stands beside it and never notices.

BLOCK_STEPS=all goes through every step for both kinds of pool; without it only for the device."""
import os
import subprocess
import time

import nvmet_tree
from block import BlockNode, alloc, attached, directory_pool, loop_device, nqn_of, pattern, put, get, ready, resources
from block import same_traces, settled, traces
from checks import Suite, give_back
from fabric import Refused, program
from nvme_host import Fio, connect, device, disconnect, gone, until

TERM_SECS = 8
DIE_AFTER = "FABRICBIOS_DIE_AFTER"


def adopts(suite, node, pools):
    """A restart under I/O: no error, the same names and keys."""
    alice = node.tenant("alice")
    for kind, pool in pools.items():
        with attached(alice, pool=pool) as (lease, path):
            put(path, pattern("kept"), 3 << 20)
            job = Fio(path).started()
            node.kill()
            suite.check(f"{kind}: fio goes on without a daemon", job.running(), "running")
            node.start()
            again = alice.query(lease)
            fields = ("subnqn", "hostnqn", "hostid", "dhchap_secret", "nsid", "traddr", "trsvcid")
            same = [lease["binding"]["nvmeof"][f] == again["binding"]["nvmeof"][f] for f in fields]
            suite.equal(f"{kind}: the same names and keys", [True] * len(fields), same)
            suite.check(f"{kind}: fio goes on", job.running(), "running")
            suite.equal(f"{kind}: without an error", 0, job.stop()["error"])
            disconnect(nqn_of(lease))
            path = connect(lease)
            suite.equal(f"{kind}: connected again by the old line", pattern("kept", 4096), get(path, 4096, 3 << 20))


def expired_meanwhile(suite, node, pools):
    """A lease that ran out without a daemon is cut before the next one says READY."""
    alice = node.tenant("alice")
    for kind, pool in pools.items():
        lease = alloc(alice, secs=TERM_SECS, pool=pool)
        job = Fio(connect(lease)).started()
        node.kill()
        until(lambda lease=lease: time.time() * 1000 > lease["expires_at_unix_ms"] + 500, TERM_SECS + 5, "the deadline")
        node.start()
        suite.equal(f"{kind}: unlinked at READY", 0, nvmet_tree.listed(nqn_of(lease)))
        suite.check(f"{kind}: fio meets errors", job.report()["error"], "an error")
        gone(nqn_of(lease))
        suite.equal(f"{kind}: expired", "expired", alice.query(lease)["state"])


def steps():
    """What the daemon can be told to die after; a debug build prints them."""
    listed = subprocess.run([program("fabricbiosd"), "control-server"], env={**os.environ, DIE_AFTER: "?"},
                            capture_output=True, text=True, timeout=30, check=False)
    return [line.strip() for line in listed.stdout.splitlines() if line.strip()]


def dies(suite, node, pools):
    """SIGKILL at each step of granting and of ending a lease."""
    names = steps()
    suite.check("the daemon knows its steps", len(names) > 5, "some steps", names)
    chosen = pools if os.environ.get("BLOCK_STEPS") == "all" else {"device": pools["device"]}
    for kind, pool in chosen.items():
        for name in names:
            _die(suite, node, pool, f"{kind}, {name}", name)


def _die(suite, node, pool, title, step):
    """One life with the order to die, and one without."""
    row = lambda: next(row for key, row in resources(node.operator).items() if pool in key)
    before, free = traces(), row()["available"]
    node.stop()
    node.environment = {DIE_AFTER: step}
    try:
        node.start()
        died = _until_dead(node, pool)
    except RuntimeError:  # It died of a step that belongs to its start.
        died = True
    node.environment = {}
    if not died:
        node.stop()
    node.start()
    for lease in node.operator.ask("lease", "list").get("leases", []):
        if lease["state"] in ("active", "binding"):
            give_back(node.tenant("alice"), lease)
    if fences(node):
        node.operator.ask("fence", "clear", fences(node)[0]["resource_id"])
    settled(node.operator, pool, free)
    suite.check(f"{title}: it died there", died, "a dead daemon")
    same_traces(suite, title, before, traces())


def _until_dead(node, pool):
    try:
        lease = alloc(node.tenant("alice"), pool=pool)
        node.tenant("alice").free(lease)
    except (Refused, subprocess.TimeoutExpired):
        pass
    try:
        node.process.wait(10)
    except subprocess.TimeoutExpired:
        return False
    return True


def fences(node):
    """What is fenced now."""
    return node.operator.ask("fence", "list")["fences"]


def main():
    """All sections on one state directory, beside somebody else's subsystem."""
    ready()
    pools = {"directory": directory_pool(64), "device": loop_device(64)}
    foreign = nvmet_tree.Foreign(loop_device(16))
    with Suite("block across restarts") as suite, BlockNode(*pools.values()) as node:
        subprocess.run(["sh", "-c", foreign.line], check=True)
        witness = Fio(until(lambda: device(foreign.nqn), 30, "the foreign device"), size="1M", iodepth=1).started()
        theirs = nvmet_tree.below(nvmet_tree.snapshot(), foreign.nqn)
        for section in (adopts, expired_meanwhile, dies):
            suite.section(section, suite, node, pools)
        suite.check("the foreign subsystem: fio goes on", witness.running(), "running")
        suite.equal("the foreign subsystem: without an error", 0, witness.stop()["error"])
        suite.equal("the foreign subsystem: untouched", [], nvmet_tree.difference(theirs, nvmet_tree.below(nvmet_tree.snapshot(), foreign.nqn)))
        disconnect(foreign.nqn)
        foreign.remove()


if __name__ == "__main__":
    main()
