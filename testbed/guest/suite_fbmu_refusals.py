#!/usr/bin/python3
# lab: one-vm timeout=600
# covers: fallback-udp arena node/src/kinds/memory
"""Memory over UDP with a client written from the specification alone: it reads and writes, and no frame that is forged,
replayed, reflected, stale, tampered with or out of bounds changes a byte or gets another answer than the specification
requires."""
import secrets
import struct

import fbmu_frame as f
from checks import Suite, programs
from fabric import Node
from fbmu_client import Client, Place, Refused, Wire
from fbmu_frame import Frame
from fbmu_suite import ELSEWHERE, LEASE_BYTES, PATTERN, Strangers, lease_of, leased, other_addresses, unchanged

END = 1 << 64
NOISE = 400


def use(suite, node):
    """Read, write, to the first and the last byte, with and without PAYLOAD_MAC, in several sessions."""
    for name, flags in (("plain", 0), ("payload mac", f.PAYLOAD_MAC)):
        with leased(node.tenant("alice"), flags=flags) as (lease, client):
            hello = client.hello
            suite.equal(f"{name}: HELLO tells the length, the unit and the longest datagram", (LEASE_BYTES, 1, f.DATAGRAM_MAX),
                        tuple(map(hello.get, ("resource_len", "unit", "datagram_max"))))
            suite.check(f"{name}: HELLO tells what is left", 290_000 < hello["remaining_ms"] <= 300_000, "nearly 300 s", hello)
            suite.check(f"{name}: a new lease reads as zeros", client.read(0, LEASE_BYTES) == bytes(LEASE_BYTES), "zeros")
            client.write(0, PATTERN)
            client.write(LEASE_BYTES - 1, b"z")
            suite.equal(f"{name}: the last bytes", PATTERN[-4:-1] + b"z", client.read(LEASE_BYTES - 4, 4))
            with Client(lease, flags) as other:
                suite.check(f"{name}: another session has another number", other.session > client.session, client.session, other.session)
                suite.check(f"{name}: and the same bytes", other.read(0, LEASE_BYTES) == PATTERN[:-1] + b"z", "what was written")
                other.write(0, b"other")
                suite.equal(f"{name}: both write", b"other", client.read(0, 5))


def forged(suite, node):
    """Frames of a sender that does not know the key, or knows no lease."""
    with leased(node.tenant("alice")) as (_, client):
        client.write(0, PATTERN)
        write = client.frame(f.WRITE, 0, 16, b"x" * 16)
        strangers = Strangers(suite, client)
        for name, frame in (("WRITE", write), ("READ", client.frame(f.READ, 0, 16)), ("PING", client.frame(f.PING)),
                            ("HELLO", write.but(op=f.HELLO, length=0, payload=bytes(40)))):
            keys = [(f"key {key[:4].hex()}", frame.datagram(key)) for key in (bytes(32), secrets.token_bytes(32))]
            strangers.nothing(f"forged {name}: wrong keys and no tag", [*keys, ("no tag", frame.datagram(None))])
            unknown = frame.but(lease_id=secrets.token_bytes(16))
            strangers.nothing(f"forged {name}: a lease that is not there", [("unknown", unknown.datagram(client.place.key)),
                              ("lease 0", frame.but(lease_id=bytes(16)).datagram(client.place.key))])
        whole = write.datagram(client.place.key)
        foreign = [("magic FBBV", b"FBBV" + whole[4:]), ("version 1", write.but(version=1).datagram(client.place.key)),
                   *((f"{size} bytes", whole[:size]) for size in (0, 1, 4, 55, 56, 87))]
        strangers.nothing("not a frame", foreign, may_be_told=False)
        blocks = write.but(magic=b"FBBU")
        strangers.nothing("FBBU to a lease of memory", [("FBBU", blocks.datagram(client.place.key))])
        lengths = [("payload_len 15", write.but(payload_len=15)), ("payload_len 17", write.but(payload_len=17)),
                   ("payload_len 2^32-1", write.but(payload_len=(1 << 32) - 1)), ("crc", write.but(payload_crc=1)),
                   ("crc of nothing", client.frame(f.READ, 0, 1).but(payload_crc=7))]
        strangers.nothing("lengths and CRCs that are not so, under the right key",
                          [(what, frame.datagram(client.place.key)) for what, frame in lengths])
        unchanged(suite, "forged", client)
        suite.equal("forged: the good frame after them", f.OK, client.ask(write).status)


