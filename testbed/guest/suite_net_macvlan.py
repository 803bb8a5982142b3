#!/usr/bin/python3
# lab: one-vm timeout=1200
# covers: sriov local node/src/kinds/net
"""Leases of macvlan interfaces on one end of a veth pair; the other end is the wire. Tenants are root in their
namespaces: foreign frames do not pass, the rate limit holds, and after every end the links are those of the start."""
import contextlib
import pathlib
import random
import socket
import subprocess
import threading
import time

import net_rights
from checks import Suite, in_full_length, length, programs, skip, until
from fabric import REFUSED, UNREACHABLE, Refused
from frames import WIRE, Wire, tagged
from macvlan import NETNS, PARENT, SOCKET, NetNode, alloc, hand_over, inside, ip, is_as_before, namespaces, pings, state
from macvlan_ends import dies, ends, kept, loud_neighbour, storm, without_daemon

SO_PRIORITY = 12
RATE_SECS = length(4, 2)
SHAPER = 0x10000  # The handle of htb: a frame with this priority would pass it unshaped.


def rate(from_ns, to_ns, address, port, priority=0):
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
        until = time.monotonic() + RATE_SECS
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


def limits(suite, node):
    """The limits of a tenant."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    with namespaces("a", "b"), Wire("wire") as wire:
        one, two = alloc(alice, 100, "--hand-over", "netns"), alloc(bob, 20, "--hand-over", "netns")
        macs = [it["binding"]["net"]["mac"] for it in (one, two)]
        suite.equal("the rate is enforced, as the grant says", "enforced", one["effective"].get("net_rate"))
        device = hand_over(node.operator, one, "a", "10.9.0.2")
        hand_over(node.operator, two, "b", "10.9.0.3")
        suite.check("a tenant reaches the wire", pings("a", "10.9.0.1"))
        suite.check("another too", pings("b", "10.9.0.1"))
        frames = {"a foreign address": ("02:00:00:00:00:77", b""), "the address of another lease": (macs[1], b""),
                  **tagged(macs[0], 7), "its own address": (macs[0], b"")}
        arrived = wire.vlans(NETNS / "a", device, macs[0], list(frames.values()))
        for name, vlan in zip(frames, arrived):
            its = name == "its own address"
            suite.equal(f"a frame with {name} {'passes, untagged' if its else 'does not pass'}", 0 if its else None, vlan)
        for number in (1, 2):
            ip("link", "add", f"x{number}", "link", device, "type", "macvlan", "mode", "private", ns="a")
            ip("link", "set", f"x{number}", "up", ns="a")
            ip("addr", "add", f"10.9.0.6{number}/24", "dev", f"x{number}", ns="a")
        own = ip("-br", "link", "show", "x1", ns="a").split()[2]
        of_macvlan = wire.vlans(NETNS / "a", device, macs[0], [(own, b"")])
        suite.equal("a frame with the address of a macvlan of the tenant does not pass", [None], of_macvlan)
        for number in (1, 2):
            ip("link", "del", f"x{number}", ns="a")
        for name, ends, address, limit in (("sent, 100", ("a", "wire"), "10.9.0.1", 100), ("received, 100", ("wire", "a"), "10.9.0.2", 100),
                                           ("sent, 20", ("b", "wire"), "10.9.0.1", 20), ("received, 20", ("wire", "b"), "10.9.0.3", 20)):
            got = rate(*ends, address, random.randrange(20000, 30000))
            print(f"rate {name}: {got:.1f} Mbit/s", flush=True)
            # A busy emulated processor may be too slow for the rate. The upper limit must hold anyway; a rate in wrong
            # units would be an eighth of it.
            suite.check(f"rate {name} Mbit/s", limit / 5 < got < 1.05 * limit, f"about {limit}", got)
        got = rate("b", "wire", "10.9.0.1", 19999, priority=SHAPER)
        suite.check("a tenant that names the shaper is shaped", got < 21, "at most 20", got)
        alice.free(one)
        until(lambda: device not in ip("-br", "link", ns="a"), 60, "the end of the freed interface")
        suite.check("the neighbour goes on", pings("b", "10.9.0.1"))
        bob.free(two)


def told(suite, node):
    """The inventory shows the parent's link as it is, and its health agrees."""
    alice = node.tenant("alice")

    def row():
        return next(it for it in node.operator.ask("inventory")["resources"] if it.get("name") == PARENT)

    def nic():
        return row()["nic"]

    def told():
        found = row()
        return found["nic"]["link_up"], found["health"], found.get("health_reason")
    before = nic()
    suite.equal("the link of the parent", (True, "ok", None), told())
    ip("link", "set", "dev", WIRE, "down", ns="wire")
    try:
        suite.check("its other end goes down: so is the link", until(lambda: not nic()["link_up"], 60, "the link"), "down")
        suite.equal("it is degraded at once", "degraded", row()["health"])
        suite.check("and says why", until(lambda: "has no carrier" in row()["health_reason"], 60, "the reason"), "no carrier")
        alice.free(alloc(alice, 100, "--hand-over", "netns"))
    finally:
        ip("link", "set", "dev", WIRE, "up", ns="wire")
    suite.check("and up again", until(lambda: nic() == before, 60, "the link"), before)
    suite.check("and well again", until(lambda: told() == (True, "ok", None), 60, "the health"), "ok")


