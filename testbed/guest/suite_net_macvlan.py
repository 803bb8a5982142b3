#!/usr/bin/python3
# lab: one-vm timeout=900
"""Leases of macvlan interfaces on one end of a veth pair; the other end is the wire. Tenants are root in their namespaces:
frames that are not theirs do not pass, their rate holds, and every end leaves the links of the start."""
import contextlib
import ctypes
import os
import pathlib
import random
import secrets
import socket
import struct
import subprocess
import threading
import time

from checks import Suite, length, programs, skip
from fabric import REFUSED, Node

PARENT, WIRE = "parent0", "wire0"
PROBE = 0x88B5
SOCKET = "/run/fabricbios-suite/local.sock"
LIBC = ctypes.CDLL(None, use_errno=True)
NETNS = pathlib.Path("/run/netns")
CLONE_NEWNET = 0x40000000
SO_PRIORITY = 12
SHAPER = 0x10000  # The handle of htb: a frame with this priority would pass it unshaped.


def ip(*words, ns=None):
    """Stock `ip`; its output."""
    command = ["ip", *(["-n", ns] if ns else []), *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def inside(ns):
    """Sockets opened in this context belong to the namespace. For one thread."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    other = os.open(NETNS / ns, os.O_RDONLY)
    try:
        assert LIBC.setns(other, CLONE_NEWNET) == 0
        yield
    finally:
        assert LIBC.setns(own, CLONE_NEWNET) == 0
        os.close(own)
        os.close(other)


def links():
    """The names of the links in the node's namespace."""
    return sorted(os.listdir("/sys/class/net"))


def octets(mac):
    return bytes.fromhex(mac.replace(":", ""))


class Wire:
    """The far end: sees all frames."""

    def __init__(self):
        with inside("wire"):
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            self.socket.bind((WIRE, 3))
        self.socket.settimeout(10)

    def passes(self, ns, device, mac, frames):
        """Which of the frames arrive. A good frame follows, so nothing waits for what does not come."""
        marks = [secrets.token_bytes(16) for _ in frames]
        last = secrets.token_bytes(16)
        with inside(ns):
            sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            sender.bind((device, 0))
        with sender:
            for (source, head), mark in zip(frames, marks):
                sender.send(b"\xff" * 6 + octets(source) + head + struct.pack("!H", PROBE) + mark + bytes(46))
            sender.send(b"\xff" * 6 + octets(mac) + struct.pack("!H", PROBE) + last + bytes(46))
        seen = b""
        while last not in seen:
            seen += self.socket.recv(2048)
        return [mark in seen for mark in marks]


def rate(from_ns, to_ns, address, port, secs=4, priority=0):
    """Megabits per second of one TCP connection."""
    with inside(to_ns):
        server = socket.create_server((address, port))
    with inside(from_ns):
        client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, SO_PRIORITY, priority)
    client.settimeout(10)
    server.settimeout(10)
    client.connect((address, port))
    stream, _ = server.accept()

    def send():
        until = time.monotonic() + secs
        with contextlib.suppress(OSError):
            while time.monotonic() < until:
                client.send(bytes(65536))
        client.close()
    sender = threading.Thread(target=send)
    sender.start()
    total, began = 0, time.monotonic()
    while more := len(stream.recv(1 << 20)):
        total += more
    took = time.monotonic() - began
    sender.join()
    server.close()
    return total * 8 / took / 1e6


class NetNode(Node):
    """A node that leases macvlans of the parent."""

    def __init__(self):
        super().__init__("--macvlan-parent", f"{PARENT}=1000", "--local-socket", SOCKET, device="none", mem_bytes="1MiB", address="127.0.0.1")


def alloc(tenant, mbps, *more, secs=300):
    return tenant.ask("lease", "alloc", "net", "--mbps", mbps, "--secs", secs, *more)


def hand_over(tenant, lease, ns, address):
    """Gives the lease's interface to a namespace, as root there does."""
    tenant.ask("lease", "enter", lease["lease_id"], "--netns", NETNS / ns, "--local-socket", SOCKET)
    name = lease["binding"]["net"]["ifname"]
    ip("addr", "add", f"{address}/24", "dev", name, ns=ns)
    ip("link", "set", name, "up", ns=ns)
    return name


@contextlib.contextmanager
def namespaces(*names):
    for name in names:
        ip("netns", "add", name)
    try:
        yield
    finally:
        for name in names:
            if (NETNS / name).exists():
                ip("netns", "del", name)


