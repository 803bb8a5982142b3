#!/usr/bin/python3
"""The story of one lease on a terminal: a node leases 64 KiB over two transports, an RDMA client and one over
UDP use them, the key is rotated, the lease renewed, and its end cuts a client that has not stopped writing. Exit status 0 only
if everything was as told.

Uses the RDMA device of --device (or FABRICBIOS_RDMA_DEVICE, or the only one there is); --soft-roce makes
one first if there is none.
"""
import argparse
import os
import sys
import time

import demo_udp
import fabric
import rdma_client
import writer
from story import Story

LEASE_BYTES, TERM_SECS, LAST_TERM_SECS = 65536, 15, 4
TEXT = b"written by a client that fabricBIOS does not know"

MEANING = {rdma_client.REMOTE_ACCESS_ERROR: "the node's device refused the key",
           rdma_client.NO_ANSWER: "the queue pair was gone when the write came; the client waited for its own retries"}


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=os.environ.get("FABRICBIOS_RDMA_DEVICE"), help="RDMA device, such as rxe0")
    parser.add_argument("--soft-roce", action="store_true", help="make a soft-RoCE device rxe0 if it is not there")
    parser.add_argument("--mem-bytes", default="16MiB", help="memory that the node offers (default 16MiB)")
    parser.add_argument("--tolerance-ms", type=float, default=1000,
                        help="how long after the deadline the cut may take before the demo fails (default 1000: an "
                        "emulated processor is slow)")
    return parser.parse_args()


def start(story, device, mem_bytes):
    """The node starts and shows its resources."""
    story.step("The node starts")
    began = time.monotonic()
    node = fabric.Node(device=device.name, mem_bytes=mem_bytes, address=str(device.gid.ipv4_mapped))
    story.shows(f"fabricbiosd {' '.join(node.command[1:])}")
    story.shows(f"READY after {time.monotonic() - began:.1f} s; a fabric CA and an operator identity were made")
    story.step("What it offers")
    for resource in memory_of(node.operator.ask("inventory")):
        story.shows(", ".join(f"{key} {value}" for key, value in resource.items() if not isinstance(value, (dict, list))))
    return node


def memory_of(inventory):
    """The memory entries of the inventory, wherever its JSON has them."""
    if isinstance(inventory, dict):
        if str(inventory.get("resource_type", "")).lower() == "mem":
            return [inventory]
        inventory = list(inventory.values())
    return [entry for part in inventory for entry in memory_of(part)] if isinstance(inventory, list) else []


def lease_and_use(story, tenant, client):
    """Lease, write, read back."""
    story.step(f"A tenant leases {LEASE_BYTES // 1024} KiB for {TERM_SECS} s and tells its queue pair in the same request")
    story.shows(f"--rdma-peer {client.peer}")
    lease = tenant.alloc(LEASE_BYTES, TERM_SECS, client.peer, 0, "--transport", "both")
    rdma = lease["binding"]["rdma"]
    story.shows(f"lease {lease['lease_id']}: rkey {rdma['rkey']:#x}, address {rdma['remote_addr']:#x}, "
                f"queue pair {rdma['qp_num']}, GID {rdma['gid']}")
    client.connect(lease)
    story.step("Its RDMA client writes and reads back; the daemon is not on this path")
    written, read = client.write(4096, TEXT), client.read(4096, len(TEXT))
    story.must(written.ok, f"RDMA WRITE: {written.status}, {written.completed_at_ms - written.posted_at_ms:.1f} ms")
    story.must(read.data == TEXT, f"RDMA READ:  {read.status}, {read.data.decode(errors='replace')!r}")
    story.step("The same bytes over UDP, for somebody without an RDMA device")
    same = demo_udp.fabricctl(tenant, *over_udp("read", lease, 4096), "--len", len(TEXT))
    story.must(same == TEXT, f"fabricctl mem read --transport udp: {same.decode(errors='replace')!r}")
    return lease


def over_udp(what, lease, offset):
    """Arguments of `fabricctl mem`."""
    return ["mem", what, lease["lease_id"], "--transport", "udp", "--offset", offset]


