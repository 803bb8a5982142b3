#!/usr/bin/python3
# lab: one-vm timeout=600
# covers: nvmet pool fallback-udp client/attach/src node/src/kinds/block
"""The end of a lease of blocks under running I/O: free, revocation and expiry each end first in errors and then in the
removal of the device. Afterwards nothing is accepted, while a neighbour on the same pool writes and verifies without an
error. The next tenant cannot find the bytes of the last one. Many leases that end together all end, and a node that
cannot prove an end reports that."""
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

import nvmet_tree
from block import ADDRESS6, MIB, TCP, TCP6, BlockNode, alloc, attached, directory_pool, leased, loop_device, nqn_of, pattern
from block import on_time, put, ready, row_of, settled, sh, ways_to_end
from block_refusals import refused
from checks import Suite, in_full_length, length
from fabric import UNREACHABLE
from nvme_host import Fio, Watch, connect, disconnect, failed, gone, options_of

TERM_SECS = length(8, 6)
# The client's kernel notices the closed connection some time after the node has closed it, and this suite notices it
# later still.
TOLD_SLACK_MS = 2000
POOL_MIB = 32
CHUNK = 4 * MIB
# File descriptors that the node reserves for the ends of leases, and those of one grant (docs/operate.md).
KEPT, OF_A_GRANT = 384, 16
# Number of leases that end together, and number of programs that ask at the same time.
TOGETHER, ASKING = length(16, 8), 4


def ends(suite, node, pools):
    """Each way to end, on each pool."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    for kind, pool in pools.items():
        ways = ways_to_end(node, bob, TERM_SECS)
        with attached(alice, pool=pool) as (_, path):
            neighbour = Fio(path).started()
            # The short form of suite_block_tcp has `free`.
            for name, secs, end in ways[length(0, 1 if kind == "device" else 2):]:
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
    suite.check(f"{name}: fio meets errors", failed(report), "an error")
    gone(nqn)
    print(f"   {name}: no device {(time.time() * 1000 - lost_at_ms) / 1000:.1f} s after the connection was lost", flush=True)
    refused(suite, f"{name}: the lease's own line", options_of(lease["binding"]["nvmeof"]["connect"]), nqn)


@in_full_length
def few_descriptors(suite, node, pools):
    """A node whose only free file descriptors are those reserved for the ends of leases grants nothing, and ends its
    granted leases as it should, one of them in use."""
    alice, process = node.tenant("alice"), node.process.pid
    limit_to = lambda count: sh(f"prlimit --pid {process} --nofile={count}:{count}")
    asked = [(pool, transport) for pool in pools.values() for transport in ("nvme-tcp", "nvme-tcp", "both", "udp")]
    leases = [alloc(alice, pool=pool, transport=transport) for pool, transport in asked]
    job = Fio(connect(leases[0])).started()
    before = sh(f"prlimit --pid {process} --nofile --output HARD --noheadings")
    limit_to(len(os.listdir(f"/proc/{process}/fd")) + KEPT + OF_A_GRANT - 1)
    for transport in ("udp", "nvme-tcp"):
        suite.refused(f"few descriptors: a grant over {transport}", lambda over=transport: alloc(alice, transport=over), UNREACHABLE, "Unavailable")
    suite.check("few descriptors: the log says what to do", node.wait_for_line("no binding could be made", "LimitNOFILE="))
    with ThreadPoolExecutor(ASKING) as asking:
        suite.equal("few descriptors: every lease ends", ["freed"] * len(leases), [told["state"] for told in asking.map(alice.free, leases)])
    suite.check("few descriptors: fio meets errors", failed(job.report()), "an error")
    gone(nqn_of(leases[0]))
    for pool in pools.values():
        settled_all(node, pool)
    limit_to(before)
    with leased(alice, transport="udp"):
        suite.equal("few descriptors: nothing is fenced", [], node.operator.fences())


def leftovers(suite, node, pools):
    """A lease of all bytes of a pool finds zeros where others have written."""
    carol = node.tenant("carol")
    for kind, pool in pools.items():
        available = settled_all(node, pool)
        with leased(carol, available, pool=pool) as lease:
            path = connect(lease)
            suite.equal(f"{kind}: all {available} bytes are zeros", [], _not_zero(path, available))
            disconnect(nqn_of(lease))


def settled_all(node, pool):
    """Free bytes of a pool whose leases have all ended."""
    row = row_of(node.operator, pool)
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


def together(suite, node, pools, transport="nvme-tcp", count=TOGETHER):
    """SIGTERM ends many leases at once, two of them in use: every lease is cut, proved and released."""
    before, alice = len(node.lines), node.tenant("alice")
    with ThreadPoolExecutor(ASKING) as asking:
        leases = list(asking.map(lambda _: alloc(alice, MIB, pool=pools["directory"], transport=transport), range(count)))
    jobs = [Fio(connect(lease)).started() for lease in leases[:2]]
    start = time.monotonic()
    suite.equal(f"{count} leases and SIGTERM: exit status", 0, node.stop())
    said = node.lines[before:]
    print(f"   {count} leases: the daemon ended {time.monotonic() - start:.1f} s after SIGTERM", flush=True)
    took_ms = sorted(int(took) // 1000 for line in said for took in re.findall(r"took_us=(\d+)", line))
    print(f"   {count} leases: proofs after {took_ms} ms", flush=True)
    for line in said:
        if "no answer" in line:
            print(f"   {line}", flush=True)
    suite.equal("together: nothing is fenced", [], [line for line in said if "FENCED" in line or "ERROR" in line])
    proved = [lease for lease in leases
              if any(lease["lease_id"] in line and "Connect refused with status 0x4182" in line for line in said)]
    suite.equal("together: every cut is proved", count, len(proved))
    for lease, job in zip(leases, jobs):
        suite.check("together: fio meets errors", failed(job.report()), "an error")
        gone(nqn_of(lease))
    suite.equal("together: nothing of them is left", [], [path for path in nvmet_tree.snapshot() if "fabricbios" in path])


def unproved(suite):
    """A port that does not answer proves nothing: the daemon reports what it could not cut and exits with 1. The next
    daemon clears the fence."""
    with BlockNode(directory_pool(), ports=(TCP, TCP6), fbbu=False) as node:
        lease = alloc(node.tenant("alice"), MIB)
        sh(f"ip address del {ADDRESS6}/64 dev d0")
        try:
            suite.equal("unproved: exit status", 1, node.stop())
        finally:
            sh(f"ip address replace {ADDRESS6}/64 dev d0 nodad")
        last = node.lines[-1]
        suite.check("unproved: the last line says what was not cut and what to do",
                    f"1 leases were not cut: {lease['lease_id']}." in last and "fence clear" in last, "which, and what to do", last)
        node.start()
        fences = node.operator.fences()
        suite.equal("unproved: fenced since", [lease["resource_id"]], [fence["resource_id"] for fence in fences])
        node.operator.ask("fence", "clear", lease["resource_id"])
        suite.equal("unproved: cleared", [], node.operator.fences())
        suite.equal("unproved: SIGTERM afterwards", 0, node.stop())


def main():
    """Nearly all sections on one node with both kinds of pool."""
    ready()
    pools = {"directory": directory_pool(POOL_MIB), "device": loop_device(POOL_MIB)}
    with Suite("block ends") as suite, BlockNode(*pools.values()) as node:
        for section in (ends, few_descriptors, leftovers):
            suite.section(section, suite, node, pools)
        suite.equal("nothing is fenced", [], node.operator.fences())
        suite.section(together, suite, node, pools)
        suite.section(unproved, suite)


if __name__ == "__main__":
    main()
