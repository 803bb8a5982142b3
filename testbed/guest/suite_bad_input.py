#!/usr/bin/python3
# lab: one-vm timeout=900
# covers: rdma verbs arena fallback-udp pool nvmet node/src/kinds/memory node/src/kinds/block
"""Wrong arguments, impossible requests, strangers and noise: each gets a clear refusal with its exit status, and
afterwards the node has the same resources as before."""
import os
import pathlib
import secrets
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import identities
from checks import Suite, in_full_length, lab_device, leased, until
from fabric import ADDRESS, NOT_FOUND, PORT, REFUSED, UNREACHABLE, USAGE, Fabric, Node, Refused, resources
from faults import filled, small_disk
from rdma_client import Client, now_ms
from writer import Writer

ARENA_BYTES = 16 << 20
NOWHERE = "10.77.0.250"
STRANGE_GIDS = 32
SCRUB_SECS = 60
PEER = "qpn=17,gid=::ffff:10.77.0.1,psn=1"
LOST = f"qpn=17,gid=::ffff:{NOWHERE},psn=1"


def memory(fabric):
    """Free bytes of the node's memory."""
    return [entry["available"] for entry in fabric.ask("inventory")["resources"]
            if entry["resource_type"].lower() == "mem" and entry["capacity"] == ARENA_BYTES]


def settled(fabric, wanted):
    """Waits until the free bytes are `wanted` or the time is over, and returns them; leased bytes are scrubbed
    first."""
    limit = time.monotonic() + SCRUB_SECS
    while (now := memory(fabric)) != wanted and time.monotonic() < limit:
        pass
    return now


def wrong_arguments(suite, node, _device):
    """Requests that fabricctl or the node refuses at once."""
    alice, mem = node.tenant("alice"), ("lease", "alloc", "mem")
    usual = (*mem, "--bytes", 4096, "--secs", 9)
    usage = {"zero bytes": (*mem, "--bytes", 0, "--secs", 9),
             "negative bytes": (*mem, "--bytes=-1", "--secs", 9),
             "more bytes than 64 bits": (*mem, "--bytes", 1 << 64, "--secs", 9),
             "unknown unit": (*mem, "--bytes", "1XiB", "--secs", 9),
             "unit that overflows": (*mem, "--bytes", "99999999999TiB", "--secs", 9),
             "zero seconds": (*mem, "--bytes", 4096, "--secs", 0),
             "no term": (*mem, "--bytes", 4096),
             "unknown transport": (*usual, "--transport", "pigeon"),
             "peer without GID": (*usual, "--rdma-peer", "qpn=1,psn=1"),
             "peer with a queue pair beyond 24 bits": (*usual, "--rdma-peer", PEER.replace("17", "16777216")),
             "peer with a PSN beyond 24 bits": (*usual, "--rdma-peer", PEER.replace("psn=1", "psn=16777216")),
             "lease id that is none": ("lease", "query", "xyz"),
             "unknown command": ("lease", "borrow")}
    for name, words in usage.items():
        suite.refused(name, lambda words=words: alice.ask(*words), USAGE)
    policy = {"more than any machine has": (*mem, "--bytes", 1 << 62, "--secs", 9),
              "term above the maximum": (*mem, "--bytes", 4096, "--secs", 4294967295),
              "grace above the maximum": (*usual, "--grace-secs", 4294967295),
              "a kind that the node does not lease": ("lease", "alloc", "block", "--bytes", 4096, "--secs", 9)}
    for name, words in policy.items():
        suite.refused(name, lambda words=words: alice.ask(*words), REFUSED)
    for name, words in (("wrong usage", usage["zero bytes"]), ("refusal", policy["term above the maximum"])):
        told = alice.run(*words, as_json=False)
        readable = told.stderr.count("\n") == 1 and len(told.stderr) > 20 and not told.stdout
        suite.check(f"{name} without --json: one readable line", readable, "one line on stderr", (told.stdout, told.stderr))


def wrong_lease(suite, node, _device):
    """Requests with an id that belongs to no lease."""
    alice, nobodys = node.tenant("alice"), {"lease_id": secrets.token_hex(16)}
    for name, call in (("query", alice.query), ("free", alice.free), ("renew", alice.renew), ("rotate", alice.rotate),
                       ("bind", lambda lease: alice.bind(lease, PEER)), ("revoke", node.operator.revoke)):
        suite.refused(f"{name} of a lease that does not exist", lambda call=call: call(nobodys), NOT_FOUND, "NotFound")


