"""Frames of the data plane over UDP, for check.py: written from docs/spec/data-plane-over-udp.md alone."""
import hashlib
import hmac
import struct

KEY = bytes(range(32))
OPS = ["", "hello", "read", "write", "ping", "flush"]
STATUS = ["OK", "NO_LEASE", "INVALID", "RANGE", "REPLAY", "FENCED", "TOO_OLD", "BUSY", "BLOCK_RO", "IO"]
HEADER = struct.Struct(">4sBBBB16sQQIIII")
HELLO = [("resource_len", 8), ("unit", 4), ("max_read", 4), ("max_write", 4), ("session", 4), ("window", 2),
         ("read_only", 2), ("remaining_ms", 4), ("datagram_max", 4)]
PAYLOAD_MAC, REPLY, LEAST, MOST = 1, 0x80, 88, 9216


def crc32c(data):
    """0 of nothing, as the field has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def tag_of(data):
    """Of a whole datagram: over the header, and the payload if the flag says so."""
    covered = data[:56] + (data[88:] if data[6] & PAYLOAD_MAC else b"")
    return hmac.digest(KEY, covered, hashlib.sha256)


def fields(data):
    """The header's fields after the version, or None if it is another protocol's."""
    if len(data) < LEAST:
        return None
    magic, version, *rest = HEADER.unpack_from(data)
    return (magic, *rest) if magic in (b"FBMU", b"FBBU") and version == 0 else None


def genuine(data, head):
    crc, size = head[8], head[9]
    return (size == len(data) - LEAST and len(data) <= MOST and hmac.compare_digest(data[56:88], tag_of(data))
            and crc == crc32c(data[88:]))


def judge_request(data):
    """Steps 1 to 3 of section 2: the refusal, or None."""
    head = fields(data)
    if head is None or head[2] & REPLY:
        return "dropped"
    if not genuine(data, head):
        return "unauthenticated"
    magic, op, flags, status, reserved = head[0], head[1], head[2], head[3], head[10]
    known = 1 <= op <= (4 if magic == b"FBMU" else 5)
    parts = magic == b"FBBU" and op in (2, 3) and is_part(reserved)
    return None if known and not (flags & ~PAYLOAD_MAC or status or (reserved and not parts)) else "INVALID"


def is_part(reserved):
    """As far as that goes without knowing the block size: section 8."""
    index, count = reserved >> 16, reserved & 0xFFFF
    return index < count and count in (2, 4, 8, 16, 32, 64)


def judge_reply(data):
    head = fields(data)
    return None if head and head[2] & REPLY and genuine(data, head) else "ignored"


def lines(data):
    """What a good frame says."""
    magic, op, flags, status, lease_id, nonce, offset, length, crc, _, reserved = fields(data)
    out = [("magic", magic.decode()), ("op", OPS[op]), ("flags", f"0x{flags:02x}"), ("status", STATUS[status]),
           ("lease_id", lease_id.hex()), ("nonce", f"0x{nonce:016x}"), ("offset", offset), ("length", length),
           ("payload_crc", f"0x{crc:08x}"), ("tag", data[56:88].hex())]
    if reserved:
        out += [("part.index", reserved >> 16), ("part.count", reserved & 0xFFFF)]
    if len(data) > LEAST:
        out.append(("payload", data[LEAST:].hex()))
    if op == 1 and flags & REPLY and status == 0:
        out += hello_lines(data[LEAST:])
    return out


def hello_lines(payload):
    out, at = [], 0
    for name, size in HELLO:
        value = int.from_bytes(payload[at:at + size], "big")
        out.append((f"hello.{name}", ["false", "true"][value & 1] if name == "read_only" else value))
        at += size
    verifier = int.from_bytes(payload[40:48], "big")
    return out + [("hello.write_verifier", f"0x{verifier:016x}")]


def make(values):
    """The datagram that these lines are of; CRC and tag are computed, not copied."""
    payload = bytes.fromhex(values.get("payload", ""))
    reserved = int(values.get("part.index", 0)) << 16 | int(values.get("part.count", 0))
    head = HEADER.pack(values["magic"].encode(), 0, OPS.index(values["op"]), int(values["flags"], 0),
                       STATUS.index(values["status"]), bytes.fromhex(values["lease_id"]), int(values["nonce"], 0),
                       int(values["offset"]), int(values["length"]), crc32c(payload), len(payload), reserved)
    return head + tag_of(head + bytes(32) + payload) + payload
