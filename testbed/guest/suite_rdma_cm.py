#!/usr/bin/python3
# lab: one-vm quiet timeout=600
# covers: client/cli rdma verbs arena node/src/kinds/memory
"""Programs that connect with rdma_cm, on leased memory: an unmodified librpma with an attach code, and callers that have
none. The clients are `rpma_client.c` and `cm_client.c`."""
import contextlib
import sys
import tempfile

from checks import Suite, lab_device, leased, length, until, when_clean
from cm_clients import ACCEPTED, CM_PORT, ENDS, LEASE_BYTES, NEXT, REASON, TEXT, Clients, attached, code_of, compiled, pairs
from cm_troubles import crowd, device_gone, full_disk, held_listener, other_mtu, places, stopped
from fabric import ADDRESS, REFUSED, Node, resources

CODES_MAX = 8


def use(suite, node, clients, _):
    """librpma writes and reads through a lease; a second client reads the same bytes; who goes gives its queue pair back."""
    alice, before = node.tenant("alice"), resources()
    with contextlib.ExitStack() as stack:
        lease = alice.alloc(LEASE_BYTES, 300)
        first = attached(stack, clients, alice, lease, suite, "the first client")
        suite.equal("it writes", "success", first.ask(f"write {TEXT}"))
        suite.equal("it reads", f"success: {TEXT}", first.ask(f"read {len(TEXT)}"))
        second = attached(stack, clients, alice, lease, suite, "the second client")
        suite.equal("it reads what the first one wrote", f"success: {TEXT}", second.ask(f"read {len(TEXT)}"))
        suite.equal("two queue pairs", 2, pairs(alice, lease))
        suite.equal("the second client ends its connection", "closed", second.ask("end"))
        until(lambda: pairs(alice, lease) == 1, what="the queue pair of the client that has gone")
        third = attached(stack, clients, alice, lease, suite, "the third client")
        third.process.kill()
        until(lambda: pairs(alice, lease) == 1, what="the queue pair of the client that was killed")
        suite.equal("the first client reads on", f"success: {TEXT}", first.ask(f"read {len(TEXT)}"))
        alice.free(lease)
        suite.equal("free: the client hears the end", "closed", first.ask("event"))
    until(lambda: resources() == before, what="the device as before")