def pings(ns, address):
    command = ["ip", "netns", "exec", ns, "ping", "-c3", "-i0.2", "-W2", address]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def limits(suite, node):
    """What a tenant can and cannot do."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    wire = Wire()
    with namespaces("a", "b"):
        one, two = alloc(alice, 100, "--hand-over", "netns"), alloc(bob, 20, "--hand-over", "netns")
        macs = [it["binding"]["net"]["mac"] for it in (one, two)]
        suite.equal("the rate is enforced, as the grant says", "enforced", one["effective"].get("net_rate"))
        device = hand_over(node.operator, one, "a", "10.9.0.2")
        hand_over(node.operator, two, "b", "10.9.0.3")
        suite.check("a tenant reaches the wire", pings("a", "10.9.0.1"))
        suite.check("another too", pings("b", "10.9.0.1"))
        tag = struct.pack("!HH", 0x8100, 7)
        frames = {"a foreign address": ("02:00:00:00:00:77", b""), "the address of another lease": (macs[1], b""),
                  "a tag of its own": (macs[0], tag), "two tags": (macs[0], struct.pack("!HH", 0x88A8, 7) + tag),
                  "its own address": (macs[0], b"")}
        passed = wire.passes("a", device, macs[0], list(frames.values()))
        for name, passes in zip(frames, passed):
            suite.equal(f"a frame with {name} passes", name == "its own address", passes)
        for number in (1, 2):
            ip("link", "add", f"x{number}", "link", device, "type", "macvlan", "mode", "private", ns="a")
            ip("link", "set", f"x{number}", "up", ns="a")
            ip("addr", "add", f"10.9.0.6{number}/24", "dev", f"x{number}", ns="a")
        own = octets(ip("-br", "link", "show", "x1", ns="a").split()[2])
        of_macvlan = wire.passes("a", device, macs[0], [(":".join(f"{it:02x}" for it in own), b"")])
        suite.equal("a frame with the address of a macvlan of the tenant passes", [False], of_macvlan)
        for number in (1, 2):
            ip("link", "del", f"x{number}", ns="a")
        for name, ends, address, limit in (("sent, 100", ("a", "wire"), "10.9.0.1", 100), ("received, 100", ("wire", "a"), "10.9.0.2", 100),
                                           ("sent, 20", ("b", "wire"), "10.9.0.1", 20), ("received, 20", ("wire", "b"), "10.9.0.3", 20)):
            got = rate(*ends, address, random.randrange(20000, 30000))
            print(f"rate {name}: {got:.1f} Mbit/s", flush=True)
            # An emulated processor may be too slow for the upper rate; the limit holds all the same.
            suite.check(f"rate {name} Mbit/s", (0.7 if limit == 20 else 0.4) * limit < got < 1.05 * limit, f"about {limit}", got)
        got = rate("b", "wire", "10.9.0.1", 19999, priority=SHAPER)
        suite.check("a tenant that names the shaper is shaped", got < 21, "at most 20", got)
        alice.free(one)
        suite.check("freed: the interface is gone from the namespace", device not in ip("-br", "link", ns="a"))
        suite.check("the neighbour goes on", pings("b", "10.9.0.1"))
        bob.free(two)
    wire.socket.close()


def vlan(suite, node):
    """A lease of VLAN 42 reaches VLAN 42 and nothing else."""
    alice = node.tenant("alice")
    ip("link", "add", "wire42", "link", WIRE, "type", "vlan", "id", "42", ns="wire")
    ip("addr", "add", "10.42.0.1/24", "dev", "wire42", ns="wire")
    ip("link", "set", "wire42", "up", ns="wire")
    with namespaces("a"):
        lease = alloc(alice, 100, "--hand-over", "netns", "--vlan", 42, "--mac", "02:00:00:00:42:01")
        device = hand_over(node.operator, lease, "a", "10.42.0.2")
        suite.equal("the address that was asked for", "02:00:00:00:42:01", lease["binding"]["net"]["mac"])
        suite.check("VLAN 42 is reached", pings("a", "10.42.0.1"))
        ip("addr", "add", "10.9.0.5/24", "dev", device, ns="a")
        suite.check("what is untagged is not", not pings("a", "10.9.0.1"))
        alice.free(lease)
    ip("link", "del", "wire42", ns="wire")


def refusals(suite, node):
    """Requests that cannot be met."""
    alice = node.tenant("alice")
    lease = alloc(alice, 10)
    mac = lease["binding"]["net"]["mac"]
    suite.check("an interface of the node, up", lease["binding"]["net"]["ifname"] in ip("-br", "link", "show", "up"))
    for name, words in {"the address of another lease": (1, "--mac", mac), "vfio": (1, "--hand-over", "vfio"),
                        "more than the link has": (1001,), "the address of the node": (1, "--mac", parent_mac())}.items():
        suite.refused(name, lambda words=words: alloc(alice, *words), REFUSED)
    own = ("lease", "enter", lease["lease_id"], "--netns", "/proc/self/ns/net", "--local-socket", SOCKET)
    suite.check("an interface of the node is given to no namespace", node.operator.run(*own).returncode != 0)
    alice.free(lease)
    lease = alloc(alice, 10, "--hand-over", "netns")
    for path in ("/proc/self/ns/net", "/proc/self/ns/mnt", "/etc/passwd"):
        own = ("lease", "enter", lease["lease_id"], "--netns", path, "--local-socket", SOCKET)
        suite.check(f"{path} is no namespace of a tenant", node.operator.run(*own).returncode != 0)
    alice.free(lease)


def parent_mac():
    return pathlib.Path(f"/sys/class/net/{PARENT}/address").read_text(encoding="ascii").strip()


def ends(suite, node):
    """Expiry under traffic; a namespace that is deleted first; a dead daemon."""
    alice, start = node.tenant("alice"), links()
    with namespaces("a"):
        lease = alloc(alice, 100, "--hand-over", "netns", secs=6)
        hand_over(node.operator, lease, "a", "10.9.0.2")
        flow = subprocess.Popen(["ip", "netns", "exec", "a", "ping", "-i0.05", "10.9.0.1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        node.operator.wait_until(lease, "expired")
        suite.equal("expired under traffic: the links of the start", start, links())
        suite.check("and no way to the wire", not pings("a", "10.9.0.1"))
        flow.kill()
        flow.wait()
    with namespaces("a"):
        lease = alloc(alice, 100, "--hand-over", "netns")
        hand_over(node.operator, lease, "a", "10.9.0.2")
        ip("netns", "del", "a")
        alice.free(lease)
        suite.equal("the namespace was deleted first: the links of the start", start, links())
    with namespaces("a", "b"):
        short, long = alloc(alice, 100, "--hand-over", "netns", secs=15), alloc(alice, 50, "--hand-over", "netns")
        hand_over(node.operator, short, "a", "10.9.0.2")
        hand_over(node.operator, long, "b", "10.9.0.3")
        node.kill()
        suite.check("the daemon is dead, the lease goes on", pings("a", "10.9.0.1"))
        limit = time.monotonic() + 60
        while len(links()) > len(start) + 2 and time.monotonic() < limit:
            time.sleep(0.2)
        suite.equal("at its deadline the watchdog ends the lease, and no other", len(start) + 2, len(links()))
        suite.check("no way to the wire", not pings("a", "10.9.0.1"))
        suite.check("the other lease goes on", pings("b", "10.9.0.1"))
        node.start()
        suite.check("and after the next start", pings("b", "10.9.0.1"))
        alice.free(long)
    suite.equal("all over: the links of the start", start, links())


def cycles(suite, node):
    """Random grants and frees."""
    alice, start = node.tenant("alice"), links()
    records = next(pathlib.Path("/run").glob("fabricbios-*/net"))
    held = []
    for _ in range(length(100, 30)):
        if held and random.random() < 0.5:
            alice.free(held.pop(random.randrange(len(held))))
        else:
            more = random.choice([(), ("--hand-over", "netns"), ("--vlan", random.randrange(1, 4095))])
            held.append(alloc(alice, random.randrange(1, 20), *more))
    for lease in held:
        alice.free(lease)
    suite.equal("after many cycles: the links of the start", start, links())
    suite.equal("and no record", [], os.listdir(records))


def main():
    """On one node."""
    programs()
    for name in ("macvlan", "veth", "sch_htb", "sch_fq_codel", "cls_flower", "act_mirred", "act_vlan"):
        if subprocess.run(["modprobe", name], check=False, capture_output=True).returncode:
            skip(f"kernel module {name}")
    with namespaces("wire"):
        ip("link", "add", PARENT, "type", "veth", "peer", "name", WIRE)
        ip("link", "set", WIRE, "netns", "wire")
        ip("link", "set", PARENT, "up")
        ip("addr", "add", "10.9.0.1/24", "dev", WIRE, ns="wire")
        ip("link", "set", WIRE, "up", ns="wire")
        with Suite("macvlan leases") as suite, NetNode() as node:
            for section in (limits, vlan, refusals, ends, cycles):
                suite.section(section, suite, node)


if __name__ == "__main__":
    main()
