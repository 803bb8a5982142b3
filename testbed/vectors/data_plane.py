"""Frames of the data plane over UDP, for check.py: written from docs/spec/data-plane-over-udp.md alone."""
import hashlib
import hmac
import struct

KEY = bytes(range(32))
SERVICE = {b"FBMU": "memory", b"FBBU": "block"}
HEADER = struct.Struct(">4sBBBB16sQQIIII")
HELLO = [("resource_len", 8), ("unit", 4), ("max_read", 4), ("max_write", 4), ("session", 4), ("window", 2),
         ("read_only", 2), ("remaining_ms", 4), ("datagram_max", 4)]
PAYLOAD_MAC, REPLY, LEAST, MOST = 1, 0x80, 88, 9216


def crc32c(data):
    """The CRC-32C of some bytes; 0 for no bytes, as in the field."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def tag_of(data):
    """The tag of a whole datagram: over the header, and over the payload if the flag is set."""
    covered = data[:56] + (data[88:] if data[6] & PAYLOAD_MAC else b"")
    return hmac.digest(KEY, covered, hashlib.sha256)


def fields(data):
    """The header's fields after the version, or None if the header belongs to another protocol."""
    if len(data) < LEAST:
        return None
    magic, version, *rest = HEADER.unpack_from(data)
    return (magic, *rest) if magic in SERVICE and version == 0 else None


def genuine(data, head):
    crc, size = head[8], head[9]
    return (size == len(data) - LEAST and len(data) <= MOST and hmac.compare_digest(data[56:88], tag_of(data))
            and crc == crc32c(data[88:]))


def judge_request(data):
    """Steps 1 to 3 of section 2: the name of the refusal, or None."""
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
    """Whether the field can be a part, as far as this is known without the block size (section 8)."""
    index, count = reserved >> 16, reserved & 0xFFFF
    return index < count and count in (2, 4, 8, 16, 32, 64)


def judge_reply(data):
    head = fields(data)
    return None if head and head[2] & REPLY and genuine(data, head) else "ignored"


def value(data):
    """The content of a valid frame: header, tag, payload, and the reply to HELLO."""
    magic, op, flags, status, lease_id, nonce, offset, length, crc, size, reserved = fields(data)
    header = {"service": SERVICE[magic], "op": op, "flags": flags, "status": status, "lease_id": lease_id.hex(), "nonce": nonce,
              "offset": offset, "length": length, "payload_crc": crc, "payload_len": size, "reserved": reserved}
    is_hello = op == 1 and flags & REPLY and status == 0
    return [header, list(data[56:LEAST]), list(data[LEAST:]), hello(data[LEAST:]) if is_hello else None]


def hello(payload):
    out, at = {}, 0
    for name, size in HELLO:
        number = int.from_bytes(payload[at:at + size], "big")
        out[name] = bool(number & 1) if name == "read_only" else number
        at += size
    return out | {"write_verifier": int.from_bytes(payload[40:48], "big")}


def make(told):
    """The datagram with this content; CRC and tag are computed, not copied."""
    head, _, payload, _ = told
    payload, magic = bytes(payload), {word: magic for magic, word in SERVICE.items()}[head["service"]]
    head = HEADER.pack(magic, 0, head["op"], head["flags"], head["status"], bytes.fromhex(head["lease_id"]), head["nonce"],
                       head["offset"], head["length"], crc32c(payload), len(payload), head["reserved"])
    return head + tag_of(head + bytes(32) + payload) + payload