def too_early(suite, node, device):
    """The refusal of an early renewal names the time from which it is allowed."""
    alice = node.tenant("alice")
    with leased(alice, device, secs=100) as (lease, client):
        suite.refused("renewal too early", lambda: alice.renew(lease), REFUSED, "RenewTooEarly")
        suite.equal("the last 20 % of the term", lease["expires_at_unix_ms"] - 20_000, lease["renewable_at_unix_ms"])
        suite.refused("operator-only: revoke", lambda: alice.revoke(lease), REFUSED, "NotPermitted")
        suite.equal("the lease goes on", "success", client.write(0, b"x").status)


def strange_peers(suite, node, device):
    """GIDs without a host behind them: for a new lease, and for a lease that is then bound properly."""
    alice = node.tenant("alice")
    for name, gid in (("unroutable", NOWHERE), ("zero", "::"), ("multicast", "ff02::1"), ("of no route", "2001:db8::1")):
        peer = f"qpn=17,gid={gid if ':' in gid else '::ffff:' + gid},psn=1"
        suite.refused(f"lease for a GID that is {name}", lambda peer=peer: _try(alice, peer), REFUSED)
    with Client(device) as client:
        lease = alice.alloc(4096, 300)
        suite.refused("bind to an unroutable GID", lambda: alice.bind(lease, LOST), REFUSED)
        client.connect(alice.bind(lease, client.peer))
        suite.equal("bound properly afterwards", "success", client.write(0, b"x").status)
        told = lambda: [alice.query(lease)[key] for key in ("binding", "generation", "expires_at_unix_ms")]
        before, wrote = told(), []
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(suite.refused, "bind away to an unroutable GID", lambda: alice.bind(lease, LOST), REFUSED,
                               word=NOWHERE)
            while not slow.done():
                wrote.append(client.write(0, b"y").status)
        suite.equal("the client that was bound writes on meanwhile", {"success"}, set(wrote))
        suite.equal("and afterwards", "success", client.write(0, b"y").status)
        suite.equal("and what is told is as it was", before, told())
        with Client(device) as other:
            other.connect(alice.bind(lease, other.peer))
            suite.equal("bound to another client: that one writes", "success", other.write(0, b"x").status)
            gone = client.write(0, b"x").status
            suite.check("and the one before does not", gone != "success", "an error", gone)
            alice.free(lease)


def _try(tenant, peer):
    """Asks for a lease that must not be granted; gives it back if it is granted, so that only one check fails."""
    lease = tenant.alloc(4096, 60, peer)
    tenant.free(lease)
    return lease


@in_full_length
def crowd(suite, node, _device):
    """Many requests that the kernel takes a second to refuse do not delay another lease's cut."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    with Writer() as writer, ThreadPoolExecutor(STRANGE_GIDS) as pool:
        lease = alice.alloc(65536, 15, writer.peer)
        writer.start(lease)
        crowding = [pool.submit(_refusal_of, bob) for _ in range(STRANGE_GIDS)]
        report = writer.report()
        told_at_ms = now_ms()
        suite.equal("during 32 unroutable requests: query", "EXPIRED", alice.wait_until(lease, "expired")["status"])
        suite.ended("during 32 unroutable requests", report, told_at_ms)
        suite.on_time("during 32 unroutable requests", lease, report)
        statuses = {refusal.result() for refusal in crowding}
        suite.check("all 32 are refused", statuses <= {REFUSED, UNREACHABLE}, {REFUSED}, statuses)


def _refusal_of(tenant):
    try:
        return tenant.alloc(4096, 60, LOST)["state"]
    except Refused as refusal:
        return refusal.status
    except subprocess.TimeoutExpired:
        return "no answer"


def full(suite, node, _device):
    """Requests for more memory than the node has, and for more than is free."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    suite.refused("more than the arena", lambda: alice.alloc(ARENA_BYTES + 1, 60), REFUSED, "CapacityExceeded")
    settled(alice, [ARENA_BYTES])
    lease = alice.alloc(ARENA_BYTES, 300)
    suite.equal("all of it leased: available", [0], memory(alice))
    suite.refused("full arena", lambda: bob.alloc(1, 60), REFUSED, ("CapacityExceeded", "ResourceBusy"))
    suite.equal("the lease that fills it is untouched", "ACTIVE", alice.query(lease)["status"])
    alice.free(lease)


