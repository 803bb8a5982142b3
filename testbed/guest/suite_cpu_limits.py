#!/usr/bin/python3
# lab: one-vm topology=2x2x2 numa=2
# covers: cpu cgroup local node/src/kinds/cpu
"""The limits of the processes of CPU leases: the limits of the lease, and the limits that a process had before it
entered."""
import json
import os
import pathlib
import signal
import subprocess

from block import loop_device, run
from checks import Suite, length, skip, until
from cores import BUSY, CGROUPS, CpuNode, enter, group_of, leased, members, read, ready
from fabric import program
from limited import BLOCK, into, limited

SOCKET = "/run/fabricbios/local.sock"
# Limits of a lease, per logical CPU.
MEMORY_MIB, PROCESSES = 256, 60
# Limits of the container.
BOX_MIB, BOX_PROCESSES = 96, 20
# The program that is tested: it makes and opens a node of the disk, takes memory, and starts processes.
PROBE = """
import json, os, signal, stat, sys, time
device, mib = (int(word) for word in sys.argv[1:])
at = f"/run/probe-{os.getpid()}"
try:
    os.mknod(at, stat.S_IFBLK | 0o600, device)
    os.close(os.open(at, os.O_RDONLY))
    said = "opens"
except OSError as error:
    said = error.strerror
if os.path.exists(at):
    os.unlink(at)
if (hog := os.fork()) == 0:
    bytearray(b"x") * (mib << 20)
    os._exit(0)
memory = os.waitstatus_to_exitcode(os.waitpid(hog, 0)[1])
started = []
try:
    while len(started) < 300:
        if (pid := os.fork()) == 0:
            signal.pause()
        started.append(pid)
except BlockingIOError:
    pass
for pid in started:
    os.kill(pid, signal.SIGKILL)
for pid in started:
    os.waitpid(pid, 0)
print(json.dumps({"device": said, "memory": memory, "processes": len(started) + 1, "place": open("/proc/self/cgroup").read().strip()}))
"""


def run_in(lease, *words, box=None):
    """Runs `fabricctl run` as root, from a control group."""
    command = [program("fabricctl"), "run", "--local-socket", SOCKET, "--lease", lease["lease_id"], "--", *map(str, words)]
    return subprocess.run(command, preexec_fn=into(box) if box else None, capture_output=True, text=True, timeout=120, check=False)


def probe(lease, device, mib, box=None):
    """The results of the test program in the lease."""
    said = run_in(lease, "python3", "-c", PROBE, device, mib, box=box)
    print(f"   {said.stdout.strip()} {said.stderr.strip()}", flush=True)
    return json.loads(said.stdout)


def callers(lease):
    """The control groups of the processes that have entered."""
    return sorted(at.name for at in group_of(lease).iterdir() if at.is_dir())


def kept(suite, node, device):
    """A process that had limits of memory, of processes and of devices keeps them in a lease; other processes there do
    not get them."""
    alice = node.tenant("alice")
    limits = {"memory_max": f"{BOX_MIB}M", "memory_swap_max": 0, "pids_max": BOX_PROCESSES}
    with limited("box", BLOCK, **limits) as box:
        for isolation, cpus in (("whole_core", 2), *length((("best_effort", 1),), ())):
            with leased(alice, 1, isolation) as lease:
                free = probe(lease, device, BOX_MIB + 40)
                suite.equal(f"{isolation}, a caller without limits: disk and memory", ("opens", 0), (free["device"], free["memory"]))
                suite.equal(f"{isolation}, a caller without limits: processes, to the lease's", cpus * PROCESSES, free["processes"])
                held = probe(lease, device, BOX_MIB + 40, box)
                suite.equal(f"{isolation}, a caller with limits: no disk", "Operation not permitted", held["device"])
                suite.equal(f"{isolation}, a caller with limits: its memory", -signal.SIGKILL, held["memory"])
                suite.equal(f"{isolation}, a caller with limits: its processes", BOX_PROCESSES, held["processes"])
                where = pathlib.PurePath(held["place"].removeprefix("0::/"))
                suite.equal(f"{isolation}: in a control group in that of the lease", group_of(lease).relative_to(CGROUPS), where.parent)
                suite.equal(f"{isolation}: of those who have ended, none stays", [where.name], callers(lease))
    suite.equal("given back: no control group", [], [at for at in node.groups() if at.startswith(("lease-", "caller-"))])


