#!/usr/bin/python3
"""What a suite of virtual functions needs: the card of the guest, the wire behind it, flows on it, and the node."""
import contextlib
import ctypes
import os
import pathlib
import socket
import struct
import subprocess
import threading
import time

import checks
from fabric import Fabric, Node, Refused

CARD, WIRE = "pf0", "wire0"
PEER, WIRE_ADDRESS = "peer", "10.9.0.1"
SOCKET = "/run/fabricbios/local.sock"
PROTOCOL = 0x88B5
DEVICES = pathlib.Path("/sys/bus/pci/devices")
CDI = pathlib.Path("/run/cdi")
FLOW_SECS = 30
CLONE_NEWNET = 0x40000000


def sh(*words, check=True):
    """Runs a command; returns what it said."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def until(find, secs, what):
    """The first true answer of `find`."""
    limit = time.monotonic() + secs
    while not (found := find()):
        if time.monotonic() > limit:
            raise TimeoutError(f"{what}: not within {secs} s")
        time.sleep(0.05)
    return found


def set_up():
    """The wire's other end is in a namespace of its own."""
    if not os.path.exists(f"/sys/class/net/{CARD}/device/sriov_totalvfs"):
        checks.skip(f"a network card {CARD} with virtual functions (# lab: one-vm igb)")
    checks.programs()
    sh("ip", "netns", "add", PEER)
    sh("ip", "link", "set", WIRE, "netns", PEER)
    # A VLAN answers for its own address alone.
    sh("ip", "netns", "exec", PEER, "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_filter=1")
    sh("ip", "-n", PEER, "addr", "add", f"{WIRE_ADDRESS}/24", "dev", WIRE)
    sh("ip", "-n", PEER, "link", "set", WIRE, "up")


@contextlib.contextmanager
def namespace(name):
    """A tenant's namespace."""
    sh("ip", "netns", "add", name)
    try:
        yield f"/run/netns/{name}"
    finally:
        sh("ip", "netns", "del", name, check=False)


def node(*more, card=CARD, **named):
    """A node that leases the card's functions."""
    return Node("--sriov-pf", card, "--local-socket", SOCKET, *more, mem_bytes="1MiB", **named)


def alloc(tenant, hand_over, secs=60, mbps=100, mac=None, vlan=None):
    """A lease; the tenant's words."""
    words = ["lease", "alloc", "net", "--mbps", mbps, "--secs", secs, "--hand-over", hand_over]
    words += ["--mac", mac] if mac else []
    words += ["--vlan", vlan] if vlan else []
    return tenant.ask(*words)


def enter(lease, path):
    """Root gives a namespace; raises Refused."""
    finished = Fabric("/nonexistent").run("lease", "enter", lease["lease_id"], "--netns", path, "--local-socket", SOCKET)
    if finished.returncode:
        raise Refused(["lease", "enter"], finished)


def net(lease):
    """Its coordinates."""
    return lease["binding"]["net"]


def settings():
    """What the card tells of each function, by number, as `ip link` shows it."""
    lines = sh("ip", "link", "show", CARD).splitlines()
    return {int(line.split()[1]): " ".join(line.split()) for line in lines if line.split()[0] == "vf"}


def functions():
    """The addresses of the card's functions by number."""
    card = pathlib.Path(f"/sys/class/net/{CARD}/device")
    return {int(link.name.removeprefix("virtfn")): link.resolve().name for link in card.glob("virtfn*")}


def number_of(lease):
    """The number of its function on the card."""
    return next(number for number, name in functions().items() if name == net(lease)["pci_bdf"])


def driver(function):
    """The driver that is bound; None if there is none."""
    try:
        return (DEVICES / function / "driver").readlink().name
    except FileNotFoundError:
        return None


def is_bus_master(function):
    """Whether the function may reach memory."""
    with open(DEVICES / function / "config", "rb") as config:
        return bool(config.read(6)[4] & 4)