def tampered(suite, node):
    """A valid WRITE with one bit changed, in each of its bytes in turn; then the valid WRITE."""
    with leased(node.tenant("alice")) as (_, client):
        client.write(0, PATTERN)
        for name, flags in (("plain", 0), ("payload mac", f.PAYLOAD_MAC)):
            frame = client.frame(f.WRITE, 64, 16, b"y" * 16, flags=flags)
            whole = frame.datagram(client.place.key)
            changed = [(f"byte {at}", f.flipped(whole, at, 1 << at % 8)) for at in range(len(whole))]
            foreign = [n for n in range(len(whole)) if n < 5]
            strangers = Strangers(suite, client)
            strangers.nothing(f"{name}: a bit of magic or version", [changed[n] for n in foreign], may_be_told=False)
            strangers.nothing(f"{name}: a bit of each byte of the header", changed[5:56])
            strangers.nothing(f"{name}: each flag", [(f"flag {bit}", f.flipped(whole, 6, 1 << bit)) for bit in range(8)])
            strangers.nothing(f"{name}: a bit of each byte of the tag", changed[56:88])
            strangers.nothing(f"{name}: a bit of each byte of the payload", changed[88:])
            strangers.nothing(f"{name}: a byte less, a byte more", [("less", whole[:-1]), ("more", whole + b"\0")])
            if flags:
                other = frame.but(payload=b"Y" * 16)
                fits = other.header()[:44] + struct.pack(">I", f.crc32c(b"Y" * 16)) + whole[48:88] + b"Y" * 16
                strangers.nothing(f"{name}: another payload with its own CRC", [("CRC fits", fits)])
            unchanged(suite, name, client)
            suite.equal(f"{name}: the good one still counts", f.OK, client.ask(frame).status)
            client.write(0, PATTERN)


def replayed(suite, node):
    """Replayed datagrams."""
    with leased(node.tenant("alice")) as (lease, client):
        key = client.place.key
        hello = Frame(f.HELLO, client.place.lease_id, secrets.randbits(64), 0, 0, bytes(40))
        first, again = client.ask(hello), client.ask(hello)
        suite.equal("HELLO again before its session is used: the same session", first.payload[20:24], again.payload[20:24])
        old, new = client.frame(f.WRITE, 0, 4, b"old!"), client.frame(f.WRITE, 0, 4, b"new!")
        suite.equal("two writes", [f.OK, f.OK], [client.ask(old).status, client.ask(new).status])
        suite.equal("the first one again: its answer", f.OK, client.ask(old).status)
        suite.equal("the first one again: not done", b"new!", client.read(0, 4))
        with Wire(client.place.address, (ELSEWHERE[0], 0)) as elsewhere:
            client.exchange(old.datagram(key), wire=elsewhere)
            suite.equal("the first one again from another address: not done", b"new!", client.read(0, 4))
            read = client.frame(f.READ, 0, 4)
            client.ask(read)
            suite.equal("READ again: the bytes that are there now", b"new!", client.ask(read).payload)
            stolen = client.ask(read, wire=elsewhere)
            suite.equal("READ again from another address", (f.REPLAY, b""), (stolen.status, stolen.payload))
        strangers = Strangers(suite, client)
        other = [("other bytes", old.but(payload=b"xxxx")), ("other offset", old.but(offset=4)),
                 ("other operation", old.but(op=f.READ, payload=b""))]
        strangers.refused("another request with a used nonce", f.REPLAY, other)
        behind(suite, client, old)
        unchanged(suite, "replayed", client, b"new!")
        closed(suite, lease, client)


def behind(suite, client, old):
    """After 128 more requests the first request is forgotten."""
    for _ in range(client.hello["window"]):
        client.read(8, 1)
    suite.equal("a write behind the window", f.TOO_OLD, client.ask(old).status)


