#!/usr/bin/python3
"""Frames on the wire, for the suites of network functions: listeners at its other end, and tenants that send. As a
program this is the flood: frames.py NAMESPACE INTERFACE MAC sends numbered frames until its input ends, and prints
their number."""
import collections
import ctypes
import itertools
import os
import secrets
import select
import socket
import struct
import subprocess
import sys
import threading
import time

from checks import LATE_LIMIT_MS, until

WIRE = "wire0"
BROADCAST = b"\xff" * 6
PROTOCOL, FLOOD_PROTOCOL = 0x88B5, 0x88B7
FLOW_SECS = 30
CLONE_NEWNET = 0x40000000
ALL_PROTOCOLS = 3
SOL_PACKET, PACKET_AUXDATA, SO_ATTACH_FILTER, SO_RCVBUFFORCE, SO_TIMESTAMPNS = 263, 8, 26, 33, 35
BURST, PAUSE_SECS = 10, 0.01
MARK, MARK_BYTES, TRIES = b"mark", 8, 50
# Buffer for frames that no program has read yet.
CAPTURE_BYTES = 256 << 20


def raw_bytes(text):
    """A MAC address as bytes."""
    return bytes.fromhex(text.replace(":", ""))


def in_namespace(path, make):
    """Calls `make` in a thread in the namespace; the sockets that it makes stay there."""
    outcome = []

    def run():
        try:
            with open(path) as target:
                # os.setns exists since Python 3.12 only.
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


def wire(protocol, namespace):
    """A socket that receives the frames of one EtherType, tagged or not, with tag and time."""
    def make():
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        # BPF: load the half-word at offset 12; accept the frame if it is the protocol, else drop it.
        program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *it) for it in (
            (0x28, 0, 0, 12), (0x15, 0, 1, protocol), (6, 0, 0, 0x40000), (6, 0, 0, 0))))
        made.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 4, ctypes.addressof(program)))
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, CAPTURE_BYTES)
        made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        made.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        made.bind((WIRE, ALL_PROTOCOLS))
        made.settimeout(0.2)
        return made
    return in_namespace(f"/run/netns/{namespace}", make)


def received(made):
    """The next frame: its time (unix time), VLAN and bytes; None for a frame that this machine sent."""
    frame, extra, _, address = made.recvmsg(2048, 128)
    tag, at = None, 0.0
    for level, _, data in extra:
        if level == SOL_PACKET:
            status, tci = struct.unpack_from("I", data)[0], struct.unpack_from("H", data, 16)[0]
            tag = tci & 0xFFF if status & 0x10 else None
        else:
            secs, nanos = struct.unpack("ll", data)
            at = secs + nanos / 1e9
    return None if address[2] == socket.PACKET_OUTGOING else (at, tag, frame)


class Wire:
    """The far end of the wire: receives all frames."""

    def __init__(self, namespace):
        def make():
            made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
            made.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
            made.bind((WIRE, ALL_PROTOCOLS))
            made.settimeout(10)
            return made
        self.socket = in_namespace(f"/run/netns/{namespace}", make)

    def vlans(self, path, interface, source, frames):
        """Sends the frames from the interface; returns for each frame the VLAN of its outer tag on arrival, 0 for no
        tag, None if the frame does not arrive. A frame is a source address and the bytes behind it. A valid frame with
        the address `source` follows, so this does not wait for frames that never arrive."""
        marks = [secrets.token_bytes(16) for _ in range(len(frames) + 1)]
        with in_namespace(path, lambda: bound(interface)) as sender:
            for (address, head), mark in zip([*frames, (source, b"")], marks):
                sender.send(b"\xff" * 6 + raw_bytes(address) + head + struct.pack("!H", PROTOCOL) + mark + bytes(46))
        seen = {}
        while marks[-1] not in seen:
            found = received(self.socket)
            for mark in marks:
                if found and mark in found[2]:
                    seen[mark] = found[1] or 0
        return [seen.get(mark) for mark in marks[:-1]]

    def close(self):
        """Closes the socket."""
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def tagged(source, vlan):
    """Frames for `Wire.vlans`: one with a tag of that VLAN for each EtherType of tags, and one with two tags."""
    tag = struct.pack("!HH", 0x8100, vlan)
    return {**{f"a tag of EtherType {it:#x}": (source, struct.pack("!HH", it, vlan)) for it in (0x8100, 0x88A8, 0x9100, 0x9200, 0x9300)},
            "two tags": (source, struct.pack("!HH", 0x88A8, vlan) + tag)}


