"""Queue pairs that join a live binding of leased memory or leave it, from the clients' side: the others go on."""
import contextlib

from checks import length, rearm, until
from fabric import REFUSED, USAGE, Refused, resources
from rdma_client import REMOTE_ACCESS_ERROR, Client, now_ms
from writer import Writer

LEASE_BYTES = 65536
MOST = 64
OF_A_REQUEST = 8


def flags(clients):
    """The `--rdma-peer` flags of these clients."""
    return [word for client in clients for word in ("--rdma-peer", client.peer)]


def beside(tenant, lease, clients):
    """Lets these clients join; they are connected afterwards."""
    told = tenant.ask("lease", "bind", lease["lease_id"], "--beside", *flags(clients))
    pairs = told["binding"]["rdma"].get("qps", [None])
    for nth, client in enumerate(clients):
        client.connect(told, len(pairs) - len(clients) + nth)
    return told


def leave(tenant, lease, *numbers):
    """Lets queue pairs of the node leave."""
    return tenant.ask("lease", "bind", lease["lease_id"], *(word for number in numbers for word in ("--leave", number)))


def numbers(told):
    """The numbers of the node's queue pairs."""
    rdma = told["binding"]["rdma"]
    return [pair["qp_num"] for pair in rdma.get("qps", [rdma])]


def others_go_on(suite, node, device):
    """Queue pairs join and leave beside a writer, which gets no error before the lease ends."""
    alice, before = node.tenant("alice"), resources()
    with Writer() as writer, contextlib.ExitStack() as stack:
        first, second, third = (stack.enter_context(Client(device)) for _ in range(3))
        lease = alice.alloc(LEASE_BYTES, 300, writer.peer)
        generation = lease["generation"]
        suite.check("the first client writes", writer.start(lease, LEASE_BYTES - 4096), "a write")
        told = beside(alice, lease, [first, second])
        suite.equal("two join: the binding is the same one", (generation, 3), (told["generation"], len(numbers(told))))
        suite.equal("two join: each writes", ["success"] * 2, [first.write(0, b"first").status, second.write(8, b"second").status])
        suite.equal("lease query tells all", numbers(told), numbers(alice.query(lease)))
        told = leave(alice, lease, numbers(told)[1])
        left_at_ms = now_ms()
        suite.check("one leaves: its client has no access", not first.write(0, b"again").ok, "an error")
        suite.equal("one leaves: the other reads its bytes", b"first", second.read(0, 5).data)
        suite.equal("one leaves: two stay", 2, len(numbers(told)))
        told = beside(alice, lease, [third])
        suite.equal("another joins in its place", ("success", 3), (third.write(0, b"third").status, len(numbers(told))))
        first.fresh()
        beside(alice, lease, [first])
        suite.equal("a client that has left joins again", b"third", first.read(0, 5).data)
        freed_at_ms = now_ms()
        alice.free(lease)
        told_at_ms = now_ms()
        report = writer.report()
        suite.ended("free", report, told_at_ms)
        suite.check("the writer wrote until the lease was freed", report["failed_at_ms"] >= freed_at_ms > left_at_ms, "no earlier error", report)
        dead = [client.write(0, b"x").ok for client in (first, second, third)]
        suite.equal("free: nobody has access", [False] * 3, dead)
        alice.wait_until(lease, "freed")
    until(lambda: resources() == before, what="the device as before")


def a_fault_of_one(suite, node, device):
    """A client that makes a fault loses its own queue pair; the other goes on, and rotation waits until it has left."""
    alice = node.tenant("alice")
    with Client(device) as good, Client(device) as bad:
        lease = alice.alloc(LEASE_BYTES, 300, good.peer)
        good.connect(lease)
        told = beside(alice, lease, [bad])
        suite.equal("a fault of one", REMOTE_ACCESS_ERROR, bad.write(LEASE_BYTES, b"x").status)
        suite.equal("a fault of one: the other writes", "success", good.write(0, b"good").status)
        suite.refused("rotation with a failed queue pair", lambda: alice.rotate(lease), REFUSED, "InvalidArgs", "failed")
        leave(alice, lease, numbers(told)[-1])
        good.rdma = alice.rotate(lease)["binding"]["rdma"]
        suite.equal("rotation after it has left", b"good", good.read(0, 4).data)
        alice.free(lease)


