#!/usr/bin/python3
# lab: one-vm timeout=900
# covers: gpu local node/src/kinds/gpu testbed/stand-ins
"""Leases of GPUs on stand-ins of the vendors' libraries: discovery, admission in both modes, sessions."""
import os
import pathlib
import signal
import struct
import subprocess

from checks import Suite, in_full_length, until
from fabric import Refused
from gpus import (DEVICE, NODE, NOT_OWNED, PATTERN, SESSION, SHARED, SOCKET, GpuNode, alloc, copied, device_bytes, filled,
                  gpus, kernel, leased, leases_again, machine, opens, ready, workers)

STRANGER = 65534


def discovery(suite, node):
    """Both stand-ins are found, with memory, compute units, classes and slots; the inventory shows no further
    property."""
    found = gpus(node.operator)
    suite.equal("one NVIDIA and one AMD device", ["amd", "nvidia"], sorted(found))
    for vendor, row in found.items():
        suite.equal(f"{vendor}: health", "ok", row["health"])
        suite.equal(f"{vendor}: default class in exclusive mode", "device", row["classes"]["default"])
        suite.check(f"{vendor}: shared cannot be had", "shared" not in row["classes"]["supported"], "not shared", row["classes"])
        suite.check(f"{vendor}: labelled as a stand-in", "tand-in" in row["name"], "its name says so", row["name"])


def exclusive(suite, node):
    """The rules of admission in exclusive mode."""
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


