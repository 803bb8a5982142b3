#!/usr/bin/python3
# lab: two-vm timeout=600
# covers: rdma verbs arena fallback-udp node/src/kinds/memory
"""Node and client on two machines: `suite_two_vm.py node` in one, `suite_two_vm.py client` in the other. They exchange
messages in a directory that both can write; the lease's bytes go over the link between them."""
import os
import pathlib

import fabric
from checks import rearm
from pair import CLIENT, NODE, granted, hear, hear_identity, link_device, run, say
from rdma_client import ENDS, REMOTE_ACCESS_ERROR, Client, now_ms
from writer import Writer, keep_writing

LEASE_BYTES = 65536


def be_node(suite):
    """Serves until the client reports its end; the daemon is killed when the client asks for that."""
    link_device(NODE)
    before = fabric.resources()
    with fabric.Node(address=NODE) as node:
        say("operator", pathlib.Path(node.operator.identity).read_text(encoding="ascii"))
        hear("kill-the-daemon")
        node.kill()
        say("daemon-is-dead")
        node.start()
        say("daemon-is-back")
        suite.equal("the client's checks", "0 failed", hear("client-done"))
        suite.equal("no panic in the log", [], [line for line in node.lines if "panicked" in line])
        suite.equal("SIGTERM: exit status", 0, node.stop())
    left = fabric.resources()
    suite.equal("nothing is left on the device", before, left)


def be_client(suite):
    """Leases from the other machine, and sees its leases end."""
    device = link_device(CLIENT)
    operator = fabric.Fabric(hear_identity("operator"), f"{NODE}:{fabric.PORT}")
    tenant = operator.issue("remote", f"/tmp/remote-{os.getpid()}.identity")
    for section in (use, expiry, daemon_killed):
        suite.section(section, suite, tenant, device)
    say("client-done", f"{suite.failed} failed")


def use(suite, tenant, device):
    """Write, read back, and recovery from a fault."""
    with Client(device) as client:
        lease = tenant.alloc(LEASE_BYTES, 300, client.peer)
        client.connect(lease)
        pattern = bytes(range(256)) * (LEASE_BYTES // 256)
        suite.equal("write to the other machine", "success", client.write(0, pattern).status)
        suite.check("read back", client.read(0, LEASE_BYTES).data == pattern, "what was written")
        suite.equal("out of bounds", REMOTE_ACCESS_ERROR, client.write(LEASE_BYTES, b"x").status)
        lease = rearm(tenant, lease, client)
        suite.check("armed again", client.read(0, LEASE_BYTES).data == pattern, "what was written")
        old = lease["binding"]["rdma"]["rkey"]
        tenant.rotate(lease)
        suite.equal("the old key after a rotation", REMOTE_ACCESS_ERROR, client.write(0, b"x", rkey=old).status)
        tenant.free(lease)
        client.fresh()
        client.connect(lease)
        suite.check("the old coordinates after free", client.write(0, b"x").status in ENDS, sorted(ENDS))


def expiry(suite, tenant, device):
    """The lease's access ends at the deadline."""
    with Client(device) as client:
        lease, deadline = granted(lambda: tenant.alloc(LEASE_BYTES, 8, client.peer))
        client.connect(lease)
        deadline.ended(suite, "expiry", keep_writing(client))
        suite.equal("expiry: query", "EXPIRED", tenant.wait_until(lease, "expired")["status"])


def daemon_killed(suite, tenant, _device):
    """The daemon is killed without a chance to clean up; its kernel ends the access."""
    with Writer() as writer:
        lease = tenant.alloc(LEASE_BYTES, 300, writer.peer)
        writer.start(lease)
        say("kill-the-daemon")
        hear("daemon-is-dead")
        dead_at_ms = now_ms()
        suite.ended("SIGKILL of the daemon", writer.report(), dead_at_ms)
    hear("daemon-is-back")
    suite.equal("after its restart the lease is", "REVOKED", tenant.query(lease)["status"])


if __name__ == "__main__":
    run("two machines", be_node, be_client)
