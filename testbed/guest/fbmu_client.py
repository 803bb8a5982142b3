#!/usr/bin/python3
"""A client of leased memory over UDP (FBMU), written from docs/spec/data-plane-over-udp.md alone with nothing
but the standard library.

As a module: `Client` keeps to the manners of the page (sessions, retries, congestion window, path MTU), and
`Wire` sends whatever it is given and shows all that comes back. As a program it reads or writes one lease, the JSON
object that `fabricctl --json` printed:

    fabricctl --json lease query ID | fbmu_client.py read OFFSET LENGTH
"""
import argparse
import collections
import dataclasses
import ipaddress
import json
import secrets
import select
import socket
import sys
import time

import fbmu_frame as f
from fbmu_frame import Frame

# Linux: include/uapi/linux/in.h and in6.h.
IP_MTU_DISCOVER, IP_MTU, IPV6_MTU_DISCOVER, IPV6_MTU, PMTUDISC_DO = 10, 14, 23, 24, 2
GIVE_UP_SECS = 30
RTO_FIRST_SECS, RTO_LEAST_SECS, RTO_MOST_SECS = 1.0, 0.1, 8.0
PROBE_TRIES = 3


class Refused(Exception):
    """The node answered another status than OK, under the right key."""

    def __init__(self, frame):
        self.frame, self.status = frame, frame.status
        name = f.STATUS[frame.status] if frame.status < len(f.STATUS) else frame.status
        super().__init__(f"op {frame.op} offset {frame.offset} length {frame.length}: {name}")


class NoAnswer(Exception):
    """No authenticated reply came in time."""


@dataclasses.dataclass(frozen=True)
class Place:
    """The coordinates of a lease: id, key and endpoint."""
    lease_id: bytes
    key: bytes
    address: tuple

    @classmethod
    def of(cls, lease):
        """From the JSON of a lease."""
        host, port = lease["binding"]["udp_endpoint"].rsplit(":", 1)
        return cls(bytes.fromhex(lease["lease_id"]), bytes.fromhex(lease["binding"]["dp_key"]), (host.strip("[]"), int(port)))


class Wire:
    """One socket to one node, with DF set. It sends any bytes and does not check received datagrams."""

    def __init__(self, address, source=None):
        self.six = ipaddress.ip_address(address[0]).version == 6
        self.socket = socket.socket(socket.AF_INET6 if self.six else socket.AF_INET, socket.SOCK_DGRAM)
        level, option = (socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER) if self.six else (socket.IPPROTO_IP, IP_MTU_DISCOVER)
        self.socket.setsockopt(level, option, PMTUDISC_DO)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        if source:
            self.socket.bind(source)
        self.socket.connect(address)
        self.socket.setblocking(False)

    def send(self, data):
        """Sends a datagram; False if the datagram is too long for the path, or the port is closed."""
        try:
            return self.socket.send(data) == len(data)
        except OSError:
            return False

    def receive(self, timeout_secs):
        """The next datagram, or None if there is none in time."""
        deadline = time.monotonic() + timeout_secs
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self.socket], [], [], left)[0]:
                break
            try:
                return self.socket.recv(65536)
            except OSError:  # ECONNREFUSED while a node restarts, EMSGSIZE after a path got narrower.
                continue
        return None

    def waiting(self):
        """The datagrams that have arrived, without waiting."""
        came = []
        while True:
            try:
                came.append(self.socket.recv(65536))
            except OSError:
                return came

    def route_mtu(self):
        """The path MTU that the kernel knows."""
        return self.socket.getsockopt(*((socket.IPPROTO_IPV6, IPV6_MTU) if self.six else (socket.IPPROTO_IP, IP_MTU)))

    def payload_of(self, mtu):
        """Bytes of payload that fit a path MTU (section 6)."""
        return min(mtu - (40 if self.six else 20) - 8 - f.FRAME_LEN, f.PAYLOAD_MAX)

    def close(self):
        """Closes the socket."""
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Pace:
    """Round-trip time and congestion window (section 7)."""

    def __init__(self):
        self.smoothed = self.variance = None
        self.rto, self.window, self.threshold = RTO_FIRST_SECS, 4.0, 64.0

    def answered(self, round_trip, tries):
        """Measures the round trip; by Karn's rule only from requests that were sent once."""
        self.window += 1 if self.window < self.threshold else 1 / self.window
        if tries > 1:
            return
        if self.smoothed is None:
            self.smoothed, self.variance = round_trip, round_trip / 2
        else:
            self.variance = 0.75 * self.variance + 0.25 * abs(self.smoothed - round_trip)
            self.smoothed = 0.875 * self.smoothed + 0.125 * round_trip
        self.rto = min(max(self.smoothed + 4 * self.variance, RTO_LEAST_SECS), RTO_MOST_SECS)

    def lost(self):
        """Halves the window."""
        self.threshold = self.window = max(self.window / 2, 1.0)


