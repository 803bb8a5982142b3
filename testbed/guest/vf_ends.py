#!/usr/bin/python3
"""Sections of suite_net_vf.py in which a tenant has a function through vfio, nobody obeys a deadline, or a neighbour is loud."""
import contextlib
import os
import pathlib
import signal
import subprocess

import podman
import vf
from checks import LATE_LIMIT_MS, STOPPED_LATE_MS, give_back
from frames import Flood, Listener, ends_on_time
from vf import MACS, TERM_SECS, alloc, flow, hand_over, namespace, net, sh

DRIVER_PROTOCOL = 0x88B6


def build_driver(place):
    """Of `vf_tx.c`."""
    sh("gcc", "-O1", "-w", "-o", f"{place}/vf_tx", pathlib.Path(__file__).with_name("vf_tx.c"))


@contextlib.contextmanager
def driven(place, lease, only_device=False):
    """A process of the tenant that drives the function by itself, and what is heard of it."""
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
    """The file for container engines."""
    return vf.CDI / f"fabricbios-{lease['lease_id']}.json"


def is_over(suite, name, node, *leases):
    """They have expired, nothing is fenced, and their functions are clean."""
    for lease in leases:
        node.operator.wait_until(lease, "expired")
        vf.until(lambda lease=lease: vf.driver(net(lease)["pci_bdf"]) is None, 60, "the release")
    suite.equal(f"{name}: nothing is fenced", [], node.operator.ask("fence", "list")["fences"])


def virtual_machines(suite, node, place):
    """A process that drives the function by itself is killed, also if it keeps nothing but the device, and the container
    engine's file is gone."""
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
            ends_on_time(suite, name, lease, heard)
            suite.equal(f"{name}: its process is killed", -signal.SIGKILL, holder.wait(60))
            suite.check(f"{name}: the specification is gone", not specification(lease).exists())
        is_over(suite, "vfio", node, *leases)


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
    suite.equal("podman: nothing is fenced", [], node.operator.ask("fence", "list")["fences"])


def without_daemon(suite, node, place):
    """The watchdog ends access at the deadline, whether the daemon is dead or stopped; later the daemon tells it, and leases
    the same functions anew."""
    alice = node.tenant("alice")
    for name, late_limit_ms in (("a dead daemon", LATE_LIMIT_MS), ("a stopped daemon", STOPPED_LATE_MS)):
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
        again = [alloc(alice, "interface") for _ in its]
        suite.equal(f"{name}: the same functions are leased anew", its, {net(it)["pci_bdf"] for it in again})
        with flow(again[0]) as heard:
            suite.check(f"{name}: and frames flow", heard.flows())
        for it in again:
            give_back(alice, it)


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
