#!/usr/bin/python3
# lab: one-vm timeout=900
# covers: gpu local node/src/kinds/gpu testbed/stand-ins
"""Ends of GPU leases on stand-ins of the vendors' libraries, with the real kernel's control groups and device
controller: nothing is left, whichever process dies or stops meanwhile."""
import contextlib
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import podman
from checks import STOPPED_LATE_MS, Suite, in_full_length, length, until
from fabric import Refused, program
from gpus import (DEVICE, NODE, PATTERN, PTX, SHARED, SOCKET, GpuNode, alloc, cleared, copied, copying, device_bytes, filled, gone,
                  gpus, kernel, leased, leases_again, program_of, ready, run_in, workers)
from limited import CHARACTER, into, limited
from steps import Gpu as steps

STRANGER = 65534
SOME_STEPS = steps.ALL


def scrub(suite, node):
    """No byte of a tenant is left, even if its worker was killed in the middle of a kernel."""
    alice = node.tenant("alice")
    nvidia = gpus(node.operator)["nvidia"]["resource_id"]
    lease = alloc(alice, "1MiB", 600, resource=nvidia)
    with filled(node, alice, lease) as client:
        alice.free(lease)
        suite.equal("free, in the middle of a kernel: no worker is left", set(), workers())
        _, said = client.communicate(timeout=60)
        suite.check("the client is told", client.returncode != 0 and said, "an error", (client.returncode, said))
    again = until(lambda: leases_again(alice, nvidia), 60, "the device free again")
    suite.check("before it is leased again its bytes are gone", PATTERN not in device_bytes(node), "no pattern")
    line = node.wait_for_line("lease ended", lease["lease_id"])
    suite.check("the share is told", line and "% of the memory that was free before the lease" in line, "a percentage", line)
    alice.free(again)
    # Missing memory is noticed at a look at the device, or at the latest when all of the memory is wiped.
    for knob, whys in (("short-scrub", ["could be wiped"]), *length((("lost", ["could be wiped", "have not come back"]),), ())):
        lease = until(lambda: leases_again(alice, nvidia), 60, "the device free again")
        with filled(node, alice, lease, 2 << 20):
            node.knob(knob, 4 << 20)
            alice.free(lease)
        fence = node.operator.wait_for_fence(90)
        suite.check(f"{knob}: FENCED with the reason", fence["resource_id"] == nvidia and any(it in fence["reason"] for it in whys),
                    (nvidia, whys), fence)
        suite.refused(f"{knob}: no new lease", lambda: alloc(alice, "1MiB", 60, resource=nvidia), 5)
        node.knob(knob)
        until(lambda: cleared(node, nvidia), 120, f"{knob}: the fence is cleared")
        suite.check(f"{knob}: cleared, and the bytes are gone", PATTERN not in device_bytes(node), "no pattern")