@dataclasses.dataclass
class Flight:
    """A request that is not yet answered."""
    frame: Frame
    data: bytes
    sent_at: float = 0.0
    due_at: float = 0.0
    tries: int = 0


class Client:
    """One session on one lease. It sends HELLO when it is made; the reply is in `hello`."""
    MAGIC = b"FBMU"

    def __init__(self, lease, flags=0, source=None, mtu=None, give_up_secs=GIVE_UP_SECS):
        self.place, self.flags, self.give_up_secs = Place.of(lease), flags, give_up_secs
        self.wire, self.pace = Wire(self.place.address, source), Pace()
        self.session, self.counter, self.hello, self.fits = 0, 0, None, 0
        self.retries = 0
        try:
            self.open(mtu)
        except BaseException:
            self.wire.close()
            raise

    def close(self):
        """Closes the socket; the session stays silent from then on."""
        self.wire.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def rekey(self, lease, open_session=True):
        """Uses another key of the same lease, as LEASE_QUERY returned it."""
        self.place = Place.of(lease)
        if open_session:
            self.session = 0
            self.open()

    # ---- HELLO and path MTU ------------------------------------------------------------------------

    def open(self, mtu=None):
        """Opens a new session in place of the old one, with the largest datagrams that pass both ways."""
        route = mtu or self.wire.route_mtu()
        sizes = [route] + [size for size in (9000, 1500, 1280) if size < route]
        for size in sizes:
            frame = self._hello(self.wire.payload_of(size))
            last = size == sizes[-1]
            reply = self._persist(frame, self.give_up_secs if last else None)
            if reply:
                return self._opened(reply)
        raise NoAnswer(f"HELLO to {self.place.address}: nothing in {self.give_up_secs} s")

    def _hello(self, padding):
        return Frame(f.HELLO, self.place.lease_id, secrets.randbits(64), self.session, 0, bytes(padding), self.flags, magic=self.MAGIC)

    def _opened(self, reply):
        keys = ("resource_len", "unit", "max_read", "max_write", "session", "window", "flags", "remaining_ms",
                "datagram_max", "reserved", "write_verifier")
        self.hello = dict(zip(keys, f.HELLO_REPLY.unpack_from(reply.payload)))
        self.session, self.counter, self.fits = self.hello["session"], 0, len(reply.payload)
        return self.hello

    def _persist(self, frame, secs):
        """Sends one request with retries, for `secs` or a few tries; returns the reply or None. Raises Refused."""
        flight, end = self._launch(frame), time.monotonic() + (secs or 0)
        while (secs and time.monotonic() < end) or (not secs and flight.tries < PROBE_TRIES):
            self._send(flight)
            while (left := flight.due_at - time.monotonic()) > 0:
                data = self.wire.receive(left)
                reply = data and self.accept(data, {frame.nonce: flight})
                if reply and reply.status not in (f.BUSY,):
                    self.pace.answered(time.monotonic() - flight.sent_at, flight.tries)
                    return self._or_refused(reply)
        return None

    # ---- requests ----------------------------------------------------------------------------------

    def frame(self, op, offset=0, length=0, payload=b"", reserved=0, **more):
        """Makes the next request of the session without sending it."""
        self.counter += 1
        nonce = self.session << 32 | self.counter
        return Frame(op, self.place.lease_id, nonce, offset, length, payload,
                     **{"flags": self.flags, "magic": self.MAGIC, "reserved": reserved, **more})

    def _ping(self):
        return Frame(f.PING, self.place.lease_id, secrets.randbits(64), flags=self.flags, magic=self.MAGIC)

    def ping(self, secs=None):
        """PING; raises Refused or NoAnswer."""
        frame = self._ping()
        reply = self._persist(frame, secs or self.give_up_secs)
        if not reply:
            raise NoAnswer("PING")
        return reply

    def read(self, offset, length):
        """Reads `length` bytes from `offset` on."""
        most = min(self.fits, self.hello["max_read"])
        pieces = [(f.READ, at, min(most, offset + length - at), b"") for at in range(offset, offset + length, most)]
        return b"".join(reply.payload for reply in self.run(pieces))

    def write(self, offset, data):
        """Writes all of `data` at `offset`."""
        most = min(self.fits, self.hello["max_write"])
        pieces = [(f.WRITE, offset + at, len(data[at:at + most]), data[at:at + most]) for at in range(0, len(data), most)]
        self.run(pieces)

    def run(self, pieces):
        """Runs requests that do not overlap, several at once; returns their replies in the given order. If the node has
        forgotten the session, a new session is opened and the unanswered requests are sent again in it."""
        replies = [None] * len(pieces)
        while None in replies:
            todo = collections.deque(n for n, reply in enumerate(replies) if reply is None)
            if not self._session(pieces, todo, replies):
                self.open()
        return replies

    def _session(self, pieces, todo, replies):
        """Goes on in this session; False when the session is over."""
        flights, places, heard_at = {}, {}, time.monotonic()
        while todo or flights:
            self._fill(pieces, todo, flights, places)
            due = min(flight.due_at for flight in flights.values())
            data = self.wire.receive(max(due - time.monotonic(), 0))
            reply = data and self.accept(data, flights)
            heard_at = time.monotonic() if reply else heard_at
            if reply and reply.status == f.TOO_OLD:
                return False
            if reply and reply.status == f.BUSY:
                self.pace.lost()
            elif reply:
                flight = flights.pop(reply.nonce)
                self.pace.answered(heard_at - flight.sent_at, flight.tries)
                replies[places.pop(reply.nonce)] = self._or_refused(reply)
            self._resend(flights, heard_at)
        return True

    def _fill(self, pieces, todo, flights, places):
        """Sends new requests as far as the windows allow. The oldest unanswered request must stay in the node's window,
        so the highest counter is at most half a window ahead of it."""
        half = self.hello["window"] // 2
        while todo and len(flights) < max(1, min(int(self.pace.window), half)):
            oldest = min(flights, default=self.session << 32 | self.counter + 1) & 0xFFFFFFFF
            if self.counter + 1 - oldest >= half:
                break
            place = todo.popleft()
            flight = self._launch(self.frame(*pieces[place]))
            flights[flight.frame.nonce], places[flight.frame.nonce] = flight, place
            self._send(flight)

    def _launch(self, frame):
        return Flight(frame, frame.datagram(self.place.key))

    def _send(self, flight):
        """Sends a request again, byte for byte; the time-out doubles each time."""
        flight.tries += 1
        self.wire.send(flight.data)
        flight.sent_at = time.monotonic()
        flight.due_at = flight.sent_at + min(self.pace.rto * 2 ** min(flight.tries - 1, 10), RTO_MOST_SECS)

    def _resend(self, flights, heard_at):
        now = time.monotonic()
        if flights and now - heard_at > self.give_up_secs:
            raise NoAnswer(f"{len(flights)} requests: nothing in {self.give_up_secs} s")
        late = [flight for flight in flights.values() if flight.due_at <= now]
        if late:
            self.pace.lost()
        for flight in late:
            self.retries += 1
            self._send(flight)

    def accept(self, data, flights):
        """The reply, if it is valid: right tag, REPLY, and the op, nonce, offset and length of a sent request."""
        frame = f.genuine(data, self.place.key, self.MAGIC)
        if not frame or not frame.flags & f.REPLY or frame.nonce not in flights:
            return None
        asked = flights[frame.nonce].frame
        same = (frame.op, frame.offset, frame.length, frame.lease_id) == (asked.op, asked.offset, asked.length, asked.lease_id)
        return frame if same else None

    def _or_refused(self, reply):
        if reply.status != f.OK:
            raise Refused(reply)
        return reply

    # ---- for use by hand ---------------------------------------------------------------

    def exchange(self, *datagrams, wire=None):
        """Sends these bytes and then a PING; returns the datagrams that came before the PING's answer. One flow keeps
        its order, so a datagram that is unanswered by then will not be answered."""
        wire = wire or self.wire
        if wire is self.wire:
            # Late replies to earlier repeated requests must not count as replies to these.
            self._until_pong(wire)
        for data in datagrams:
            wire.send(data)
        return self._until_pong(wire)

    def _until_pong(self, wire):
        came, end = [], time.monotonic() + self.give_up_secs
        while time.monotonic() < end:
            flight = self._launch(self._ping())
            wire.send(flight.data)
            while (data := wire.receive(1.0)) is not None:
                if self.accept(data, {flight.frame.nonce: flight}):
                    return came
                came.append(data)
        raise NoAnswer("PING beside the frames under test")

    def ask(self, frame, wire=None, key=None):
        """Sends one frame of any kind once; returns the single reply under the right key, or None."""
        genuine = [f.genuine(data, self.place.key, self.MAGIC) for data in self.exchange(frame.datagram(key or self.place.key), wire=wire)]
        answers = [reply for reply in genuine if reply and reply.flags & f.REPLY and reply.nonce == frame.nonce]
        return answers[0] if answers else None


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("what", choices=("hello", "read", "write"))
    parser.add_argument("offset", type=int, nargs="?", default=0)
    parser.add_argument("value", nargs="?", help="bytes to read, or the text to write")
    wanted = parser.parse_args()
    with Client(json.load(sys.stdin)) as client:
        if wanted.what == "read":
            sys.stdout.buffer.write(client.read(wanted.offset, int(wanted.value)))
        elif wanted.what == "write":
            client.write(wanted.offset, wanted.value.encode())
        else:
            print(json.dumps(client.hello))


if __name__ == "__main__":
    main()
