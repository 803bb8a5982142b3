#!/usr/bin/python3
# lab: one-vm topology=2x2x2 numa=2
# covers: cpu cgroup local node/src/kinds/cpu
"""Leases of CPU cores where one sibling is offline: CPU 3. Its core is leased with the one CPU that it has. While another
core has two threads, strict isolation is refused; with SMT off it is granted. Cores whose CPU goes offline while the node
runs are not granted until it is back."""
import contextlib
import pathlib
import signal

from checks import Suite, until
from cores import BUSY, CpuNode, alloc, cpus_of, enter, group_of, health, leased, numbers, read, ready
from fabric import REFUSED

CPUS = pathlib.Path("/sys/devices/system/cpu")


@contextlib.contextmanager
def offline(*cpus):
    """Sets these CPUs offline for the context."""
    for cpu in cpus:
        (CPUS / f"cpu{cpu}/online").write_text("0")
    try:
        yield
    finally:
        for cpu in cpus:
            (CPUS / f"cpu{cpu}/online").write_text("1")


def one_sibling(suite):
    """CPU 2 alone is a core."""
    with offline(3), CpuNode() as node:
        alice = node.tenant("alice")
        with leased(alice, 3, "whole_core") as all_cores:
            suite.equal("one sibling offline: the cores", {2, 4, 5, 6, 7}, cpus_of(all_cores))
            suite.equal("one sibling offline: the kernel's CPUs", {2, 4, 5, 6, 7}, numbers(read(group_of(all_cores) / "cpuset.cpus.effective")))
        suite.refused("one sibling offline: other cores have two", lambda: alloc(alice, 1, "strict_isolated"), REFUSED, None, "SMT")
        suite.refused("one sibling offline: it has no share", lambda: alloc(alice, 6, "best_effort"), REFUSED)


def all_siblings(suite):
    """Without SMT strict isolation is possible. A sibling that comes back is noticed."""
    with offline(1, 3, 5, 7), CpuNode() as node:
        alice = node.tenant("alice")
        with leased(alice, 2, "strict_isolated") as lease:
            suite.check("every sibling offline: strict", cpus_of(lease) < {2, 4, 6}, "two of 2, 4, 6", cpus_of(lease))
            process = enter(lease, BUSY)
            sibling = min(cpus_of(lease)) + 1
            (CPUS / f"cpu{sibling}/online").write_text("1")
            suite.check("the inventory counts it", until(lambda: threads(alice) == 5, 60, "the threads"), 5)
            suite.check("a sibling that comes back is told", until(lambda: health(alice) == "degraded", 60, "the resource's health"), "degraded")
            (CPUS / f"cpu{sibling}/online").write_text("0")
            suite.check("and that it is gone", until(lambda: health(alice) == "ok", 60, "the resource's health"), "ok")
        suite.equal("the end of the lease ends its process", -signal.SIGKILL, process.wait())


def goes_offline(suite):
    """Two of six offered CPUs go offline, those of one core."""
    with CpuNode() as node:
        alice = node.tenant("alice")
        with offline(6, 7):
            suite.check("CPUs that go offline are told", until(lambda: health(alice) == "degraded", 60, "the resource's health"), "degraded")
            suite.check("with the reason", "cpu6 is offline" in cpu(alice)["health_reason"], "cpu6 is offline", cpu(alice))
            suite.equal("their core is not available", (3, 2), (cpu(alice)["capacity"], cpu(alice)["available"]))
            for wanted in (3, "whole_core"), (5, "best_effort"):
                suite.refused(f"{wanted} is refused with the reason", lambda: alloc(alice, *wanted), None, "CapacityExceeded", "cpu6 is offline", "transient")
            for wanted in (2, "whole_core"), (4, "best_effort"):
                with leased(alice, *wanted) as lease:
                    suite.check(f"{wanted} is granted", lease["lease_id"], "a lease", lease)
        suite.check("they come back", until(lambda: health(alice) == "ok", 60, "the resource's health"), "ok")
        with leased(alice, 3, "whole_core") as lease:
            with offline(6, 7):
                suite.check("the lease on them too", until(lambda: health(alice) == "degraded", 60, "the resource's health"), "degraded")
                until(lambda: str(lease["lease_id"]) in cpu(alice)["health_reason"], 60, "the lease in the reason")
                suite.check("says that the CPU is offline", "cpu6 is offline" in cpu(alice)["health_reason"], "cpu6 is offline", cpu(alice))


def cpu(tenant):
    """The CPU entry of the inventory."""
    return next(row for row in tenant.ask("inventory")["resources"] if row["resource_type"] == "cpu")


def threads(tenant):
    """The number of online CPUs in the inventory."""
    return next(it["cpu"]["threads"] for it in tenant.ask("inventory")["resources"] if "cpu" in it)


def main():
    """Each section has a node of its own: a node reads the topology when it starts."""
    ready(8)
    with Suite("cpu leases with CPUs offline") as suite:
        for section in (one_sibling, all_siblings, goes_offline):
            suite.section(section, suite)


if __name__ == "__main__":
    main()
