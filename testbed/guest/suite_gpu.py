#!/usr/bin/python3
# lab: one-vm
"""Leases of GPUs on stand-ins of the vendors' libraries, with the real kernel's control groups and device controller: admission,
sessions, programs on the node, and ends that leave nothing."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time

from checks import STOPPED_LATE_MS, Suite, until
from gpus import (PTX, SOCKET, GpuNode, alloc, device_bytes, gone, gpus, kernel, leased, program_of, ready, run_in, workers)

SHARED, SESSION, DEVICE = (["--exclusivity", name] for name in ("shared", "session", "device"))
PATTERN = b"a tenant was here"


@contextlib.contextmanager
def filled(node, tenant, lease, size=16 << 10):
    """A pattern in memory of the device, three times, until its worker ends: the input of a kernel that does not end."""
    source = pathlib.Path("/tmp/pattern")
    source.write_bytes(PATTERN * (size // len(PATTERN)))
    node.knob("hang-launch", 1)
    arguments = [word for _ in range(3) for word in ("--arg", f"in:{source}")]
    words = ["gpu", "run", "--lease", lease["lease_id"], "--ptx", PTX / "vector_add.ptx", "--kernel", "vector_add", *arguments,
             "--arg", "u32:1"]
    with program_of(tenant, *words) as client:
        until(lambda: PATTERN in device_bytes(node), 60, "the pattern in the device")
        yield client
        node.knob("hang-launch")


def copied(tenant, lease, size="1MiB", *words):
    """Bytes that `gpu copy` has copied there and back, and found unchanged."""
    return tenant.ask("gpu", "copy", "--lease", lease["lease_id"], "--bytes", size, *words)["bytes"]


def discovery(suite):
    """Both stand-ins are found, with memory, compute units, classes and slots; nothing else is said of them."""
    with GpuNode() as node:
        found = gpus(node.operator)
        suite.equal("one NVIDIA and one AMD device", ["amd", "nvidia"], sorted(found))
        for vendor, row in found.items():
            suite.equal(f"{vendor}: health", "ok", row["health"])
            suite.equal(f"{vendor}: default class in exclusive mode", "device", row["classes"]["default"])
            suite.check(f"{vendor}: shared cannot be had", "shared" not in row["classes"]["supported"], "not shared", row["classes"])
            suite.check(f"{vendor}: labelled as a stand-in", "tand-in" in row["name"], "its name says so", row["name"])


def exclusive(suite):
    """The rules of admission in exclusive mode."""
    with GpuNode() as node:
        alice, bob = node.tenant("alice"), node.tenant("bob")
        nvidia = gpus(node.operator)["nvidia"]["resource_id"]
        suite.refused("shared: against the operator's policy", lambda: alloc(alice, "1MiB", 60, *SHARED), 3, "InvalidArgs", "gpu-share-mode")
        suite.refused("partition: never", lambda: alloc(alice, "1MiB", 60, "--exclusivity", "partition"), 3, "InvalidArgs")
        suite.refused("more memory than there is", lambda: alloc(alice, "1TiB", 60), 3, "CapacityExceeded")
        with leased(alice, resource=nvidia) as lease:
            suite.equal("without a class: the whole device", "device", lease["effective"]["gpu_exclusivity"])
            for name, words in (("device", DEVICE), ("session", SESSION), ("no class", [])):
                suite.refused(f"held: {name}", lambda words=words: alloc(bob, "1MiB", 60, *words, resource=nvidia), 3, "CapacityExceeded")
            suite.refused("held: shared is still a matter of policy", lambda: alloc(bob, "1MiB", 60, *SHARED, resource=nvidia), 3, "InvalidArgs")
            other = alloc(bob)
            suite.check("the other device is free", other["resource_id"] != nvidia, "another resource", other)
            bob.free(other)
        suite.refused("memory of a GPU as MEM", lambda: alice.ask("lease", "alloc", "mem", "--bytes", 4096, "--secs", 60, "--resource", nvidia),
                      3, "InvalidArgs", "GPU")


def sessions(suite):
    """Kernels and copies in sessions, over the network and over the node's socket."""
    with GpuNode() as node:
        alice, bob = node.tenant("alice"), node.tenant("bob")
        for vendor, row in sorted(gpus(node.operator).items()):
            with leased(alice, resource=row["resource_id"]) as lease:
                for where, words in (("remote", []), ("local", ["--local-socket", SOCKET])):
                    suite.equal(f"{vendor}, {where}: copies come back as they went", 1 << 20, copied(alice, lease, "1MiB", *words))
                suite.refused(f"{vendor}: another tenant's lease", lambda lease=lease: copied(bob, lease), 4)
        with leased(alice, resource=gpus(node.operator)["nvidia"]["resource_id"]) as lease:
            kernel(alice, lease, "vector_add", "zero:4096", "zero:4096", "zero:4096", "u32:1024", grid="4", block="256")
            suite.check("a kernel runs", True)
            for name, words, code in (("an absurd grid", {"grid": "1,70000,1"}, "InvalidArgs"), ("an absurd block", {"block": "4096"}, "InvalidArgs")):
                suite.refused(name, lambda words=words: kernel(alice, lease, "vector_add", "zero:4096", "zero:4096", "zero:4096", "u32:1", **words), 3, code)
            not_ptx = pathlib.Path("/tmp/not.ptx")
            not_ptx.write_text("int main() { return 0; }\n")
            suite.refused("a module that is not PTX", lambda: alice.ask("gpu", "run", "--lease", lease["lease_id"], "--ptx", not_ptx,
                                                                        "--kernel", "k"), 3, "InvalidArgs")
            suite.refused("a kernel that is not there", lambda: kernel_of(alice, lease, "vector_add", "none"), 4, "NotFound", "none")
            suite.refused("more memory than leased", lambda: kernel(alice, lease, "vector_add", "zero:1TiB"), 3, "CapacityExceeded")
            before = workers()
            suite.refused("a kernel that faults", lambda: kernel(alice, lease, "fault"), None)
            suite.equal("ends its session alone: the next one of the lease works", 1 << 20, copied(alice, lease))
            suite.check("which is another worker", workers() != before, "another", before)