def local_programs(suite, node):
    """Programs on the node: they can open only the device of their lease, and they end with the lease."""
    operator = node.operator
    alice = node.tenant("alice")
    nvidia = gpus(operator)["nvidia"]["resource_id"]
    lease = until(lambda: leases_again(alice, nvidia), 60, "the device free again")
    script = ("import os\n"
              "def opens(path):\n"
              "    try:\n        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)); return 'opens'\n"
              "    except OSError as error:\n        return error.strerror\n"
              "print({path: opens(path) for path in ('/dev/gpu-root/dev/nvidia240', '/dev/null', '/dev/urandom', '/dev/port')})\n"
              "print(os.environ.get('CUDA_VISIBLE_DEVICES'))\nprint(os.environ.get('FABRICBIOS_GPU_VENDOR'))\n")
    done, said = finish(run_in(alice, lease, "python3", "-c", script))
    opened = eval(said.splitlines()[0]) if done == 0 else {}  # The program printed a dict of texts.
    suite.equal("its device can be opened", "opens", opened.get(str(NODE)))
    suite.equal("and what every program needs", ["opens", "opens"], [opened.get("/dev/null"), opened.get("/dev/urandom")])
    pathlib.Path("/dev/port").open("rb").close()  # Outside of the lease it can be opened.
    suite.equal("and no other device", "Operation not permitted", opened.get("/dev/port"))
    suite.equal("the environment names the device", lease["binding"]["gpu"]["uuid"], said.splitlines()[1])
    suite.equal("and its vendor", "nvidia", said.splitlines()[2])
    spec = pathlib.Path(f"/run/cdi/fabricbios-{lease['lease_id']}.json")
    suite.check("a CDI specification names it", str(NODE) in spec.read_text(), "the node", spec.read_text())
    copied(alice, lease)
    with limited("box", CHARACTER, memory_max="256M") as box:
        done, said = finish(run_in(alice, lease, "python3", "-c", script, preexec_fn=into(box)))
        opened = eval(said.splitlines()[0]) if done == 0 else {}
        suite.equal("beside a session: what a program could not open before, it cannot open there", "Operation not permitted",
                    opened.get(str(NODE)))
    copied(alice, lease)
    process = run_in(alice, lease, "sh", "-c", "sleep 1000 & echo $! $$; exec sleep 1000")
    pids = [int(word) for word in process.stdout.readline().split()]
    alice.free(lease)
    suite.check("the end of the lease ends its programs", gone(pids), "their end")
    suite.check("and removes the specification", not spec.exists(), "no file")
    process.wait()
    for who, uid in (("root", 0), *length((("another user", STRANGER),), ()), ("another user's socket", STRANGER)):
        held = until(lambda: leases_again(alice, nvidia), 60, "the device free again")
        with in_flight(NODE) if "socket" in who else NODE.open("rb") as file:
            stranger = subprocess.Popen(["sleep", "1000"], stdin=file, user=uid, group=uid, extra_groups=[])
        alice.free(held)
        fence = operator.wait_for_fence()
        suite.check(f"{who} has the device after the lease: FENCED, and named", str(stranger.pid) in fence["reason"], stranger.pid, fence["reason"])
        suite.equal(f"{who}: whoever may have got it without his doing is not killed", None, stranger.poll())
        stranger.kill()
        stranger.wait()
        until(lambda: cleared(node, nvidia), 60, "the fence is cleared when the stranger is gone")
    suite.check("and free again when it is gone", True)


def containers(suite, node):
    """Stock podman gives a container the device of a lease by its name, until the lease ends, even without the
    daemon."""
    with tempfile.TemporaryDirectory() as place:
        alice = node.tenant("alice")
        nvidia = gpus(node.operator)["nvidia"]["resource_id"]
        script = f"echo $CUDA_VISIBLE_DEVICES; exec 3<{NODE} && echo open; {podman.BUSYBOX} sleep 600"
        for name, secs in length((("daemon", 600), ("watchdog", 8)), (("watchdog", 8),)):
            lease = until(lambda secs=secs: leases_again(alice, nvidia, secs), 60, "the device free again")
            gpu = lease["binding"]["gpu"]
            command = podman.container(place, gpu["cdi_device"], script)
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
                said = [running.stdout.readline().strip() for _ in range(2)]
                if not suite.equal(f"{name}: the container has the device", [gpu["uuid"], "open"], said):
                    running.kill()
                    print(running.stderr.read(), flush=True)
                if name == "daemon":
                    alice.free(lease)
                else:
                    node.kill()
                suite.equal(f"{name}: the end of the lease ends it", 128 + signal.SIGKILL, running.wait(60))
            refused = subprocess.run(command, capture_output=True, text=True, check=False)
            suite.check(f"{name}: and no other one has it", refused.returncode and not refused.stdout, "a refusal", refused)
        node.start()
        suite.equal("the lease is expired", "expired", alice.wait_until(lease, "expired", "fenced")["state"])
        alice.free(until(lambda: leases_again(alice, nvidia), 60, "the device free again"))
        suite.equal("nothing is fenced", [], node.operator.fences())
    podman.clean()


def container_root(suite, node):
    """Root of a container without capabilities that has the local socket cannot use a lease: it is not root of the
    node."""
    with tempfile.TemporaryDirectory() as place:
        alice = node.tenant("alice")
        nvidia = gpus(node.operator)["nvidia"]["resource_id"]
        lease = until(lambda: leases_again(alice, nvidia), 60, "the device free again")
        where = ["--lease", lease["lease_id"], "--local-socket", SOCKET]
        module = PTX / "spin.ptx"
        asked = {"its session": ["gpu", "run", *where, "--ptx", str(module), "--kernel", "spin", "--arg", "u64:0"],
                 "its entry": ["run", *where, "--", "/bin/busybox", "true"]}
        mounts = [f"--volume={path}:{path}:ro" for path in ("/usr", "/lib", "/lib64", str(pathlib.Path(SOCKET).parent), module)]
        for name, words in asked.items():
            script = f"exec /bin/fabricctl {' '.join(words)}"
            command = podman.container(place, "/dev/null", script, "--cap-drop=ALL", *mounts)
            shutil.copy(program("fabricctl"), pathlib.Path(place, "root/bin/fabricctl"))
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            said = done.stdout + done.stderr
            suite.check(f"root of a container is refused {name}", done.returncode == 3 and "is not root of this node" in said, "exit 3", (done.returncode, said))
            itself = subprocess.run([program("fabricctl"), *words], capture_output=True, text=True, check=False)
            suite.equal(f"root of the node gets {name}", (0, ""), (itself.returncode, itself.stderr if itself.returncode else ""))
        alice.free(lease)
    podman.clean()