def all_leave(suite, node, device):
    """A lease whose queue pairs have all left has no key, and takes new ones."""
    alice = node.tenant("alice")
    with Client(device) as client:
        lease = alice.alloc(LEASE_BYTES, 300, client.peer)
        client.connect(lease)
        client.write(0, b"kept")
        told = leave(alice, lease, *numbers(lease))
        rdma = told["binding"]["rdma"]
        suite.equal("all leave: no queue pair and no key", (0, None), (rdma["qp_num"], rdma.get("rkey")))
        is_region = rdma["strategy"] == "region"
        key = lease["binding"]["rdma"]["rkey"] if is_region else None
        suite.equal("all leave: a region keeps its key for the next one", key, rdma.get("prepared_rkey"))
        suite.check("all leave: no access", not client.write(0, b"x").ok, "an error")
        suite.refused("all leave: no rotation", lambda: alice.rotate(lease), REFUSED, "InvalidArgs", "LEASE_BIND")
        client.fresh()
        beside(alice, lease, [client])
        suite.equal("one joins after all have left", b"kept", client.read(0, 4).data)
        rearm(alice, lease, client)
        suite.equal("a new binding in place of it", b"kept", client.read(0, 4).data)
        alice.free(lease)


def as_many_as_fit(suite, node, device):
    """64 queue pairs, eight a request; one more is refused, and the end cuts all of them."""
    alice, bob, before = node.tenant("alice"), node.tenant("bob"), resources()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(device, 4096)) for _ in range(MOST + 1)]
        lease = alice.alloc(LEASE_BYTES, 300)
        for first in range(0, MOST, OF_A_REQUEST):
            told = beside(alice, lease, clients[first:first + OF_A_REQUEST])
        suite.equal("64 queue pairs", MOST, len(set(numbers(told))))
        written = [client.write(8 * nth, nth.to_bytes(8, "big")).status for nth, client in enumerate(clients[:MOST])]
        suite.equal("64 queue pairs: each writes", {"success"}, set(written))
        suite.refused("one more", lambda: beside(alice, lease, clients[MOST:]), REFUSED, "InvalidArgs", "64")
        suite.refused("nine in a request", lambda: beside(alice, lease, clients[:9]), None, ("InvalidIntent", "Usage"))
        suite.refused("an unknown queue pair leaves", lambda: leave(alice, lease, 1), REFUSED, "InvalidArgs", "queue pair 1 ")
        suite.refused("nothing joins and nothing leaves", lambda: alice.ask("lease", "bind", lease["lease_id"]), USAGE, "Usage")
        suite.refused("a stranger", lambda: leave(bob, lease, numbers(told)[0]), None, ("NotPermitted", "NotFound"))
        suite.refused("an address that nobody has", lambda: alice.ask("lease", "bind", lease["lease_id"], "--beside", "--rdma-peer",
                                                                    "qpn=17,gid=10.77.0.250,psn=1"), REFUSED, "InvalidArgs")
        suite.equal("after the refusals the first still reads", (0).to_bytes(8, "big"), clients[0].read(0, 8).data)
        ended = alice.free(lease)
        proof = {step["step"]: step.get("found") for step in ended["proof"]}
        suite.equal("the proof covers all of them", ("64 times", "64 times"), (proof.get("destroy_qp"), proof.get("restrack")))
        # Each takes half a second: nobody answers.
        dead = clients[:MOST:length(1, 9)]
        suite.equal("64 queue pairs: none has access", {False}, {client.write(0, b"x").ok for client in dead})
        alice.wait_until(lease, "freed")
    until(lambda: resources() == before, what="the device as before")


def prepared_key(suite, node, device):
    """The key of a region is told before the client's queue pair, and gives no access until then."""
    alice = node.tenant("alice")
    with Client(device) as client, Client(device) as other:
        lease = alice.alloc(LEASE_BYTES, 300)
        rdma = lease["binding"]["rdma"]
        if rdma["strategy"] != "region":
            suite.check("a window has no key before", "prepared_rkey" not in rdma and "rkey" not in rdma, "no key", rdma)
            return alice.free(lease)
        key = rdma["prepared_rkey"]
        suite.check("a prepared key is no key", "rkey" not in rdma, "no rkey", rdma)
        with contextlib.suppress(Refused):
            client.connect(lease)
            suite.check("a prepared key gives no access", not client.read(0, 8, rkey=key).ok, "an error")
        client.fresh()
        told = beside(alice, lease, [client])
        suite.equal("the first bind opens it", (key, "success"), (told["binding"]["rdma"]["rkey"], client.write(0, b"a", rkey=key).status))
        beside(alice, lease, [other])
        suite.equal("who joins has the same key", b"a", other.read(0, 1, rkey=key).data)
        alice.free(lease)


SECTIONS = (others_go_on, a_fault_of_one, all_leave, as_many_as_fit, prepared_key)
