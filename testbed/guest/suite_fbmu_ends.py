#!/usr/bin/python3
# lab: one-vm timeout=600
# covers: fallback-udp arena node/src/kinds/memory
"""Ends and changes of memory leases over UDP: a client that keeps writing is refused on time, keys rotate with and
without overlap, and a renewal in grace gives access to the bytes again under another key. The node runs without any
privilege."""
import contextlib
import os
import pathlib
import secrets
import shutil
import tempfile
import time

import fbmu_frame as f
from checks import Suite, give_back, length, programs
from fabric import NOT_FOUND, Node, program
from fbmu_client import Client, Place
from fbmu_frame import Frame
from fbmu_suite import PATTERN, Strangers, Writer, lease_of, leased, now_ms, unchanged

ENDS = {"NO_LEASE"}
TERM_SECS, GRACE_SECS = length(8, 5), 120
NOBODY = 65534


def ends(suite, node):
    """Free, expiry and revocation, each under a writer that does not stop, beside a lease that goes on."""
    bob, operator = node.tenant("bob"), node.operator
    ways = (("free", 300, bob.free, "freed", "EXPIRED"), ("revoke", 300, operator.revoke, "revoked", "REVOKED"),
            ("expiry", TERM_SECS, lambda lease: bob.wait_until(lease, "expired"), "expired", "EXPIRED"))
    long = lease_of(node.tenant("alice"))
    with Writer(long) as witness:
        for name, secs, end, state, status in ways:
            lease = lease_of(bob, secs=secs)
            with Writer(lease) as writer:
                end(lease)
                told_at_ms = now_ms()
                report = writer.report()
                over(suite, name, lease, writer)
            suite.ended(name, report, told_at_ms, ENDS)
            if name == "expiry":
                suite.on_time(name, lease, report)
            answer = bob.query(lease)
            suite.equal(f"{name}: query", (state, status), (answer["state"], answer["status"]))
            suite.check(f"{name}: no key in the answer", "dp_key" not in answer.get("binding", {}), "none", sorted(answer.get("binding", {})))
            suite.refused(f"{name}: no renewal", lambda lease=lease: bob.renew(lease), NOT_FOUND,
                          "Revoked" if state == "revoked" else ("Expired", "NotFound"))
        before_ms = now_ms()
        node.tenant("alice").free(long)
    suite.check("the lease beside them went on until it was freed", witness.end["failed_at_ms"] >= before_ms, before_ms, witness.end)


def over(suite, name, lease, writer):
    """Checks every operation on a lease that is over, with the key that was valid."""
    client, place = writer.client, Place.of(lease)
    nonce = client.session << 32 | 0x7FFFFFFF
    frames = [("READ", Frame(f.READ, place.lease_id, nonce, 0, 4)), ("WRITE", Frame(f.WRITE, place.lease_id, nonce, 0, 4, b"late")),
              ("PING", Frame(f.PING, place.lease_id, nonce)),
              ("HELLO", Frame(f.HELLO, place.lease_id, secrets.randbits(64), 0, 0, bytes(40)))]
    wrong = []
    for what, frame in frames:
        answers = [f.genuine(data, place.key) for data in exchange_over(client, frame)]
        if [reply and (reply.status, reply.payload) for reply in answers] != [(f.NO_LEASE, b"")]:
            wrong.append(f"{what}: {answers}")
    suite.check(f"{name}: everything afterwards is NO_LEASE", not wrong, "NO_LEASE under the right key", wrong)


def exchange_over(client, frame):
    """Sends a frame and returns its reply. After the end PING gets NO_LEASE too, so a PING cannot mark the end of the
    flow."""
    client.wire.send(frame.datagram(client.place.key))
    data = client.wire.receive(client.give_up_secs)
    return [data] if data else []


def stale(suite, node):
    """The old key after a rotation, the id of a freed lease, and a new lease in its place."""
    alice = node.tenant("alice")
    with leased(alice) as (lease, client):
        client.write(0, PATTERN)
        recorded = client.frame(f.WRITE, 0, 4, b"late")
        old = client.place.key
        rotated = alice.rotate(lease)
        suite.check("rotation: another key", rotated["binding"]["dp_key"] != lease["binding"]["dp_key"], "another key")
        client.rekey(rotated, open_session=False)
        suite.equal("rotation: the new key works in the same session", PATTERN[:4], client.read(0, 4))
        strangers = Strangers(suite, client)
        strangers.nothing("rotation: the old key", [("recorded", recorded.datagram(old)),
                          ("HELLO", recorded.but(op=f.HELLO, length=0, payload=bytes(40)).datagram(old)),
                          ("READ", client.frame(f.READ, 0, 4).datagram(old)), ("PING", client.frame(f.PING).datagram(old))])
        unchanged(suite, "rotation", client)
    successor = lease_of(alice)
    with Client(successor) as client:
        unchanged(suite, "a lease in its place reads as zeros", client, bytes(len(PATTERN)))
        renamed = Frame(f.WRITE, client.place.lease_id, client.session << 32 | 500, 0, 4, b"late")
        Strangers(suite, client).nothing("the ended lease's keys on it", [("old", renamed.datagram(old)),
                                         ("last", renamed.datagram(Place.of(rotated).key))])
        client.exchange(recorded.datagram(old), recorded.datagram(Place.of(rotated).key))
        unchanged(suite, "the ended lease's frames", client, bytes(len(PATTERN)))
    give_back(alice, successor)