def keepers(suite):
    """Programs that had the device lose it, however they try to keep it: in a container, entered into a lease, or
    elsewhere as the tenant's user."""
    uid = 4001
    with GpuNode("--tenant-uid", f"alice={uid}") as node, tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        alice = node.tenant("alice")
        nvidia = gpus(node.operator)["nvidia"]["resource_id"]
        keeper = pathlib.Path(place, "holds-on.py")
        shutil.copy(pathlib.Path(__file__).with_name("gpu_keeper.py"), keeper)
        keeper.chmod(0o644)
        fast_chain = pathlib.Path(place, "holds-on-chain")
        subprocess.run(["gcc", "-O1", "-o", fast_chain, pathlib.Path(__file__).with_name("gpu_chain.c")], check=True)
        # Belongs to no lease, but has an environment variable that containers of some leases have.
        stranger = subprocess.Popen(["sleep", "1000"], user=STRANGER, group=STRANGER, env={"FABRICBIOS_GPU_LEASE": "1"})
        ways = ("first-thread", "chain", "own-table", "in-flight")
        lease = until(lambda: leases_again(alice, nvidia), 60, "the device free")
        for where, hows in (("container", length(("closed", *ways), ("chain",))), ("entered", length(("closed", *ways, "ring"), ("closed",))),
                            ("user", length((*ways, "ring"), ("chain", "in-flight", "ring")))):  # Closed, it lives, and cannot open the device: suite_gpu, nodes.
            for how in hows:
                words = [str(fast_chain), str(NODE)] if (where, how) == ("user", "chain") else ["python3", str(keeper), how, str(NODE)]
                pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
                if where == "container":
                    inside = f"exec /usr/bin/python3 /mnt/holds-on.py {how} {NODE}"
                    words = podman.with_python(place, lease["binding"]["gpu"]["cdi_device"], inside)
                if where == "entered":
                    process = run_in(alice, lease, *words, user=uid, group=uid, extra_groups=[])
                else:
                    user = {"user": uid, "group": uid, "extra_groups": []} if where == "user" else {}
                    process = subprocess.Popen(words, **pipes, **user)
                said = process.stdout.readline().strip()
                if not suite.equal(f"{where}, {how}: it has the device", "has it", said):
                    process.kill()
                    print(process.stderr.read(), flush=True)
                alice.free(lease)
                lease = until(lambda: leases_again(alice, nvidia), 60, f"{where}, {how}: the device free again")
                if where == "user":
                    # A chain of forks is in no list of processes. Each of its processes has this pipe open.
                    closed = select.select([process.stdout], [], [], 10)[0]
                    suite.equal(f"{where}, {how}: all of it has ended", "", closed and process.stdout.read())
                suite.equal(f"{where}, {how}: nothing of it is left", [], running("holds-on"))
                process.wait(60)
                process.stdout.close()
        alice.free(lease)
        for name, number in length((("stopped", signal.SIGSTOP), ("dead", signal.SIGKILL)), ()):
            opener_without_daemon(suite, node, uid, name, number)
        suite.equal("nothing is fenced", [], node.operator.fences())
        suite.equal("a stranger with a lease's variable lives", None, stranger.poll())
        stranger.kill()
        stranger.wait()
    podman.clean()