def ends(suite, node, clients, device):
    """The lease ends under a reader, by its term or because it is freed."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    for how in length(("freed", "revoked", "expired"), ("freed",)):
        with contextlib.ExitStack() as stack:
            lease = when_clean(lambda: alice.alloc(LEASE_BYTES, 25))
            reader = attached(stack, clients, alice, lease, suite, how)
            reader.ask(f"write {TEXT}")
            reader.say(f"loop {TEXT}")
            if how == "freed":
                alice.free(lease)
            elif how == "revoked":
                node.operator.revoke(lease)
            else:
                alice.wait_until(lease, "expired")
            _, client = when_clean(lambda: stack.enter_context(leased(bob, device, LEASE_BYTES)))
            suite.equal(f"{how}: the next tenant writes", "success", client.write(0, NEXT).status)
            reads, foreign, untouched, status = reader.hear().split(" ", 3)
            print(f"   {how}: {reads} reads, then {status}", flush=True)
            suite.check(f"{how}: the reader's access ends", status in ENDS, ENDS, status)
            suite.equal(f"{how}: it saw nothing of the next tenant", ("0", "untouched"), (foreign, untouched))
            suite.equal(f"{how}: it hears the end of the connection", "closed", reader.ask("event"))
            suite.equal(f"{how}: the next tenant's bytes are its own", NEXT, client.read(0, len(NEXT)).data)


def refusals(suite, node, clients, _):
    """Wrong, used and ended codes, and none, are refused with the same reason and without a queue pair."""
    alice = node.tenant("alice")
    lease, other = alice.alloc(LEASE_BYTES, 300), alice.alloc(LEASE_BYTES, 300)
    used, ended = code_of(alice, lease), code_of(alice, other)
    alice.free(other)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(clients.rpma())
        suite.equal("a code works", f"established {LEASE_BYTES}", client.ask(f"code {used}"))
        until(lambda: alice.query(other)["state"] == "freed", what="the end of the other lease")
        quiet = until(lambda: (now := resources()) == resources() and now, what="a device that is quiet")
        cases = (("a used code", ("code", used)), ("the code of an ended lease", ("code", ended)), ("no code", ("code",)),
                 ("a short code", ("code", used[:8])), ("a code of zeroes", ("code", "00" * 16)))
        reasons = {clients.cm(*words) for _, words in cases}
        suite.check("refused, all with the same reason", len(reasons) == 1 and f"rejected: {REASON}" in min(reasons), f"{REASON!r}", reasons)
        second = stack.enter_context(clients.rpma())
        suite.equal("librpma with a used code", "rejected", second.ask(f"code {used}"))
        second.process.kill()
        second.process.wait()
        count = length(5000, 100)
        told = clients.cm("guess", count)
        suite.check("guessed codes are refused", told.startswith(f"{count} rejected: {REASON}"), f"{count} rejected", told)
        suite.equal("no queue pair was made for them", quiet["qp"], until(
            lambda: (now := resources())["qp"] == quiet["qp"] and now, what="the queue pairs as before")["qp"])
        suite.equal("the client that is in writes on", "success", client.ask(f"write {TEXT}"))
        suite.equal("the lease has one queue pair", 1, pairs(alice, lease))
        few = [line for line in node.lines if "a caller of rdma_cm is refused" in line]
        suite.check("the log is not flooded", len(few) < count / 2, f"fewer than {count / 2:.0f} lines", len(few))
        silent_caller(suite, clients, alice, lease, quiet["qp"])
        the_asker(suite, node, alice, lease)
        alice.free(lease)


def silent_caller(suite, clients, alice, lease, queue_pairs):
    """A caller that is accepted and says no more, and one that is killed at that moment, keep no queue pair. The lease has
    one other; `queue_pairs`: how many the device has."""
    for is_killed in length((False, True), (False,)):
        what = "a caller that never finishes and is killed" if is_killed else "a caller that never finishes"
        with clients.silent([code_of(alice, lease)]) as silent:
            # The node has made its queue pair: the acceptance names it.
            suite.equal(f"{what}: it hears that it is accepted", [ACCEPTED], silent.hear())
            if is_killed:
                silent.process.kill()
            left = until(lambda: pairs(alice, lease) == 1 and resources()["qp"] == queue_pairs, secs=120, what=f"the end of the queue pair of {what}")
            suite.check(f"{what}: its queue pair is taken away", left, "one queue pair", pairs(alice, lease))


def the_asker(suite, node, alice, lease):
    """Who may ask for codes, and for how many."""
    words = ("lease", "bind", lease["lease_id"], "--attach-code")
    suite.refused("another tenant asks for a code", lambda: node.tenant("bob").ask(*words), code="NotFound")
    codes = {code_of(alice, lease) for _ in range(CODES_MAX)}
    suite.equal("each code is another one", CODES_MAX, len(codes))
    suite.refused("one code too many", lambda: alice.ask(*words), REFUSED, "ResourceBusy", "use one of them")
    shown = str(alice.query(lease)) + str(alice.ask("lease", "list")) + "\n".join(node.lines)
    suite.check("codes are in no answer but their own, and not in the log", not any(code in shown for code in codes), "no code")


def killed(suite, node, clients, _):
    """SIGKILL of the daemon: the client's access ends, and it hears so."""
    alice = node.tenant("alice")
    with contextlib.ExitStack() as stack:
        lease = alice.alloc(LEASE_BYTES, 300)
        client = attached(stack, clients, alice, lease, suite, "SIGKILL")
        unspent = code_of(alice, lease)
        client.ask(f"write {TEXT}")
        client.say(f"loop {TEXT}")
        node.kill()
        _, foreign, untouched, status = client.hear().split(" ", 3)
        suite.check("SIGKILL: the reader's access ends", status in ENDS, ENDS, status)
        suite.equal("SIGKILL: nothing was read after", ("0", "untouched"), (foreign, untouched))
        suite.equal("SIGKILL: the client hears it", "closed", client.ask("event"))
        node.start()
        suite.check("a code from before the start is refused", REASON in (got := clients.cm("code", unspent)), REASON, got)


def no_listener(suite):
    """A node without the setting says so, and one with a wrong address does not start."""
    with Node(mem_bytes=LEASE_BYTES) as node:
        alice = node.tenant("alice")
        lease = alice.alloc(LEASE_BYTES, 300)
        words = ("lease", "bind", lease["lease_id"], "--attach-code")
        suite.refused("no listener", lambda: alice.ask(*words), REFUSED, "InvalidArgs", "--rdma-cm-listen")
        alice.free(lease)
    try:
        with Node("--rdma-cm-listen", f"127.0.0.1:{CM_PORT}", mem_bytes=LEASE_BYTES):
            suite.check("an address that is not the device's", False, "no start")
    except RuntimeError as error:
        suite.check("an address that is not the device's: the error names the right one", f"reached at {ADDRESS}" in str(error),
                    ADDRESS, str(error)[-300:])


def main():
    """All sections."""
    device = lab_device()
    with tempfile.TemporaryDirectory() as place, Suite("rdma_cm") as suite:
        compiled(place)
        clients, listen = Clients(place), ("--rdma-cm-listen", f"{ADDRESS}:{CM_PORT}")
        for strategy in length(("window", "region"), ("window",)):
            with Node(*listen, "--rdma-strategy", strategy, mem_bytes=4 * LEASE_BYTES) as node:
                for section in (use, refusals, killed):
                    suite.section(section, suite, node, clients, device)
        # The next tenant gets the same bytes: there are no others.
        with Node(*listen, mem_bytes=LEASE_BYTES) as node:
            for section in (ends, held_listener, stopped, other_mtu):
                suite.section(section, suite, node, clients, device)
        with Node(*listen) as node:
            for section in (places, crowd):
                suite.section(section, suite, node, clients)
        suite.section(full_disk, suite, clients, listen)
        suite.section(no_listener, suite)
        suite.section(device_gone, suite, clients, listen, device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
