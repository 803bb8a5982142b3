#!/usr/bin/python3
"""A client of leased blocks over UDP (FBBU), written from docs/spec/data-plane-over-udp.md, section 8, alone. It has
the sessions, retries and congestion window of fbmu_client.py; offsets and lengths count blocks."""
import collections
import time

import fbmu_client
import fbmu_frame as f

PART_LEAST, PARTS_MOST = 64, 64


def part(index, count):
    """The `reserved` field of part `index` of `count`."""
    return index << 16 | count


class Client(fbmu_client.Client):
    """One session on one lease of blocks."""
    MAGIC = b"FBBU"

    @property
    def unit(self):
        """Bytes of a block."""
        return self.hello["unit"]

    def parts(self):
        """In how many parts a block goes, so that each part fits a datagram; 1 if the block fits as it is."""
        count = 1
        while self.unit // count > self.fits and count < PARTS_MOST and self.unit // count // 2 >= PART_LEAST:
            count *= 2
        return count

    def read(self, offset, length):
        """`length` blocks from block `offset` on."""
        if (count := self.parts()) > 1:
            return b"".join(self._read_in_parts(at, count) for at in range(offset, offset + length))
        most = min(self.fits, self.hello["max_read"]) // self.unit
        pieces = [(f.READ, at, min(most, offset + length - at), b"") for at in range(offset, offset + length, most)]
        return b"".join(reply.payload for reply in self.run(pieces))

    def write(self, offset, data):
        """Writes whole blocks, from block `offset` on."""
        if (count := self.parts()) > 1:
            for at in range(0, len(data), self.unit):
                self.write_in_parts(offset + at // self.unit, data[at:at + self.unit], count)
            return
        most = min(self.fits, self.hello["max_write"]) // self.unit * self.unit
        chunks = [(at, data[at:at + most]) for at in range(0, len(data), most)]
        self.run([(f.WRITE, offset + at // self.unit, len(chunk) // self.unit, chunk) for at, chunk in chunks])

    def flush(self):
        """Flushes: returns when all writes survive a power cut."""
        self.run([(f.FLUSH, 0, 0, b"")])

    def ask(self, frame, wire=None, key=None):
        """Sends one frame of any kind once; returns its reply under the right key, or None if none comes in time. The
        storage may answer in any order, so the reply to a later PING does not show that no reply is left."""
        wire, end = wire or self.wire, time.monotonic() + self.give_up_secs
        wire.send(frame.datagram(key or self.place.key))
        while (left := end - time.monotonic()) > 0:
            data = wire.receive(left)
            reply = data and f.genuine(data, self.place.key, self.MAGIC)
            if reply and reply.flags & f.REPLY and reply.nonce == frame.nonce:
                return reply
        return None

    def _read_in_parts(self, block, count):
        return b"".join(reply.payload for reply in self.run([(f.READ, block, 1, b"", part(n, count)) for n in range(count)]))

    def part_pieces(self, block, data, count):
        """The requests that write one block in parts."""
        size = self.unit // count
        return [(f.WRITE, block, 1, data[n * size:(n + 1) * size], part(n, count)) for n in range(count)]

    def write_in_parts(self, block, data, count):
        """Writes one block in parts. The parts belong to one session: in a new session all of them are sent again."""
        pieces, done = self.part_pieces(block, data, count), False
        while not done:
            done = self._session(pieces, collections.deque(range(count)), [None] * count)
            if not done:
                self.open()