def strangers(suite, node, _device):
    """Identities of another fabric, expired identities, and no identity."""
    node.tenant("alice")
    with tempfile.TemporaryDirectory() as directory, Node(device="none", address="127.0.0.1") as other:
        work, own = pathlib.Path(directory), node.operator.identity
        foreign = other.tenant("mallory").identity
        (work / "noise").write_bytes(os.urandom(2048))
        (work / "empty").touch()
        stranger = identities.stranger(own, foreign, work / "stranger")
        late = identities.expired(node.state_dir, work, work / "late")
        for name, path, statuses in (("an identity of another fabric", foreign, (1, REFUSED)),
                                     ("a certificate of another fabric", stranger, (REFUSED,)),
                                     ("an expired certificate", late, (REFUSED,)),
                                     ("an identity that is not there", work / "absent", (USAGE,)),
                                     ("an identity that is noise", work / "noise", (USAGE,)),
                                     ("an empty identity", work / "empty", (USAGE,))):
            if path is None:
                print(f"   not checked: {name} (openssl is missing)")
                continue
            try:
                answer = Fabric(path, node.address).ask("inventory")
                suite.check(name, False, "a refusal", answer)
            except Refused as refusal:
                suite.check(f"{name} is refused", refusal.status in statuses and refusal.message, f"exit {statuses}", refusal)
        issue = lambda: node.tenant("alice").issue("carol", work / "carol")
        suite.refused("a tenant may not issue identities", issue, REFUSED, "NotPermitted")
        suite.check("and no file is left", not (work / "carol").exists())


def noise(suite, node, _device):
    """Datagrams of any length and content."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for length in (0, 1, 8, 20, 64, 300, 1200, 1400, 9000):
            for first in (b"", b"\x40", b"\xc0\x00\x00\x00\x01", b"\xc3\xff\x00\x00\x1d\x08", b"\xff"):
                sender.sendto((first + os.urandom(length))[:max(length, len(first))], (ADDRESS, PORT))
    suite.equal("noise at the port: the node answers", 1, len(memory(node.operator)))
    for name, address in (("nothing listens", f"{ADDRESS}:5999"), ("a host that is not there", f"{NOWHERE}:{PORT}")):
        elsewhere = Fabric(node.operator.identity, address)
        suite.refused(f"a node that cannot be reached: {name}", lambda there=elsewhere: there.ask("inventory"), UNREACHABLE)


def without_device(suite, _node, _device):
    """A node without RDMA works."""
    with Node(device="none", address="127.0.0.1") as node:
        said = [line for line in node.lines if "rdma" in line.lower()]
        suite.check("no RDMA device: said once", len(said) == 1, "one line", said)
        inventory = node.operator.ask("inventory")
        suite.check("no RDMA device: there is an inventory", inventory["resources"], "resources", inventory)
        over_rdma = lambda: node.operator.alloc(4096, 60, PEER, 0, "--transport", "rdma")
        suite.refused("no RDMA device: memory over RDMA is refused", over_rdma, REFUSED)
        suite.equal("no RDMA device: SIGTERM", 0, node.stop())


def full_state_disk(suite, _node, _device):
    """A state directory without space is reported before a grant fails, and after."""
    with small_disk() as place, Node(device="none", address="127.0.0.1", state_dir=place / "state") as node:
        alice = node.tenant("alice")
        suite.equal("room on the state disk: the node is well", "ok", node.operator.ask("ping")["health"])
        with filled(place):
            ill = until(lambda: _unless_ok(node.operator), 60, "the node's health")
            suite.equal("none: degraded", "degraded", ill["health"])
            suite.check("and it says why", "--state-dir" in ill["health_reason"], "the setting", ill)
            # The journal may have space for some more grants.
            refused = until(lambda: _refused(alice), 60, "a refusal")
            suite.check("a grant is refused, and why", "journal" in refused.message, "the journal", refused)
            ill = node.operator.ask("inventory")
            suite.check("and the inventory says it", "journal" in ill["health_reason"], "the journal", ill["health_reason"])
        suite.check("room again: well", until(lambda: not _unless_ok(node.operator), 60, "the node's health"), "ok")
        alice.free(until(lambda: not _refused(alice) and alice.alloc(4096, 60), 60, "a grant"))


def _unless_ok(operator):
    inventory = operator.ask("inventory")
    return inventory if inventory["health"] != "ok" else None


def _refused(tenant):
    try:
        tenant.free(tenant.alloc(4096, 60))
    except Refused as refused:
        return refused
    return None


def main():
    """All sections; the inventory before and after is compared."""
    device = lab_device()
    with Suite("bad input") as suite, Node(mem_bytes=ARENA_BYTES) as node:
        before = memory(node.operator), resources()
        for section in (wrong_arguments, wrong_lease, too_early, strange_peers, crowd, full, strangers, noise):
            suite.section(section, suite, node, device)
        suite.equal("afterwards: free memory", before[0], settled(node.operator, before[0]))
        suite.equal("afterwards: rdma resource show", before[1], resources())
        suite.equal("afterwards: nothing is fenced", [], node.operator.fences())
        suite.equal("afterwards: no panic in the log", [], [line for line in node.lines if "panicked" in line])
        suite.equal("afterwards: SIGTERM", 0, node.stop())
        suite.section(without_device, suite, node, device)
        suite.section(full_state_disk, suite, node, device)


if __name__ == "__main__":
    main()
