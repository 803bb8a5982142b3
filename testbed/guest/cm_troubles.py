#!/usr/bin/python3
"""Sections of suite_rdma_cm.py about trouble: crowds of callers, another path MTU, a daemon that hangs, a full disk, and a
device that goes away."""
import contextlib
import json
import pathlib
import secrets
import signal
import subprocess

from checks import STOPPED_LATE_MS, in_full_length, leased, length, until, when_clean
from cm_clients import ACCEPTED, ENDS, LEASE_BYTES, NEXT, REASON, TEXT, attached, code_of, pairs
from fabric import REFUSED, Node, Refused, ensure_soft_roce, resources
from faults import filled, held, small_disk, thread_of

BUSY = "the node is too busy"
# MAKING_MAX and MAKING_OF_TENANT_MAX of node/src/kinds/memory/rdma_cm.rs, and CODES_MAX of control/lease/src/attach.rs.
PLACES, PLACES_OF_TENANT, CODES_MAX = 64, 32, 8
MORE = 16


def places(suite, node, clients):
    """More callers at once than the listener takes."""
    all_free(suite, node, clients, "at first")


def all_free(suite, node, clients, name):
    """Callers wait while the driver hangs: the listener takes 64 and refuses the others."""
    with contextlib.ExitStack() as stack:
        with hangs(node, "driver"):
            callers = stack.enter_context(clients.silent(secrets.token_hex(16) for _ in range(PLACES + MORE)))
            refused = callers.hear(MORE)
        # The kernel refuses without a word if the listener has not taken 64 requests yet.
        suite.check(f"{name}: callers beyond {PLACES} are refused at once", all(it.startswith("rejected:") for it in refused), "rejected", refused)
        suite.check(f"{name}: they are told that the node is too busy", any(BUSY in it for it in refused), BUSY, refused)
        waited = callers.hear(PLACES)
        suite.check(f"{name}: {PLACES} waited for their answer", all(REASON in it for it in waited), REASON, set(waited))


def hangs(node, thread):
    """A thread of the daemon hangs while the context lasts."""
    return held(thread_of(node.process.pid, thread))