def gone(suite, node):
    """The parent disappears while the node runs, with a lease on it, and comes back."""
    alice, operator = node.tenant("alice"), node.operator

    def row():
        return next(it for it in operator.ask("inventory")["resources"] if it.get("name") == PARENT)

    def granted():
        try:
            return alloc(alice, 100, "--hand-over", "netns")
        except Refused as refused:
            assert refused.code == "Unavailable", refused
            return None
    lease = alloc(alice, 100, "--hand-over", "netns")
    ip("link", "del", PARENT)
    until(lambda: row()["available"] == 0, 60, "the loss in the inventory")
    told = row()
    suite.equal("the parent is gone: degraded, and why", ("degraded", True), (told["health"], f"{PARENT}: the interface is gone" in told["health_reason"]))
    suite.refused("a lease of it is refused before anything is made, and why", lambda: alloc(alice, 100, "--hand-over", "netns"), UNREACHABLE,
                  "Unavailable", "cannot be had at the moment")
    alice.free(lease)
    make_wire()
    with namespaces("a"):
        lease = until(granted, 60, "a lease of the parent that is back")
        # A look may have come between the making of the interface and `up`.
        until(lambda: row()["health"] == "ok", 60, "no trouble in the inventory")
        suite.equal("it is back: no trouble", None, row().get("health_reason"))
        hand_over(operator, lease, "a", "10.9.0.2")
        suite.check("and the lease reaches the wire", pings("a", "10.9.0.1"))
        alice.free(lease)


def vlan(suite, node):
    """A lease of VLAN 42 reaches VLAN 42 and nothing else."""
    alice = node.tenant("alice")
    ip("link", "add", "wire42", "link", WIRE, "type", "vlan", "id", "42", ns="wire")
    ip("addr", "add", "10.42.0.1/24", "dev", "wire42", ns="wire")
    ip("link", "set", "wire42", "up", ns="wire")
    with namespaces("a"), Wire("wire") as wire:
        lease = alloc(alice, 100, "--hand-over", "netns", "--vlan", 42, "--mac", "02:00:00:00:42:01")
        device = hand_over(node.operator, lease, "a", "10.42.0.2")
        suite.equal("the address that was asked for", "02:00:00:00:42:01", lease["binding"]["net"]["mac"])
        suite.check("VLAN 42 is reached", pings("a", "10.42.0.1"))
        mac = lease["binding"]["net"]["mac"]
        frames = {**tagged(mac, 7), "no tag": (mac, b"")}
        for name, arrived in zip(frames, wire.vlans(NETNS / "a", device, mac, list(frames.values()))):
            its = name == "no tag"
            suite.equal(f"in VLAN 42, a frame with {name} {'gets its tag' if its else 'does not pass'}", 42 if its else None, arrived)
        ip("addr", "add", "10.9.0.5/24", "dev", device, ns="a")
        suite.check("what is untagged is not", not pings("a", "10.9.0.1"))
        alice.free(lease)
    ip("link", "del", "wire42", ns="wire")


def refusals(suite, node):
    """Requests that cannot be fulfilled."""
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


def rights(suite, node):
    """See net_rights.py."""
    def leased(tenant, vlan=None, mac=None):
        words = [*(["--vlan", vlan] if vlan else []), *(["--mac", mac] if mac else [])]
        return alloc(tenant, 10, *words)
    net_rights.rights(suite, node, leased)


def parent_mac():
    return pathlib.Path(f"/sys/class/net/{PARENT}/address").read_text(encoding="ascii").strip()


@in_full_length
def cycles(suite, node):
    """Leases come and go in several ways; afterwards everything is as before."""
    alice, start, chance, held = node.tenant("alice"), state(), random.Random(7), []
    for _ in range(length(100, 15)):
        more = chance.choice([(), ("--hand-over", "netns"), ("--vlan", chance.randrange(1, 4095))])
        held.append(alloc(alice, chance.randrange(1, 20), *more))
        if len(held) > 3:
            alice.free(held.pop(chance.randrange(len(held))))
    for lease in held:
        alice.free(lease)
    is_as_before(suite, "cycles", start)


def make_wire():
    """Makes the parent, and its other end in the namespace that stands for the wire."""
    ip("link", "add", PARENT, "type", "veth", "peer", "name", WIRE)
    ip("link", "set", WIRE, "netns", "wire")
    ip("link", "set", PARENT, "up")
    ip("addr", "add", "10.9.0.1/24", "dev", WIRE, ns="wire")
    ip("link", "set", WIRE, "up", ns="wire")


def main():
    """All sections on one node."""
    programs()
    for name in ("macvlan", "veth", "sch_htb", "sch_fq_codel", "cls_flower", "act_mirred", "act_vlan", "dummy"):
        if subprocess.run(["modprobe", name], check=False, capture_output=True).returncode:
            skip(f"kernel module {name}")
    with namespaces("wire"):
        make_wire()
        with Suite("macvlan leases") as suite, NetNode() as node:
            for section in (told, gone, limits, vlan, refusals, rights, ends, storm, without_daemon, kept, loud_neighbour, dies, cycles):
                suite.section(section, suite, node)


if __name__ == "__main__":
    main()
