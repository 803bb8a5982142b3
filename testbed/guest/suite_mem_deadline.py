#!/usr/bin/python3
# lab: one-vm timeout=600
# covers: rdma verbs arena node/src/kinds/memory
"""The end of a lease's term: no error before it, nothing written after it, contents kept in grace, and an
answer about ended leases even after a restart."""
import contextlib

from checks import Suite, give_back, lab_device, length
from fabric import NOT_FOUND, Node
from rdma_client import REMOTE_ACCESS_ERROR, Client, now_ms
from writer import Writer

LEASE_BYTES = 65536
TERM_SECS, GRACE_SECS = length(20, 12), 120


def writers(suite, node, device):
    """Three writers whose terms end together, and a fourth whose term goes on."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    with contextlib.ExitStack() as stack:
        first, second, kept, witness = [stack.enter_context(Writer()) for _ in range(4)]
        long = bob.alloc(LEASE_BYTES, 600, witness.peer)
        leases = [alice.alloc(LEASE_BYTES, TERM_SECS, first.peer), bob.alloc(LEASE_BYTES, TERM_SECS, second.peer),
                  alice.alloc(LEASE_BYTES, TERM_SECS, kept.peer, GRACE_SECS)]
        tenants, ending = (alice, bob, alice), (first, second, kept)
        for writer, lease in zip((witness, *ending), (long, *leases)):
            writer.start(lease)
        told_at_ms = []
        for tenant, lease in zip(tenants, leases):
            tenant.wait_until(lease, "expired", "grace")
            told_at_ms.append(now_ms())
        reports = [writer.report() for writer in ending]
        for name, lease, report, told_ms in zip(("first", "second", "with grace"), leases, reports, told_at_ms):
            suite.ended(name, report, told_ms)
            suite.on_time(name, lease, report)
        before_ms = now_ms()
        bob.free(long)
        end = witness.report()
        suite.check("the lease beside them went on until it was freed", end["failed_at_ms"] >= before_ms, before_ms, end)
        grace(suite, device, alice, leases[2], kept, reports[2])


def grace(suite, device, alice, lease, writer, report):
    """The bytes are kept, access is not; a renewal and a new queue pair give access again."""
    answer = alice.query(lease)
    suite.equal("in grace: query", ("grace", "EXPIRED"), (answer["state"], answer["status"]))
    suite.equal("in grace: when it ends", lease["expires_at_unix_ms"] + GRACE_SECS * 1000, answer.get("grace_ends_unix_ms"))
    suite.refused("in grace: no new queue pair without renewal", lambda: alice.bind(lease, writer.peer), NOT_FOUND, "Expired")
    renewed = alice.renew(lease)
    suite.equal("renewed in grace: status", "ACTIVE", renewed["status"])
    bound = alice.bind(lease, writer.peer)
    old, new = lease["binding"]["rdma"]["rkey"], bound["binding"]["rdma"]["rkey"]
    suite.check("renewed in grace: another key", old != new, f"not {old}", new)
    contents(suite, device, bound, alice, report)
    give_back(alice, lease)


def contents(suite, device, lease, alice, report):
    """The memory has the bytes that were written before the end, and no refused bytes."""
    with Client(device) as client:
        client.connect(alice.bind(lease, client.peer))
        value = int.from_bytes(client.read(0, 8).data, "big")
    doubt = 0 if report["status"] == REMOTE_ACCESS_ERROR else report["in_doubt"]
    suite.check("renewed in grace: the contents are the last acknowledged write", report["writes"] <= value <= report["writes"] + doubt,
                f"{report['writes']}" + (f" to {report['writes'] + doubt}" if doubt else ""), value)


def after_restart(suite, node, device):
    """Ended leases still answer after an orderly stop and after a crash."""
    alice, operator = node.tenant("alice"), node.operator
    with Client(device) as client:
        expired, revoked, freed, stopped = [alice.alloc(LEASE_BYTES, secs, client.peer) for secs in (4, 300, 300, 300)]
        operator.revoke(revoked)
        alice.free(freed)
        alice.wait_until(expired, "expired")
        suite.equal("SIGTERM: exit status", 0, node.stop())
        node.start()
        crashed = alice.alloc(LEASE_BYTES, 300, client.peer)
        waiting = alice.alloc(LEASE_BYTES, 300)
        for name, lease, status in (("expired", expired, "EXPIRED"), ("revoked", revoked, "REVOKED"), ("freed", freed, "EXPIRED"),
                                    ("still running when the node stopped", stopped, "REVOKED")):
            suite.equal(f"after a restart: a lease {name}", status, alice.query(lease)["status"])
        node.kill()
        node.start()
        for name, lease, status in (("expired", expired, "EXPIRED"), ("revoked", revoked, "REVOKED"),
                                    ("running when the node was killed", crashed, "REVOKED"),
                                    ("not yet bound when the node was killed", waiting, "REVOKED")):
            suite.equal(f"after a crash: a lease {name}", status, alice.query(lease)["status"])
        suite.refused("after a crash: it cannot be renewed", lambda: alice.renew(crashed), NOT_FOUND, "Revoked")


def main():
    """All sections on one node."""
    device = lab_device()
    with Suite("mem deadlines") as suite, Node() as node:
        for section in (writers, after_restart):
            suite.section(section, suite, node, device)


if __name__ == "__main__":
    main()
