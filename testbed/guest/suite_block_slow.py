#!/usr/bin/python3
# lab: one-vm timeout=600
# covers: nvmet pool client/attach/src node/src/kinds/block
"""The first lease of blocks that were never wiped, on a device so slow that cleaning takes longer than a node waits for
work without progress."""
import time
from concurrent.futures import ThreadPoolExecutor

from block import MIB, BlockNode, alloc, attached, get, loop_device, ready, run, sh
from checks import Suite, length, skip
from nvme_host import connect, disconnect
from suite_block_kinds import UNDER_TEST, table
from suite_block_stuck import kernel_name

# Each 16 MiB are cleaned with one request, so each 16 MiB take one delay.
SLOW_MIB, SLOW_MS = length(176, 96), 3000
# How long a node waits for a grant without progress.
PATIENCE_SECS = 30


def slow(suite):
    """The lease is granted, and leases of another pool do not wait for it."""
    base, name = loop_device(SLOW_MIB + 32), UNDER_TEST
    sectors = sh(f"blockdev --getsz {base}")
    if run("modprobe", "dm-delay").returncode:
        skip("kernel module dm-delay")
    sh(f"dmsetup create {name} --table '0 {sectors} delay {base} 0 0 {base} 0 {SLOW_MS}'")
    device, good = f"/dev/{kernel_name(name)}", loop_device(32)
    with BlockNode(device, good) as node, ThreadPoolExecutor(1) as asking:
        asked = asking.submit(alloc, node.tenant("alice"), SLOW_MIB * MIB, pool=device)
        began, beside = time.monotonic(), 0
        while not asked.done() and beside <= 2:
            with attached(node.tenant("bob"), MIB, pool=good) as (_, path):
                get(path, 4096)
            beside += not asked.done()
        lease, took_secs = asked.result(), time.monotonic() - began
        print(f"   slow: {SLOW_MIB} MiB made clean in {took_secs:.0f} s", flush=True)
        suite.check("slow: a grant takes as long as that does", took_secs > PATIENCE_SECS, f"over {PATIENCE_SECS} s", took_secs)
        # If grants waited for the slow one, no other lease would be granted meanwhile.
        suite.check("slow: leases of another pool are granted, used and freed meanwhile", beside > 2, "over 2", beside)
        table(f"0 {sectors} linear {base} 0")
        path = connect(lease)
        suite.equal("slow: its last bytes are zeros", bytes(MIB), get(path, MIB, offset=(SLOW_MIB - 1) * MIB))
        disconnect(lease["binding"]["nvmeof"]["subnqn"])
        suite.equal("slow: SIGTERM", 0, node.stop())
    sh(f"dmsetup remove {name}")


def main():
    """A node of its own."""
    ready()
    with Suite("a slow pool of blocks") as suite:
        suite.section(slow, suite)


if __name__ == "__main__":
    main()