def opener_without_daemon(suite, node, uid, name, number):
    """A program of the tenant's user, outside of the lease's control group, loses the device at the deadline."""
    alice = node.tenant("alice")
    nvidia = gpus(node.operator)["nvidia"]["resource_id"]
    lease = until(lambda: leases_again(alice, nvidia, 8), 60, f"{name}: the device free")
    opens = ["sh", "-c", f"exec 3<{NODE} && echo open && exec sleep 1000"]
    with subprocess.Popen(opens, stdout=subprocess.PIPE, text=True, user=uid, group=uid, extra_groups=[]) as process, \
            contextlib.ExitStack() as at_end:
        at_end.callback(process.kill)
        suite.equal(f"{name}: a program of the user has the device", "open", process.stdout.readline().strip())
        os.kill(node.process.pid, number)
        suite.check(f"{name}: it ends without the daemon", gone([process.pid], 60), "its end")
        early_ms = lease["expires_at_unix_ms"] - time.time() * 1000
        suite.check(f"{name}: and not before the deadline", early_ms <= 0, "0 ms before at most", early_ms)
    if number == signal.SIGSTOP:
        os.kill(node.process.pid, signal.SIGCONT)
    else:
        node.kill()
        node.start()
    suite.equal(f"{name}: the lease is expired", "expired", alice.wait_until(lease, "expired", "fenced")["state"])


@contextlib.contextmanager
def in_flight(path):
    """A socket to which the file was sent; the file is not received."""
    near, far = socket.socketpair()
    with near, path.open("rb") as file:
        socket.send_fds(near, [b"x"], [file.fileno()])
    with far:
        yield far


def running(name):
    """The command lines of live processes that contain this word."""
    found = []
    for at in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [line] if name in (line := at.read_text()) else []
    return found