def kernel_of(tenant, lease, module, name):
    """Runs a kernel by any name."""
    return tenant.ask("gpu", "run", "--lease", lease["lease_id"], "--ptx", PTX / f"{module}.ptx", "--kernel", name)


def scrub(suite):
    """No byte of a tenant is left, also if its worker was killed in the middle of a kernel."""
    with GpuNode() as node:
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
        line = node.wait_for_line("scrubbed", lease["lease_id"])
        suite.check("the share is told", line and "%" in line, "a percentage", line)
        alice.free(again)
        for knob in ("short-scrub", "lost"):
            lease = until(lambda: leases_again(alice, nvidia), 60, "the device free again")
            with filled(node, alice, lease, 16 << 20):
                node.knob(knob, 8 << 20)
                alice.free(lease)
            fence = until(lambda: next(iter(node.operator.ask("fence", "list")["fences"]), None), 90, f"a fence for {knob}")
            suite.check(f"{knob}: FENCED with the reason", fence["resource_id"] == nvidia, nvidia, fence)
            print(f"   {knob}: {fence['reason']}", flush=True)
            suite.refused(f"{knob}: no new lease", lambda: alloc(alice, "1MiB", 60, resource=nvidia), 5)
            node.knob(knob)
            until(lambda: cleared(node, nvidia), 120, f"{knob}: the fence is cleared")
            suite.check(f"{knob}: cleared, and the bytes are gone", PATTERN not in device_bytes(node), "no pattern")


def leases_again(tenant, resource, secs=600):
    """A lease of the resource, or None while it cannot be had."""
    finished = tenant.run("lease", "alloc", "gpu", "--vram", "1MiB", "--secs", secs, "--resource", resource)
    return json.loads(finished.stdout) if finished.returncode == 0 else None


def cleared(node, resource):
    """Whether the fence is gone; clears it."""
    if not any(it["resource_id"] == resource for it in node.operator.ask("fence", "list")["fences"]):
        return True
    node.operator.run("fence", "clear", resource)
    return False