def shared(suite, node, _device):
    """Several callers from one container share its limits."""
    alice = node.tenant("alice")
    with limited("box", pids_max=BOX_PROCESSES) as box, leased(alice, 1, "whole_core") as lease:
        words = [program("fabricctl"), "run", "--local-socket", SOCKET, "--lease", lease["lease_id"], "--", *BUSY]
        running = [subprocess.Popen(words, preexec_fn=into(box)) for _ in range(3)]
        until(lambda: members(group_of(lease)) == {it.pid for it in running}, 20, "three processes in the lease")
        suite.equal("callers of one container: one control group", 1, len(callers(lease)))
        suite.equal("callers of one container: with its limit", str(BOX_PROCESSES), read(group_of(lease) / callers(lease)[0] / "pids.max"))
    suite.equal("the end of the lease ends them", [-signal.SIGKILL] * 3, [it.wait() for it in running])


def refused(suite, node, _device):
    """A caller that would lose a limit, or leave a lease, is refused, and its command does not run."""
    alice = node.tenant("alice")
    with limited("box", pids_max=BOX_PROCESSES) as box, leased(alice, 1, "whole_core") as lease, leased(alice, 1, "whole_core") as other:
        by_hand = enter(lease, BUSY)
        said = run_in(lease, "echo", "it ran", box=box)
        suite.check("a lease that hands no limit on: refused", said.returncode and not said.stdout, "a refusal", said)
        suite.check("and it says why", all(word in said.stderr for word in ("/box", "would end", "processes of its own")), "why", said.stderr)
        by_hand.kill()
        by_hand.wait()
        suite.equal("without that process: it runs", "it ran\n", run_in(lease, "echo", "it ran", box=box).stdout)
        inner = [program("fabricctl"), "run", "--local-socket", SOCKET, "--lease", other["lease_id"], "--", "echo", "it ran"]
        said = run_in(lease, *inner)
        suite.check("from one lease into another: refused", said.returncode and not said.stdout, "a refusal", said)
        suite.check("and it says why", "another lease" in said.stderr, "why", said.stderr)
        os.setxattr(box, "trusted.fabricbios", b"1")  # As the hook of container engines does.
        said = run_in(lease, "echo", "it ran", box=box)
        suite.check("from a container with a leased device: refused", said.returncode and not said.stdout, "a refusal", said)
        suite.check("and it says why", "ends with that lease" in said.stderr, "why", said.stderr)
        inner[inner.index(other["lease_id"])] = lease["lease_id"]
        suite.equal("into the same lease again: it runs", "it ran\n", run_in(lease, *inner).stdout)


def of_lease(suite, node, device):
    """A fork bomb and a memory hog end at the limits of their lease, and the neighbours go on."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    with leased(bob, 1, "best_effort") as neighbour, leased(alice, 1, "best_effort") as lease:
        at = group_of(lease)
        suite.equal("the lease's limits", (str(MEMORY_MIB << 20), str(PROCESSES)), (read(at / "memory.max"), read(at / "pids.max")))
        words = [program("fabricctl"), "run", "--local-socket", SOCKET, "--lease", neighbour["lease_id"], "--", *BUSY]
        busy = subprocess.Popen(words)
        until(lambda: busy.pid in members(group_of(neighbour)), 20, "the neighbour's process")
        said = probe(lease, device, MEMORY_MIB + 40)
        suite.equal("a hog is killed", -signal.SIGKILL, said["memory"])
        suite.equal("a fork bomb ends at the limit", PROCESSES, said["processes"])
        suite.equal("the neighbour goes on", None, busy.poll())
        suite.equal("and starts programs", "it ran\n", run_in(neighbour, "echo", "it ran").stdout)
    suite.equal("until its own end", -signal.SIGKILL, busy.wait())


def main():
    """All sections on one node."""
    ready(8)
    if run("modprobe", "loop").returncode:
        skip("module loop")
    device = os.stat(loop_device(16)).st_rdev
    limits = ("--cpu-memory-max", f"{MEMORY_MIB}MiB", "--cpu-pids-max", str(PROCESSES))
    with Suite("limits in cpu leases") as suite, CpuNode("--local-socket", SOCKET, *limits) as node:
        for section in (kept, shared, refused, of_lease):
            suite.section(section, suite, node, device)


if __name__ == "__main__":
    main()
