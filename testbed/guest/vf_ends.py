#!/usr/bin/python3
"""Sections of suite_net_vf.py in which a tenant has a function through vfio, the daemon does not keep a deadline, or a
neighbour is loud."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import podman
import rtnl
import vf
from checks import FULL, LATE_LIMIT_MS, STOPPED_LATE_MS, give_back, in_full_length, length
from frames import Flood, Listener, ends_on_time
from vf import MACS, TERM_SECS, alloc, flow, hand_over, namespace, net, sh

DRIVER_PROTOCOL = 0x88B6
UNCHECKED = "FABRICBIOS_UNCHECKED_DRIVER"
NOBODY = 65534
# A process with many threads and files that does nothing else.
CROWD = """import os, resource, threading, time
resource.setrlimit(resource.RLIMIT_NOFILE, (11000, 11000))
os.setuid(65534)
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(10000)]
for _ in range(100): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("ready", flush=True)
time.sleep(600)"""
# Holds the vfio group only in a socket, without a descriptor of the group.
HIDDEN = """import os, socket, sys, time
group = os.open(sys.argv[1], os.O_RDWR)
ends = socket.socketpair()
socket.send_fds(ends[0], [b"x"], [group])
os.close(group)
print("ready", flush=True)
time.sleep(600)"""


def build_driver(place):
    """Builds `vf_tx.c`."""
    sh("gcc", "-O1", "-w", "-o", f"{place}/vf_tx", pathlib.Path(__file__).with_name("vf_tx.c"))


@contextlib.contextmanager
def driven(place, lease, only_device=False):
    """A process of the tenant that drives the function by itself, and a listener for its frames."""
    its = net(lease)
    words = [f"{place}/vf_tx", its["vfio_group"], its["pci_bdf"], f"{place}/posted", f"{place}/done", its["mac"]]
    environment = {**os.environ, **({"ONLY_DEVICE": "1"} if only_device else {})}
    with Listener(its["mac"], its["vlan"], protocol=DRIVER_PROTOCOL) as heard:
        holder = subprocess.Popen([*map(str, words)], stdout=subprocess.DEVNULL, env=environment)
        try:
            yield holder, heard
        finally:
            holder.kill()
            holder.wait()


def specification(lease):
    """The path of the lease's specification for container engines."""
    return vf.CDI / f"fabricbios-{lease['lease_id']}.json"


def is_over(suite, name, node, *leases):
    """Checks that the leases have expired, nothing is fenced, and their functions are clean."""
    for lease in leases:
        node.operator.wait_until(lease, "expired")
        vf.until(lambda lease=lease: vf.driver(net(lease)["pci_bdf"]) is None, 60, "the release")
    suite.equal(f"{name}: nothing is fenced", [], node.operator.fences())


def virtual_machines(suite, node, place):
    """A process that drives the function by itself is killed, even if it keeps only the device open, and the
    specification for container engines is removed."""
    alice = node.tenant("alice")
    leases = [alloc(alice, "vfio", secs=TERM_SECS + 4, mac=mac) for mac in MACS]
    for lease in leases:
        group = pathlib.Path("/sys/bus/pci/devices", net(lease)["pci_bdf"], "iommu_group").resolve().name
        suite.equal("vfio: the group", int(group), net(lease)["vfio_group"])
        suite.equal("vfio: only root reads the specification", 0o600, specification(lease).stat().st_mode & 0o777)
    one, other = leases
    with driven(place, one) as vm, driven(place, other, only_device=True) as hidden:
        named = (("vfio", one, *vm), ("vfio, only the device", other, *hidden))
        for name, _, _, heard in named:
            suite.check(f"{name}: frames flow", heard.flows())
        for name, lease, holder, heard in named:
            # Two functions at once, in the short form beside two other guests: 4 s were seen there, 200 ms alone.
            ends_on_time(suite, name, lease, heard, length(LATE_LIMIT_MS, STOPPED_LATE_MS))
            suite.equal(f"{name}: its process is killed", -signal.SIGKILL, holder.wait(60))
            suite.check(f"{name}: the specification is gone", not specification(lease).exists())
        is_over(suite, "vfio", node, *leases)


@in_full_length
def container(suite, node, place):
    """Stock podman gives a container the devices of a lease by their name, and no others, until the lease ends."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    lease, other = alloc(alice, "vfio"), alloc(bob, "vfio")
    name, group = net(lease)["cdi_device"], net(lease)["vfio_group"]
    script = f"""{podman.BUSYBOX} ls /dev/vfio; echo end; echo $FABRICBIOS_PCI_FUNCTION