def sessions(suite, node):
    """Kernels and copies in sessions, over the network and over the node's socket."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    for vendor, row in sorted(gpus(node.operator).items()):
        with leased(alice, resource=row["resource_id"]) as lease:
            for where, words in (("remote", []), ("local", ["--local-socket", SOCKET])):
                suite.equal(f"{vendor}, {where}: copies come back as they went", 1 << 20, copied(alice, lease, *words))
            suite.refused(f"{vendor}: another tenant's lease", lambda lease=lease: copied(bob, lease), 4)
    with leased(alice, resource=gpus(node.operator)["nvidia"]["resource_id"]) as lease:
        for name, factor in (("a", 1), ("b", 2)):
            pathlib.Path(f"/tmp/{name}.bin").write_bytes(struct.pack("<1024f", *(factor * it for it in range(1024))))
        kernel(alice, lease, "vector_add", "in:/tmp/a.bin", "in:/tmp/b.bin", "out:4096:/tmp/sum.bin", "u32:1024", grid="4", block="256")
        suite.equal("a kernel adds", tuple(3 * it for it in range(1024)), struct.unpack("<1024f", pathlib.Path("/tmp/sum.bin").read_bytes()))
        for name, words, code in (("an absurd grid", {"grid": "1,70000,1"}, "InvalidArgs"), ("an absurd block", {"block": "4096"}, "InvalidArgs")):
            suite.refused(name, lambda words=words: kernel(alice, lease, "vector_add", "zero:4096", "zero:4096", "zero:4096", "u32:1", **words), 3, code)
        not_ptx = pathlib.Path("/tmp/not.ptx")
        not_ptx.write_text("int main() { return 0; }\n")
        suite.refused("a module that is not PTX", lambda: alice.ask("gpu", "run", "--lease", lease["lease_id"], "--ptx", not_ptx,
                                                                    "--kernel", "k"), 3, "InvalidArgs")
        suite.refused("a kernel that is not there", lambda: kernel(alice, lease, "vector_add", name="none"), 4, "NotFound", "none")
        suite.refused("more memory than leased", lambda: kernel(alice, lease, "vector_add", "zero:1TiB"), 3, "CapacityExceeded")
        before = workers()
        suite.refused("a kernel that faults", lambda: kernel(alice, lease, "fault"), None)
        suite.equal("ends its session alone: the next one of the lease works", 1 << 20, copied(alice, lease))
        suite.check("which is another worker", workers() != before, "another", before)


def fractional(suite):
    """The rules of admission in fractional mode, and a killed worker among neighbours."""
    with GpuNode(mode="fractional", knobs={"memory": 40 << 20}) as node:
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
                suite.refused("more memory than its share", lambda: kernel(bob, two, "fill", "zero:17MiB", "u32:0", "u32:0"), 3, "CapacityExceeded")
        suite.equal("orderly ends fence nothing", [], operator.fences())
        with leased(alice, "1MiB", 60, *DEVICE, resource=nvidia) as whole:
            suite.refused("shared beside an exclusive lease", lambda: alloc(bob, "1MiB", 60, resource=nvidia), 3, "ResourceBusy")
            suite.equal("device: honoured while free", "device", whole["effective"]["gpu_exclusivity"])
        neighbour = until(lambda: leases_again(alice, nvidia), 60, "the device free again")
        victim = alloc(bob, "8MiB", 600, resource=nvidia)
        copied(alice, neighbour)
        keeps = workers()
        with filled(node, bob, victim):
            for pid in workers() - keeps:
                os.kill(pid, signal.SIGSTOP)  # It cannot be asked to wipe.
            bob.free(victim)
        suite.equal("a worker had to be killed: its neighbour goes on", 1 << 20, copied(alice, neighbour))
        later = until(lambda: leases_again(bob, nvidia), 60, "another lease beside it")
        suite.equal("and others come", 1 << 20, copied(bob, later))
        suite.equal("nothing is fenced", [], operator.fences())
        for tenant, lease in ((alice, neighbour), (bob, later)):
            tenant.free(lease)
        with leased(alice, "1MiB", 60, *DEVICE, resource=nvidia):
            suite.check("an exclusive lease finds none of the bytes", PATTERN not in device_bytes(node), "no pattern")


def nodes(suite):
    """Only users of a lease can open the device's node, for its term; while other users can open it, there is none."""
    tenants, others = 4001, 4002
    refused = "Permission denied"
    users = ("--tenant-uid", f"alice={tenants}", "--tenant-uid", f"bob={others}")
    machine(NOT_OWNED)
    suite.equal("before the node everybody can open it", "opens", opens(STRANGER))
    with GpuNode(*users) as node:
        alice, bob = node.tenant("alice"), node.tenant("bob")
        nvidia = gpus(node.operator)["nvidia"]["resource_id"]

        def told():
            return [opens(uid) for uid in (STRANGER, tenants, others)]
        suite.equal("free: nobody can", [refused] * 3, told())
        with leased(alice, resource=nvidia):
            suite.equal("leased: a user of the tenant can", [refused, "opens", refused], told())
            node.kill()
            suite.equal("also while the daemon is dead", [refused, "opens", refused], told())
            node.start()
            suite.equal("and under the next one", [refused, "opens", refused], told())
        suite.equal("over: nobody can", [refused] * 3, told())
        with leased(bob, resource=nvidia):
            suite.equal("another's lease: that tenant's", [refused, refused, "opens"], told())
            for path in ("dev/nvidiactl", "dev/nvidia-uvm", "dev/kfd"):
                suite.equal(f"{path} is for all devices", 0o666, (NODE.parents[1] / path).stat().st_mode & 0o777)
        NODE.chmod(0o666)
        got = until(lambda: refusal(alice, nvidia), 60, "a refusal")
        suite.check("a node that others can open: no lease", "check nodes" in got.message, "the step", got)
        suite.check("and the log says why", node.wait_for_line("check nodes", "0666"), "its mode")
        suite.equal("and degraded", "degraded", gpus(node.operator)["nvidia"]["health"])
        NODE.chmod(0o600)
        alice.free(until(lambda: leases_again(alice, nvidia), 60, "a lease when they cannot"))
        suite.equal("and well again", "ok", gpus(node.operator)["nvidia"]["health"])
        node.stop()
        suite.equal("stopped: as it was", "opens", opens(STRANGER))


@in_full_length
def not_owned(suite):
    """Where the driver gives the nodes to everybody, the node leaves them alone, and leases are shared."""
    with GpuNode(mode="fractional", parameters=NOT_OWNED) as node:
        alice = node.tenant("alice")
        row = gpus(node.operator)["nvidia"]
        nvidia = row["resource_id"]
        suite.check("the inventory says why not", "ModifyDeviceFiles" in row["name"], "the parameter", row["name"])
        suite.equal("and has one class", ["shared"], row["classes"]["supported"])
        suite.check("the log too", node.wait_for_line("shared leases only", "ModifyDeviceFiles"), "a line")
        suite.equal("it is left alone", "opens", opens(STRANGER))
        for words in (DEVICE, SESSION):
            suite.refused("not kept from others: not exclusive", lambda words=words: alloc(alice, "1MiB", 60, *words, resource=nvidia),
                          3, "InvalidArgs", "ModifyDeviceFiles")
        with NODE.open("rb"), leased(alice, "1MiB", 60, resource=nvidia) as lease:
            suite.equal("shared, beside whoever has it open", 1 << 20, copied(alice, lease))
        suite.equal("nothing is fenced", [], node.operator.fences())


