#!/usr/bin/python3
"""The kernel's trace of all switches between tasks: who runs on some CPUs, and how often the threads of some processes
run."""
import collections
import contextlib
import os
import pathlib
import re
import time

from checks import skip

TRACING = pathlib.Path("/sys/kernel/tracing")
SWITCH = re.compile(r"\[(\d+)\].* sched_switch: prev_comm=(.*) prev_pid=(\d+) prev_prio=.* prev_state=(\S+) ==> next_comm=(.*) next_pid=(\d+) ")
FORK = re.compile(r" sched_process_fork: .* pid=(\d+) child_comm=.* child_pid=(\d+)")
SWITCHES, FORKS = "events/sched/sched_switch/enable", "events/sched/sched_process_fork/enable"


def ready():
    """Ends the suite as not run if this kernel cannot trace."""
    if not (TRACING / SWITCHES).exists():
        skip("tracefs with sched_switch")


class _Recording:
    """Traces while its context lasts. `text` is the trace then, which must be complete."""

    def __init__(self, cpus, pids=(), events=(SWITCHES,)):
        """`pids`: only switches to and from these threads, and those that they start; none: all."""
        self.cpus, self.pids, self.events, self.text = sorted(cpus), pids, events, ""

    def __enter__(self):
        mask = sum(1 << cpu for cpu in self.cpus)
        _set(tracing_cpumask=f"{mask:x}", buffer_size_kb="8192", trace="")
        _set(**{"options/event-fork": "1", "set_event_pid": " ".join(map(str, self.pids))})
        _set(**dict.fromkeys(self.events, "1"), tracing_on="1")
        return self

    def __exit__(self, *_):
        _set(tracing_on="0", **dict.fromkeys(self.events, "0"))
        _set(**{"options/event-fork": "0", "set_event_pid": ""})
        lost = [cpu for cpu in self.cpus if "overrun: 0\n" not in (TRACING / f"per_cpu/cpu{cpu}/stats").read_text()]
        if lost:
            raise RuntimeError(f"the trace of CPUs {lost} is not complete")
        self.text = (TRACING / "trace").read_text()


def _set(**values):
    for name, value in values.items():
        (TRACING / name).write_text(value)


class Trace(_Recording):
    """The tasks on some CPUs."""

    def __init__(self, cpus):
        super().__init__(cpus)
        self.kernel, self.seen = kernel_threads(), {}

    def __exit__(self, *ended):
        super().__exit__(*ended)
        self.kernel |= kernel_threads()
        for cpu, before, before_pid, _, after, after_pid in SWITCH.findall(self.text):
            self.seen.setdefault(int(cpu), {}).update({int(before_pid): before, int(after_pid): after})

    def strangers(self, own=frozenset()):
        """Tasks that are neither kernel threads nor in `own`, each as its CPU, number and name."""
        return [(cpu, pid, name) for cpu, tasks in sorted(self.seen.items()) for pid, name in sorted(tasks.items())
                if pid and pid not in own and pid not in self.kernel and not name.startswith("kworker/")]


class Runs(_Recording):
    """How often the threads of a process and of its descendants run. `of`: by the name of the thread, how often it was
    switched to and how often it went to sleep or ended, which is less if it was interrupted. `secs`: how long the
    trace took."""

    def __init__(self, pid):
        super().__init__(range(os.cpu_count()), threads_of(pid), (SWITCHES, FORKS))
        self.of, self.began, self.secs = collections.defaultdict(lambda: [0, 0]), 0, 0

    def __enter__(self):
        self.began = time.monotonic()
        return super().__enter__()

    def __exit__(self, *ended):
        super().__exit__(*ended)
        self.secs = time.monotonic() - self.began
        ours = set(self.pids)
        for line in self.text.splitlines():
            if fork := FORK.search(line):
                ours |= {int(fork[2])} if int(fork[1]) in ours else set()
            elif switch := SWITCH.search(line):
                _, before, before_pid, state, after, after_pid = switch.groups()
                if int(after_pid) in ours:
                    self.of[after][0] += 1
                if int(before_pid) in ours and not state.startswith("R"):
                    self.of[before][1] += 1

    @property
    def times(self):
        """How often any of them ran until it slept or ended."""
        return sum(sleeps for _, sleeps in self.of.values())


def threads_of(pid):
    """The threads of a process and of its descendants."""
    parents = dict(_processes())
    tree = {pid}
    while more := {child for child, parent in parents.items() if parent in tree} - tree:
        tree |= more
    found = set()
    for process in tree:
        with contextlib.suppress(OSError):
            found |= {int(thread) for thread in os.listdir(f"/proc/{process}/task")}
    return found


def kernel_threads():
    """The numbers of the kernel's own threads."""
    return {pid for pid, parent in _processes() if 2 in (pid, parent)}


def _processes():
    """Each process and its parent."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            stat = pathlib.Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
            yield int(name), int(stat.rpartition(")")[2].split()[1])