def local_programs(suite):
    """Programs on the node: their device alone can be opened, and they end with the lease."""
    with GpuNode() as node:
        operator = node.operator
        alice = node.tenant("alice")
        nvidia = gpus(operator)["nvidia"]["resource_id"]
        lease = alloc(alice, "1MiB", 600, resource=nvidia)
        script = ("import os\n"
                  "def opens(path):\n"
                  "    try:\n        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)); return 'opens'\n"
                  "    except OSError as error:\n        return error.strerror\n"
                  "print({path: opens(path) for path in ('/dev/nvidia240', '/dev/null', '/dev/urandom', '/dev/port')})\n"
                  "print(os.environ.get('CUDA_VISIBLE_DEVICES'))\n")
        done, said = finish(run_in(alice, lease, "python3", "-c", script))
        opened = eval(said.splitlines()[0]) if done == 0 else {}  # The program printed a dict of texts.
        suite.equal("its device can be opened", "opens", opened.get("/dev/nvidia240"))
        suite.equal("and what every program needs", ["opens", "opens"], [opened.get("/dev/null"), opened.get("/dev/urandom")])
        pathlib.Path("/dev/port").open("rb").close()  # Outside of the lease it can be opened.
        suite.equal("and no other device", "Operation not permitted", opened.get("/dev/port"))
        suite.equal("the environment names the device", lease["binding"]["gpu"]["uuid"], said.splitlines()[1])
        spec = pathlib.Path(f"/run/cdi/fabricbios-{lease['lease_id']}.json")
        suite.check("a CDI specification names it", "/dev/nvidia240" in spec.read_text(), "the node", spec.read_text())
        process = run_in(alice, lease, "sh", "-c", "sleep 1000 & echo $! $$; exec sleep 1000")
        pids = [int(word) for word in process.stdout.readline().split()]
        alice.free(lease)
        suite.check("the end of the lease ends its programs", gone(pids), "their end")
        suite.check("and removes the specification", not spec.exists(), "no file")
        process.wait()
        held = until(lambda: leases_again(alice, nvidia), 60, "the device free again")
        stranger = subprocess.Popen(["sleep", "1000"], stdin=open("/dev/nvidia240", "rb"))
        alice.free(held)
        fence = until(lambda: next(iter(operator.ask("fence", "list")["fences"]), None), 60, "a fence")
        suite.check("a stranger that holds the device: FENCED, and named", str(stranger.pid) in fence["reason"], stranger.pid, fence["reason"])
        stranger.kill()
        stranger.wait()
        until(lambda: cleared(node, nvidia), 60, "the fence is cleared when the stranger is gone")
        suite.check("and free again when it is gone", True)
    with GpuNode(mode="fractional") as node:
        alice = node.tenant("alice")
        with leased(alice, "1MiB", 600, *SHARED) as lease:
            status, said = finish(run_in(alice, lease, "true"))
            suite.check("a shared lease takes no local program", status != 0 and "exclusive" in said, "a refusal", (status, said))


