#!/usr/bin/python3
# lab: one-vm clients timeout=600
# covers: rdma verbs arena node/src/kinds/memory client/cli/src/commands/mooncake
"""`fabricctl mooncake` with stock clients of Mooncake's Transfer Engine: several on a lease of a region, which come, end and come
again beside each other; one with one queue pair on a lease of a window. At the end of a lease a client gets an error and
never a foreign byte."""
import contextlib
import json
import os
import signal
import socket
import struct

import stock_programs
from checks import Suite, give_back, lab_device, length, skip, until, when_clean
from fabric import ADDRESS, Node
from rdma_client import Client
from stock_programs import DEVICE, MOONCAKE, TRANSFER_SECS, Program, engine, stock

# The whole arena is one lease, so that the next one has the same bytes.
LEASE_BYTES = 1 << 20
MOVED = 65536
OWN, NEXT = "TENANT-A-DATA...", "TENANT-B-SECRET."
TERM_SECS, LONG_SECS = 25, 600
# As clients are by default, and as a window needs them.
DEFAULT, SINGLE = 2, 1


class Segment:
    """A lease that `fabricctl mooncake` serves, and what it tells."""

    def __init__(self, tenant, secs, *more):
        self.tenant = tenant
        command, environment = tenant.command("mooncake", "--bytes", LEASE_BYTES, "--secs", secs, *more)
        # With patience: the bytes of the lease before may still be being cleaned.
        self.program = Program(command, **{**environment, "FABRICBIOS_PATIENCE_SECS": "60"})
        self.lease = self.program.answer()
        self.name = self.lease["segment"]

    def event(self, name):
        """The next event with this name; others are passed over."""
        while (event := self.program.answer()).get("event") != name:
            print(f"   {json.dumps(event)}", flush=True)
        return event

    def stop(self):
        """SIGTERM, which gives the lease back."""
        self.program.process.send_signal(signal.SIGTERM)

    def status(self):
        """The exit status."""
        return self.program.process.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.__exit__()
        give_back(self.tenant, self.lease)


def single():
    """A stock engine with one queue pair, for windows."""
    started = stock("mooncake_engine.py", ADDRESS, DEVICE, LEASE_BYTES, MC_TRANSFER_TIMEOUT=str(TRANSFER_SECS), MC_NUM_QP_PER_EP=str(SINGLE))
    started.answer()
    started.ask("register")
    return started


def comes_in(suite, name, client, segment, queue_pairs):
    """A client opens the segment, writes all of it and reads it back."""
    done = [client.ask("open", segment.name)["rc"], client.ask("write", LEASE_BYTES, OWN)["rc"]]
    suite.equal(f"{name}: opens the segment, and writes 1 MiB", [0, 0], done)
    read = client.ask("read", LEASE_BYTES)
    suite.equal(f"{name}: reads 1 MiB", (0, OWN), (read["rc"], read["text"]))
    suite.equal(f"{name}: its queue pairs", queue_pairs, segment.event("connected")["queue_pairs"])


def start(suite, name, client):
    """Begins to read until that fails; returns when it has begun."""
    first = client.ask("loop", "read", MOVED, OWN)
    suite.check(f"{name}: reads", "running" in first, "one success", first)


def ended(suite, name, client):
    """The report of a reader whose lease has ended."""
    report = client.answer()
    print(f"   {name}: {json.dumps(report)}", flush=True)
    suite.check(f"{name}: the reader gets an error", report["rc"] != 0, "not 0", report["rc"])
    suite.equal(f"{name}: reads with foreign bytes", 0, report["other"])
    suite.equal(f"{name}: foreign bytes in the buffer of the failed read", 0, report["foreign"])


def garbage(suite, segment):
    """What is no message has a line each."""
    host, _, port = segment.name.rpartition(":")
    for what, sent, word in (
        ("another protocol", b"GET / HTTP/1.1\r\n\r\n", "no message of Mooncake"),
        ("10 MB", struct.pack("<QB", 10_000_001, 1) + b"{", "10000001"),
        ("half a frame", struct.pack("<QB", 100, 1) + b"{", "closed after"),
        ("no JSON", struct.pack("<QB", 5, 0) + b"\xff\xfe[{", "0.3.13"),
    ):
        with socket.create_connection((host, int(port)), 60) as connection, contextlib.suppress(OSError):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            suite.equal(f"{what}: no answer", b"", connection.recv(1))
        message = segment.event("refused")["message"]
        suite.check(f"{what}: a line says what is wrong", word in message, word, message)


