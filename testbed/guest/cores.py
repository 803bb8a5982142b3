#!/usr/bin/python3
"""Shared by the suites of CPU leases: a node that leases cores, leases, processes in leases and outside of them, and
the kernel's data about control groups."""
import contextlib
import os
import pathlib
import subprocess

import switches
from checks import give_back, programs, skip
from fabric import Node

CGROUPS = pathlib.Path("/sys/fs/cgroup")
BUSY = ("sh", "-c", "while :; do :; done")
# Each process forks, ends and forks again, for ever.
FORKS = ("sh", "-c", "f() { while :; do sh -c 'exec sleep 0.1' & sh -c ':'; wait; done; }; f & f & f & f")


def ready(cpus):
    """Ends the suite as not run if something is missing."""
    programs()
    if len(numbers(read("/sys/devices/system/cpu/present"))) != cpus:
        skip(f"{cpus} CPUs in the guest, as the header of this suite asks for")
    for name in ("cpuset", "cpu", "memory", "pids"):
        if name not in read(CGROUPS / "cgroup.controllers").split():
            skip(f"controller {name} of cgroup v2")
    switches.ready()


class CpuNode(Node):
    """A node that leases the cores of this machine. It leaves no control group behind."""

    def __init__(self, *more, cpus="all", **settings):
        super().__init__("--cpus", cpus, *more, device="none", mem_bytes="1MiB", address="127.0.0.1", **settings)

    @property
    def root(self):
        """The node's control group."""
        return next(CGROUPS.glob("fabricbios-*"))

    def groups(self):
        """The control groups of leases, and of the remains of leases."""
        return sorted(at.name for at in self.root.rglob("*-*") if at.is_dir())

    def __exit__(self, *ended):
        root = self.root
        super().__exit__(*ended)
        for at in (root / "shared", root):
            at.rmdir()


def alloc(tenant, cores, isolation=None, secs=600, *more):
    """Leases cores."""
    words = ["lease", "alloc", "cpu", "--cores", cores, "--secs", secs]
    return tenant.ask(*words, *(["--isolation", isolation] if isolation else []), *more)


def health(tenant):
    """The health of the CPUs in the inventory."""
    return next(row["health"] for row in tenant.ask("inventory")["resources"] if row["resource_type"] == "cpu")


@contextlib.contextmanager
def leased(tenant, *request, **terms):
    """A lease, given back at the end unless it has ended already."""
    lease = alloc(tenant, *request, **terms)
    try:
        yield lease
    finally:
        give_back(tenant, lease)


def cpus_of(lease):
    """The logical CPUs of a lease."""
    return numbers(lease["binding"]["cpu"]["cpus"])


def group_of(lease):
    """The control group of a lease."""
    return pathlib.Path(lease["binding"]["cpu"]["cgroup"])


def enter(lease, command, **more):
    """Starts a program in the control group of the lease, as root would by hand."""
    procs = group_of(lease) / "cgroup.procs"
    return subprocess.Popen(command, preexec_fn=lambda: procs.write_text(str(os.getpid())), **more)


@contextlib.contextmanager
def beside(*cpus, count=1):
    """Busy processes outside of all leases, each on these CPUs, or on any if none are given."""
    def pin():
        if cpus:
            os.sched_setaffinity(0, cpus)
    running = [subprocess.Popen(BUSY, preexec_fn=pin) for _ in range(count)]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def members(at):
    """The processes in a control group and in the groups below it; none if the group is gone."""
    found = set()
    for group, *_ in os.walk(at):
        with contextlib.suppress(OSError):
            found |= {int(pid) for pid in read(f"{group}/cgroup.procs").split()}
    return found


def used_secs(at):
    """The CPU time that a control group has used."""
    return int(read(at / "cpu.stat").split()[1]) / 1e6


def numbers(text):
    """The numbers in a list of the kernel, such as `0-3,8`."""
    ranges = [part.partition("-")[::2] for part in text.strip().split(",") if part]
    return {number for first, last in ranges for number in range(int(first), int(last or first) + 1)}


def read(path):
    """The contents of a file of the kernel."""
    return pathlib.Path(path).read_text(encoding="utf-8").strip()
