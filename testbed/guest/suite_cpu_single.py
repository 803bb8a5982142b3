#!/usr/bin/python3
# lab: one-vm topology=1x2x1
# covers: cpu cgroup local node/src/kinds/cpu
"""Leases of CPU cores on two cores without siblings: strict isolation is possible there. CPU 0 is the node's own."""
import os
import signal
import subprocess
import time

from checks import Suite
from cores import BUSY, CpuNode, alloc, beside, cpus_of, enter, group_of, leased, members, numbers, read, ready
from fabric import REFUSED, UNREACHABLE, program
from switches import Trace

SOCKET = "/run/fabricbios/local.sock"


def strict(suite, node):
    """A lease of one CPU, with memory of its NUMA node, and no other task on the CPU."""
    alice = node.tenant("alice")
    with beside(count=3), beside(1), leased(alice, 1, "strict_isolated") as lease:
        at = group_of(lease)
        suite.equal("strict: the CPU", {1}, cpus_of(lease))
        suite.equal("strict: told what is enforced", "strict_isolated", lease["effective"]["cpu_isolation"])
        suite.equal("strict: a partition without load balancing, as it has one CPU", "isolated", read(at / "cpuset.cpus.partition"))
        suite.equal("strict: bound to its node's memory", {0}, numbers(read(at / "cpuset.mems")))
        busy = enter(lease, BUSY)
        with Trace({1}) as trace:
            time.sleep(3)
        suite.equal("strict: nobody else runs there", [], trace.strangers({busy.pid}))
        suite.refused("no second core", lambda: alloc(alice, 1, "strict_isolated"), REFUSED)
    suite.equal("strict: the end of the lease ends its process", -signal.SIGKILL, busy.wait())
    suite.equal("given back: both CPUs are everybody's", {0, 1}, os.sched_getaffinity(0))


def stopped(suite, node):
    """`fabricctl run` ends while the daemon is stopped, runs nothing, and leaves no process in the lease."""
    with leased(node.tenant("alice"), 1) as lease:
        command = [program("fabricctl"), "--json", "run", "--local-socket", SOCKET, "--lease", lease["lease_id"], "--"]
        node.process.send_signal(signal.SIGSTOP)
        try:
            said = subprocess.run([*command, "echo", "it ran"], capture_output=True, text=True, timeout=30, check=False)
        finally:
            node.process.send_signal(signal.SIGCONT)
        suite.equal("stopped daemon: fabricctl run ends, as unavailable", (UNREACHABLE, ""), (said.returncode, said.stdout))
        suite.check("stopped daemon: it says which socket, and what may be", SOCKET in said.stderr and "may have been" in said.stderr,
                    "socket and doubt", said.stderr)
        said = subprocess.run([*command, "echo", "it ran"], capture_output=True, text=True, timeout=30, check=False)
        suite.equal("the daemon goes on: it runs", (0, "it ran\n"), (said.returncode, said.stdout))
        suite.equal("and nothing is left in the lease", set(), members(group_of(lease)))


def main():
    """On one node."""
    ready(2)
    with Suite("cpu leases without SMT") as suite, CpuNode("--local-socket", SOCKET) as node:
        suite.section(strict, suite, node)
        suite.section(stopped, suite, node)


if __name__ == "__main__":
    main()
