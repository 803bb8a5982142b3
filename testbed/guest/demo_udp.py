#!/usr/bin/python3
"""The story of one lease without RDMA, on any host and as any user: a node leases 1 MiB over
authenticated UDP, `fabricctl` and a client written from the specification alone use it, forged and
repeated requests come to nothing, and its end cuts a client that has not stopped writing. Exit status 0
only if everything was as told.
"""
import os
import socket
import subprocess
import sys
import time

import fabric
import fbmu_client
import fbmu_frame
from story import Story

LEASE_BYTES, TERM_SECS = 1 << 20, 8
OFFSET, TEXT = 4096, b"written over UDP"
ADDRESS = "127.0.0.1"
TOLERANCE_MS = 1000


def free_ports():
    """Two free ports: a real node of this host may use the default ones."""
    held = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    try:
        for one in held:
            one.bind((ADDRESS, 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def start(story):
    """The node starts without any device."""
    story.step("The node starts, without RDMA and without root")
    control, data = free_ports()
    node = fabric.Node("--fbmu-listen", f"{ADDRESS}:{data}", device="none", mem_bytes="16MiB", address=ADDRESS, port=control)
    story.shows(f"fabricbiosd {' '.join(node.command[1:])}")
    return node


def fabricctl(tenant, *words, given=None):
    """`fabricctl` with bytes in and out; raises Refused."""
    finished = subprocess.run([fabric.program("fabricctl"), "--node", tenant.node, "--identity", tenant.identity, "--json",
                               *map(str, words)], input=given, capture_output=True, timeout=60, check=False)
    if finished.returncode:
        text = subprocess.CompletedProcess(finished.args, finished.returncode, "", finished.stderr.decode())
        raise fabric.Refused(list(map(str, words)), text)
    return finished.stdout


def lease_and_use(story, tenant):
    """Lease, write, read back, with two clients that do not know of each other."""
    story.step(f"A tenant leases {LEASE_BYTES >> 10} KiB for {TERM_SECS} s")
    lease = tenant.alloc(LEASE_BYTES, TERM_SECS, None, 0, "--transport", "udp")
    story.shows(f"lease {lease['lease_id']}: UDP {lease['binding']['udp_endpoint']}, a key of 32 bytes that is not shown")
    story.step("fabricctl writes, and a client in another language reads")
    fabricctl(tenant, "mem", "write", lease["lease_id"], "--offset", OFFSET, given=TEXT)
    client = fbmu_client.Client(lease)
    read = client.read(OFFSET, len(TEXT))
    story.must(read == TEXT, f"read {read!r}")
    big = os.urandom(LEASE_BYTES // 2)
    client.write(LEASE_BYTES // 2, big)
    back = fabricctl(tenant, "mem", "read", lease["lease_id"], "--offset", LEASE_BYTES // 2, "--len", len(big))
    story.must(back == big, f"and the other way round: {len(big) >> 10} KiB, each datagram authenticated")
    return lease, client


def attack(story, client):
    """Datagrams without the key, or replayed, have no effect."""
    story.step("Forged and repeated datagrams")
    forged = client.frame(fbmu_frame.WRITE, OFFSET, len(TEXT), bytes(len(TEXT)))
    answers = client.exchange(forged.datagram(bytes(32)))
    story.must(all(map(fbmu_frame.is_refusal_without_key, answers)), "a WRITE under a wrong key: INVALID, or no answer")
    story.must(client.read(OFFSET, len(TEXT)) == TEXT, "the bytes are as they were")
    recorded = client.frame(fbmu_frame.WRITE, OFFSET, len(TEXT), TEXT.upper()).datagram(client.place.key)
    client.exchange(recorded)
    client.write(OFFSET, TEXT)
    client.exchange(recorded)
    story.must(client.read(OFFSET, len(TEXT)) == TEXT, "a recorded WRITE sent again after a later one: the later bytes stay")


def expire(story, tenant, lease, client):
    """The lease ends while the client goes on writing."""
    story.step("The lease expires under a client that keeps writing")
    deadline_ms, last_ms, writes = lease["expires_at_unix_ms"], 0, 0
    while True:
        try:
            client.write(0, writes.to_bytes(8, "big"))
        except fbmu_client.Refused as refused:
            failed_ms, status = time.time() * 1000, fbmu_frame.STATUS[refused.status]
            break
        last_ms, writes = time.time() * 1000, writes + 1
    story.must(last_ms - deadline_ms < TOLERANCE_MS, f"last success  {last_ms - deadline_ms:+9.1f} ms from the deadline, after {writes} writes")
    story.must(0 <= failed_ms - deadline_ms < TOLERANCE_MS, f"first refusal {failed_ms - deadline_ms:+9.1f} ms from the deadline: {status}")
    story.must(status == "NO_LEASE", "under a right tag: it is the node that says so")
    answer = tenant.wait_until(lease, "expired")
    story.must(answer["status"] == "EXPIRED", f"LEASE_QUERY: {answer['status']}")


def stop(story, node, lease):
    """The log of the node, and the end of the demo."""
    end = node.wait_for_line(lease["lease_id"], "lease ended")
    if end:
        story.shows(f"the node's log: {end[end.index('lease ended'):]}")
    story.step("SIGTERM: the node drains and ends")
    status = node.stop()
    story.must(status == 0, f"exit status {status}")


def tell(story):
    """The steps in their order."""
    with start(story) as node:
        tenant = node.tenant("demo")
        lease, client = lease_and_use(story, tenant)
        attack(story, client)
        expire(story, tenant, lease, client)
        stop(story, node, lease)


def main():
    """The demo."""
    story = Story()
    try:
        tell(story)
    except (fabric.Refused, fbmu_client.Refused, fbmu_client.NoAnswer, RuntimeError, LookupError) as stopped:
        story.must(False, str(stopped))
    return story.end()


if __name__ == "__main__":
    sys.exit(main())