def overlap(suite, node):
    """Both keys work for a while, on the same sessions."""
    alice = node.tenant("alice")
    with leased(alice) as (lease, client):
        client.write(0, PATTERN)
        old = client.place.key
        rotated = alice.rotate(lease, "--overlap-ms", 5000)
        new = Place.of(rotated).key
        by_old = client.ask(client.frame(f.READ, 0, 4))
        suite.equal("overlap: the old key still works", (f.OK, PATTERN[:4]), by_old and (by_old.status, by_old.payload))
        mixed = client.frame(f.WRITE, 8, 4, PATTERN[8:12])
        suite.equal("overlap: a write under the old key", f.OK, client.ask(mixed).status)
        client.rekey(rotated, open_session=False)
        suite.equal("overlap: the new key in the same session", PATTERN[:4], client.read(0, 4))
        reply = client.ask(mixed)
        suite.equal("overlap: the same request under the new key is another one", f.REPLAY, reply and reply.status)
        suite.check("overlap: its end is seen", until_dead(client, old), "INVALID under the old key within 60 s")
        suite.equal("overlap over: the new key works", PATTERN[:4], client.read(0, 4))
        late = client.frame(f.WRITE, 0, 4, b"late")
        Strangers(suite, client).nothing("overlap over: the old key", [("WRITE", late.datagram(old))])
        unchanged(suite, "overlap over", client)
        suite.check("overlap: two keys", old != new, "different keys")


def until_dead(client, key):
    """Sends PINGs under a key until the node does not know the key any more."""
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        ping = Frame(f.PING, client.place.lease_id, secrets.randbits(64)).datagram(key)
        if not any(f.genuine(data, key) for data in client.exchange(ping)):
            return True
    return False


def grace(suite, node):
    """The bytes are kept, access is not; a renewal gives access again under another key."""
    alice = node.tenant("alice")
    lease = lease_of(alice, secs=TERM_SECS, grace_secs=GRACE_SECS)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(lease))
        client.write(4096, PATTERN[4096:])
        recorded = client.frame(f.WRITE, 4096, 4, b"late")
        writer = stack.enter_context(Writer(lease))
        alice.wait_until(lease, "grace")
        told_at_ms = now_ms()
        report = writer.report()
        suite.ended("grace", report, told_at_ms, ENDS)
        suite.on_time("grace", lease, report)
        over(suite, "in grace", lease, writer)
        renewed = alice.renew(lease)
        suite.equal("renewed in grace: status", ("active", "ACTIVE"), (renewed["state"], renewed["status"]))
        suite.check("renewed in grace: another key", renewed["binding"]["dp_key"] != lease["binding"]["dp_key"], "another key")
        fresh = stack.enter_context(Client(renewed))
        fresh.exchange(recorded.datagram(client.place.key))
        suite.check("renewed in grace: the bytes are there", fresh.read(4096, len(PATTERN) - 4096) == PATTERN[4096:], "what was written")
        count = int.from_bytes(fresh.read(0, 8), "big")
        suite.equal("renewed in grace: the last acknowledged write", report["writes"], count)
    give_back(alice, lease)


@contextlib.contextmanager
def unprivileged():
    """A node of the user `nobody`, without privileges and without a way to get any. The programs are copied, since not
    every user can read the build directory."""
    with tempfile.TemporaryDirectory() as place:
        for name in ("fabricbiosd", "fabricctl"):
            shutil.copy(program(name), place)
        os.chmod(place, 0o755)
        os.environ["FABRICBIOS_BIN"] = place
        state = pathlib.Path(place) / "state"
        state.mkdir(mode=0o700)
        os.chown(state, NOBODY, NOBODY)
        within = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all",
                  "--no-new-privs")
        with Node(device="none", state_dir=state, within=within) as node:
            yield node


def privileges(suite, node):
    """Checks the credentials of the process."""
    status = pathlib.Path(f"/proc/{node.process.pid}/status").read_text(encoding="ascii").splitlines()
    rows = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    held = (rows["Uid"].split()[1], rows["CapEff"], rows["CapBnd"])
    suite.equal("the node's user and capabilities", (str(NOBODY), "0" * 16, "0" * 16), held)


def main():
    """All sections on one node without an RDMA device."""
    programs()
    with Suite("fbmu ends") as suite, unprivileged() as node:
        for section in (privileges, ends, stale, overlap, grace):
            suite.section(section, suite, node)


if __name__ == "__main__":
    main()