def finish(process):
    """Waits for a program; returns its exit status and output."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out or err


def daemon_ends(suite, node):
    """The deadline holds while the daemon is stopped or dead; the next daemon goes on with the other leases."""
    alice = node.tenant("alice")
    found = gpus(node.operator)
    # The short form has the end by the watchdog of a dead daemon in `containers`.
    for name, number in (("stopped", signal.SIGSTOP), *length((("dead", signal.SIGKILL),), ())):
        long = until(lambda: leases_again(alice, found["amd"]["resource_id"]), 60, "the device of the long lease")
        copied(alice, long)
        keeps = workers()
        short = until(lambda: leases_again(alice, found["nvidia"]["resource_id"], 12), 60, "the device of the short lease")
        copied(alice, short)
        program_pid = int(run_in(alice, short, "sh", "-c", "echo $$; exec sleep 1000").stdout.readline())
        ends = (workers() - keeps) | {program_pid}
        os.kill(node.process.pid, number)
        late_ms = STOPPED_LATE_MS + max(0, short["expires_at_unix_ms"] - time.time() * 1000)
        suite.check(f"{name}: worker and program end without the daemon", gone(ends, late_ms / 1000), "their end")
        early_ms = short["expires_at_unix_ms"] - time.time() * 1000
        suite.check(f"{name}: and not before the deadline", early_ms <= 0, "0 ms before at most", early_ms)
        if number == signal.SIGSTOP:
            os.kill(node.process.pid, signal.SIGCONT)
        else:
            node.kill()
            node.start()
        suite.equal(f"{name}: the lease is expired", "expired", alice.wait_until(short, "expired", "fenced")["state"])
        suite.equal(f"{name}: the longer lease goes on", "active", alice.query(long)["state"])
        suite.equal(f"{name}: with its session", keeps, workers())
        suite.equal(f"{name}: which works", 1 << 20, copied(alice, long))
        alice.free(long)


@in_full_length
def dies(suite):
    """The daemon is killed after any of its own steps. It leaves nothing that the next daemon does not adopt or end."""
    with GpuNode(mode="fractional") as node:
        alice = node.tenant("alice")
        nvidia = gpus(node.operator)["nvidia"]["resource_id"]
        node.stop()
        for step in SOME_STEPS:
            if step in steps.START and node.root:
                node.root.rmdir()
            node.environment["FABRICBIOS_DIE_AFTER"] = step
            with contextlib.suppress(Refused, RuntimeError):  # Of a daemon that has died, perhaps at its start.
                node.start()
                live(node, alice, nvidia, step)
            status = node.process.wait(60)
            suite.check(f"{step}: the daemon died there", status == -signal.SIGABRT, -signal.SIGABRT, status)
            node.environment.clear()
            node.start()
            alice.free_all()
            again = until(lambda: leases_again(alice, nvidia), 120, f"{step}: the device free again")
            suite.equal(f"{step}: no worker is left", set(), workers())
            suite.check(f"{step}: no byte is left", PATTERN not in device_bytes(node), "no pattern")
            alice.free(again)
            until(lambda: not any(it.is_dir() for it in node.root.iterdir()), 60, f"{step}: no control group of a lease")
            node.stop()
        node.start()


def live(node, tenant, resource, step):
    """Runs a lease up to the step."""
    shared = step == "close worker"
    lease = alloc(tenant, "1MiB", 600, *(SHARED if shared else DEVICE), resource=resource)
    if step in steps.SESSION:
        # The client notices the daemon's death only after its connection has been idle for long.
        with program_of(tenant, *copying(lease, 1 << 20)):
            node.process.wait(60)
    elif step in steps.ENTER:
        copied(tenant, lease)
        run_in(tenant, lease, "sleep", "1000").wait(60)
    else:
        with filled(node, tenant, lease) as client:
            if shared:
                node.knob("hang-launch")
                client.wait(60)
            else:
                run_in(tenant, lease, "sh", "-c", "echo in; exec sleep 1000").stdout.readline()
            tenant.free(lease)


@in_full_length
def raced(suite, node):
    """A session that is requested at the moment when its lease ends delays no cut."""
    alice = node.tenant("alice")
    nvidia = gpus(node.operator)["nvidia"]["resource_id"]
    trials = length(60, 6)
    for trial in range(trials):
        lease = until(lambda: leases_again(alice, nvidia), 60, "the device free again")
        with program_of(alice, *copying(lease, 4096)):
            time.sleep(trial % 6 / 2000)  # The session is asked for before the end, or behind it.
            alice.free(lease)
    for trial in range(length(8, 1)):
        lease = until(lambda: leases_again(alice, nvidia, 3), 60, "the device free again")
        time.sleep(max(0, lease["expires_at_unix_ms"] / 1000 - time.time() - 0.15 + trial / 50))
        with program_of(alice, *copying(lease, 4096)):
            suite.equal("at the deadline: expired", "expired", alice.wait_until(lease, "expired", "fenced")["state"])
    suite.equal(f"{trials} times: nothing is fenced", [], node.operator.fences())
    suite.equal("and no worker is left", set(), workers())
    alice.free(until(lambda: leases_again(alice, nvidia), 60, "the device free again"))


@in_full_length
def memory(suite):
    """A worker that takes more of the node's memory than its lease allows is killed, and nothing else."""
    with GpuNode("--gpu-worker-memory-max", "64MiB", mode="fractional", knobs={"memory": 192 << 20}) as node:
        alice, bob, operator = node.tenant("alice"), node.tenant("bob"), node.operator
        nvidia = gpus(operator)["nvidia"]["resource_id"]
        with leased(bob, "16MiB", 600, *SHARED, resource=nvidia) as neighbour:
            status, said = finish(run_in(bob, neighbour, "true"))
            suite.check("a shared lease takes no local program", status != 0 and "exclusive" in said, "a refusal", (status, said))
            copied(bob, neighbour)
            keeps = workers()
            adjusted = {pathlib.Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in (*keeps, node.process.pid)}
            suite.equal("the kernel prefers no worker when it ends processes for lack of memory", 1, len(adjusted))
            lease = alloc(alice, "128MiB", 600, resource=nvidia)
            group = node.root / f"lease-{lease['lease_id']}"
            limits = [(group / name).read_text().strip() for name in ("memory.max", "memory.oom.group", "pids.max")]
            suite.equal("limits of the lease", [str(64 << 20), "1", "512"], limits)
            # The memory of a stand-in is memory of the node.
            suite.refused("a worker that takes more ends", lambda: kernel(alice, lease, "fill", "zero:96MiB", "u32:0", "u32:0"), None)
            events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
            suite.check("for lack of the lease's memory", int(events["oom_kill"]), "oom_kill", events)
            suite.equal("its neighbour's worker stays", keeps, workers())
            suite.equal("and works", 1 << 20, copied(bob, neighbour))
            alice.free(lease)
            suite.equal("the lease's end takes nothing from it", 1 << 20, copied(bob, neighbour))
        until(lambda: not operator.fences(), 120, "the end of the fence")
        alice.free(until(lambda: leases_again(alice, nvidia), 60, "the device free again"))
        until(lambda: not any(it.is_dir() for it in node.root.iterdir()), 60, "no control group of a lease")
        suite.check("it is leased again, and nothing of the lease is left", True)


def main():
    """All sections."""
    ready()
    with Suite("suite_gpu_ends") as suite:
        with GpuNode() as node:
            for section in (scrub, local_programs, containers, container_root, daemon_ends, raced):
                suite.section(section, suite, node)
        for section in (keepers, memory, dies):
            suite.section(section, suite)


if __name__ == "__main__":
    main()