class Listener:
    """Counts the frames of one source address that reach the wire's other end, by their VLAN. `last`: the unix time of
    the last frame of the expected VLAN."""

    def __init__(self, source, vlan=None, protocol=PROTOCOL, namespace="peer"):
        self.source, self.vlan = raw_bytes(source), vlan
        self.counts, self.last, self.marks = collections.Counter(), 0.0, set()
        self.socket = wire(protocol, namespace)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                found = received(self.socket)
            except TimeoutError:
                continue
            except OSError:
                return
            if not found:
                continue
            at, vlan, frame = found
            if frame[14:].startswith(MARK):
                self.marks.add(frame[14 + len(MARK):][:MARK_BYTES])
            elif frame[6:12] == self.source:
                self.counts[vlan] += 1
                self.last = at if vlan == self.vlan else self.last

    @property
    def count(self):
        """Frames of the expected VLAN."""
        return self.counts[self.vlan]

    def flows(self, secs=FLOW_SECS):
        """Whether frames arrive."""
        before, limit = self.count, time.monotonic() + secs
        while self.count - before < 5 and time.monotonic() < limit:
            time.sleep(0.02)
        return self.count - before >= 5

    def is_silent(self, secs=1.0):
        """Whether no frame arrives for this long."""
        before = self.count
        time.sleep(secs)
        return self.count == before

    def hears_nothing_of(self, sender, marker):
        """Whether none of the frames arrives that the sender sends between two markers. `marker` sends a marker: it
        gets the frame's bytes behind its source address, and uses a path that keeps the order, so earlier frames arrive
        before the marker."""
        self.hears(marker)
        before, tries = self.counts.total(), sender.tries
        until(lambda: sender.tries >= tries + TRIES, FLOW_SECS, f"{TRIES} frames of the sender")
        self.hears(marker)
        return self.counts.total() == before

    def hears(self, marker):
        """Waits until a new marker has arrived; it is sent again and again."""
        number = os.urandom(MARK_BYTES)

        def heard():
            marker(struct.pack("!H", PROTOCOL) + MARK + number + bytes(40))
            return number in self.marks
        until(heard, FLOW_SECS, "a marker on the wire")

    def close(self):
        """Closes the socket and ends the thread."""
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Sender:
    """Sends frames from an interface continuously, as a tenant with root in its namespace can. `tries`: number of
    frames sent."""

    def __init__(self, path, interface, source, gap=0.01, burst=1, size=60):
        self.open, self.tries = True, 0
        self.frame = BROADCAST + raw_bytes(source) + struct.pack("!H", PROTOCOL) + b"y" * size
        self.gap, self.burst = gap, burst
        self.socket = in_namespace(path, lambda: bound(interface))
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while self.open:
            try:
                for _ in range(self.burst):
                    self.socket.send(self.frame)
            except OSError:
                pass  # Of an interface that is down or gone.
            self.tries += self.burst
            time.sleep(self.gap)

    def mark(self, source):
        """Returns a function that sends a marker with this source address between the sender's frames."""
        return lambda rest: self.socket.send(BROADCAST + raw_bytes(source) + rest)

    def close(self):
        """Ends the thread and closes the socket."""
        self.open = False
        self.thread.join()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def bound(interface):
    """A socket that sends from the interface."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    made.bind((interface, 0))
    return made


def ends_on_time(suite, name, lease, heard, late_limit_ms=LATE_LIMIT_MS):
    """Checks that the lease's frames arrive until the deadline and not much longer."""
    deadline = lease["expires_at_unix_ms"] / 1e3
    time.sleep(max(0.0, deadline - time.time()))
    until(lambda: heard.is_silent(2), 60, f"{name}: the end of its frames")
    late_ms = 1e3 * (heard.last - deadline)
    print(f"   {name}: last frame {late_ms:+.0f} ms from the deadline", flush=True)
    suite.check(f"{name}: frames end at the deadline, not before and not late", -1000 < late_ms < late_limit_ms, "around 0 ms", late_ms)


class Flood:
    """A loud tenant: another process sends numbered frames from its interface. Arriving frames are captured, and read
    at the end."""

    def __init__(self, path, interface, source, namespace="peer"):
        self.source, self.capture = raw_bytes(source), wire(FLOOD_PROTOCOL, namespace)
        self.process = subprocess.Popen([sys.executable, __file__, path, interface, source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        select.select([self.capture], [], [], FLOW_SECS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.capture.close()

    def is_whole(self, suite, name, end):
        """Checks that the flood went on over the end (unix time) of a neighbour's lease: every sent frame has arrived,
        in order."""
        output, _ = self.process.communicate()
        sent, arrivals = int(output), []
        while not arrivals or arrivals[-1][1] < sent - 1:
            try:
                found = received(self.capture)
            except TimeoutError:
                break
            if found and found[2][6:12] == self.source:
                arrivals.append((found[0], struct.unpack_from("!I", found[2], 14)[0]))
        suite.check(f"{name}: it sends before and after the end of the neighbour",
                    arrivals and arrivals[0][0] < end < arrivals[-1][0], end, arrivals[:1] + arrivals[-1:])
        numbers = [number for _, number in arrivals]
        missing = sorted(set(range(sent)) - set(numbers))
        suite.check(f"{name}: every frame that it sent has come, once and in order", numbers == list(range(sent)),
                    f"0 to {sent - 1}", f"{len(numbers)} frames, without {missing[:20]}")
        pause_ms = max((1e3 * (after - before) for (before, _), (after, _) in itertools.pairwise(arrivals)), default=0)
        print(f"   {name}: {len(numbers)} of {sent} frames, longest pause {pause_ms:.0f} ms", flush=True)
        suite.check(f"{name}: no long pause", pause_ms < LATE_LIMIT_MS, f"less than {LATE_LIMIT_MS} ms", pause_ms)


def flood(path, interface, source):
    """Sends frames until standard input ends."""
    # The kernel keeps the order of frames that one processor has sent.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sender, sent = in_namespace(path, lambda: bound(interface)), 0
    head = BROADCAST + raw_bytes(source) + struct.pack("!H", FLOOD_PROTOCOL)
    while not select.select([sys.stdin], [], [], PAUSE_SECS)[0]:
        for _ in range(BURST):
            sender.send(head + struct.pack("!I", sent) + bytes(500))
            sent += 1
    print(sent)


if __name__ == "__main__":
    flood(*sys.argv[1:])
