#!/usr/bin/python3
# lab: one-vm timeout=600
"""The end of a lease of blocks under running I/O: free, revocation and expiry each end in errors and then in no device,
and nothing is accepted afterwards, while a neighbour on the same pool writes and verifies without an error. What a
tenant wrote cannot be found by the next."""
import time

from block import MIB, BlockNode, alloc, attached, directory_pool, leased, loop_device, nqn_of, pattern, put, ready
from block import on_time, resources, settled, ways_to_end
from block_refusals import refused
from checks import Suite
from nvme_host import Fio, Watch, connect, disconnect, gone, options_of

TERM_SECS = 8
# The client's kernel sees its connection closed some time after the node's did it.
TOLD_SLACK_MS = 500
POOL_MIB = 32
CHUNK = 4 * MIB


def ends(suite, node, pools):
    """Each way on each pool."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    for kind, pool in pools.items():
        with attached(alice, pool=pool) as (_, path):
            neighbour = Fio(path).started()
            for name, secs, end in ways_to_end(node, bob, TERM_SECS):
                _one(suite, f"{name}, {kind}", alloc(bob, secs=secs, pool=pool), end, name == "expiry")
            suite.check(f"{kind}: the neighbour goes on", neighbour.running(), "running")
            report = neighbour.stop()
            suite.check(f"{kind}: the neighbour met no error", report["error"] == 0 and report["reads"] > 0, "0", report)


def _one(suite, name, lease, end, is_expiry):
    path, nqn = connect(lease), nqn_of(lease)
    put(path, pattern("secret"), 2 * MIB)
    job, watch = Fio(path).started(), Watch(nqn)
    end(lease)
    told_at_ms = time.time() * 1000
    lost_at_ms = watch.report()
    if is_expiry:
        on_time(suite, name, lease, lost_at_ms)
    suite.check(f"{name}: the connection is lost before the end is told", (lost_at_ms or told_at_ms) < told_at_ms + TOLD_SLACK_MS,
                told_at_ms, lost_at_ms)
    report = job.report()
    suite.check(f"{name}: fio meets errors", report["error"], "an error", report)
    gone(nqn)
    print(f"   {name}: no device {(time.time() * 1000 - lost_at_ms) / 1000:.1f} s after the connection was lost", flush=True)
    refused(suite, f"{name}: the lease's own line", options_of(lease["binding"]["nvmeof"]["connect"]), nqn)


def leftovers(suite, node, pools):
    """A lease of all that there is finds zeros where others have written."""
    carol = node.tenant("carol")
    for kind, pool in pools.items():
        available = settled_all(node, pool)
        with leased(carol, available, pool=pool) as lease:
            path = connect(lease)
            suite.equal(f"{kind}: all {available} bytes are zeros", [], _not_zero(path, available))
            disconnect(nqn_of(lease))


def settled_all(node, pool):
    """Free bytes of a pool whose leases have all ended."""
    row = next(row for name, row in resources(node.operator).items() if pool in name)
    settled(node.operator, pool, row["capacity"])
    return row["capacity"]


def _not_zero(path, length):
    zeros, found = bytes(CHUNK), []
    with open(path, "rb", buffering=0) as source:
        for at in range(0, length, CHUNK):
            data = source.read(min(CHUNK, length - at))
            if data != zeros[:len(data)]:
                found.append(at)
    return found


def main():
    """All sections on one node with both kinds of pool."""
    ready()
    pools = {"directory": directory_pool(POOL_MIB), "device": loop_device(POOL_MIB)}
    with Suite("block ends") as suite, BlockNode(*pools.values()) as node:
        for section in (ends, leftovers):
            suite.section(section, suite, node, pools)
        suite.equal("nothing is fenced", [], node.operator.ask("fence", "list")["fences"])


if __name__ == "__main__":
    main()