exec 3<>/dev/vfio/{group} && echo open; exec {podman.BUSYBOX} sleep 600"""
    command = podman.container(place, name, script)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        said = [running.stdout.readline().strip() for _ in range(5)]
        expected = [*sorted((str(group), "vfio")), "end", net(lease)["pci_bdf"], "open"]
        if not suite.equal("podman: its devices are those of the lease, and it can open the group", expected, said):
            running.kill()
            print(running.stderr.read(), flush=True)
        suite.check("podman: another lease's group is on the node", os.path.exists(f"/dev/vfio/{net(other)['vfio_group']}"))
        give_back(alice, lease)
        suite.equal("podman: the end of the lease ends the container", 128 + signal.SIGKILL, running.wait(60))
    suite.check("podman: the specification is gone, the neighbour's is there", not specification(lease).exists() and specification(other).exists())
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    suite.check("podman: it refuses the name then", refused.returncode and name in refused.stderr and not refused.stdout, name, refused)
    give_back(bob, other)
    suite.equal("podman: nothing is fenced", [], node.operator.fences())


@contextlib.contextmanager
def program(text, *arguments):
    """A running Python program that has reported that it is ready."""
    with subprocess.Popen([sys.executable, "-c", text, *map(str, arguments)], stdout=subprocess.PIPE, text=True) as running:
        try:
            if running.stdout.readline().strip() != "ready":
                raise RuntimeError(f"{text}: not ready")
            yield running
        finally:
            running.kill()


@contextlib.contextmanager
def waiting_container(suite, name, place, lease):
    """A container that has the group and opens it only on request."""
    script = f"echo ready; read line; exec 3<>/dev/vfio/{net(lease)['vfio_group']} && echo opened"
    command = podman.container(place, net(lease)["cdi_device"], script, "--interactive")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            suite.equal(f"{name}: the container runs", "ready", running.stdout.readline().strip() or running.stderr.read())
            yield running
        finally:
            running.kill()


def opens_nothing(suite, name, running, lease, again):
    """Checks that the container of the earlier lease cannot open the group while the next lease has it."""
    suite.equal(f"{name}: the next lease has the group", net(lease)["vfio_group"], net(again)["vfio_group"])
    with contextlib.suppress(BrokenPipeError):
        os.write(running.stdin.fileno(), b"open\n")
    suite.equal(f"{name}: the earlier container was killed", 128 + signal.SIGKILL, running.wait(60))
    suite.equal(f"{name}: it has opened nothing", "", running.stdout.read())


def all_released(node):
    """Waits until every function of the card is free."""
    def are_free():
        card = next(row["virtual_functions"] for row in node.operator.ask("inventory")["resources"] if row["name"] == vf.CARD)
        return card["free"] == card["total"]
    vf.until(are_free, 30, "the release")


def closed_container(suite, node, place):
    """A container that had the group, but not open at the cut, cannot open it when the next lease has it."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    lease = alloc(alice, "vfio")
    with waiting_container(suite, "closed at the cut", place, lease) as running:
        give_back(alice, lease)
        all_released(node)
        again = alloc(bob, "vfio")
        opens_nothing(suite, "closed at the cut", running, lease, again)
        give_back(bob, again)
    all_released(node)
    if FULL:
        closed_without_daemon(suite, node, place)
    suite.equal("closed containers: nothing is fenced", [], node.operator.fences())


def closed_without_daemon(suite, node, place):
    """The same if the watchdog makes the cut."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    lease = alloc(alice, "vfio", secs=TERM_SECS + 10)
    with waiting_container(suite, "a dead daemon", place, lease) as running:
        node.kill()
        suite.equal("a dead daemon: the watchdog ends the container", 128 + signal.SIGKILL, running.wait(TERM_SECS + 60))
        suite.check("a dead daemon: at the deadline, not before", time.time() >= lease["expires_at_unix_ms"] / 1e3)
        node.start()
        is_over(suite, "a dead daemon, container", node, lease)
        all_released(node)
        again = alloc(bob, "vfio")
        opens_nothing(suite, "a dead daemon", running, lease, again)
        give_back(bob, again)


def hooks(suite, node, place):
    """The hook of a lease's specification lets a container start only if it ends with the lease."""
    alice = node.tenant("alice")
    lease = alloc(alice, "vfio")
    text = json.loads(specification(lease).read_text(encoding="utf-8"))
    hook = text["devices"][0]["containerEdits"]["hooks"][0]
    suite.equal("hook: when the engine calls it", "createRuntime", hook["hookName"])

    def call(name, pid, word, **more):
        done = subprocess.run([hook["path"], *hook["args"][1:]], input=json.dumps({"pid": pid}), capture_output=True, text=True, check=False, **more)
        suite.check(f"hook: {name} is {'refused' if word else 'taken'}", bool(done.returncode) == bool(word) and word in done.stderr, word, done)
    command = podman.container(place, net(lease)["cdi_device"], "echo ready", "--cgroups=disabled")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    suite.check("hook: a container without a control group does not start", done.returncode and "ready" not in done.stdout, "a refusal", done)
    told, log = f"fabricbiosd cdi-hook: lease {lease['lease_id']}: the container's control group is ", sh("dmesg")
    suite.check("hook: the kernel's log has the reason, which the engine does not show", told in log, told, log[-2000:])
    with waiting_container(suite, "hook", place, lease):
        registered = list(pathlib.Path("/run").glob(f"fabricbios-*/net/{lease['lease_id']}.containers/*"))
        groups = [it.read_text(encoding="utf-8") for it in registered if it.name.isdigit()]
        suite.equal("hook: one control group is registered", 1, len(groups))
        first = int(pathlib.Path(f"/sys/fs/cgroup{groups[0]}/cgroup.procs").read_text(encoding="utf-8").split()[0])
        call("the same container again", first, "")
        call("a stranger's call", first, "ermission denied", user=NOBODY)
        call("a process of the node", os.getpid(), "control group")
        gone = subprocess.Popen(["true"])
        gone.wait()
        call("a container that is gone", gone.pid, str(gone.pid))
        give_back(alice, lease)
        alice.wait_until(lease, "freed")
        for _ in range(2):
            call("an ended lease", first, "the lease is over")
    suite.equal("hook: nothing is fenced", [], node.operator.fences())