def state():
    """Everything that a release must bring back."""
    return {name: (settings()[number], driver(name), is_bus_master(name), (DEVICES / name / "driver_override").read_text().strip("\n") or "(null)")
            for number, name in functions().items()}


def raw_bytes(text):
    """A MAC address as bytes."""
    return bytes.fromhex(text.replace(":", ""))


def in_namespace(path, make):
    """Calls `make` in a thread in the namespace; sockets stay there."""
    outcome = []

    def run():
        try:
            with open(path) as target:
                # os.setns came with Python 3.12.
                if ctypes.CDLL(None, use_errno=True).setns(target.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), f"setns {path}")
            outcome.append((make(), None))
        except OSError as error:
            outcome.append((None, error))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    made, error = outcome[0]
    if error:
        raise error
    return made


class Listener:
    """Counts the frames of one source address that reach the wire's other end."""

    def __init__(self, source, vlan=None, protocol=PROTOCOL):
        self.source, self.vlan, self.protocol = raw_bytes(source), vlan, protocol
        self.count, self.last = 0, 0.0
        self.socket = in_namespace(f"/run/netns/{PEER}", self._open)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _open(self):
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        made.bind((WIRE, 3))
        made.setsockopt(263, 8, 1)  # SOL_PACKET, PACKET_AUXDATA: the tag is not in the frame.
        made.settimeout(0.2)
        return made

    def _run(self):
        while True:
            try:
                frame, extra, _, address = self.socket.recvmsg(2048, 64)
            except TimeoutError:
                continue
            except OSError:
                return
            tag = None
            for _, _, data in extra:
                status, tci = struct.unpack_from("I", data)[0], struct.unpack_from("H", data, 16)[0]
                tag = tci & 0xFFF if status & 0x10 else None
            kind = struct.unpack("!H", frame[12:14])[0]
            if address[2] != 4 and frame[6:12] == self.source and kind == self.protocol and tag == self.vlan:
                self.count, self.last = self.count + 1, time.monotonic()

    def flows(self, secs=FLOW_SECS):
        """Whether frames come."""
        before, limit = self.count, time.monotonic() + secs
        while self.count - before < 5 and time.monotonic() < limit:
            time.sleep(0.02)
        return self.count - before >= 5

    def is_silent(self, secs=1.0):
        """Whether nothing comes for so long."""
        before = self.count
        time.sleep(secs)
        return self.count == before

    def close(self):
        """Stops."""
        self.socket.close()


class Sender:
    """Sends frames from an interface, all the time, as a tenant with root in its namespace can."""

    def __init__(self, path, interface, source, gap=0.005):
        self.errors, self.sent, self.open = [], 0, True
        self.frame = b"\xff" * 6 + raw_bytes(source) + struct.pack("!H", PROTOCOL) + b"y" * 60
        self.gap = gap

        def make():
            made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            made.bind((interface, 0))
            return made
        self.socket = in_namespace(path, make)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while self.open:
            try:
                self.socket.send(self.frame)
                self.sent += 1
            except OSError as error:
                self.errors = [str(error)]
            time.sleep(self.gap)

    def close(self):
        """Stops."""
        self.open = False
        self.thread.join()
        self.socket.close()


@contextlib.contextmanager
def flow(lease, path="/proc/1/ns/net", vlan=None, source=None):
    """Frames of the lease on the wire: the listener, which has heard some, unless `source` is not the lease's."""
    listener = Listener(source or net(lease)["mac"], vlan)
    sender = Sender(path, net(lease)["ifname"], source or net(lease)["mac"])
    try:
        yield listener
    finally:
        sender.close()
        listener.close()


def up(lease, name):
    """Sets the tenant's interface up in its namespace, and waits for its carrier."""
    interface = net(lease)["ifname"]
    sh("ip", "-n", name, "link", "set", interface, "up")
    until(lambda: "LOWER_UP" in sh("ip", "-n", name, "link", "show", interface), FLOW_SECS, f"the carrier of {interface}")
