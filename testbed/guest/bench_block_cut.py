#!/usr/bin/python3
# lab: one-vm timeout=3600
"""How long the cut of a block lease takes, by the node's own log (`took_us`): when nothing else happens, under I/O on
the lease itself, under I/O on another one, and while the storage of another one is stuck. In turns in one boot; what
counts is that the four are alike."""
import argparse
import contextlib
import os
import re
import statistics
import sys

from block import BlockNode, alloc, attached, directory_pool, loop_device, nqn_of, ready, sh
from checks import until
from nvme_host import Fio, connect, gone
from ratios import percentile, report
from suite_block_stuck import slice_of

IDLE = "nothing else happens"
OWN, ANOTHER, STUCK, ITSELF = "its client writes", "another's client writes", "another's storage is stuck", "its storage is stuck"
FIGURES = {OWN: "own-io", ANOTHER: "another-io", STUCK: "another-stuck", ITSELF: "itself-stuck"}
TOOK = re.compile(r"took_us=(\d+)")


def took_us(node, lease):
    """The time of the lease's cut in the node's log, in microseconds."""
    line = node.wait_for_line(lease["lease_id"], "took_us=", timeout_secs=30)
    if not line:
        raise LookupError(f"no line of the cut of lease {lease['lease_id']} in the node's log")
    return int(TOOK.search(line).group(1))


def cuts(node, tenant, pool, count):
    """Microseconds of the cuts of `count` leases without a connected client."""
    numbers = []
    for _ in range(count):
        lease = alloc(tenant, pool=pool)
        tenant.free(lease)
        numbers.append(took_us(node, lease))
    return numbers


def under_own_io(node, tenant, pool, count):
    """The same with a client that writes to the lease."""
    numbers = []
    for _ in range(count):
        lease = alloc(tenant, pool=pool)
        job = Fio(connect(lease), verify=False, rate=None).started()
        tenant.free(lease)
        numbers.append(took_us(node, lease))
        job.report()
        gone(nqn_of(lease))
    return numbers


@contextlib.contextmanager
def neighbour_writes(tenant, pool):
    """Meanwhile the client of another lease writes."""
    with attached(tenant, pool=pool) as (_, path):
        job = Fio(path, verify=False, rate=None).started()
        try:
            yield
        finally:
            job.stop()


@contextlib.contextmanager
def neighbour_stuck(node, tenant, pool):
    """Meanwhile the release of another lease waits: the lease ended on storage that hangs. Yields the microseconds of
    that lease's cut."""
    lease = alloc(tenant, pool=pool)
    job, name = Fio(connect(lease), verify=False, rate=None).started(), slice_of(lease)
    sh(f"dmsetup suspend --noflush --nolockfs {name}")
    try:
        tenant.free(lease)
        yield took_us(node, lease)
    finally:
        sh(f"dmsetup resume {name}")
        job.report()
        gone(nqn_of(lease))
        until(lambda: not node.operator.fences(), 60, "no fence")


def one_round(node, pools, count):
    """Runs each condition once; returns names and numbers."""
    tenant, other = node.tenant("bench"), node.tenant("other")
    measured = {IDLE: cuts(node, tenant, pools["directory"], count),
                OWN: under_own_io(node, tenant, pools["device"], max(1, count // 5))}
    with neighbour_writes(other, pools["device"]):
        measured[ANOTHER] = cuts(node, tenant, pools["directory"], count)
    with neighbour_stuck(node, other, pools["device"]) as own_us:
        measured[STUCK] = cuts(node, tenant, pools["directory"], count)
        measured[ITSELF] = [own_us]
    return measured


def main():
    """Rounds of all conditions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--leases", type=int, default=5, help="of each condition in a round")
    chosen = parser.parse_args()
    ready()
    os.environ["RUST_LOG"] = "info,lease=debug"
    pools = {"directory": directory_pool(64), "device": loop_device(64)}
    taken = {}
    with BlockNode(*pools.values()) as node:
        for _ in range(chosen.rounds):
            for name, numbers in one_round(node, pools, chosen.leases).items():
                taken.setdefault(name, []).append(numbers)
                print(f"   {name}: {' '.join(map(str, numbers))}", flush=True)
    print("cuts of block leases, µs (emulated)")
    for name, rounds in taken.items():
        every = [number for numbers in rounds for number in numbers]
        print(f"   {name:20} {len(every):4} cuts: p50 {statistics.median(every):8.0f}, p99 {percentile(every, 99):8.0f}, most {max(every):8.0f}")
    medians = {name: list(map(statistics.median, rounds)) for name, rounds in taken.items()}
    for name, figure in FIGURES.items():
        report(f"bench_block_cut/{figure}", f"the cut of a block lease, {name}", "µs, less is better", ("leased", IDLE), (medians[name], medians[IDLE]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
