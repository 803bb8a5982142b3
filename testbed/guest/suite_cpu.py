#!/usr/bin/python3
# lab: one-vm topology=2x2x2 numa=2 timeout=1800
# covers: cpu cgroup local node/src/kinds/cpu rdma verbs arena fallback-udp node/src/kinds/memory
"""Leases of CPU cores on two sockets of two cores with two threads each: whole cores are alone, shares are capped, and
nothing outlives its lease, whatever the tenant, a neighbour or the daemon does. The group of the boot CPU, 0 and 1, is
the node's own."""
import contextlib
import os
import shutil
import signal
import subprocess
import time

from block import loop_device, run, sh
from checks import LATE_LIMIT_MS, STOPPED_LATE_MS, Suite, in_full_length, length, skip, until
from cores import BUSY, CGROUPS, FORKS, CpuNode, alloc, beside, cpus_of, enter, group_of, health, leased, members, numbers, read, ready
from cores import used_secs
from fabric import PORT, REFUSED, USAGE, Node, Refused, program
from steps import Cpu as steps
from switches import Trace

SOCKET = "/run/fabricbios/local.sock"
ALICE, BOB = 1234, 1235
CORES = ({2, 3}, {4, 5}, {6, 7})
NODES = {0: {0, 1, 2, 3}, 1: {4, 5, 6, 7}}
TERM_SECS = length(8, 5)
TRACED_SECS = length(10, 4)
CYCLES = int(os.environ.get("CPU_CYCLES", length(500, 15)))
DIE_AFTER = "FABRICBIOS_DIE_AFTER"
SOME_STEPS = steps.ALL


def inventory(suite, node):
    """The inventory of the cores: the classes, which of them are enforced, and how much is available for each."""
    alice = node.tenant("alice")

    def classes():
        cpu = next(row for row in alice.ask("inventory")["resources"] if row["resource_type"] == "cpu")
        return cpu["classes"], cpu
    told, cpu = classes()
    print(f"   {cpu}", flush=True)
    suite.equal("inventory: the default class", "whole_core", told["default"])
    suite.equal("inventory: what is supported here", {"best_effort", "whole_core"}, set(told["supported"]))
    suite.equal("inventory: whole cores are enforced", "enforced", told["enforcement"].get("whole_core"))
    suite.equal("inventory: cores on offer, and CPUs of the machine", (3, 8), (cpu["capacity"], cpu["cpu"]["threads"]))

    def available():
        left = classes()[0]["available"]
        return left.get("whole_core"), left.get("best_effort")
    suite.equal("inventory: left for each class", (3, 6), available())
    with leased(alice, 1, "whole_core"):
        suite.equal("inventory: left beside a core", (2, 4), available())
    with leased(alice, 3, "best_effort"):
        suite.equal("inventory: left beside three shares", (1, 3), available())


def shmem_bytes(node):
    """Bytes of shared memory on a NUMA node, such as an arena without a file."""
    lines = read(f"/sys/devices/system/node/node{node}/meminfo").splitlines()
    return next(int(line.split()[-2]) << 10 for line in lines if " Shmem:" in line)