def renew_too_early(story, tenant, lease):
    """A renewal that comes too early."""
    story.step("Renewal before the last 20 % of the term is refused")
    try:
        tenant.renew(lease)
        story.must(False, "the node refuses it")
    except fabric.Refused as refusal:
        in_secs = (refusal.object.get("renewable_at_unix_ms", 0) - rdma_client.now_ms()) / 1000
        story.must(refusal.code == "RenewTooEarly" and in_secs > 0, f"{refusal.code}, renewable_at is {in_secs:.1f} s from now")


def rotate(story, tenant, lease, client):
    """The key is rotated: the old key does not work any more, and the lease is bound to a new queue pair."""
    story.step("The key is rotated: the old one is dead when the answer comes")
    old = lease["binding"]["rdma"]["rkey"]
    rotated = tenant.rotate(lease)
    story.shows(f"rkey {old:#x} became {rotated['binding']['rdma']['rkey']:#x}")
    done = client.write(0, b"old key", rkey=old)
    story.must(done.status == rdma_client.REMOTE_ACCESS_ERROR, f"RDMA WRITE with the old key: {done.status}")
    story.step("That error ended the client's queue pair; a new one is bound to the same lease")
    client.fresh()
    armed = tenant.bind(lease, client.peer)
    client.connect(armed)
    read = client.read(4096, len(TEXT))
    story.must(read.data == TEXT, f"RDMA READ over the new queue pair: {read.status}, the bytes are still there")


def renew(story, tenant, lease):
    """The renewal at its time; only here does the demo wait."""
    begins_ms = lease["renewable_at_unix_ms"]
    story.step(f"Renewal in the last 20 % of the term (waiting {max(0, begins_ms - rdma_client.now_ms()) / 1000:.1f} s for it)")
    time.sleep(max(0, begins_ms - rdma_client.now_ms() + 20) / 1000)
    renewed = tenant.renew(lease, "--secs", LAST_TERM_SECS)
    later_ms = renewed["expires_at_unix_ms"] - lease["expires_at_unix_ms"]
    story.must(later_ms > 0, f"the lease ends {later_ms / 1000:.1f} s later than before, in {renewed['remaining_ms'] / 1000:.1f} s")
    return renewed


def expire(story, tenant, lease, client, tolerance_ms):
    """The lease ends while the client goes on writing."""
    story.step("The lease expires under a client that keeps writing")
    deadline_ms = lease["expires_at_unix_ms"]
    end = writer.keep_writing(client)
    answer = tenant.query(lease)
    last_ms, failed_ms = (end["last_ok_at_ms"] or 0) - deadline_ms, end["failed_at_ms"] - deadline_ms
    story.must(last_ms < tolerance_ms, f"last success  {last_ms:+9.1f} ms from the deadline, after {end['writes']} writes")
    story.must(0 <= failed_ms < tolerance_ms, f"first failure {failed_ms:+9.1f} ms from the deadline: {end['status']}")
    story.must(end["status"] in rdma_client.ENDS, MEANING.get(end["status"], "no way for a lease to end"))
    story.must(answer["status"] == "EXPIRED", f"LEASE_QUERY: {answer['status']}")
    try:
        demo_udp.fabricctl(tenant, *over_udp("write", lease, 0), given=b"too late")
        story.must(False, "UDP is cut as well")
    except fabric.Refused as refusal:
        story.must(refusal.status == fabric.NOT_FOUND, f"fabricctl mem write --transport udp: exit {refusal.status}, {refusal.message}")


def tell(story, device, asked):
    """The steps in their order."""
    with start(story, device, asked.mem_bytes) as node, rdma_client.Client(device) as client:
        tenant = node.tenant("demo")
        lease = lease_and_use(story, tenant, client)
        renew_too_early(story, tenant, lease)
        rotate(story, tenant, lease, client)
        lease = renew(story, tenant, lease)
        expire(story, tenant, lease, client, asked.tolerance_ms)
        demo_udp.stop(story, node, lease)


def main():
    """The demo."""
    asked, story = arguments(), Story()
    try:
        if asked.soft_roce:
            fabric.ensure_soft_roce()
        device = rdma_client.Device(asked.device)
    except LookupError as missing:
        sys.exit(f"demo: missing {missing}")
    try:
        tell(story, device, asked)
    except (fabric.Refused, RuntimeError) as stopped:
        story.must(False, str(stopped))
    return story.end()


if __name__ == "__main__":
    sys.exit(main())
