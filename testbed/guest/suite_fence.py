#!/usr/bin/python3
# lab: one-vm timeout=900
# covers: rdma verbs arena node/src/kinds/memory
"""A cut that comes too late fences the arena. A fenced arena leases nothing, even after a restart, until a remediation
has removed the remains of the lease and verified that. Then all of the arena can be leased again.

The cut is late on purpose: the node allows it 10 ms, and it takes 20 ms for the linger of an idle client."""
from checks import Suite, lab_device
from fabric import FENCED, Node
from rdma_client import Client

LEASE_BYTES = 65536
ARENA_BYTES = 16 << 20


def fence_by_a_late_cut(suite, node, device):
    """Revokes an idle lease with less time than its cut takes; returns the lease of the neighbour."""
    alice = node.tenant("alice")
    client = Client(device)
    lease = alice.alloc(LEASE_BYTES, 300, client.peer)
    client.connect(lease)
    suite.equal("before: write", "success", client.write(0, b"x").status)
    suite.refused("the revoke says fenced", lambda: node.operator.revoke(lease), FENCED, "Fenced")
    suite.check("access is gone all the same", client.write(0, b"y").status != "success", "an error")
    client.close()
    return lease


def nothing_new(suite, node, name):
    """A fenced arena grants nothing; only an operator sees the reason."""
    alice = node.tenant("alice")
    suite.refused(f"{name}: a new lease", lambda: alice.alloc(LEASE_BYTES, 60), FENCED, "Fenced")
    fences = node.operator.fences()
    suite.equal(f"{name}: one fence, with a reason", (1, True), (len(fences), bool(fences and fences[0]["reason"])))
    suite.refused(f"{name}: a tenant does not see reasons", lambda: alice.ask("fence", "list"), None, "NotPermitted")
    arena = next(r for r in alice.ask("inventory")["resources"] if r["resource_type"] == "mem")
    suite.equal(f"{name}: inventory", (0, True), (arena["available"], "fenced" in str(arena).lower()))
    return fences[0]["resource_id"]


def remedied(suite, node, device, resource):
    """Checks that the fence of the resource, by name or id, is cleared, and that every byte can be leased and used."""
    alice = node.tenant("alice")
    suite.refused("a tenant cannot clear it", lambda: alice.ask("fence", "clear", resource), None, "NotPermitted")
    node.operator.ask("fence", "clear", resource)
    suite.equal("no fence any more", [], node.operator.fences())
    with Client(device) as client:
        client.connect(alice.alloc(ARENA_BYTES, 300, client.peer))
        suite.equal("the whole arena: read", bytes(8), client.read(0, 8).data)
        suite.equal("the whole arena: write", "success", client.write(ARENA_BYTES - 8, b"8 bytes.").status)


def main():
    """A fence and its remediation in one run of the daemon, then across two runs."""
    device = lab_device()
    with Suite("fence") as suite, Node("--cut-within-ms", "10") as node:
        lease = fence_by_a_late_cut(suite, node, device)
        resource = nothing_new(suite, node, "fenced")
        suite.equal("the lease is told as fenced", "fenced", node.tenant("alice").query(lease)["state"])
        remedied(suite, node, device, resource)
        node.kill()
        node.start()
        fence_by_a_late_cut(suite, node, device)
        node.kill()
        node.start()
        nothing_new(suite, node, "after kill and restart")
        remedied(suite, node, device, "mem0")


if __name__ == "__main__":
    main()