def refusal(tenant, resource):
    """The refusal of a lease, or None while the device is being cleaned."""
    try:
        tenant.free(alloc(tenant, resource=resource))
    except Refused as refused:
        return None if "is being cleaned" in refused.message else refused
    return None


@in_full_length
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


def not_for_its_user(suite, node):
    """A device that only root can open: the worker runs as another user and reports that."""
    alice = node.tenant("alice")
    with leased(alice, resource=gpus(node.operator)["nvidia"]["resource_id"]) as lease:
        node.stand_ins.chmod(0o700)
        suite.refused("a device that only root can open", lambda: copied(alice, lease), word="no context can be opened")
        node.stand_ins.chmod(0o1777)


def health(suite, node):
    """A device that falls off the bus: all reports agree, until the operator's remediation has reset the device."""
    alice, operator = node.tenant("alice"), node.operator
    nvidia, why = gpus(operator)["nvidia"]["resource_id"], "fallen off the bus"

    with leased(alice, resource=nvidia) as lease:
        node.knob("xid", 79)
        until(lambda: gpus(operator)["nvidia"]["health"] == "fenced", 60, "the health")
        row = gpus(operator)["nvidia"]
        suite.equal("XID 79: flags and what is available", (["fenced"], 0), (row["flags"][:1], row["available"]))
        suite.check("and the inventory says why", why in row["health_reason"], why, row)
        suite.equal("the list of fences has it, without a lease", [(nvidia, None, True)],
                    [(it["resource_id"], it["lease_id"], why in it["reason"]) for it in operator.fences()])
        suite.equal("ping too", "fenced", operator.ask("ping")["health"])
        suite.refused("a lease of it is refused, and why", lambda: alloc(alice, resource=nvidia), 5, "Fenced", why)
        suite.check("the log says so", node.wait_for_line("FENCED: the resource has failed", why), "a line")
        with leased(alice) as other:
            suite.check("a lease that names none gets the other device", other["resource_id"] != nvidia, "AMD's", other)
        suite.refused("it is not reset beside a lease", lambda: operator.ask("fence", "clear", nvidia), 5, "Fenced", "revoke")
        suite.equal("which goes on", "active", alice.query(lease)["state"])
    until(lambda: alice.query(lease)["state"] != "active", 60, "its end")
    node.stop()
    node.start()
    row = gpus(operator)["nvidia"]
    suite.check("a restart of the daemon forgets nothing of it", row["health"] == "fenced" and why in row["health_reason"], why, row)
    suite.refused("and grants nothing", lambda: alloc(alice, resource=nvidia), 5, "Fenced", why)
    operator.ask("fence", "clear", nvidia)
    suite.equal("reset: the list is empty", [], operator.fences())
    row = gpus(operator)["nvidia"]
    suite.equal("and the device is well", ("ok", None, True), (row["health"], row.get("health_reason"), row["available"] > 0))
    alice.free(until(lambda: leases_again(alice, nvidia), 60, "a lease of it"))


def users(suite, node):
    """A node that cannot give the workers of sessions their own users offers no GPUs."""
    node.stop()
    command = ["setpriv", "--bounding-set", "-setuid", "--inh-caps", "-setuid", *node.command]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    suite.check("without the right to change users the node refuses --gpus", refused.returncode and "no user of its own" in refused.stderr,
                "no user of its own", (refused.returncode, refused.stderr[-400:]))


def main():
    """All sections."""
    ready()
    with Suite("suite_gpu") as suite:
        with GpuNode() as node:
            for section in (discovery, exclusive, sessions, not_for_its_user, health, users):
                suite.section(section, suite, node)
        for section in (fractional, nodes, not_owned, partitions):
            suite.section(section, suite)


if __name__ == "__main__":
    main()
