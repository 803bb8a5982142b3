#!/usr/bin/python3
# lab: one-vm timeout=600
# covers: rdma nvmet pool node/src/kinds/memory node/src/kinds/block
"""While clients do I/O over RDMA and over NVMe-oF, the node's processes run nothing for it: a trace of all switches to
their threads has those that look after something by a timer, as often as without I/O. The same trace has the threads
that serve requests and reads over UDP."""
import pathlib
import sys
import time

import block
import switches
from block import BlockNode, attached, loop_device
from checks import Suite, lab_device, until
from fbmu_client import Client as UdpClient
from fabric import ADDRESS
from nvme_host import Fio
from switches import Runs
from writer import Writer

FBMU_PORT = 5702
LEASE_BYTES = 65536
RECEIVED = pathlib.Path("/sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts")
# Threads that look after something, and how often. Nothing else may run.
TIMERS = {
    "health": "whether a pool is there, every 500 ms, and what it asks",
    "watchdog": "asks the watchdog every second whether it is well",
    "listen": "reads that in the watchdog",
    "fb-watchdog": "answers",
    "watchdog's": "reads the answer",
    "fbbu-tidy": "what tenants have begun and not ended over UDP, every second",
    "log drops": "whether the log has lost lines, every 5 s",
    "ending work": "two threads each, kept for cuts, every 10 s", "proving work": "",
}
# These timers make 13 runs a second with one pool. A window may have RUNS_MORE more, such as both ends of one second.
RUNS_PER_SEC, RUNS_MORE = 20, 40
# A window has so many times more I/O than runs are allowed, and takes some turns of most timers.
IO_PER_RUN, LEAST_SECS = 10, 3
READS = 200


def allowed(secs):
    """How often the node's threads may run in this time."""
    return RUNS_PER_SEC * secs + RUNS_MORE


def window(node, done=None):
    """Traces the node for a while, with so much I/O that one run for each would be far too many. `done`: counts the I/O;
    none is expected without. Returns the trace and the I/O that was done."""
    count = done or (lambda: 0)
    with Runs(node.process.pid) as runs:
        first, began = count(), time.monotonic()

        def is_over():
            secs = time.monotonic() - began
            return secs > LEAST_SECS and (not done or count() - first >= IO_PER_RUN * allowed(secs))
        until(is_over, 120, "I/O")
        more = count() - first
    return runs, more


def others(runs):
    """The threads that ran and have no timer."""
    return sorted(set(runs.of) - set(TIMERS))


def sleeps(suite, name, node, done=None):
    """Checks that the node runs nothing but its timers. Just after a grant other threads end, so several windows are
    tried, under the same I/O all the time."""
    def quiet():
        seen = window(node, done)
        print(f"   {name}: {seen[1]} I/Os in {seen[0].secs:.1f} s, {seen[0].times} runs: {dict(seen[0].of)}", flush=True)
        return None if others(seen[0]) else seen
    runs, more = until(quiet, 300, f"{name}: a window in which only timers run")
    suite.check(f"{name}: the trace sees the node", runs.times, "runs of timers")
    suite.check(f"{name}: no more runs than its timers make", runs.times <= allowed(runs.secs), allowed(runs.secs), runs.times)
    if done:
        suite.check(f"{name}: far more I/O", more > IO_PER_RUN * runs.times, f"{IO_PER_RUN} for each run", (more, runs.times))


def idle(suite, node):
    """Without leases."""
    sleeps(suite, "idle", node)


def over_rdma(suite, node):
    """A stock client writes to leased memory without pause."""
    alice = node.tenant("alice")
    with Writer() as writer:
        lease = alice.alloc(LEASE_BYTES, 600, writer.peer)
        suite.check("RDMA: the client writes", writer.start(lease), "a write", writer.first)
        sleeps(suite, "RDMA, packets", node, lambda: int(RECEIVED.read_text(encoding="ascii")))
        alice.free(lease)
        suite.check("RDMA: it wrote until the lease ended", writer.report()["writes"] > 0, "writes")


def over_nvmeof(suite, node, transport):
    """fio writes to leased blocks, around the page cache."""
    with attached(node.tenant("alice"), secs=600, transport=transport) as (_, path):
        job = Fio(path, verify=False, rate=None, iodepth=16).started()
        sleeps(suite, f"{transport}, writes", node, job.done)
        suite.check(f"{transport}: fio goes on", job.running(), "running")
        suite.equal(f"{transport}: fio met no error", 0, job.stop()["error"])


def seen_at_work(suite, node):
    """The trace sees the node when it works for a client: each read over UDP, and a request."""
    alice = node.tenant("alice")
    lease = alice.alloc(LEASE_BYTES, 600, None, 0, "--transport", "udp")
    with UdpClient(lease) as client:
        with Runs(node.process.pid) as runs:
            for _ in range(READS):
                client.read(0, 64)
                time.sleep(0.001)  # The next datagram finds the thread asleep, also on one processor.
        print(f"   UDP: {READS} reads in {runs.secs:.1f} s: {dict(runs.of)}", flush=True)
        suite.check("reads over UDP: a thread runs for each", runs.of["fbmu"][0] > READS / 2 and "fbmu" in others(runs), f"most of {READS}", dict(runs.of))
    with Runs(node.process.pid) as runs:
        alice.query(lease)
    print(f"   a query: {dict(runs.of)}", flush=True)
    suite.check("a query: the driver runs", {"driver", "tokio-rt-worker"} <= set(others(runs)), "the driver", dict(runs.of))
    alice.free(lease)


def main():
    """All sections."""
    block.ready()
    lab_device()
    switches.ready()
    more = ("--fbmu-listen", f"{ADDRESS}:{FBMU_PORT}")
    with Suite("data_path") as suite, BlockNode(loop_device(16), ports=(block.TCP, block.RDMA), device="rxe0", more=more) as node:
        for section in (idle, over_rdma):
            suite.section(section, suite, node)
        for transport in ("nvme-tcp", "nvme-rdma"):
            suite.section(over_nvmeof, suite, node, transport)
        suite.section(seen_at_work, suite, node)
    return 0


if __name__ == "__main__":
    sys.exit(main())
