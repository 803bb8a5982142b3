#!/usr/bin/python3
# lab: one-vm timeout=3600
"""From nothing to the first block read: a lease (`fabricctl lease alloc`, the lease's connect line, dd) against a
script of the shell that makes the same by hand (a backing, mkdir, echo and ln in configfs, nvme gen-dhchap-key, nvme
connect, dd), in turns in one boot. Of the lease also the connect and the read alone, against the whole script: what would be
left if a grant took no time."""
import argparse
import subprocess
import sys
import time

from block import BlockNode, alloc, directory_pool, loop_device, nqn_of, ready, row_of, settled
from block_by_hand import Loan, Port
from nvme_host import device, disconnect
from ratios import interleaved, report

LIMIT_SECS = 30


def first_read(nqn):
    """Waits for the namespace, which comes after the connect, and reads its first block."""
    limit = time.monotonic() + LIMIT_SECS
    while not (path := device(nqn)):
        if time.monotonic() > limit:
            raise TimeoutError(f"no device of {nqn} within {LIMIT_SECS} s")
        time.sleep(0.001)
    subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=4096", "count=1", "iflag=direct", "status=none"], check=True)


def leased(tenant, pool):
    """Milliseconds of a lease, and of these after its grant; everything of it is removed before the next one."""
    row = row_of(tenant, pool)
    capacity, resource = row["capacity"], row["resource_id"]
    start = time.monotonic()
    lease = alloc(tenant, more=("--resource", resource))
    granted = time.monotonic()
    subprocess.run(["sh", "-c", lease["binding"]["nvmeof"]["connect"]], check=True, capture_output=True)
    first_read(nqn_of(lease))
    ended = time.monotonic()
    disconnect(nqn_of(lease))
    tenant.free(lease)
    settled(tenant, pool, capacity)
    return 1000 * (ended - start), 1000 * (ended - granted)


def by_hand(kind, pool, port):
    """Milliseconds of the script."""
    loan = Loan(kind, pool, port)
    start = time.monotonic()
    loan.connect()
    first_read(loan.nqn)
    took_ms = 1000 * (time.monotonic() - start)
    loan.remove()
    return took_ms


def main():
    """Both kinds of backing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--kinds", default="directory,device")
    chosen = parser.parse_args()
    ready()
    pools = {"device": (loop_device(64), loop_device(64)), "directory": (directory_pool(64), directory_pool(64))}
    pools = {kind: pools[kind] for kind in chosen.kinds.split(",")}
    with BlockNode(*(pair[0] for pair in pools.values())) as node, Port() as port:
        tenant = node.tenant("bench")
        for kind, (pool, own) in pools.items():
            # One run of each side first, so that the programs are in memory.
            leased(tenant, pool), by_hand(kind, own, port)
            times, scripts = interleaved(chosen.pairs, lambda: leased(tenant, pool), lambda: by_hand(kind, own, port))
            wholes, rests = zip(*times)
            for figure, what, ours in ((kind, "grant, connect and first read", wholes), (f"{kind}-connect", "connect and first read alone", rests)):
                report(f"bench_block_setup/{figure}", f"{what}, {kind}", "ms, less is better", ("leased", "by hand"), (ours, scripts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