def finish(process):
    """Exit status and all output of a program."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out or err


def fractional(suite):
    """The rules of admission in fractional mode, and a killed worker among neighbours."""
    with GpuNode(mode="fractional", knobs={"memory": 64 << 20}) as node:
        alice, bob, operator = node.tenant("alice"), node.tenant("bob"), node.operator
        nvidia = gpus(operator)["nvidia"]["resource_id"]
        with leased(alice, "16MiB", 600, resource=nvidia) as one:
            suite.equal("without a class: shared", "shared", one["effective"]["gpu_exclusivity"])
            for name, words in (("device", DEVICE), ("session", SESSION)):
                suite.refused(f"{name} beside a lease", lambda words=words: alloc(bob, "1MiB", 60, *words, resource=nvidia), 3, "ResourceBusy")
            with leased(bob, "16MiB", 600, resource=nvidia) as two:
                suite.refused("memory is used up", lambda: alloc(bob, "40MiB", 60, resource=nvidia), 3, "CapacityExceeded")
                for tenant, lease in ((alice, one), (bob, two)):
                    suite.equal("both sessions work", 1 << 20, copied(tenant, lease))
                suite.refused("more memory than its share", lambda: copied(bob, two, "17MiB"), 3, "CapacityExceeded")
        suite.equal("orderly ends fence nothing", [], operator.ask("fence", "list")["fences"])
        with leased(alice, "1MiB", 60, *DEVICE, resource=nvidia) as whole:
            suite.refused("shared beside an exclusive lease", lambda: alloc(bob, "1MiB", 60, resource=nvidia), 3, "ResourceBusy")
            suite.equal("device: honoured while free", "device", whole["effective"]["gpu_exclusivity"])
        neighbour, victim = alloc(alice, "8MiB", 600, resource=nvidia), alloc(bob, "8MiB", 600, resource=nvidia)
        with filled(node, bob, victim):
            before = workers()
            copied(alice, neighbour)
            for pid in before:
                os.kill(pid, signal.SIGSTOP)  # It cannot be asked to wipe.
            bob.free(victim)
        fence = until(lambda: next(iter(operator.ask("fence", "list")["fences"]), None), 60, "a fence")
        suite.check("a worker had to be killed: no new leases", "killed" in fence["reason"], "killed", fence["reason"])
        suite.equal("its neighbour goes on", 1 << 20, copied(alice, neighbour))
        alice.free(neighbour)
        until(lambda: not operator.ask("fence", "list")["fences"], 120, "the end of the fence")
        suite.check("drained and wiped: leased again, without the bytes", PATTERN not in device_bytes(node), "no pattern")
        alice.free(until(lambda: leases_again(alice, nvidia), 60, "a lease"))


def daemon_ends(suite):
    """The deadline holds with the daemon stopped or dead; what is not over goes on in the next daemon."""
    with GpuNode() as node:
        alice = node.tenant("alice")
        found = gpus(node.operator)
        for name, number in (("stopped", signal.SIGSTOP), ("dead", signal.SIGKILL)):
            long = until(lambda: leases_again(alice, found["amd"]["resource_id"]), 60, "the device of the long lease")
            copied(alice, long)
            keeps = workers()
            short = until(lambda: leases_again(alice, found["nvidia"]["resource_id"], 6), 60, "the device of the short lease")
            copied(alice, short)
            program_pid = int(run_in(alice, short, "sh", "-c", "echo $$; exec sleep 1000").stdout.readline())
            ends = (workers() - keeps) | {program_pid}
            os.kill(node.process.pid, number)
            late_ms = STOPPED_LATE_MS + max(0, short["expires_at_unix_ms"] - time.time() * 1000)
            suite.check(f"{name}: worker and program end without the daemon", gone(ends, late_ms / 1000), "their end")
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


def partitions(suite):
    """MIG partitions are resources of their own."""
    with GpuNode(knobs={"mig": 2}) as node:
        alice = node.tenant("alice")
        rows = [row for row in node.operator.ask("inventory")["resources"] if row["resource_type"] == "gpu" and "MIG" in row["name"]]
        suite.equal("two partitions", 2, len(rows))
        target = rows[0]["resource_id"]
        suite.refused("device, by name, for a partition", lambda: alloc(alice, "1MiB", 60, *DEVICE, resource=target), 3, "InvalidArgs", "leave")
        with leased(alice, resource=target) as lease:
            suite.equal("without a class: the partition alone", "device", lease["effective"]["gpu_exclusivity"])
            suite.equal("its session works", 1 << 20, copied(alice, lease))


def health(suite):
    """A device that falls off the bus, and errors that the driver reports."""
    with GpuNode() as node:
        node.knob("xid", 48)
        row = until(lambda: next((row for row in [gpus(node.operator)["nvidia"]] if row["health"] != "ok"), None), 60, "the health")
        suite.check("a double-bit error (XID 48) is told", row["health"] in ("degraded", "fenced"), "not ok", row["health"])


def main():
    """All of it."""
    ready()
    with Suite("suite_gpu") as suite:
        for section in (discovery, exclusive, sessions, scrub, local_programs, fractional, daemon_ends, partitions, health):
            suite.section(section, suite)


if __name__ == "__main__":
    main()
