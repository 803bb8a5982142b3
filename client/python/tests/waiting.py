"""Waits for what happens."""

import contextlib
import os
import pathlib
import signal
import socket
import threading
import time

SECS = 60


def until(true, what):
    """Asks until `true()` is."""
    deadline = time.monotonic() + SECS
    while not true():
        assert time.monotonic() < deadline, f"{what}: not within {SECS} s"
        time.sleep(0.02)


class Told:
    """A callback that notes what it is told, and on which thread."""

    def __init__(self):
        self.causes, self.threads, self._event = [], [], threading.Event()

    def __call__(self, cause):
        self.causes.append(cause)
        self.threads.append(threading.current_thread())
        self._event.set()

    def wait(self):
        """What it was told, at the latest after a minute."""
        assert self._event.wait(SECS), f"no end within {SECS} s"
        return self.causes


@contextlib.contextmanager
def stopped(node):
    """While this lasts, the daemon does not run: calls of the node wait."""
    os.kill(node.process.pid, signal.SIGSTOP)
    # Its threads run until one of them has taken the signal.
    os.waitid(os.P_PID, node.process.pid, os.WSTOPPED)
    try:
        yield
    finally:
        os.kill(node.process.pid, signal.SIGCONT)


def is_held(buffer):
    """Whether a transfer holds the bytearray, which then cannot change its size. A transfer that begins in between finds it one
    byte longer."""
    try:
        buffer.append(0)
        buffer.pop()
    except BufferError:
        return True
    return False


def until_held(buffer):
    """Waits until a transfer holds the bytearray."""
    until(lambda: is_held(buffer), "the transfer")


def leased(tenant):
    """The tenant's leases that give access: an ended one is listed until it is cleaned."""
    return [it["lease_id"] for it in tenant.ask("lease", "list")["leases"] if it["state"] in ("active", "binding")]


def until_freed(tenant):
    """Waits until the tenant has freed a lease and has no other."""

    def is_freed():
        states = [it["state"] for it in tenant.ask("lease", "list", "--all")["leases"]]
        return states == ["freed"]

    until(is_freed, "the lease is freed")


def unread(node):
    """How many bytes the daemon has been sent and has not read."""
    host, port = node.address.split(":")
    local = f"{socket.inet_aton(host)[::-1].hex()}:{int(port):04x}".upper()
    rows = [line.split() for line in pathlib.Path("/proc/self/net/udp").read_text().splitlines()]
    return sum(int(row[4].split(":")[1], 16) for row in rows if row[1] == local)
