#!/usr/bin/python3
# lab: one-vm timeout=7200
# covers: nvmet pool node/src/kinds/block
"""Leases of blocks that are granted and freed again and again leave configfs, device-mapper and the pools as before.
BLOCK_CYCLES is the number of leases; a client connects to one of every BLOCK_CONNECT leases."""
import os

from block import MIB, BlockNode, alloc, directory_pool, loop_device, nqn_of, pattern, put, get, ready, resources
from block import same_traces, settled, traces
from checks import Suite, length
from nvme_host import connect, disconnect

CYCLES = int(os.environ.get("BLOCK_CYCLES", length("20", "6")))
CONNECT = int(os.environ.get("BLOCK_CONNECT", length("10", "3")))


def cycles(suite, node, pools):
    """Leases from both pools in turn, some of them used."""
    alice, kinds, dirty = node.tenant("alice"), sorted(pools), 0
    for n in range(CYCLES):
        lease = alloc(alice, (1 + n % 3) * MIB, pool=pools[kinds[n % 2]])
        if n % CONNECT == 0:
            path = connect(lease)
            dirty += get(path, MIB) != bytes(MIB)
            put(path, pattern(f"cycle {n}"))
            disconnect(nqn_of(lease))
        alice.free(lease)
        if n % 100 == 99:
            print(f"   {n + 1} cycles", flush=True)
    suite.equal(f"{CYCLES} grants and frees: each that was looked at began as zeros", 0, dirty)


def main():
    """One node with both kinds of pool; the traces before and after are compared."""
    ready()
    pools = {"directory": directory_pool(64), "device": loop_device(64)}
    with Suite("block cycles") as suite:
        nothing = traces()
        # No time limit: many cycles take long, and other suites use the machine too.
        with BlockNode(*pools.values(), more=("--cut-within-ms", "10000")) as node:
            free = {pool: row["available"] for pool, row in resources(node.operator).items()}
            before = traces([pools["directory"]])
            suite.section(cycles, suite, node, pools)
            for pool, available in free.items():
                settled(node.operator, pool, available)
            same_traces(suite, f"after {CYCLES} cycles", before, traces([pools["directory"]]))
            suite.equal("nothing is fenced", [], node.operator.fences())
            suite.equal("SIGTERM", 0, node.stop())
        same_traces(suite, "the node is gone", nothing, traces())


if __name__ == "__main__":
    main()