def closed(suite, lease, client):
    """Sessions that were given up, never opened, or numbered 0."""
    kept = client.frame(f.WRITE, 0, 4, b"late")
    gone = client.session
    client.open()
    suite.check("a new session has a higher number", client.session > gone, f"above {gone}", client.session)
    late = [("recorded in the closed session", kept), ("session 0", kept.but(nonce=1)),
            ("a session that does not exist yet", kept.but(nonce=client.session + 1000 << 32 | 1))]
    Strangers(suite, client).refused("no open session", f.TOO_OLD, late)
    unchanged(suite, "closed session", client, b"new!")


def reflected(suite, node):
    """Reflected replies, and requests that look like replies."""
    with leased(node.tenant("alice")) as (_, client):
        client.write(0, PATTERN)
        key, requests = client.place.key, [client.frame(f.READ, 0, 64), client.frame(f.WRITE, 0, 4, PATTERN[:4]), client.frame(f.PING),
                                           client.frame(f.READ, LEASE_BYTES, 1)]
        replies = [(f"reply to op {frame.op}", data) for frame in requests for data in client.exchange(frame.datagram(key))]
        suite.equal("four replies to reflect", 4, len(replies))
        signed = [(f"op {op} with REPLY", client.frame(op, 0, 4, payload, flags=f.REPLY).datagram(key))
                  for op, payload in ((f.WRITE, b"evil"), (f.READ, b""), (f.PING, b""))]
        Strangers(suite, client).nothing("reflected", [*replies, *signed], may_be_told=False)
        unchanged(suite, "reflected", client)


def senseless(suite, node):
    """Requests with the right key that make no sense."""
    with leased(node.tenant("alice")) as (lease, client):
        client.write(0, PATTERN)
        most_read, most_write = client.hello["max_read"], client.hello["max_write"]
        read, write = client.frame(f.READ, 0, 4), client.frame(f.WRITE, 0, 4, b"evil")
        hello = write.but(op=f.HELLO, length=0, payload=bytes(40))
        wrong = [("status", write.but(status=1)), ("reserved", write.but(reserved=1)), ("op 0", write.but(op=0)), ("op 6", write.but(op=6)),
                 ("op 255", write.but(op=255)), ("FLUSH", write.but(op=f.FLUSH, length=0, payload=b"")),
                 *((f"flag {bit}", write.but(flags=1 << bit)) for bit in range(1, 7)),
                 ("READ of nothing", read.but(length=0)), ("READ with payload", read.but(payload=b"1234")),
                 ("READ of too much", read.but(length=most_read + 1)), ("READ of 2^32-1", read.but(length=(1 << 32) - 1)),
                 ("WRITE of nothing", write.but(length=0, payload=b"")), ("WRITE of less than it says", write.but(length=5)),
                 ("WRITE of more than it says", write.but(length=3)), ("HELLO of 39 bytes", hello.but(payload=bytes(39))),
                 ("HELLO with a length", hello.but(length=40)), ("HELLO that is not zeros", hello.but(payload=bytes(39) + b"1")),
                 ("PING with payload", write.but(op=f.PING))]
        wrong += [("WRITE of too much", write.but(length=most_write + 1, payload=bytes(most_write + 1)))] * (most_write < f.PAYLOAD_MAX)
        Strangers(suite, client).refused("requests that make no sense", f.INVALID, wrong)
        with Client(lease, f.PAYLOAD_MAC) as careful:
            plain = careful.frame(f.WRITE, 0, 4, b"evil", flags=0)
            Strangers(suite, careful).refused("a session with PAYLOAD_MAC, a frame without", f.INVALID, [("WRITE", plain)])
        unchanged(suite, "senseless", client)


