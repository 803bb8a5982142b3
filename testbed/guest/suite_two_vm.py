#!/usr/bin/python3
# lab: two-vm timeout=600
# covers: rdma verbs arena fallback-udp node/src/kinds/memory
"""Node and client on two machines: `suite_two_vm.py node` in one, `suite_two_vm.py client` in the other. They exchange
messages in a directory that both can write; the lease's bytes go over the link between them."""
import json
import os
import pathlib
import subprocess
import sys
import time

import fabric
from checks import LATE_LIMIT_MS, Suite, rearm, skip
from rdma_client import ENDS, REMOTE_ACCESS_ERROR, Client, Device, now_ms
from writer import Writer, keep_writing

SHARE = pathlib.Path(os.environ.get("LAB_SHARE", "/run/lab/share"))
NODE, CLIENT = "192.168.77.1", "192.168.77.2"
PATIENCE_SECS = 300
LEASE_BYTES = 65536


def say(name, text=""):
    """Leaves a message for the other machine, whole or not at all."""
    part = SHARE / f".{name}"
    part.write_text(text, encoding="utf-8")
    part.rename(SHARE / name)


def hear(name):
    """Waits for a message. No kernel notifies of new files in a directory that the other kernel writes."""
    limit = time.monotonic() + PATIENCE_SECS
    while not (SHARE / name).exists():
        if (SHARE / "gave-up").exists():
            raise RuntimeError(f"the other machine gave up before it said {name!r}")
        if time.monotonic() > limit:
            raise TimeoutError(f"the other machine did not say {name!r} in {PATIENCE_SECS} s")
        time.sleep(0.05)
    return (SHARE / name).read_text(encoding="utf-8")


def link_device(address):
    """soft-RoCE on the interface that leads to the other machine."""
    shown = subprocess.run(["ip", "-json", "address", "show"], capture_output=True, text=True, check=True)
    links = [link["ifname"] for link in json.loads(shown.stdout)
             if any(own.get("local") == address for own in link["addr_info"])]
    interface = os.environ.get("LAB_LINK") or (links or ["eth0"])[0]
    try:
        fabric.program("fabricctl")
        fabric.ensure_soft_roce("rxe0", interface, f"{address}/24")
        return Device("rxe0")
    except LookupError as missing:
        return skip(missing)


def be_node(suite):
    """Serves until the client reports its end; the daemon is killed when the client asks for that."""
    link_device(NODE)
    before = fabric.resources()
    with fabric.Node(address=NODE) as node:
        say("identity", pathlib.Path(node.operator.identity).read_text(encoding="ascii"))
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
    identity = pathlib.Path("/tmp/operator.identity")
    identity.touch(mode=0o600)
    identity.write_text(hear("identity"), encoding="ascii")
    operator = fabric.Fabric(identity, f"{NODE}:{fabric.PORT}")
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
    """The two clocks differ, so the deadline is computed from `remaining_ms`: the node counted it between the request
    and the answer."""
    with Client(device) as client:
        asked_ms = now_ms()
        lease = tenant.alloc(LEASE_BYTES, 8, client.peer)
        earliest_ms, latest_ms = asked_ms + lease["remaining_ms"], now_ms() + lease["remaining_ms"]
        client.connect(lease)
        end = keep_writing(client)
        print(f"   {end['writes']} writes, last success {end['last_ok_at_ms'] - latest_ms:+.1f} ms from the latest and first failure "
              f"{end['failed_at_ms'] - earliest_ms:+.1f} ms from the earliest possible deadline, {end['status']}", flush=True)
        suite.check("expiry: the client was writing", end["writes"] > 0, "writes", end)
        suite.check("expiry: its access ends", end["status"] in ENDS, sorted(ENDS), end["status"])
        suite.check("expiry: no error before the deadline", end["failed_at_ms"] >= earliest_ms, earliest_ms, end)
        suite.check("expiry: cut on time", end["last_ok_at_ms"] < latest_ms + LATE_LIMIT_MS, latest_ms + LATE_LIMIT_MS, end)
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


def main():
    """Runs one of the two parts."""
    roles = {"node": be_node, "client": be_client}
    role = sys.argv[1] if len(sys.argv) == 2 else os.environ.get("LAB_ROLE")
    if role not in roles:
        sys.exit(f"usage: {sys.argv[0]} node|client")
    with Suite(f"two machines, {role}", only=()) as suite:
        try:
            roles[role](suite)
        except BaseException:
            say("gave-up", role)
            raise


if __name__ == "__main__":
    main()
