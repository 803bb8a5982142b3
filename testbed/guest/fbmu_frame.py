#!/usr/bin/python3
"""The frame of the data plane over UDP, written only from docs/spec/data-plane-over-udp.md with only the standard
library: enough to speak the protocol from another language. As a program it checks itself against known values and the
golden vectors."""
import dataclasses
import hashlib
import hmac
import pathlib
import struct
import sys

HELLO, READ, WRITE, PING, FLUSH = 1, 2, 3, 4, 5
OK, NO_LEASE, INVALID, RANGE, REPLAY, FENCED, TOO_OLD, BUSY, BLOCK_RO, IO = range(10)
STATUS = ("OK", "NO_LEASE", "INVALID", "RANGE", "REPLAY", "FENCED", "TOO_OLD", "BUSY", "BLOCK_RO", "IO")
PAYLOAD_MAC, REPLY = 0x01, 0x80
HEADER = struct.Struct(">4sBBBB16sQQIIII")
HEADER_LEN, TAG_LEN = HEADER.size, 32
FRAME_LEN = HEADER_LEN + TAG_LEN
DATAGRAM_MAX = 9216
PAYLOAD_MAX = DATAGRAM_MAX - FRAME_LEN
NO_TAG = bytes(TAG_LEN)
HELLO_REPLY = struct.Struct(">QIIIIHHIIIQ")


def _crc_table():
    """One entry for each byte; the polynomial 0x1EDC6F41 with its bits in the order of iSCSI."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC = _crc_table()


def crc32c(data):
    """CRC-32C (RFC 3720 section 12.1)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[crc & 0xFF ^ byte]
    return crc ^ 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class Frame:
    """A request or a reply. `payload_crc` and `payload_len` are computed from the payload unless they are given, which
    tests do to make them wrong."""
    op: int
    lease_id: bytes
    nonce: int
    offset: int = 0
    length: int = 0
    payload: bytes = b""
    flags: int = 0
    status: int = 0
    magic: bytes = b"FBMU"
    version: int = 0
    payload_crc: int = None
    payload_len: int = None
    reserved: int = 0

    def header(self):
        """The 56 bytes."""
        crc = (crc32c(self.payload) if self.payload else 0) if self.payload_crc is None else self.payload_crc
        size = len(self.payload) if self.payload_len is None else self.payload_len
        return HEADER.pack(self.magic, self.version, self.op, self.flags, self.status, self.lease_id, self.nonce,
                           self.offset, self.length, crc, size, self.reserved)

    def tag(self, key):
        """HMAC-SHA256 over the header and, with PAYLOAD_MAC, the payload."""
        covered = self.payload if self.flags & PAYLOAD_MAC else b""
        return hmac.digest(key, self.header() + covered, hashlib.sha256)

    def datagram(self, key):
        """All bytes, ready to be sent; with `key` None the tag is 32 zero bytes."""
        return self.header() + (self.tag(key) if key is not None else NO_TAG) + self.payload

    def but(self, **changes):
        """The same frame with some fields changed."""
        return dataclasses.replace(self, **changes)


def parse(data):
    """Decodes frame and tag without any check; ValueError if there are too few bytes."""
    if len(data) < FRAME_LEN:
        raise ValueError(f"{len(data)} bytes; a frame has {FRAME_LEN} at least")
    magic, version, op, flags, status, lease_id, nonce, offset, length, crc, size, reserved = HEADER.unpack_from(data)
    frame = Frame(op, lease_id, nonce, offset, length, data[FRAME_LEN:], flags, status, magic, version, crc, size, reserved)
    return frame, data[HEADER_LEN:FRAME_LEN]


def genuine(data, key, magic=b"FBMU"):
    """The frame if it is whole and its tag is right, or None."""
    if not FRAME_LEN <= len(data) <= DATAGRAM_MAX:
        return None
    frame, tag = parse(data)
    whole = frame.magic == magic and frame.version == 0 and frame.payload_len == len(frame.payload)
    if not whole or not hmac.compare_digest(tag, frame.tag(key)):
        return None
    return frame if frame.payload_crc == (crc32c(frame.payload) if frame.payload else 0) else None


def is_refusal_without_key(data):
    """Whether this is INVALID as a server sends it to a sender without a proved key: 88 bytes with a tag of zeros."""
    frame, tag = parse(data)
    return (len(data) == FRAME_LEN and tag == NO_TAG and frame.status == INVALID and bool(frame.flags & REPLY)
            and (frame.payload_crc, frame.payload_len) == (0, 0))


def flipped(data, at, bits=0x01):
    """The datagram with some bits of one byte flipped."""
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1:]


def self_test(folder):
    """Checks known values, then every golden vector of this frame; returns the number of these vectors."""
    assert crc32c(b"123456789") == 0xE3069283, "CRC-32C of 123456789"
    assert crc32c(bytes(32)) == 0x8A9136AA and crc32c(b"\xff" * 32) == 0x62A8AB43, "CRC-32C (RFC 3720 B.4)"
    assert (HEADER_LEN, HELLO_REPLY.size, PAYLOAD_MAX) == (56, 48, 9128), "sizes"
    key, seen = bytes(range(32)), 0
    for path in sorted(folder.glob("data_plane_*.hex")):
        data = bytes.fromhex("".join(line for line in path.read_text().splitlines() if not line.startswith("#")))
        frame = genuine(data, key, data[:4]) if data[:4] in (b"FBMU", b"FBBU") else None
        if frame:
            assert frame.datagram(key) == data, f"{path.name}: made otherwise"
            seen += 1
    return seen


if __name__ == "__main__":
    VECTORS = self_test(pathlib.Path(__file__).resolve().parents[1] / "vectors" / "v0")
    print(f"CRC-32C and sizes as they must be, {VECTORS} golden frames made again")
    sys.exit(0 if VECTORS else 1)