def out_of_bounds(suite, node):
    """A request one byte out of bounds is refused: the next bytes belong to another lease."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    with leased(bob) as (_, low), leased(alice) as (_, client), leased(bob) as (_, high):
        for neighbour in (low, high):
            neighbour.write(0, PATTERN)
        places = [(LEASE_BYTES, 1), (LEASE_BYTES - 3, 4), (LEASE_BYTES - 1, 2), (LEASE_BYTES + 4096, 4), (END - 1, 1), (END - 4, 4),
                  (END - 4, 8), (END - LEASE_BYTES, 4), (1 << 63, 4), (1 << 32, 4)]
        strangers = Strangers(suite, client)
        strangers.refused("outside: READ", f.RANGE, [(f"{at} {size}", client.frame(f.READ, at, size)) for at, size in places])
        strangers.refused("outside: WRITE", f.RANGE,
                          [(f"{at} {size}", client.frame(f.WRITE, at, size, b"!" * size)) for at, size in places])
        unchanged(suite, "outside: the lease", client, bytes(LEASE_BYTES))
        unchanged(suite, "outside: the lease below", low)
        unchanged(suite, "outside: the lease above", high)


def other_tenants(suite, node):
    """A key opens its own lease only."""
    with leased(node.tenant("alice")) as (lease, client), leased(node.tenant("bob")) as (other, neighbour):
        client.write(0, PATTERN)
        neighbour.write(0, PATTERN)
        suite.check("two leases, two keys", lease["binding"]["dp_key"] != other["binding"]["dp_key"], "different keys")
        place = Place.of(other)
        frames = [(f"op {op}", Frame(op, place.lease_id, neighbour.session << 32 | 999, 0, 4, payload).datagram(client.place.key))
                  for op, payload in ((f.WRITE, b"evil"), (f.READ, b""), (f.PING, b""))]
        Strangers(suite, client).nothing("the neighbour's lease under the own key", frames)
        unchanged(suite, "the neighbour", neighbour)
        suite.equal("the neighbour does not notice", f.OK, neighbour.ask(neighbour.frame(f.WRITE, 0, 4, PATTERN[:4])).status)


def no_loudspeaker(suite, node):
    """A sender without the key gets few replies, never longer than its datagrams, and does not disturb others."""
    with leased(node.tenant("alice")) as (_, client), Wire(client.place.address) as noisy:
        sent = [Frame(f.WRITE, secrets.token_bytes(16), n, 0, 4, b"evil").datagram(secrets.token_bytes(32)) for n in range(NOISE)]
        came = client.exchange(*sent, wire=noisy)
        suite.check("answers without a key are short", all(len(data) == f.FRAME_LEN for data in came), "88 bytes", words_of(came))
        suite.check("answers without a key are few", len(came) <= NOISE // 4, f"at most {NOISE // 4} of {NOISE}", len(came))
        print(f"   {NOISE} forged frames in a row were answered {len(came)} times", flush=True)
        try:
            suite.equal("the holder of a key beside it", bytes(4), client.read(0, 4))
        except Refused as refused:
            suite.check("the holder of a key beside it", False, "bytes", refused)


def words_of(came):
    """Lengths of datagrams."""
    return sorted({len(data) for data in came})


def many_sessions(suite, node):
    """16 sessions are in use; the next one has to wait, and no client loses its session."""
    with leased(node.tenant("alice")) as (_, client):
        client.read(0, 1)
        sessions = [client.session]
        opened = []
        for _ in range(20):
            hello = Frame(f.HELLO, client.place.lease_id, secrets.randbits(64), 0, 0, bytes(40))
            reply = client.ask(hello)
            opened.append(reply.status)
            if reply.status == f.OK:
                sessions.append(int.from_bytes(reply.payload[20:24], "big"))
                client.ask(Frame(f.READ, client.place.lease_id, sessions[-1] << 32 | 1, 0, 1))
        suite.equal("sessions: 15 more, then BUSY", [f.OK] * 15 + [f.BUSY] * 5, opened)
        still = [client.ask(Frame(f.READ, client.place.lease_id, session << 32 | 900, 0, 1)).status for session in sessions]
        suite.equal("sessions: each still works", [f.OK] * len(sessions), still)
    lease = lease_of(node.tenant("alice"))
    with Client(lease) as client:
        unused = [client.ask(Frame(f.HELLO, client.place.lease_id, n + 1, 0, 0, bytes(40))).status for n in range(50)]
        suite.equal("sessions: 50 that are only opened", [f.OK] * 50, unused)


SECTIONS = (use, forged, tampered, replayed, reflected, senseless, out_of_bounds, other_tenants, no_loudspeaker, many_sessions)


def main():
    """All sections on one node without an RDMA device."""
    programs()
    other_addresses()
    with Suite("fbmu refusals") as suite, Node(device="none") as node:
        for section in SECTIONS:
            suite.section(section, suite, node)


if __name__ == "__main__":
    main()