@in_full_length
def crowd(suite, node, place):
    """A local user with 100 threads and 10,000 open files delays no cut, even of a holder that keeps only the device
    open."""
    alice = node.tenant("alice")
    with program(CROWD):
        lease = alloc(alice, "vfio", secs=TERM_SECS + 4, mac=MACS[0])
        with driven(place, lease, only_device=True) as (holder, heard):
            suite.check("beside a crowd: frames flow", heard.flows())
            ends_on_time(suite, "beside a crowd", lease, heard)
            suite.equal("beside a crowd: the process with the function is killed", -signal.SIGKILL, holder.wait(30))
            is_over(suite, "beside a crowd", node, lease)
    proof = node.operator.query(lease).get("proof", [])
    print(f"   beside a crowd: {proof}", flush=True)


@contextlib.contextmanager
def driven_in_container(place, lease):
    """A container of the lease whose process keeps only the device open, and a listener for its frames."""
    its = net(lease)
    script = f"export ONLY_DEVICE=1; exec /mnt/vf_tx {its['vfio_group']} {its['pci_bdf']} /tmp/posted /tmp/done {its['mac']}"
    command = podman.with_python(place, its["cdi_device"], script, "--ulimit=memlock=-1:-1")
    with Listener(its["mac"], its["vlan"], protocol=DRIVER_PROTOCOL) as heard:
        with subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL) as running:
            try:
                yield running, heard
            finally:
                running.kill()


