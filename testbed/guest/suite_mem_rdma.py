#!/usr/bin/python3
# lab: one-vm quiet timeout=1200
# covers: rdma verbs arena fallback-udp node/src/kinds/memory
"""Leased memory over RDMA, from the client's side: it can be used only within the lease and only until the lease ends,
however the lease ends. MEM_CYCLES is the number of leases that are granted and freed to check that nothing stays
behind."""
import contextlib
import json
import os
import pathlib
import subprocess
import sys

import mem_peers
from checks import Suite, lab_device, leased, length, rearm, when_clean
from fabric import NOT_FOUND, PORT, Node, resources
from rdma_client import REMOTE_ACCESS_ERROR, Client, now_ms
from writer import Writer

LEASE_BYTES = 65536
ARENA_BYTES = 16 << 20
CLIENT = pathlib.Path(__file__).with_name("rdma_client.py")
CYCLES = int(os.environ.get("MEM_CYCLES", length("30", "10")))
# A queue pair that is destroyed before its window keeps the kernel busy for 51 s. An orderly cut takes milliseconds,
# and some hundred times that on an emulated processor.
STALL_LIMIT_MS = 10_000


def use(suite, node, device):
    """Read, write, to the first and the last byte."""
    with leased(node.tenant("alice"), device) as (lease, client):
        zeros = client.read(0, LEASE_BYTES)
        suite.check("a new lease reads as zeros", zeros.data == bytes(LEASE_BYTES), "65536 zeros", zeros.status)
        pattern = bytes(range(256)) * (LEASE_BYTES // 256)
        suite.equal("write of all bytes", "success", client.write(0, pattern).status)
        suite.check("read of all bytes", client.read(0, LEASE_BYTES).data == pattern, "what was written")
        suite.equal("write of the last byte", "success", client.write(LEASE_BYTES - 1, b"z").status)
        suite.equal("read of the last bytes", pattern[-4:-1] + b"z", client.read(LEASE_BYTES - 4, 4).data)
        suite.equal("query: state", ("active", "ACTIVE"), tuple(map(node.tenant("alice").query(lease).get, ("state", "status"))))


def by_hand(suite, node, _device):
    """The client as a command, as docs/rdma-client.md shows it."""
    alice = node.tenant("alice")
    with subprocess.Popen([sys.executable, CLIENT, "--device", "rxe0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as command:
        lease = alice.alloc(LEASE_BYTES, 300, json.loads(command.stdout.readline())["rdma_peer"])
        said, _ = command.communicate(f"connect {json.dumps(lease)}\nwrite 0 hello world\nread 0 11\nread x\n")
    said = [json.loads(line) for line in said.splitlines()]
    suite.equal("by hand: connected", [{"connected": True}], said[:1])
    suite.equal("by hand: write, and read what was written", [("success", ""), ("success", "hello world")],
                [(answer.get("status"), answer.get("text")) for answer in said[1:3]])
    suite.check("by hand: a mistake is told", "error" in said[-1], "an error", said[-1])
    alice.free(lease)


def atomics(suite, node, device):
    """Compare-and-swap and fetch-and-add, if the lease has them."""
    with leased(node.tenant("alice"), device) as (lease, client):
        offered = lease["binding"]["rdma"]["atomics"]
        suite.equal("the lease offers atomics if the device has them", device.has_atomics, offered)
        if not offered:
            return
        values = [client.fetch_and_add(8, 5), client.fetch_and_add(8, 2), client.compare_and_swap(8, 7, 99),
                  client.compare_and_swap(8, 7, 1), client.read(8, 8)]
        suite.equal("atomics return what was there", [0, 5, 7, 99, 99], [int.from_bytes(v.data, "little") for v in values])


def bind_later(suite, node, device):
    """The queue pair is bound after the lease was granted."""
    tenant = node.tenant("alice")
    lease = tenant.alloc(LEASE_BYTES, 300)
    suite.check("no key before the client's queue pair is known", "rkey" not in lease["binding"].get("rdma", {}), "no rkey")
    with Client(device) as client:
        client.connect(tenant.bind(lease, client.peer))
        suite.equal("bound later: write", "success", client.write(0, b"later").status)
        tenant.free(lease)


def side_by_side(suite, node, device):
    """Four leases of two tenants, each with its own bytes."""
    tenants = [node.tenant("alice"), node.tenant("bob")]
    clients = [Client(device) for _ in range(4)]
    leases = [tenants[i % 2].alloc(LEASE_BYTES, 300, client.peer) for i, client in enumerate(clients)]
    for client, lease in zip(clients, leases):
        client.connect(lease)
    contents = [bytes([65 + i]) * LEASE_BYTES for i in range(4)]
    written = [client.write(0, content).status for client, content in zip(clients, contents)]
    suite.equal("four leases: writes", ["success"] * 4, written)
    held = [client.read(0, LEASE_BYTES).data for client in clients]
    suite.check("four leases: each holds its own bytes", held == contents, "A, B, C, D", [h[:1] for h in held])
    keys = {lease["binding"]["rdma"]["rkey"] for lease in leases}
    suite.equal("four leases: four keys", 4, len(keys))
    for i, client in enumerate(clients):
        tenants[i % 2].free(leases[i])
        client.close()


def several_queue_pairs(suite, node, device):
    """One lease, three queue pairs: each works with its own key, all end together."""
    alice, clients = node.tenant("alice"), [Client(device) for _ in range(3)]
    peers = [word for client in clients for word in ("--rdma-peer", client.peer)]
    lease = alice.alloc(LEASE_BYTES, 300, None, 0, *peers)
    for which, client in enumerate(clients):
        client.connect(lease, which)
        suite.equal(f"queue pair {which} of 3: write", "success", client.write(which, bytes([65 + which])).status)
    suite.equal("all of them write the same bytes", b"ABC", clients[0].read(0, 3).data)
    suite.equal("a queue pair for each", 3, len({pair["qp_num"] for pair in lease["binding"]["rdma"]["qps"]}))
    alice.free(lease)
    for which, client in enumerate(clients):
        suite.check(f"queue pair {which} of 3: dead after the lease", not client.write(0, b"x").ok, "an error")
        client.close()


def keys_of_others(suite, node, device):
    """An unknown key and the key of a neighbour, over the client's own queue pair."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    with leased(alice, device) as (lease, client), leased(bob, device) as (other, neighbour):
        neighbour.write(0, b"bob's bytes")
        client.write(0, b"alice's bytes")
        wrong = client.write(0, b"x", rkey=lease["binding"]["rdma"]["rkey"] ^ 0x5A5A5A00)
        suite.equal("wrong key", REMOTE_ACCESS_ERROR, wrong.status)
        lease = rearm(alice, lease, client)
        foreign = other["binding"]["rdma"]
        away = foreign["remote_addr"] - lease["binding"]["rdma"]["remote_addr"]
        suite.equal("neighbour's key: write", REMOTE_ACCESS_ERROR, client.write(away, b"x", rkey=foreign["rkey"]).status)
        rearm(alice, lease, client)
        suite.equal("neighbour's key: read", REMOTE_ACCESS_ERROR, client.read(away, 8, rkey=foreign["rkey"]).status)
        suite.equal("the neighbour does not notice", b"bob's bytes", neighbour.read(0, 11).data)
        rearm(alice, lease, client)
        suite.equal("armed again: the bytes are still there", b"alice's bytes", client.read(0, 13).data)


def two_arenas(suite, node, device):
    """A node with two arenas, one of them in a file: no key of one arena opens a byte of the other, and their leases
    end independently."""
    strategy = node.command[node.command.index("--rdma-strategy") + 1]
    file = pathlib.Path("/dev/shm/fabricbios-far")
    more = ("--rdma-strategy", strategy, "--fbmu-listen", "none", "--mem-arena", f"far=1MiB,file={file}")
    with contextlib.ExitStack() as stack:
        stack.callback(file.unlink, missing_ok=True)
        alice = stack.enter_context(Node(*more, mem_bytes="1MiB", port=PORT + 10)).tenant("alice")
        clients = [stack.enter_context(Client(device)) for _ in ("mem0", "far")]
        leases = [alice.alloc(LEASE_BYTES, 300, client.peer, 0, "--resource", name) for client, name in zip(clients, ("mem0", "far"))]
        suite.equal("two arenas: two resources", 2, len({lease["resource_id"] for lease in leases}))
        for client, lease, text in zip(clients, leases, (b"near", b"far!")):
            client.connect(lease)
            suite.equal("two arenas: a new lease reads as zeros", bytes(4), client.read(0, 4).data)
            suite.equal("two arenas: write", "success", client.write(0, text).status)
        suite.equal("two arenas: each its own bytes", [b"near", b"far!"], [client.read(0, 4).data for client in clients])
        for which, name in enumerate(("mem0", "far")):
            client, other = clients[which], leases[1 - which]["binding"]["rdma"]
            away = other["remote_addr"] - leases[which]["binding"]["rdma"]["remote_addr"]
            for whose, rkey in (("its own key", None), ("the other's key", other["rkey"])):
                suite.equal(f"out of {name}, {whose}: write", REMOTE_ACCESS_ERROR, client.write(away, b"!!!!", rkey=rkey).status)
                leases[which] = rearm(alice, leases[which], client)
                suite.equal(f"out of {name}, {whose}: read", REMOTE_ACCESS_ERROR, client.read(away, 4, rkey=rkey).status)
                leases[which] = rearm(alice, leases[which], client)
        suite.equal("two arenas: no byte has changed", [b"near", b"far!"], [client.read(0, 4).data for client in clients])
        short = stack.enter_context(Client(device))
        lease = alice.alloc(LEASE_BYTES, 5, short.peer, 0, "--resource", "mem0")
        short.connect(lease)
        short.write(0, b"short")
        alice.wait_until(lease, "expired")
        suite.check("two arenas: the lease that has expired is dead", not short.write(0, b"x").ok, "an error")
        suite.equal("two arenas: those of both arenas go on", ["success"] * 2, [client.write(4, b"on").status for client in clients])


def out_of_bounds(suite, node, device):
    """An access one byte out of bounds is refused and changes nothing, and the lease can be bound again."""
    alice = node.tenant("alice")
    with leased(alice, device) as (_, low), leased(alice, device) as (lease, client), leased(alice, device) as (_, high):
        low.write(0, b"L" * LEASE_BYTES)
        high.write(0, b"H" * LEASE_BYTES)
        before = lease["binding"]["rdma"]
        for name, offset, length in (("across the end", LEASE_BYTES - 4, 8), ("past the end", LEASE_BYTES, 1),
                                     ("across the start", -1, 2), ("before the start", -8, 8)):
            suite.equal(f"write {name}", REMOTE_ACCESS_ERROR, client.write(offset, b"!" * length).status)
            lease = rearm(alice, lease, client)
            suite.equal(f"read {name}", REMOTE_ACCESS_ERROR, client.read(offset, length).status)
            lease = rearm(alice, lease, client)
        after = lease["binding"]["rdma"]
        suite.check("armed again: new queue pair, new key, same bytes",
                    after["qp_num"] != before["qp_num"] and after["rkey"] != before["rkey"]
                    and after["remote_addr"] == before["remote_addr"], before, after)
        suite.equal("armed again: write", "success", client.write(0, b"again").status)
        suite.check("what lies beside was not touched", low.read(0, LEASE_BYTES).data == b"L" * LEASE_BYTES
                    and high.read(0, LEASE_BYTES).data == b"H" * LEASE_BYTES, "L… and H…")


def rotation(suite, node, device):
    """Without overlap the old key does not work any more when the answer comes; with overlap it ends by itself."""
    alice = node.tenant("alice")
    with leased(alice, device) as (lease, client):
        client.write(0, b"kept")
        old = lease["binding"]["rdma"]["rkey"]
        rotated = alice.rotate(lease)
        new = rotated["binding"]["rdma"]["rkey"]
        suite.check("rotation gives another key", new != old, f"not {old}", new)
        suite.equal("rotation: the new key works on the same queue pair", b"kept", client.read(0, 4, rkey=new).data)
        suite.equal("rotation: the old key is dead", REMOTE_ACCESS_ERROR, client.write(0, b"x", rkey=old).status)
        lease = rearm(alice, lease, client)
        overlapping_rotation(suite, alice, lease, client)


def overlapping_rotation(suite, alice, lease, client):
    """Both keys work for a while."""
    old = lease["binding"]["rdma"]["rkey"]
    rotated = alice.rotate(lease, "--overlap-ms", 5000)
    new, previous = rotated["binding"]["rdma"]["rkey"], rotated["binding"]["rdma"].get("previous", {})
    suite.equal("overlap: the answer names the previous key", old, previous.get("rkey"))
    suite.check("overlap: and how long it works", 0 < previous.get("remaining_ms", 0) <= 5000, "1 to 5000", previous)
    both = [client.read(0, 4, rkey=old), client.read(0, 4, rkey=new)]
    suite.equal("overlap: both keys work", [b"kept", b"kept"], [done.data for done in both])
    while "previous" in alice.query(lease)["binding"]["rdma"]:
        pass
    suite.equal("overlap over: the new key works", b"kept", client.read(0, 4, rkey=new).data)
    suite.equal("overlap over: the old key is dead", REMOTE_ACCESS_ERROR, client.read(0, 4, rkey=old).status)


def proved(suite, name, lease, answer):
    """The holder learns when and why the lease ended, and the steps of its cut in their order."""
    suite.equal(f"{name}: the cause", answer["state"], answer.get("end_cause"))
    suite.check(f"{name}: the time", lease["granted_at_unix_ms"] <= answer.get("ended_at_unix_ms", 0) <= now_ms(), "since the grant", answer)
    steps = [step["step"] for step in answer.get("proof", [])]
    key = {"window": "dealloc_mw", "region": "dereg_mr"}[lease["binding"]["rdma"]["strategy"]]
    suite.check(f"{name}: the proof names the steps of the cut", {key, "destroy_qp", "restrack"} <= set(steps), f"{key}, …", steps)
    suite.check(f"{name}: asked last whether it is gone", steps.index("destroy_qp") < steps.index("restrack"), "in that order", steps)
    suite.check(f"{name}: whoever ended it is for operators to know", not {"tenant", "ended_by"} & set(answer), "neither", answer)


def ends(suite, node, _device):
    """Free, expiry and revocation, each under a writer that does not stop."""
    bob, operator = node.tenant("bob"), node.operator
    ways = (("free", 300, bob.free, "freed", "EXPIRED"), ("revoke", 300, operator.revoke, "revoked", "REVOKED"),
            ("expiry", 6, lambda lease: bob.wait_until(lease, "expired"), "expired", "EXPIRED"))
    for name, secs, end, state, status in ways:
        with Writer() as writer:
            lease = bob.alloc(LEASE_BYTES, secs, writer.peer)
            writer.start(lease)
            end(lease)
            told_at_ms = now_ms()
            suite.ended(name, writer.report(), told_at_ms)
        answer = bob.query(lease)
        suite.equal(f"{name}: query", (state, status), (answer["state"], answer["status"]))
        proved(suite, name, lease, answer)
        told = {key: operator.query(lease).get(key) for key in ("tenant", "end_cause", "ended_by", "proof")}
        suite.equal(f"{name}: an operator is told more", {
            "tenant": "bob", "end_cause": state, "ended_by": "admin" if name == "revoke" else None,
            "proof": answer["proof"]}, told)
        code = "Revoked" if state == "revoked" else ("Expired", "NotFound")
        suite.refused(f"{name}: no renewal", lambda: bob.renew(lease), NOT_FOUND, code)
        suite.refused(f"{name}: no new queue pair", lambda: bob.bind(lease, "qpn=17,gid=::ffff:10.77.0.1,psn=1"), NOT_FOUND, code)


def other_tenants(suite, node, device):
    """A lease answers only to its tenant."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    with leased(alice, device) as (lease, client):
        for name, call in (("query", bob.query), ("free", bob.free), ("renew", bob.renew), ("rotate", bob.rotate),
                           ("bind", lambda lease: bob.bind(lease, client.peer))):
            suite.refused(f"another tenant's {name}", lambda call=call: call(lease), NOT_FOUND, "NotFound")
        suite.refused("another tenant's revoke", lambda: bob.revoke(lease), None, ("NotPermitted", "NotFound"))
        suite.check("another tenant's list", lease["lease_id"] not in str(bob.ask("lease", "list")), "not in it")
        suite.check("the tenant's own list", lease["lease_id"] in str(alice.ask("lease", "list")), "in it")
        suite.equal("the lease goes on", "success", client.write(0, b"mine").status)


def cut_after_fault(suite, node, device):
    """An invalid access of a client leaves the node's queue pair in the error state; the end of the lease must not
    stall on that."""
    alice = node.tenant("alice")
    with leased(alice, device) as (lease, client), leased(alice, device) as (_, witness):
        client.write(LEASE_BYTES, b"!")
        began_ms = now_ms()
        alice.free(lease)
        suite.check("free after a fault does not stall", now_ms() - began_ms < STALL_LIMIT_MS, f"under {STALL_LIMIT_MS} ms", now_ms() - began_ms)
        suite.equal("its neighbour goes on", "success", witness.write(0, b"x").status)
    with leased(alice, device, secs=4) as (lease, client):
        client.write(LEASE_BYTES, b"!")
        alice.wait_until(lease, "expired")
        late_ms = now_ms() - lease["expires_at_unix_ms"]
        suite.check("expiry after a fault does not stall", late_ms < STALL_LIMIT_MS, f"under {STALL_LIMIT_MS} ms", late_ms)


def zero_again(suite, node, device):
    """Every byte of the arena, written by one tenant, is zero for the next."""
    step = 1 << 20
    with leased(node.tenant("alice"), device, ARENA_BYTES, buffer_bytes=step) as (_, client):
        written = {client.write(at, b"\xA5" * step).status for at in range(0, ARENA_BYTES, step)}
        suite.equal("the whole arena written", {"success"}, written)
    with contextlib.ExitStack() as stack:
        _, client = leased_when_released(stack, node.tenant("bob"), device, step)
        clean = all(client.read(at, step).data == bytes(step) for at in range(0, ARENA_BYTES, step))
        suite.check("leased again, all of it is zero", clean, "16 MiB of zeros")


def leased_when_released(stack, tenant, device, buffer_bytes):
    """A lease of the whole arena; tried again while the last lease's bytes are being scrubbed, until it is granted."""
    return when_clean(lambda: stack.enter_context(leased(tenant, device, ARENA_BYTES, buffer_bytes=buffer_bytes)))


def cycles(suite, node, device):
    """Grants and frees leave no resource, and no key is used twice."""
    alice = node.tenant("alice")
    with Client(device) as client:
        before, seen = resources(), []
        for cycle in range(CYCLES):
            if cycle % 50 == 0:
                print(f"   {cycle} of {CYCLES} cycles", flush=True)
            lease = alice.alloc(LEASE_BYTES, 300, client.peer)
            rdma = lease["binding"]["rdma"]
            seen.append((rdma["remote_addr"], rdma["rkey"]))
            alice.free(lease)
        suite.equal(f"{CYCLES} cycles: no key twice on the same bytes", CYCLES, len(set(seen)))
        alice.wait_until(lease, "freed")
        suite.equal(f"{CYCLES} cycles: rdma resource show is as before", before, resources())
        suite.equal("nothing is fenced", [], node.operator.fences())


def killed(suite, node, _device):
    """SIGKILL of the daemon ends its leases too; the restarted daemon reports that."""
    alice = node.tenant("alice")
    with Writer() as writer:
        lease = alice.alloc(LEASE_BYTES, 300, writer.peer)
        writer.start(lease)
        node.kill()
        gone_at_ms = now_ms()
        suite.ended("SIGKILL", writer.report(), gone_at_ms)
    node.start()
    suite.equal("SIGKILL: after the restart the lease is", "REVOKED", alice.query(lease)["status"])
    lease = alice.alloc(ARENA_BYTES, 300)
    suite.check("SIGKILL: after the restart the whole arena can be leased", bool(lease["lease_id"]), "a lease")
    alice.free(lease)


SECTIONS = (use, by_hand, atomics, bind_later, side_by_side, several_queue_pairs, keys_of_others, two_arenas, out_of_bounds, rotation, ends,
            other_tenants, cut_after_fault, zero_again, *mem_peers.SECTIONS, cycles, killed)
# suite_mem_region, suite_mem_both and the tests rxe_window go through the same in the short form.
ELSEWHERE = (two_arenas, rotation, cut_after_fault, mem_peers.others_go_on, mem_peers.all_leave, mem_peers.as_many_as_fit)


def main(strategy="auto", sections=SECTIONS):
    """Sections on one node with this strategy for its leases."""
    device = lab_device()
    with Suite(f"mem over RDMA, strategy {strategy}") as suite:
        empty = resources()
        with Node("--rdma-strategy", strategy, mem_bytes=ARENA_BYTES) as node:
            with leased(node.tenant("alice"), device) as (lease, _):
                # This device has windows.
                suite.equal("the strategy of a lease", "window" if strategy == "auto" else strategy, lease["binding"]["rdma"]["strategy"])
            for section in sections:
                suite.section(section, suite, node, device)
            suite.equal("SIGTERM: exit status", 0, node.stop())
        left = {kind: count for kind, count in resources().items() if kind != "ctx"}
        suite.equal("SIGTERM: nothing is left on the device", {k: v for k, v in empty.items() if k != "ctx"}, left)


if __name__ == "__main__":
    main(sections=length(SECTIONS, [section for section in SECTIONS if section not in ELSEWHERE]))