def clients(suite, node, device):
    """Two at once; one ends and comes again, with garbage beside it, while the other reads on, until the lease is given back."""
    tenant = node.tenant("alice")
    with Segment(tenant, LONG_SECS) as segment, engine(LEASE_BYTES)[0] as reader:
        comes_in(suite, "a client", reader, segment, DEFAULT)
        start(suite, "the first client", reader)
        with engine(LEASE_BYTES)[0] as second:
            comes_in(suite, "a second client", second, segment, DEFAULT)
        garbage(suite, segment)
        with engine(LEASE_BYTES)[0] as third:
            comes_in(suite, "the second client, started again", third, segment, DEFAULT)
            suite.equal("queue pairs of the ended client that were cut", DEFAULT, segment.event("left")["queue_pairs"])
            # A loop that has failed answers; this one must not have.
            suite.check("the first client reads on", not answered(reader), "no answer", None)
            segment.stop()
            suite.equal("two clients are told of the end", 2, len({segment.event("kicked")["client"] for _ in range(2)}))
            suite.equal("the end", ("freed", "freed"), told(segment.event("ended")))
            suite.equal("the exit status", 0, segment.status())
            ended(suite, "given back", reader)
            next_tenant(suite, node, device, [reader, third])


def answered(program):
    """Whether a program has said something, or ended."""
    if program.process.poll() is not None:
        return True
    os.set_blocking(program.process.stdout.fileno(), False)
    try:
        return bool(program.process.stdout.buffer.peek(1))
    finally:
        os.set_blocking(program.process.stdout.fileno(), True)


def told(event):
    """State and cause of an end."""
    return event["state"], event.get("end_cause")


def next_tenant(suite, node, device, former):
    """The next tenant has the bytes; the former clients get no byte and write none."""
    other = node.tenant("bob")
    with Client(device, MOVED) as client:
        lease = when_clean(lambda: other.alloc(LEASE_BYTES, LONG_SECS, client.peer))
        client.connect(lease)
        client.write(0, NEXT.encode())
        for which in former:
            read = which.ask("read", MOVED)
            suite.check("the next tenant has the bytes: a former client's read fails", read["rc"] != 0 and read["blank"], "an error, the buffer untouched", read)
            suite.check("… and its write", which.ask("write", MOVED, OWN)["rc"] != 0, "an error")
        suite.equal("… and the next tenant's bytes are intact", NEXT.encode(), client.read(0, len(NEXT)).data)
        other.free(lease)


def exchange(name, kind, message):
    """One message of the handshake and its answer."""
    host, _, port = name.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as connection, connection.makefile("rwb") as pipe:
        text = json.dumps(message).encode()
        pipe.write(struct.pack("<QB", len(text) + 1, kind) + text)
        pipe.flush()
        length, of = struct.unpack("<QB", pipe.read(9))
        return of, json.loads(pipe.read(length - 1))


