#!/usr/bin/python3
# lab: one-vm timeout=600
# covers: rdma verbs arena fallback-udp node/src/kinds/memory
"""One lease, two transports: bytes written over RDMA are read over UDP and the reverse, and both transports are cut
together when the lease ends."""
import contextlib

import fbmu_frame as f
from checks import LATE_LIMIT_MS, Suite, give_back, lab_device, length
from fabric import Node
from fbmu_client import Client as UdpClient
from fbmu_suite import PATTERN, Strangers, now_ms
from fbmu_suite import Writer as UdpWriter
from rdma_client import Client as RdmaClient
from writer import Writer as RdmaWriter

LEASE_BYTES = 65536
TERM_SECS = length(12, 7)
BOTH = ("--transport", "both")
NO_LEASE = {"NO_LEASE"}


def alloc(tenant, peer, secs=300, grace_secs=0):
    """Leases memory over both transports."""
    return tenant.alloc(LEASE_BYTES, secs, peer, grace_secs, *BOTH)


def same_bytes(suite, node, device):
    """Each transport reads the bytes that the other has written."""
    alice = node.tenant("alice")
    with RdmaClient(device) as rdma:
        lease = alloc(alice, rdma.peer)
        rdma.connect(lease)
        suite.equal("the lease says that it has both", "both", lease.get("effective", lease).get("transport"))
        with UdpClient(lease) as udp:
            suite.equal("written over RDMA", "success", rdma.write(0, PATTERN).status)
            suite.check("read over UDP", udp.read(0, LEASE_BYTES) == PATTERN, "the same bytes")
            udp.write(4096, PATTERN[:4096][::-1])
            suite.equal("written over UDP, read over RDMA", PATTERN[:4096][::-1], rdma.read(4096, 4096).data)
            suite.equal("around it nothing has changed", PATTERN[:4096], rdma.read(0, 4096).data)
            udp.write(LEASE_BYTES - 1, b"!")
            suite.equal("the last byte", b"!", rdma.read(LEASE_BYTES - 1, 1).data)
            Strangers(suite, udp).refused("outside, over UDP", f.RANGE, [("one byte", udp.frame(f.READ, LEASE_BYTES, 1))])
            suite.equal("RDMA goes on", b"!", rdma.read(LEASE_BYTES - 1, 1).data)
        give_back(alice, lease)


def rotation(suite, node, device):
    """A rotation changes the keys of both transports."""
    alice = node.tenant("alice")
    with RdmaClient(device) as rdma:
        lease = alloc(alice, rdma.peer)
        rdma.connect(lease)
        with UdpClient(lease) as udp:
            udp.write(0, b"kept")
            rotated = alice.rotate(lease)
            stale = udp.frame(f.WRITE, 0, 4, b"late").datagram(udp.place.key)
            udp.rekey(rotated, open_session=False)
            Strangers(suite, udp).nothing("rotation: the old key over UDP", [("WRITE", stale)])
            suite.equal("rotation: the new key over UDP", b"kept", udp.read(0, 4))
            new = rotated["binding"]["rdma"]["rkey"]
            suite.check("rotation: another key over RDMA", new != lease["binding"]["rdma"]["rkey"], "another key", new)
            suite.equal("rotation: the new key over RDMA", b"kept", rdma.read(0, 4, rkey=new).data)
        give_back(alice, lease)


def ends(suite, node, _device):
    """Free, expiry and revocation, under a writer on each transport that does not stop."""
    bob, operator = node.tenant("bob"), node.operator
    ways = (("free", 300, bob.free), ("revoke", 300, operator.revoke),
            ("expiry", TERM_SECS, lambda lease: bob.wait_until(lease, "expired")))
    for name, secs, end in ways:
        with contextlib.ExitStack() as stack:
            over_rdma = stack.enter_context(RdmaWriter())
            lease = alloc(bob, over_rdma.peer, secs)
            over_rdma.start(lease)
            over_udp = stack.enter_context(UdpWriter(lease, offset=4096))
            end(lease)
            told_at_ms = now_ms()
            rdma, udp = over_rdma.report(), over_udp.report()
            suite.ended(f"{name}, RDMA", rdma, told_at_ms)
            suite.ended(f"{name}, UDP", udp, told_at_ms, NO_LEASE)
            if name == "expiry":
                suite.on_time(f"{name}, RDMA", lease, rdma)
                suite.on_time(f"{name}, UDP", lease, udp)
            apart = abs(rdma["last_ok_at_ms"] - udp["last_ok_at_ms"])
            print(f"   {name}: the last successes of the two transports are {apart:.1f} ms apart", flush=True)
            suite.check(f"{name}: both transports end together", apart < LATE_LIMIT_MS, f"within {LATE_LIMIT_MS} ms", apart)


def grace(suite, node, device):
    """After a renewal in grace both transports have new keys, and the bytes are the same."""
    alice = node.tenant("alice")
    with RdmaClient(device) as rdma:
        lease = alloc(alice, rdma.peer, TERM_SECS, 120)
        rdma.connect(lease)
        rdma.write(0, b"kept")
        alice.wait_until(lease, "grace")
        with RdmaClient(device) as again:
            alice.renew(lease)
            renewed = alice.bind(lease, again.peer)
            again.connect(renewed)
            suite.equal("renewed in grace: read over RDMA", b"kept", again.read(0, 4).data)
            old, new = lease["binding"], renewed["binding"]
            suite.check("renewed in grace: other keys", old["dp_key"] != new["dp_key"] and old["rdma"]["rkey"] != new["rdma"]["rkey"],
                        "other keys")
            with UdpClient(renewed) as udp:
                suite.equal("renewed in grace: read over UDP", b"kept", udp.read(0, 4))
        give_back(alice, lease)


def main():
    """All sections on one node with soft-RoCE."""
    device = lab_device()
    with Suite("mem over both transports") as suite, Node() as node:
        for section in (same_bytes, rotation, ends, grace):
            suite.section(section, suite, node, device)


if __name__ == "__main__":
    main()
