#!/usr/bin/python3
"""Shared by the suites of the data plane over UDP: leases with a client, memory that must not change, and a writer that
goes on until it is refused."""
import atexit
import contextlib
import subprocess
import threading
import time

import fbmu_frame as f
from checks import give_back
from fbmu_client import Client, NoAnswer, Refused

LEASE_BYTES = 65536
UDP = ("--transport", "udp")
# Further addresses of this machine, used as other clients.
ELSEWHERE = ("10.77.0.101", "10.77.0.102", "10.77.0.103")
PATTERN = bytes(range(256)) * (LEASE_BYTES // 256)


def lease_of(tenant, length=LEASE_BYTES, secs=300, grace_secs=0):
    """Leases memory over UDP."""
    return tenant.alloc(length, secs, None, grace_secs, *UDP)


@contextlib.contextmanager
def leased(tenant, length=LEASE_BYTES, secs=300, flags=0):
    """A lease and a client on it; given back at the end unless it has ended already."""
    lease = lease_of(tenant, length, secs)
    try:
        with Client(lease, flags) as client:
            yield lease, client
    finally:
        give_back(tenant, lease)


def other_addresses():
    """Gives this machine the ELSEWHERE addresses too, until the suite ends; needs root, as in a guest."""
    for address in ELSEWHERE:
        subprocess.run(["ip", "address", "replace", f"{address}/32", "dev", "lo"], check=True)
        atexit.register(subprocess.run, ["ip", "address", "del", f"{address}/32", "dev", "lo"], check=True)
    return ELSEWHERE


def now_ms():
    """Wall clock in milliseconds, the clock of lease deadlines."""
    return time.time() * 1000


def words(answers):
    """Received datagrams as text."""
    shown = []
    for data in answers:
        frame, tag = f.parse(data)
        shown.append(f"{f.STATUS[frame.status]}{' unauthenticated' if tag == f.NO_TAG else ''} ({len(data)} bytes)")
    return ", ".join(shown) or "nothing"


class Strangers:
    """Sends datagrams that a server must not act on, and counts the replies."""

    def __init__(self, suite, client):
        self.suite, self.client, self.sent, self.answered = suite, client, 0, 0

    def nothing(self, name, datagrams, wire=None, may_be_told=True):
        """Checks that none of them gets an answer, except (with `may_be_told`) INVALID with a tag of zeros that is no
        longer than the request."""
        wrong = []
        for what, data in datagrams:
            came = self.client.exchange(data, wire=wire)
            self.sent, self.answered = self.sent + 1, self.answered + len(came)
            told = len(came) == 1 and may_be_told and f.is_refusal_without_key(came[0]) and len(came[0]) <= len(data)
            if came and not told:
                wrong.append(f"{what}: {words(came)}")
        wanted = "INVALID without a key or nothing" if may_be_told else "nothing"
        self.suite.check(f"{name} ({len(datagrams)} frames)", not wrong, wanted, "; ".join(wrong))

    def refused(self, name, status, frames):
        """Checks that each frame gets exactly this status under the right key, without payload."""
        wrong = []
        for what, frame in frames:
            reply = self.client.ask(frame)
            if reply is None or reply.status != status or reply.payload:
                wrong.append(f"{what}: {'no answer' if reply is None else f.STATUS[reply.status]}")
        self.suite.check(f"{name}: {f.STATUS[status]} ({len(frames)} frames)", not wrong, f.STATUS[status], "; ".join(wrong))


def unchanged(suite, name, client, contents=PATTERN):
    """Checks that no byte of the lease has changed."""
    got = client.read(0, len(contents))
    different = [at for at, (a, b) in enumerate(zip(contents, got)) if a != b]
    suite.check(f"{name}: no byte has changed", got == contents, "the same bytes", f"differences at {different[:4]}, {len(got)} bytes")


class Writer(threading.Thread):
    """Writes 1, 2, 3 … at one offset until the node refuses or does not answer; `report` has the form of
    writer.py's."""

    def __init__(self, lease, offset=0, give_up_secs=20):
        super().__init__(daemon=True)
        self.client = Client(lease, give_up_secs=give_up_secs)
        self.offset, self.writing, self.end = offset, threading.Event(), {}

    def run(self):
        done, last_ok_ms, last_posted_ms, status = 0, None, None, None
        while status is None:
            posted_ms = now_ms()
            try:
                self.client.write(self.offset, (done + 1).to_bytes(8, "big"))
            except Refused as refused:
                status = f.STATUS[refused.status]
                continue
            except NoAnswer:
                status = "no answer"
                continue
            done, last_ok_ms, last_posted_ms = done + 1, now_ms(), posted_ms
            self.writing.set()
        self.end = {"writes": done, "status": status, "last_ok_at_ms": last_ok_ms, "last_posted_at_ms": last_posted_ms,
                    "failed_at_ms": now_ms()}
        self.writing.set()

    def __enter__(self):
        self.start()
        self.writing.wait(60)
        return self

    def __exit__(self, *_):
        self.join(60)
        self.client.close()

    def report(self):
        """Waits for its end."""
        self.join(60)
        return self.end