def reconnects(suite, node, _device):
    """A client whose queue pairs are lost makes others; those before are cut, and another client reads on."""
    tenant = node.tenant("alice")
    (client, name), (reader, _) = engine(LEASE_BYTES), engine(LEASE_BYTES)
    with client, reader, Segment(tenant, LONG_SECS) as segment:
        comes_in(suite, "a reader", reader, segment, DEFAULT)
        start(suite, "a reader", reader)
        comes_in(suite, "a client that is to lose its queue pairs", client, segment, DEFAULT)
        before = queue_pairs(tenant, segment)
        _, found = exchange(segment.name, 1, {"name": name, "devices": []})
        # The message of the end, which comes too early here.
        exchange(name, 0, {"local_nic_path": f"{segment.name}@{found['devices'][0]['name']}", "peer_nic_path": f"{name}@{DEVICE}",
                           "local_lid": 0, "local_gid": found["devices"][0]["gid"], "qp_num": [], "reply_msg": ""})
        read = client.ask("read", LEASE_BYTES)
        suite.equal("it reads with others", (0, OWN), (read["rc"], read["text"]))
        suite.equal("it has connected them", DEFAULT, segment.event("connected")["queue_pairs"])
        after = until(lambda: (now := queue_pairs(tenant, segment)) and len(now) == len(before) and now, what="the old queue pairs are cut")
        suite.equal("two of the lease's queue pairs are others", DEFAULT, len(set(after) - set(before)))
        suite.check("the reader reads on", not answered(reader), "no answer", None)
        segment.stop()
        ended(suite, "given back after a reconnection", reader)
        suite.equal("the exit status after a reconnection", 0, segment.status())


def queue_pairs(tenant, segment):
    """The numbers of the lease's queue pairs."""
    rdma = tenant.query(segment.lease)["binding"]["rdma"]
    return [pair["qp_num"] for pair in rdma.get("qps", [rdma])]


def expiry(suite, node, _device):
    """The term ends under a reader."""
    with engine(LEASE_BYTES)[0] as reader, Segment(node.tenant("alice"), TERM_SECS) as segment:
        comes_in(suite, "a client for a term", reader, segment, DEFAULT)
        start(suite, "a client for a term", reader)
        ended(suite, "expired", reader)
        suite.equal("expired: the client is told", "kicked", segment.event("kicked")["event"])
        suite.equal("expired: the end", ("expired", "expired"), told(segment.event("ended")))
        suite.equal("expired: the exit status", 0, segment.status())


def revoked(suite, node, _device):
    """Revoked under a reader: a failure of the command."""
    with engine(LEASE_BYTES)[0] as reader, Segment(node.tenant("alice"), LONG_SECS, "--renew") as segment:
        comes_in(suite, "a client of a renewed lease", reader, segment, DEFAULT)
        start(suite, "a client of a renewed lease", reader)
        node.operator.revoke(segment.lease)
        ended(suite, "revoked", reader)
        segment.event("kicked")
        suite.equal("revoked: the end", ("revoked", "revoked"), told(segment.event("ended")))
        suite.equal("revoked: the exit status", 4, segment.status())


def window(suite, node, _device):
    """The key belongs to one queue pair: a client with one gets in, and others get a line."""
    with Segment(node.tenant("alice"), LONG_SECS) as segment, single() as client:
        with engine(LEASE_BYTES)[0] as default:
            default.order("open", segment.name)
            message = segment.event("refused")["message"]
            suite.check("a default client of a window is refused with what to do", "MC_NUM_QP_PER_EP=1" in message, "MC_NUM_QP_PER_EP=1", message)
        comes_in(suite, "a client with one queue pair", client, segment, SINGLE)
        with single() as other:
            opened, read = other.ask("open", segment.name), other.ask("read", MOVED)
            suite.check("a second client reads nothing", read["rc"] != 0 and read["blank"], "an error, the buffer untouched", (opened, read))
            message = segment.event("refused")["message"]
            suite.check("… and is refused with what to do", "--rdma-strategy region" in message, "--rdma-strategy region", message)
        start(suite, "a client with one queue pair", client)
        segment.stop()
        segment.event("kicked")
        suite.equal("the end on a window", ("freed", "freed"), told(segment.event("ended")))
        ended(suite, "given back, a window", client)


def main():
    """Both strategies."""
    device = lab_device()
    if not stock_programs.version(MOONCAKE):
        skip(MOONCAKE)
    with Suite("suite_mooncake") as suite:
        with Node("--rdma-strategy", "region", mem_bytes=LEASE_BYTES) as node:
            # The end of the term is in the short form of suite_compare.
            for section in (clients, reconnects, *length((expiry,), ()), revoked):
                suite.section(section, suite, node, device)
        with Node("--rdma-strategy", "window", mem_bytes=LEASE_BYTES) as node:
            suite.section(window, suite, node, device)


if __name__ == "__main__":
    main()
