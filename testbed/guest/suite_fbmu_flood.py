#!/usr/bin/python3
# lab: one-vm timeout=600
# covers: fallback-udp arena node/src/kinds/memory
"""Noise on the port of the data plane over UDP, from several addresses, while a client with a key does small reads: no
read fails, and the suite prints the cost of the noise."""
import contextlib
import multiprocessing
import os
import secrets
import statistics
import time

import fbmu_frame as f
from checks import Suite, length, programs
from fabric import Node
from fbmu_client import Client, Wire
from fbmu_frame import Frame
from fbmu_suite import ELSEWHERE, PATTERN, leased, other_addresses, unchanged

READS, READ_BYTES = length(200, 100), 64
# Not a speed limit: the noise runs on the same emulated processors. A read takes 7 s if its datagrams are lost three
# times.
LONGEST_LIMIT_MS = 15_000


def noise(client):
    """Datagrams of every kind that a server must not act on. Except for the recorded ones, they need no key."""
    place, wrong = client.place, secrets.token_bytes(32)
    forged = client.frame(f.WRITE, 0, 16, b"x" * 16)
    unknown = [forged.but(lease_id=secrets.token_bytes(16), nonce=n).datagram(wrong) for n in range(16)]
    recorded = client.frame(f.WRITE, 0, 16, PATTERN[:16])
    client.ask(recorded)
    return {
        "random bytes": [os.urandom(n) for n in range(1, 1400, 50)],
        "forged for the lease": [forged.but(nonce=n).datagram(wrong) for n in range(16)],
        "of unknown leases": unknown,
        "tiny": [b"", b"F", b"FBMU", forged.datagram(wrong)[:87]],
        "huge": [forged.but(payload=bytes(size), length=size).datagram(wrong) for size in (f.PAYLOAD_MAX, f.PAYLOAD_MAX + 1, 60_000)],
        "HELLOs of strangers": [Frame(f.HELLO, place.lease_id, n, 0, 0, bytes(1300)).datagram(wrong) for n in range(16)],
        "recorded": [recorded.datagram(place.key)] * 4,
        "reflected": client.exchange(client.frame(f.READ, 0, 64).datagram(place.key)),
    }


def flood(address, source, datagrams, begun, stop, counted):
    """One source of noise, in a process of its own: sets `begun` after each round, and reads the replies."""
    os.nice(19)  # Real noise comes from other machines, so its processes must not take the processor from the node.
    sent = answered = 0
    with Wire(address, (source, 0)) as wire:
        while not stop.is_set():
            for data in datagrams:
                sent += wire.send(data)
            begun.release()
            answered += len(wire.waiting())
    counted.put((sent, answered))


@contextlib.contextmanager
def flooded(client, datagrams):
    """Runs noise from every source; the counts are complete at the end of the context."""
    begun, stop, counted, result = multiprocessing.Semaphore(0), multiprocessing.Event(), multiprocessing.Queue(), {}
    floods = [multiprocessing.Process(target=flood, args=(client.place.address, source, datagrams, begun, stop, counted), daemon=True)
              for source in ELSEWHERE]
    started = time.monotonic()
    for process in floods:
        process.start()
    for _ in floods:
        begun.acquire()
    try:
        yield result
    finally:
        stop.set()
        pairs = [counted.get(timeout=60) for _ in floods]
        result.update(sent=sum(sent for sent, _ in pairs), answered=sum(answered for _, answered in pairs),
                      secs=time.monotonic() - started)
        for process in floods:
            process.join(60)


def latencies(suite, name, client):
    """Does small reads one after another; returns the time of each in milliseconds, and whether all returned the right
    bytes."""
    took, wrong = [], 0
    for n in range(READS):
        at = n * 97 % (len(PATTERN) - READ_BYTES)
        started = time.monotonic()
        wrong += client.read(at, READ_BYTES) != PATTERN[at:at + READ_BYTES]
        took.append((time.monotonic() - started) * 1000)
    suite.equal(f"{name}: {READS} reads bring their bytes", 0, wrong)
    return took


def shown(took):
    """Median and 99th percentile."""
    return statistics.median(took), statistics.quantiles(took, n=100)[98]


def under_noise(suite, node):
    """Each kind of noise by itself, then all kinds together."""
    with leased(node.tenant("alice"), secs=600) as (lease, client):
        client.write(0, PATTERN)
        quiet = shown(latencies(suite, "quiet", client))
        print(f"   quiet: median {quiet[0]:.2f} ms, p99 {quiet[1]:.2f} ms", flush=True)
        kinds = noise(client)
        kinds["everything at once"] = [data for datagrams in kinds.values() for data in datagrams]
        for name, datagrams in kinds.items():
            one_kind(suite, name, lease, client, datagrams, quiet)
        unchanged(suite, "after the noise", client)


def one_kind(suite, name, lease, client, datagrams, quiet):
    """The same reads under the noise, and a new session under the noise."""
    retries = client.retries
    with flooded(client, datagrams) as count:
        with Client(lease) as late:
            suite.equal(f"{name}: a session is opened", PATTERN[:4], late.read(0, 4))
        noisy = latencies(suite, name, client)
    median, tail = shown(noisy)
    print(f"   {name}: median {median:.2f} ms ({median / quiet[0]:.1f}x), p99 {tail:.2f} ms ({tail / quiet[1]:.1f}x), longest {max(noisy):.0f} ms, "
          f"{client.retries - retries} retries, {count['sent'] / count['secs']:.0f} datagrams/s of noise, {count['answered']} answered", flush=True)
    suite.check(f"{name}: no collapse", max(noisy) < LONGEST_LIMIT_MS, f"each within {LONGEST_LIMIT_MS} ms", max(noisy))
    if name not in ("recorded", "everything at once"):
        suite.check(f"{name}: few answers", count["answered"] <= count["sent"] // 4 + 100, "at most a quarter", count)


def main():
    """One node without an RDMA device; the sources are addresses of this machine."""
    programs()
    other_addresses()
    with Suite("fbmu flood") as suite, Node(device="none") as node:
        suite.section(under_noise, suite, node)


if __name__ == "__main__":
    main()
