#!/usr/bin/python3
"""Shared by the sections of the suite of virtual functions: the card of the guest, the wire behind it, flows on the
wire, and the node."""
import contextlib
import os
import pathlib
import subprocess

import checks
import net_rights
from checks import until
from fabric import Fabric, Node, Refused
from frames import FLOW_SECS, WIRE, Listener, Sender

CARD = "pf0"
PEER, WIRE_ADDRESS = "peer", "10.9.0.1"
SOCKET = "/run/fabricbios/local.sock"
DEVICES = pathlib.Path("/sys/bus/pci/devices")
CDI = pathlib.Path("/run/cdi")
MACS = ("02:00:00:00:00:42", "02:00:00:00:00:43")
VLAN = 7
TERM_SECS = checks.length(15, 8)


def sh(*words, check=True):
    """Runs a command; returns its output."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def set_up():
    """Moves the wire's other end to a namespace of its own."""
    if not os.path.exists(f"/sys/class/net/{CARD}/device/sriov_totalvfs"):
        checks.skip(f"a network card {CARD} with virtual functions (# lab: one-vm igb)")
    sh("ip", "netns", "add", PEER)
    sh("ip", "link", "set", WIRE, "netns", PEER)
    # Each VLAN interface answers only for its own address.
    sh("ip", "netns", "exec", PEER, "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_filter=1")
    sh("ip", "-n", PEER, "addr", "add", f"{WIRE_ADDRESS}/24", "dev", WIRE)
    sh("ip", "-n", PEER, "link", "set", WIRE, "up")


@contextlib.contextmanager
def namespace(name):
    """A namespace of a tenant, for the context."""
    sh("ip", "netns", "add", name)
    try:
        yield f"/run/netns/{name}"
    finally:
        sh("ip", "netns", "del", name, check=False)


def node(*more, card=CARD, **named):
    """A node that leases the card's functions."""
    return Node("--sriov-pf", card, "--local-socket", SOCKET, *net_rights.FLAGS, *more, mem_bytes="1MiB", **named)


def alloc(tenant, hand_over, secs=60, mbps=100, mac=None, vlan=VLAN):
    """Leases a function for the tenant. With igb each lease needs a VLAN."""
    words = ["lease", "alloc", "net", "--mbps", mbps, "--secs", secs, "--hand-over", hand_over]
    words += ["--mac", mac] if mac else []
    words += ["--vlan", vlan] if vlan else []
    return tenant.ask(*words)


def enter(lease, path):
    """Moves the function of the lease to a namespace, as root; raises Refused."""
    finished = Fabric("/nonexistent").run("lease", "enter", lease["lease_id"], "--netns", path, "--local-socket", SOCKET)
    if finished.returncode:
        raise Refused(["lease", "enter"], finished)


def net(lease):
    """The coordinates of the lease."""
    return lease["binding"]["net"]


def settings():
    """The settings of each function of the card, by number, as `ip link` shows them."""
    lines = sh("ip", "link", "show", CARD).splitlines()
    return {int(line.split()[1]): " ".join(line.split()) for line in lines if line.split()[0] == "vf"}


def functions():
    """The addresses of the card's functions by number."""
    card = pathlib.Path(f"/sys/class/net/{CARD}/device")
    return {int(link.name.removeprefix("virtfn")): link.resolve().name for link in card.glob("virtfn*")}


def number_of(lease):
    """The number of the lease's function on the card."""
    return next(number for number, name in functions().items() if name == net(lease)["pci_bdf"])


def driver(function):
    """The bound driver, or None."""
    try:
        return (DEVICES / function / "driver").readlink().name
    except FileNotFoundError:
        return None


def is_bus_master(function):
    """Whether the function is bus master, so that it can access memory."""
    with open(DEVICES / function / "config", "rb") as config:
        return bool(config.read(6)[4] & 4)


def turn_on(function):
    """Makes the function bus master again, as a reset by its driver may."""
    with open(DEVICES / function / "config", "r+b", buffering=0) as config:
        command = config.read(6)[4]
        config.seek(4)
        config.write(bytes([command | 4]))


def state():
    """Everything that a release must bring back."""
    shown = settings()
    return {name: (shown[number], driver(name), is_bus_master(name), (DEVICES / name / "driver_override").read_text().strip("\n") or "(null)")
            for number, name in functions().items()}


@contextlib.contextmanager
def flow(lease, path="/proc/1/ns/net"):
    """Sends frames from the lease's interface; their listener on the wire, in the lease's VLAN."""
    source = net(lease)["mac"]
    with Listener(source, net(lease).get("vlan")) as listener, Sender(path, net(lease)["ifname"], source):
        yield listener


def hand_over(lease, path):
    """Moves the lease's interface to a tenant's namespace, sets it up there, and waits for its carrier."""
    enter(lease, path)
    name, interface = pathlib.Path(path).name, net(lease)["ifname"]
    sh("ip", "-n", name, "link", "set", interface, "up")
    until(lambda: "LOWER_UP" in sh("ip", "-n", name, "link", "show", interface), FLOW_SECS, f"the carrier of {interface}")