@in_full_length
def beside_a_search(suite, node, place):
    """While the watchdog searches for a process that hides a group, it ends a neighbour's lease on time, and a
    neighbour's container that keeps only its device open goes on."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    kept = alloc(bob, "vfio", secs=600, mac=MACS[0])
    lease = alloc(alice, "vfio", secs=TERM_SECS + 8)
    hiding = program(HIDDEN, f"/dev/vfio/{net(lease)['vfio_group']}")
    with namespace("tenant") as path, hiding as hidden, driven_in_container(place, kept) as (neighbour, heard_of_neighbour):
        suite.check("beside a search: the neighbour's frames flow", heard_of_neighbour.flows())
        other = alloc(bob, "netns", secs=TERM_SECS + 6)
        hand_over(other, path)
        with flow(other, path) as heard:
            suite.check("beside a search: frames flow", heard.flows())
            node.kill()
            ends_on_time(suite, "beside a search", other, heard)
            suite.equal("beside a search: no function of theirs is bus master", [],
                        [it for it in (net(lease)["pci_bdf"], net(other)["pci_bdf"]) if vf.is_bus_master(it)])
            suite.equal("beside a search: who hides the group lives", None, hidden.poll())
            node.start()
            fence = vf.until(node.operator.fences, 60, "the fence")[0]
            suite.check("beside a search: the fence names the group", f"/dev/vfio/{net(lease)['vfio_group']} " in fence["reason"], "the group", fence)
            suite.check("beside a search: the neighbour's container goes on", heard_of_neighbour.flows() and neighbour.poll() is None, "frames", neighbour.poll())
            hidden.kill()
            hidden.wait()
            node.operator.ask("fence", "clear", fence["resource_id"])
            give_back(bob, kept)
            suite.equal("beside a search: it ends with its lease", 128 + signal.SIGKILL, neighbour.wait(60))
            is_over(suite, "beside a search", node, other)


@in_full_length
def resets(suite, node, _place):
    """An unchecked driver is unbound within the proof. A neighbour keeps the kernel's lock of links, so unbinding
    waits; meanwhile bus mastering is switched off again whenever the tenant switches it on. In full length the same
    with the watchdog."""
    alice = node.tenant("alice")
    node.stop()
    node.environment[UNCHECKED] = "igb"
    node.start()
    for name in ("a reset", *length(("a reset, a dead daemon",), ())):
        with namespace("tenant") as path:
            lease = alloc(alice, "netns", secs=TERM_SECS + 4)
            function = net(lease)["pci_bdf"]
            hand_over(lease, path)
            with flow(lease, path) as heard:
                suite.check(f"{name}: frames flow", heard.flows())
                if name == "a reset, a dead daemon":
                    node.kill()
                with rtnl.held():
                    vf.turn_on(function)
                    time.sleep(max(0.0, lease["expires_at_unix_ms"] / 1e3 - time.time()))
                    for _ in range(20):
                        vf.until(lambda: not vf.is_bus_master(function), 20, f"{name}: bus mastering off")
                        vf.turn_on(function)
                    vf.until(lambda: not vf.is_bus_master(function), 20, f"{name}: bus mastering off")
                    # The process of the helper.
                    suite.check(f"{name}: it goes off 20 times while unbinding waits", sh("pgrep", "-x", "fb-vf", check=False), "a process fb-vf")
                vf.until(lambda: vf.driver(function) is None, 30, f"{name}: the driver is unbound")
                suite.check(f"{name}: silence", heard.is_silent(1))
                if name == "a reset, a dead daemon":
                    node.start()
                is_over(suite, name, node, lease)
                proof = node.operator.query(lease)["proof"]
                suite.check(f"{name}: the proof has the step", "unbind driver" in str(proof), "unbind driver", proof)
    node.stop()
    node.environment.clear()
    node.start()


def without_daemon(suite, node, place):
    """The watchdog ends access at the deadline, whether the daemon is dead or stopped; later the daemon reports the
    end, and leases the same functions again."""
    alice = node.tenant("alice")
    # The short form of suite_net_macvlan has the stopped one.
    for name, late_limit_ms in (("a dead daemon", LATE_LIMIT_MS), *length((("a stopped daemon", STOPPED_LATE_MS),), ())):
        with namespace("tenant") as path:
            vm = alloc(alice, "vfio", secs=TERM_SECS + 4)
            lease = alloc(alice, "netns", secs=TERM_SECS + 4)
            its = {net(it)["pci_bdf"] for it in (vm, lease)}
            hand_over(lease, path)
            with flow(lease, path) as heard, driven(place, vm, only_device=True) as (holder, heard_of_vm):
                suite.check(f"{name}: frames flow", heard.flows() and heard_of_vm.flows())
                if name == "a dead daemon":
                    node.kill()
                else:
                    node.process.send_signal(signal.SIGSTOP)
                suite.check(f"{name}: they flow on", heard.flows() and heard_of_vm.flows())
                ends_on_time(suite, f"{name}, vfio", vm, heard_of_vm, late_limit_ms)
                ends_on_time(suite, name, lease, heard, late_limit_ms)
                suite.equal(f"{name}: the process with the function is killed", -signal.SIGKILL, holder.wait(60))
                suite.equal(f"{name}: no function is bus master", [], [it for it in its if vf.is_bus_master(it)])
                if name == "a dead daemon":
                    node.start()
                else:
                    node.process.send_signal(signal.SIGCONT)
                is_over(suite, name, node, vm, lease)
        all_released(node)
        again = [alloc(alice, "interface") for _ in its]
        suite.equal(f"{name}: the same functions are leased anew", its, {net(it)["pci_bdf"] for it in again})
        with flow(again[0]) as heard:
            suite.check(f"{name}: and frames flow", heard.flows())
        for it in again:
            give_back(alice, it)
        all_released(node)


@in_full_length
def loud_neighbour(suite, node, _place):
    """A tenant that floods the wire goes on, frame by frame, while the lease beside it is cut and cleaned."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    with namespace("loud") as loud_path, namespace("tenant") as path:
        loud = alloc(bob, "netns")
        hand_over(loud, loud_path)
        with Flood(loud_path, net(loud)["ifname"], net(loud)["mac"]) as flood:
            lease = alloc(alice, "netns", secs=TERM_SECS)
            hand_over(lease, path)
            with flow(lease, path) as heard:
                suite.check("beside a flood: frames flow", heard.flows())
                ends_on_time(suite, "beside a flood", lease, heard)
            is_over(suite, "beside a flood", node, lease)
            flood.is_whole(suite, "the flood", heard.last)
        give_back(bob, loud)