@in_full_length
def crowd(suite, node, clients):
    """Callers that never finish hold the places of a tenant, and then all, for a time only."""
    alice, bob, carol = (node.tenant(name) for name in ("alice", "bob", "carol"))
    before = resources()
    leases = {tenant: [tenant.alloc(4096, 600) for _ in range(PLACES_OF_TENANT // CODES_MAX + 1)] for tenant in (alice, bob, carol)}

    def codes(tenant, count):
        return [code_of(tenant, leases[tenant][nth // CODES_MAX]) for nth in range(count)]

    def queue_pairs(tenant):
        return sum(pairs(tenant, lease) for lease in leases[tenant])
    over = PLACES_OF_TENANT + CODES_MAX
    many, one = codes(alice, over), code_of(bob, leases[bob][0])
    with contextlib.ExitStack() as stack:
        with hangs(node, "driver"):
            callers = stack.enter_context(clients.silent(many))
            callers.called(over)
            client = stack.enter_context(clients.rpma())
            client.say(f"code {one}")
        answers = callers.hear(over)
        accepted = answers.count(ACCEPTED)
        suite.equal(f"one tenant: {PLACES_OF_TENANT} callers of {over} are accepted", PLACES_OF_TENANT, accepted)
        suite.check("one tenant: the others are told that the node is too busy", all(BUSY in it for it in answers if it != ACCEPTED), BUSY, set(answers))
        suite.equal("one tenant: a caller of another gets in", "established 4096", client.hear())
        until(lambda: queue_pairs(alice) == 0, 120, "the end of the callers that never finish")
        suite.equal("one tenant: the other tenant's writes", "success", client.ask(f"write {TEXT}"))
        suite.equal("one tenant: the next caller gets in", ACCEPTED, clients.cm("code", code_of(alice, leases[alice][0])))
        client.ask("end")
    until(lambda: queue_pairs(alice) + queue_pairs(bob) == 0, 120, "no queue pair of a caller")
    halves, good = [codes(tenant, PLACES_OF_TENANT) for tenant in (alice, bob)], code_of(carol, leases[carol][0])
    with contextlib.ExitStack() as stack:
        with hangs(node, "driver"):
            callers = [stack.enter_context(clients.silent(half)) for half in halves]
            for half in callers:
                half.called(PLACES_OF_TENANT)
            suite.check("two tenants: one more is told that the node is too busy", BUSY in (got := clients.cm("code", good)), BUSY, got)
        for half in callers:
            suite.equal("two tenants: all of one are accepted", {ACCEPTED}, set(half.hear(PLACES_OF_TENANT)))
        until(lambda: queue_pairs(alice) + queue_pairs(bob) == 0, 120, "the end of the callers that never finish")
    suite.equal("two tenants: the code of who was refused is good", ACCEPTED, clients.cm("code", good))
    all_free(suite, node, clients, "after that")
    for tenant, its in leases.items():
        for lease in its:
            tenant.free(lease)
    until(lambda: resources() == before, what="the device as before")
    suite.equal("nothing is fenced", [], node.operator.fences())


def other_mtu(suite, node, clients, _):
    """A caller whose path MTU is not that of the lease."""
    alice = node.tenant("alice")
    lease = when_clean(lambda: alice.alloc(LEASE_BYTES, 300))
    with contextlib.ExitStack() as stack:
        client = attached(stack, clients, alice, lease, suite, "other MTU: the first client")
        own, queue_pairs = alice.query(lease)["binding"]["rdma"]["path_mtu"], resources()["qp"]
        code = code_of(alice, lease)
        with mtu_of_d0(9000):
            told = clients.cm("code", code)
        wanted = f"rejected: the path MTU of the lease is {own} bytes, and the caller's is 4096"
        suite.check("other MTU: a caller is refused, and told both", told.startswith(wanted), wanted, told)
        until(lambda: resources()["qp"] == queue_pairs and pairs(alice, lease) == 1, what="no queue pair of the caller")
        suite.equal("other MTU: the first client writes on", "success", client.ask(f"write {TEXT}"))
        suite.equal("other MTU: with the right one a caller gets in", ACCEPTED, clients.cm("code", code_of(alice, lease)))
        alice.free(lease)


@contextlib.contextmanager
def mtu_of_d0(size):
    """Changes the MTU of the device's interface, while the context lasts."""
    before = pathlib.Path("/sys/class/net/d0/mtu").read_text(encoding="ascii").strip()
    subprocess.run(["ip", "link", "set", "d0", "mtu", str(size)], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "set", "d0", "mtu", before], check=True)


def held_listener(suite, node, clients, device):
    """The thread of the listener hangs when a lease ends: the cut does not wait for it."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    for how in length(("freed", "expired"), ("freed",)):
        with contextlib.ExitStack() as stack:
            lease = when_clean(lambda: alice.alloc(LEASE_BYTES, 25))
            reader = attached(stack, clients, alice, lease, suite, f"listener hangs, {how}")
            reader.ask(f"write {TEXT}")
            reader.say(f"loop {TEXT}")
            with hangs(node, "rdma_cm"):
                if how == "freed":
                    alice.free(lease)
                alice.wait_until(lease, how)
                proof = node.wait_for_line(lease["lease_id"], "destroy_qp ok")
                suite.check(f"listener hangs, {how}: the cut is proved", proof, "a proof")
                _, client = when_clean(lambda: stack.enter_context(leased(bob, device, LEASE_BYTES)))
                suite.equal(f"listener hangs, {how}: the next tenant writes", "success", client.write(0, NEXT).status)
            _, foreign, untouched, status = reader.hear().split(" ", 3)
            suite.check(f"listener hangs, {how}: the reader's access ends", status in ENDS, ENDS, status)
            suite.equal(f"listener hangs, {how}: it saw nothing of the next tenant", ("0", "untouched"), (foreign, untouched))
            suite.equal(f"listener hangs, {how}: it hears the end of the connection when the thread goes on", "closed", reader.ask("event"))


@in_full_length
def stopped(suite, node, clients, device):
    """SIGSTOP of the daemon under a writer that has joined: the watchdog ends its access."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    with contextlib.ExitStack() as stack:
        lease = when_clean(lambda: alice.alloc(LEASE_BYTES, 25))
        writer = attached(stack, clients, alice, lease, suite, "stopped")
        writer.say(f"writes {TEXT}")
        number = alice.query(lease)["binding"]["rdma"]["qp_num"]
        connected = state_of(number)
        node.process.send_signal(signal.SIGSTOP)
        stack.callback(node.process.send_signal, signal.SIGCONT)
        until(lambda: state_of(number) != connected, what="the cut by the watchdog")
        node.process.send_signal(signal.SIGCONT)
        count, last_ms, status = writer.hear().split(" ", 2)
        late_ms = int(last_ms) - lease["expires_at_unix_ms"]
        print(f"   stopped: {count} writes, the last {late_ms:+d} ms from the deadline, then {status}", flush=True)
        suite.check("stopped: the writer's access ends", int(count) > 0 and status in ENDS, ENDS, (count, status))
        suite.check("stopped: at the deadline", late_ms < STOPPED_LATE_MS, f"before {STOPPED_LATE_MS} ms", late_ms)
        alice.wait_until(lease, "expired")
        proof = node.wait_for_line(lease["lease_id"], "the watchdog had put its queue pairs in ERR", "destroy_qp")
        suite.check("stopped: the daemon proves the end, and who began it", proof, "a proof")
        suite.equal("stopped: the writer hears the end of the connection", "closed", writer.ask("event"))
        _, client = when_clean(lambda: stack.enter_context(leased(bob, device, LEASE_BYTES)))
        suite.equal("stopped: the next tenant writes", "success", client.write(0, NEXT).status)
        suite.check("stopped: a later write fails", (got := writer.ask(f"write {TEXT}")) != "success", "an error", got)
        suite.equal("stopped: the next tenant's bytes are its own", NEXT, client.read(0, len(NEXT)).data)
        suite.equal("stopped: nothing is fenced", [], node.operator.fences())


def state_of(number):
    """The state of the queue pair with that number, as the kernel tells it."""
    shown = subprocess.run(["rdma", "-j", "resource", "show", "qp"], capture_output=True, text=True, check=True)
    return next(row["state"] for row in json.loads(shown.stdout) if row["lqpn"] == number and row["ifname"] == "rxe0")


@in_full_length
def full_disk(suite, clients, listen):
    """While the journal has no space, who has joined goes on. A join beside others writes nothing: it is refused only as long as
    the driver knows of a commit that failed."""
    with small_disk() as place, Node(*listen, state_dir=place / "state") as node, contextlib.ExitStack() as stack:
        alice = node.tenant("alice")
        lease = alice.alloc(LEASE_BYTES, 600)
        client = attached(stack, clients, alice, lease, suite, "full disk")
        queue_pairs = resources()["qp"]
        with filled(place):
            # The journal has space for some more leases.
            until(lambda: refused(alice), 120, "a journal that cannot be written")
            told = clients.cm("code", code_of(alice, lease))
            suite.check("full disk: a caller joins, or is refused and told why", told == ACCEPTED or "journal" in told, "the journal", told)
            until(lambda: resources()["qp"] == queue_pairs and pairs(alice, lease) == 1, 120, "no queue pair of the caller")
            suite.equal("full disk: who has joined writes on", "success", client.ask(f"write {TEXT}"))
        until(lambda: clients.cm("code", code_of(alice, lease)) == ACCEPTED, 120, "a caller that gets in")
        suite.equal("full disk: with space again, who has joined writes on", "success", client.ask(f"write {TEXT}"))
        alice.free(lease)


def refused(tenant):
    """Leases memory and gives it back; whether that is refused."""
    try:
        tenant.free(tenant.alloc(4096, 60))
    except Refused:
        return True
    return False


@in_full_length
def device_gone(suite, clients, listen, device):
    """The device goes away under the listener: no codes are told any more."""
    device.context.close()
    with Node(*listen, mem_bytes=LEASE_BYTES) as node:
        alice = node.tenant("alice")
        lease = alice.alloc(LEASE_BYTES, 600)
        # It returns when the daemon has closed the device.
        with subprocess.Popen(["rdma", "link", "delete", "rxe0"]) as deletes:
            suite.check("device gone: the log says it", node.wait_for_line("nobody can join a lease through rdma_cm any more"), "a line")
            words = ("lease", "bind", lease["lease_id"], "--attach-code")
            suite.refused("device gone: no codes are told", lambda: alice.ask(*words), REFUSED, "InvalidArgs", "rdma_cm listener has ended")
            node.kill()
            suite.equal("device gone: the device goes when the daemon is killed", 0, deletes.wait(60))
    ensure_soft_roce(interface="d0")