def arenas_of_both_nodes(suite, _node):
    """Memory on offer comes from the NUMA node that its setting names; a node that the machine does not have is refused."""
    size = 64 << 20
    for node in NODES:
        before = shmem_bytes(node)
        with Node("--mem-arena", f"near=64MiB,numa-node={node}", "--fbmu-listen", "127.0.0.1:5712", device="none", mem_bytes="1MiB",
                  address="127.0.0.1", port=PORT + 10):
            grown = shmem_bytes(node) - before
            # Other shared memory is allocated and freed meanwhile.
            suite.check(f"an arena of NUMA node {node}: its memory is there", grown > size // 2, f"some {size} bytes more", grown)
    refused = subprocess.run([program("fabricbiosd"), "check", "--mem-arena", "near=64MiB,numa-node=2", "--rdma-device", "none"],
                             capture_output=True, text=True, check=False)
    suite.check("an arena of a node that is not there is refused", refused.returncode == 1 and "with memory of this machine are 0-1" in refused.stdout,
                "0-1", refused)


def whole_cores(suite, node):
    """Physical cores with both siblings, of one NUMA node if possible, with memory of that node."""
    alice = node.tenant("alice")
    with leased(alice, 1, "whole_core") as one, leased(alice, 2, "whole_core") as two:
        suite.check("one core: a core with its sibling", cpus_of(one) in CORES, CORES, cpus_of(one))
        suite.equal("two cores: those of one NUMA node", {4, 5, 6, 7}, cpus_of(two))
        for name, lease in (("one core", one), ("two cores", two)):
            at, cpus = group_of(lease), cpus_of(lease)
            suite.equal(f"{name}: the kernel's CPUs", cpus, numbers(read(at / "cpuset.cpus.effective")))
            suite.equal(f"{name}: a partition", ("root", "root"), (read(at / "cpuset.cpus.partition"), lease["binding"]["cpu"]["partition"]))
            mems = numbers(read(at / "cpuset.mems.effective"))
            suite.check(f"{name}: memory of its own node", all(cpus <= NODES[node] for node in mems), "the node of its CPUs", mems)
            suite.equal(f"{name}: told what is enforced", "whole_core", lease["effective"]["cpu_isolation"])
        suite.equal("others: no leased CPU", {0, 1}, numbers(read(CGROUPS / "cpuset.cpus.effective")))
        suite.refused("no core is left", lambda: alloc(alice, 1, "whole_core"), REFUSED)
    suite.equal("given back: all CPUs are everybody's again", set(range(8)), numbers(read(CGROUPS / "cpuset.cpus.effective")))
    suite.equal("given back: no control group", [], groups(node))


def groups(node):
    """The control groups of leases."""
    return [name for name in node.groups() if name.startswith(("lease-", "stuck-"))]


def refusals(suite, node):
    """Requests that this machine cannot fulfil are refused with the reason."""
    alice = node.tenant("alice")
    suite.refused("strict on a machine with SMT", lambda: alloc(alice, 1, "strict_isolated"), REFUSED, None, "SMT")
    suite.refused("more cores than there are", lambda: alloc(alice, 4, "whole_core"), REFUSED)
    suite.refused("more shares than there are CPUs", lambda: alloc(alice, 7, "best_effort"), REFUSED)
    suite.equal("after refusals: no control group", [], groups(node))


def shares(suite, node):
    """Shared leases never get more than exclusive leases and the node leave, and the reverse."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    with leased(alice, 4, "best_effort"), leased(bob, 1, "whole_core") as core:
        suite.refused("a core that shares need", lambda: alloc(bob, 1, "whole_core"), REFUSED)
        suite.refused("a share of what cores have", lambda: alloc(bob, 1, "best_effort"), REFUSED)
        bob.free(core)
        with leased(bob, 2, "best_effort"):
            suite.refused("a core, with every share leased", lambda: alloc(bob, 1, "whole_core"), REFUSED)
    with leased(alice, 1, "best_effort") as share, leased(bob, 2, "whole_core") as cores:
        at = group_of(share)
        suite.equal("a share: no CPU of a core lease", set(), numbers(read(at.parent / "cpuset.cpus.effective")) & cpus_of(cores))
        busy = [enter(share, BUSY) for _ in range(3)]
        before, began = used_secs(at), time.monotonic()
        time.sleep(TRACED_SECS)
        used = (used_secs(at) - before) / (time.monotonic() - began)
        print(f"   three busy processes use {used:.2f} CPUs of a share of one", flush=True)
        suite.check("a share: at most its CPU time", 0 < used < 1.15, "one CPU", used)
        for process in busy:
            process.kill()
            process.wait()


def alone(suite, node):
    """No foreign task runs on the CPUs of a whole_core lease, however busy the foreign tasks are; a trace of all
    switches shows it."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    with leased(bob, 2, "best_effort") as share, beside(count=4), beside(4, 5, 6, 7) as pinned:
        loud = [enter(share, BUSY) for _ in range(2)]
        with Trace({4, 5, 6, 7}) as before:
            time.sleep(1)
        suite.check("before the grant neighbours run there", before.strangers(), "neighbours", before.seen)
        with leased(alice, 1, "whole_core") as lease:
            cpus = cpus_of(lease)
            own = [enter(lease, BUSY) for _ in range(2)]
            with Trace(cpus) as trace:
                time.sleep(TRACED_SECS)
            suite.equal("traced: each leased CPU", cpus, set(trace.seen))
            suite.check("traced: the lease's own processes run there", {process.pid for process in own} & set().union(*trace.seen.values()),
                        "members", trace.seen)
            suite.equal("traced: nobody else does", [], trace.strangers({process.pid for process in own}))
            suite.check("a neighbour cannot be pinned there", not pins(pinned[0].pid, cpus), "an error")
        for process in own:
            suite.equal("the end of the lease ends its process", -signal.SIGKILL, process.wait())
        for process in loud:
            process.kill()
            process.wait()


def pins(pid, cpus):
    """Whether the kernel accepts this affinity."""
    try:
        os.sched_setaffinity(pid, cpus)
    except OSError:
        return False
    return True


def runs(suite, node):
    """Users of the node run programs in leases of their tenants, as themselves; other users cannot, and no process
    leaves a lease."""
    alice = node.tenant("alice")
    with leased(alice, 1, "whole_core") as lease:
        said = run_as(ALICE, lease, "sh", "-c", "id -u; cat /proc/self/cgroup; echo $MARK; exit 7")
        uid, place, mark = said.stdout.split("\n")[:3]
        suite.equal("run: user, environment and status", (7, str(ALICE), "kept"), (said.returncode, uid, mark))
        own = f"0::/{group_of(lease).relative_to(CGROUPS)}/caller-"
        suite.check("run: control group", place.startswith(own), own, place)
        said = run_as(ALICE, lease, "sh", "-c", f"echo $$ > {CGROUPS}/cgroup.procs")
        suite.check("run: it cannot leave", said.returncode and "denied" in said.stderr, "Permission denied", said)
        for name, uid, tenant in (("another tenant's user", BOB, "alice"), ("nobody's user", BOB + 1, "no tenant")):
            said = run_as(uid, lease, "echo", "ran")
            suite.equal(f"run by {name}: refused", (REFUSED, ""), (said.returncode, said.stdout))
            suite.check(f"run by {name}: and says why", str(uid) in said.stderr and tenant in said.stderr, "uid and tenant", said.stderr)
        said = run_as(ALICE, lease, "no-such-program")
        suite.check("run: a program that is not there", said.returncode, "an error", said)
        begun = subprocess.Popen(run_words(lease, *BUSY), user=ALICE, group=ALICE, stderr=subprocess.PIPE, text=True)
        until(lambda: begun.pid in members(group_of(lease)), 60, "the process in the lease")
    suite.equal("run: the end of the lease ends it", -signal.SIGKILL, begun.wait())
    said = begun.stderr.read()
    suite.check("run: and a line says so", f"lease {lease['lease_id']} is over" in said, "a line", said)
    with leased(alice, 1, "whole_core", 30) as lease:
        told = run_as(ALICE, lease, "sh", "-c", "trap 'exit 9' TERM; while :; do sleep 0.1; done", end=("--warn-secs", "20"))
        suite.equal("run: it is told ahead of the end", (9, True), (told.returncode, "SIGTERM to process" in told.stderr))
    suite.check("run: no lease any more", run_as(ALICE, lease, "true").returncode not in (0, REFUSED), "an error")


def run_words(lease, *words, end=()):
    """The command line of `fabricctl run`, with these flags for the end of the lease."""
    return [program("fabricctl"), "run", "--local-socket", SOCKET, "--lease", lease["lease_id"], *end, "--", *words]


def run_as(uid, lease, *words, end=()):
    """Runs `fabricctl run` as that user, to its end."""
    return subprocess.run(run_words(lease, *words, end=end), user=uid, group=uid, capture_output=True, text=True, check=False,
                          env={"PATH": os.environ["PATH"], "MARK": "kept"})


def bad_input(suite, node):
    """Invalid values are a usage error or a refusal, and the node goes on."""
    alice = node.tenant("alice")
    for name, words in (("no cores", ("0",)), ("a class that does not exist", ("1", "--isolation", "very")),
                        ("a mode that does not exist", ("1", "--execution-mode", "magic")), ("no width", ("1", "--execution-width", "0")),
                        ("a partition of another kind", ("1", "--partition", "member"))):
        finished = alice.run("lease", "alloc", "cpu", "--secs", "60", "--cores", *words)
        suite.equal(name, USAGE, finished.returncode)
    with leased(alice, 1, "whole_core", 600, "--partition", "isolated") as lease:
        suite.equal("a partition without load balancing, as asked", "isolated", read(group_of(lease) / "cpuset.cpus.partition"))
    suite.equal("after bad input: no control group", [], groups(node))


def expires(suite, node):
    """The end of the term kills processes that fork all the time."""
    alice = node.tenant("alice")
    leases = {isolation: alloc(alice, 1, isolation, TERM_SECS) for isolation in ("whole_core", "best_effort")}
    processes = {isolation: enter(lease, FORKS) for isolation, lease in leases.items()}
    for isolation, lease in leases.items():
        ends_on_time(suite, isolation, lease)
    for isolation, lease in leases.items():
        forking = processes[isolation]
        suite.equal(f"{isolation}: its process is killed", -signal.SIGKILL, forking.wait())
        suite.equal(f"{isolation}: expired", "expired", alice.wait_until(lease, "expired")["state"])
        group = group_of(lease)
        until(lambda at=group: not at.exists(), 60, "the removal of the control group")


def ends_on_time(suite, name, lease, late_limit_ms=LATE_LIMIT_MS):
    """Checks that the lease's processes run until the deadline and not much longer."""
    at = group_of(lease)
    until(lambda: not members(at), TERM_SECS + 60, "the end of its processes")
    # The clock is read after the end was seen, so a slow suite makes an end look later, never earlier.
    late_ms = time.time() * 1000 - lease["expires_at_unix_ms"]
    print(f"   {name}: no process {late_ms:.0f} ms after the deadline", flush=True)
    suite.check(f"{name}: ended at its deadline", 0 <= late_ms < late_limit_ms, f"0 to {late_limit_ms} ms", late_ms)


def restarts(suite, node):
    """Leases go on when their daemon dies, and the next daemon adopts them; their deadlines hold without any daemon."""
    alice = node.tenant("alice")
    with leased(alice, 1, "whole_core") as core, leased(alice, 1, "best_effort") as share:
        inside = {name: enter(lease, BUSY) for name, lease in (("core", core), ("share", share))}
        short = alloc(alice, 1, "whole_core", TERM_SECS)
        forking = enter(short, FORKS)
        node.kill()
        ends_on_time(suite, "no daemon", short)
        forking.wait()
        node.start()
        suite.equal("no daemon: expired", "expired", alice.query(short)["state"])
        for name, lease in (("core", core), ("share", share)):
            suite.equal(f"adopted: {name}, its coordinates", fixed(lease), fixed(alice.query(lease)))
            suite.equal(f"adopted: {name}, its processes", {inside[name].pid}, members(group_of(lease)))
        stopped = alloc(alice, 1, "whole_core", TERM_SECS)
        forking = enter(stopped, FORKS)
        node.process.send_signal(signal.SIGSTOP)
        ends_on_time(suite, "a stopped daemon", stopped, STOPPED_LATE_MS)
        forking.wait()
        node.process.send_signal(signal.SIGCONT)
        suite.equal("a stopped daemon that goes on: expired", "expired", alice.wait_until(stopped, "expired")["state"])
        suite.equal("others go on", [None, None], [process.poll() for process in inside.values()])
    for process in inside.values():
        process.wait()
    suite.equal("after all: no control group", [], groups(node))


@in_full_length
def kept(suite, node):
    """SIGTERM with on-stop = keep leaves leases and their processes. The watchdog ends the leases on time, and the next
    daemon adopts them."""
    alice = node.tenant("alice")
    with node.keeping(), leased(alice, 1, "whole_core") as core, leased(alice, 1, "best_effort") as share:
        inside = {name: enter(lease, BUSY) for name, lease in (("core", core), ("share", share))}
        short = alloc(alice, 1, "whole_core", TERM_SECS)
        forking = enter(short, FORKS)
        suite.equal("kept: the daemon has stopped in order", 0, node.stop())
        suite.equal("kept: every process goes on", [None, None, None], [process.poll() for process in (*inside.values(), forking)])
        ends_on_time(suite, "kept", short)
        forking.wait()
        node.start()
        suite.equal("kept: expired", "expired", alice.query(short)["state"])
        for name, lease in (("core", core), ("share", share)):
            suite.equal(f"kept: {name} is adopted with its coordinates", fixed(lease), fixed(alice.query(lease)))
            suite.equal(f"kept: {name}, its processes", {inside[name].pid}, members(group_of(lease)))
    for process in inside.values():
        process.wait()
    suite.equal("kept: after all no control group", [], groups(node))


def fixed(lease):
    """The coordinates that stay the same; the CPUs of a share change with the exclusive leases beside it."""
    cpu = lease["binding"]["cpu"]
    return {name: value for name, value in cpu.items() if name != "cpus" or cpu["partition"] != "member"}


@in_full_length
def foreign(suite, node):
    """Foreign control groups that claim leased CPUs get none of them. In the node's own group they break the partition:
    this is reported at once, and the partition is made again as soon as they leave the group."""
    alice = node.tenant("alice")
    with leased(alice, 1, "whole_core") as lease:
        at, cpus = group_of(lease), read(group_of(lease) / "cpuset.cpus.effective")

        def is_well():
            return (read(at / "cpuset.cpus.partition"), read(at / "cpuset.cpus.effective")) == ("root", cpus)
        other = CGROUPS / "foreign"
        with group(other):
            claims(other, cpus)
            suite.check("a group beside the node's: the lease is whole", is_well(), "whole", read(at / "cpuset.cpus.partition"))
            suite.check("a group beside the node's: it has no leased CPU",
                        not numbers(read(other / "cpuset.cpus.effective")) & cpus_of(lease), "none")
        other = node.root / "foreign"
        with group(other):
            claims(other, cpus)
            suite.check("a group in the node's: it is told", node.wait_for_line(lease["lease_id"], "root invalid"), "a line of the log")
            until(lambda: health(alice) == "degraded", 60, "the resource's health")
        suite.check("a group in the node's: the lease is whole after it", until(is_well, 60, "a whole partition"), "whole")
        suite.check("and the resource is well", until(lambda: health(alice) == "ok", 60, "the resource's health"), "ok")
        (at / "cpuset.cpus.partition").write_text("member")
        suite.check("a partition that is dissolved is made again", until(is_well, 60, "a whole partition"), "whole")
    lease = alloc(alice, 1, "whole_core")
    inside = enter(lease, BUSY)
    with group(other), leased(alice, 1, "whole_core") as neighbour:
        claims(other, read(group_of(lease) / "cpuset.cpus"))
        fence = until(node.operator.fences, 60, "a fence")[0]
        suite.check("a group that stays: the fence names it", str(other) in fence["reason"] and lease["lease_id"] in str(fence), other, fence)
        suite.equal("a group that stays: the lease is over", "fenced", alice.query(lease)["state"])
        suite.equal("a group that stays: its process is killed", -signal.SIGKILL, inside.wait())
        suite.equal("a group that stays: a neighbour goes on", "active", alice.query(neighbour)["state"])
        with leased(alice, 1, "whole_core") as third:
            suite.check("a group that stays: other cores are leased", not cpus_of(third) & cpus_of(lease), "others", cpus_of(third))
    node.operator.ask("fence", "clear", fence["resource_id"])
    with leased(alice, 3, "whole_core"):
        suite.check("a group that stayed: its cores are leased again", True)


@contextlib.contextmanager
def group(at):
    """A foreign control group."""
    at.mkdir()
    try:
        yield
    finally:
        at.rmdir()


def claims(at, cpus):
    """A control group that asks for CPUs in every way; the kernel may refuse each way."""
    for name, value in (("cpuset.cpus", cpus), ("cpuset.cpus.exclusive", cpus), ("cpuset.cpus.partition", "root")):
        with contextlib.suppress(OSError):
            (at / name).write_text(value)


def stuck(suite, node):
    """A process that cannot die, since its disk does not answer, fences only the cores of its lease, until it can
    die."""
    alice = node.tenant("alice")
    if run("modprobe", "-a", "loop", "dm-mod").returncode or not shutil.which("dmsetup"):
        skip("dmsetup, and the modules loop and dm-mod")
    sectors = int(sh(f"blockdev --getsz {(device := loop_device(16))}"))
    sh(f"dmsetup create stuck --table '0 {sectors} linear {device} 0' && dmsetup mknodes && dmsetup suspend --nolockfs stuck")
    try:
        lease = alloc(alice, 1, "whole_core")
        waits = enter(lease, ("dd", "if=/dev/zero", "of=/dev/mapper/stuck", "bs=4k", "count=1", "oflag=direct"), stderr=subprocess.DEVNULL)
        until(lambda: read(f"/proc/{waits.pid}/stat").rpartition(")")[2].split()[0] == "D", 60, "state D")
        with contextlib.suppress(Refused):
            alice.free(lease)
        fences = until(node.operator.fences, 60, "a fence")
        print(f"   {fences}", flush=True)
        suite.check("stuck: the fence names the process", len(fences) == 1 and str(waits.pid) in str(fences) and "dd" in str(fences),
                    f"{waits.pid} and dd", fences)
        with leased(alice, 2, "whole_core") as others:
            suite.check("stuck: other cores are leased", not cpus_of(others) & cpus_of(lease), "others", cpus_of(others))
            suite.refused("stuck: its own are not", lambda: alloc(alice, 1, "whole_core"))
    finally:
        sh("dmsetup resume stuck")
        waits.wait()
        sh("dmsetup remove stuck")
    until(lambda: not node.operator.fences(), 60, "the end of the fence")
    with leased(alice, 3, "whole_core"):
        suite.check("stuck: once it can die, its cores are leased again", True)
    suite.equal("stuck: no control group is left", [], groups(node))


def traced(suite, node):
    """A tracer of the tenant that holds the killed processes of its lease is killed, and no core is lost."""
    alice = node.tenant("alice")
    lease = alloc(alice, 1, "whole_core")
    tracee = subprocess.Popen(run_words(lease, *BUSY), user=ALICE, group=ALICE)
    until(lambda: tracee.pid in members(group_of(lease)), 60, "the process in the lease")
    # PTRACE_SEIZE, PTRACE_O_TRACEEXIT: a killed process waits for its tracer before it ends.
    seize = f"import ctypes, time; print(ctypes.CDLL(None).ptrace(0x4206, {tracee.pid}, 0, 0x40), flush=True); time.sleep(600)"
    tracer = subprocess.Popen(("python3", "-c", seize), user=ALICE, group=ALICE, stdout=subprocess.PIPE, text=True)
    suite.equal("traced by its user: the kernel lets him", "0", tracer.stdout.readline().strip())
    alice.free(lease)
    suite.equal("traced by its user: process and tracer are killed", [-signal.SIGKILL] * 2, [it.wait(60) for it in (tracee, tracer)])
    suite.equal("traced by its user: nothing is fenced", [], node.operator.fences())
    with leased(alice, 3, "whole_core"):
        suite.check("traced by its user: all cores are leased again", True)
    suite.equal("traced by its user: no control group is left", [], groups(node))


def remove_root(node):
    """The control groups of a node that has stopped."""
    for at in sorted((it for it in node.root.rglob("*") if it.is_dir()), reverse=True):
        at.rmdir()
    node.root.rmdir()


@in_full_length
def dies(suite, node):
    """The daemon is killed after any of its own steps. It leaves nothing that the next daemon does not adopt or
    remove."""
    alice = node.tenant("alice")
    node.stop()
    for step in SOME_STEPS:
        if step in steps.START:
            remove_root(node)
        node.environment[DIE_AFTER] = step
        try:
            node.start()
            lease = alloc(alice, 1, "best_effort" if step in steps.SHARE else "whole_core")
            subprocess.Popen(FORKS, preexec_fn=lambda lease=lease: (group_of(lease) / "cgroup.procs").write_text(str(os.getpid())))
            if step in steps.ENTER:
                run_as(ALICE, lease, "true")
            alice.free(lease)
        except (Refused, FileNotFoundError, RuntimeError):
            pass  # Of a daemon that has died, perhaps at its start.
        status = node.process.wait(60)
        suite.check(f"{step}: the daemon died there", status == -signal.SIGABRT, -signal.SIGABRT, status)
        node.environment.clear()
        node.start()
        alice.free_all()
        suite.check(f"{step}: nothing is left", until(lambda: not groups(node), 60, "no control group"), "no control group", groups(node))
        suite.equal(f"{step}: everybody has all CPUs", set(range(8)), numbers(read(CGROUPS / "cpuset.cpus.effective")))
        node.stop()
    node.start()


@in_full_length
def cycles(suite, node):
    """Leases with forking processes, granted and freed again and again, leave no control group."""
    alice = node.tenant("alice")
    before = sorted(at for at in CGROUPS.rglob("*") if at.is_dir())
    ended = []
    for number in range(CYCLES):
        with leased(alice, 1, ("whole_core", "best_effort")[number % 2]) as lease:
            process = enter(lease, ("sh", "-c", "while :; do sleep 0.02; done"))
        ended.append(process.wait())
    suite.equal(f"{CYCLES} cycles: every process was killed", {-signal.SIGKILL}, set(ended))
    suite.equal(f"{CYCLES} cycles: the control groups of before", before, sorted(at for at in CGROUPS.rglob("*") if at.is_dir()))
    suite.equal(f"{CYCLES} cycles: everybody has all CPUs", set(range(8)), numbers(read(CGROUPS / "cpuset.cpus.effective")))


def main():
    """All sections on one node."""
    ready(8)
    users = [word for name, uid in (("alice", ALICE), ("bob", BOB)) for word in ("--tenant-uid", f"{name}={uid}")]
    with Suite("cpu leases") as suite, CpuNode("--local-socket", SOCKET, *users) as node:
        for section in (inventory, arenas_of_both_nodes, whole_cores, refusals, shares, alone, runs, bad_input, expires, restarts, kept,
                        foreign, stuck, traced, dies, cycles):
            suite.section(section, suite, node)


if __name__ == "__main__":
    main()
