#!/usr/bin/python3
"""Shared by the sections of the suite of macvlan leases: the node and its parent interface, leases, namespaces of
tenants, and the frames of these on the wire."""
import contextlib
import ctypes
import os
import pathlib
import subprocess

import net_rights
from checks import until
from fabric import Node
from frames import CLONE_NEWNET, Listener, Sender

PARENT = "parent0"
SOCKET = "/run/fabricbios-suite/local.sock"
LIBC = ctypes.CDLL(None, use_errno=True)
NETNS = pathlib.Path("/run/netns")


def ip(*words, ns=None):
    """Runs stock `ip`; returns its output."""
    command = ["ip", *(["-n", ns] if ns else []), *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def inside(ns):
    """Sockets opened in this context belong to the namespace. Only for this thread."""
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


class NetNode(Node):
    """A node that leases macvlans of the parent."""

    def __init__(self):
        super().__init__("--macvlan-parent", f"{PARENT}=1000", "--local-socket", SOCKET, *net_rights.FLAGS, device="none", mem_bytes="1MiB",
                         address="127.0.0.1")


def alloc(tenant, mbps, *more, secs=300):
    return tenant.ask("lease", "alloc", "net", "--mbps", mbps, "--secs", secs, *more)


def hand_over(tenant, lease, ns, address):
    """Moves the lease's interface to a namespace, as root there does."""
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


@contextlib.contextmanager
def flow(ns, device, mac):
    """Continuous frames of a tenant, and their listener."""
    with Listener(mac, namespace="wire") as heard, Sender(NETNS / ns, device, mac):
        yield heard


def state():
    """Everything in the node's namespace that leases change, and the records of leases."""
    return ip("-d", "link"), subprocess.run(["tc", "qdisc", "show"], check=True, capture_output=True, text=True).stdout, records()


def records():
    """The files in the directory that outlives the daemon."""
    return sorted(it.name for it in pathlib.Path("/run").glob("fabricbios-*/net/*"))


def is_as_before(suite, name, start):
    """Waits for releases, and checks that the state is that of the start."""
    with contextlib.suppress(TimeoutError):
        until(lambda: state() == start, 60, "the state of the start")
    suite.equal(f"{name}: links, queueing and records are those of the start", start, state())
