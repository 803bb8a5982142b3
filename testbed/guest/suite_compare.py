#!/usr/bin/python3
# lab: one-vm clients timeout=1200
# covers: rdma verbs arena node/src/kinds/memory client/cli/src/commands/mooncake
"""What a client gets that still uses memory when the memory is somebody else's: a stock Mooncake Transfer Engine on a lease,
beside two plain engines, Mooncake Store and NIXL. On a lease that must be an error and never a foreign byte; of the others
the table says what was seen. The short form has the lease's main cases and the two plain engines."""
import contextlib
import json
import platform
import time

import stock_programs
from checks import FULL, Suite, give_back, lab_device, length, skip, when_clean
from fabric import ADDRESS, Node
from rdma_client import Client, now_ms
from stock_programs import DEVICE, MOONCAKE, NIXL, UNCACHED_ENVIRONMENT, Master, Segment, agent, engine, stock

# The whole arena is one lease, so that the next one has the same bytes.
LEASE_BYTES = 1 << 20
MOVED = 65536
OWN, NEXT, THIRD, STALE = "TENANT-A-DATA...", "TENANT-B-SECRET.", "TENANT-C-SECRET.", "A-OVERWRITES-B.."
TERM_SECS, LONG_SECS = 25, 300
CLIENTS = ("Mooncake on a lease", "two plain Mooncake engines", "Mooncake on an object of its Store", "NIXL", "NIXL, UCX's cache of registrations off")
LEASE, ENGINES, STORE, AGENTS, UNCACHED = CLIENTS
CASES = {
    "use": "in use: the client reads its own bytes",
    "expired": "the term ends under a reader",
    "idle": "given back while the client is idle, and the next tenant has the bytes: the client reads",
    "stale": "… and writes",
    "nobody": "given back, and registered by nobody since: the client reads",
    "pool": "given on without being unregistered, as a pool does: the client reads",
    "revoked": "revoked under a writer",
    "killed": "the owner's process is killed under a reader (on a lease: the node's daemon)",
}
OLD = "success, with its old bytes"
NO_TERM, NO_REVOKE = "it has no terms", "it revokes nothing"


class Table:
    """What each client got in each case."""

    def __init__(self):
        self.cells = {}

    def put(self, client, case, cell, answer=None):
        """One cell, and the answer that it is made of."""
        self.cells[client, case] = cell
        print(f"   {json.dumps({'client': client, 'case': case, 'got': cell, 'answer': answer})}", flush=True)

    def show(self, missing):
        """The table as Markdown, between the marks of docs/comparison.md."""
        seen = [client for client in CLIENTS if any(it == client for it, _ in self.cells)]
        packages = ", ".join(f"{name} {version or 'not installed'}" for name, version in missing.items())
        print(f"<!-- results -->\n{time.strftime('%Y-%m-%d')}, Linux {platform.release()}, soft-RoCE, {packages}.\n")
        print(f"| case | {' | '.join(seen)} |\n|---|{'---|' * len(seen)}")
        for case, text in CASES.items():
            print(f"| {text} | {' | '.join(self.cells.get((client, case), 'not tried') for client in seen)} |")
        print("<!-- end of results -->", flush=True)


def got(answer, own="its own bytes"):
    """A read, in words; `own`: those for the bytes that were the client's own while it used them."""
    if answer["rc"]:
        return "error, its buffer untouched" if answer["blank"] else "error, **but its buffer has changed**"
    if answer["text"] == OWN:
        return own
    return "**success, with the next tenant's bytes**" if answer["text"] in (NEXT, THIRD) else f"success, with {answer['text']!r}"


def landed(answer, now):
    """A write of STALE, in words; `now`: how the next tenant's bytes begin after it."""
    if now == STALE:
        return f"**{'error' if answer['rc'] else 'success'}, and the next tenant's bytes are overwritten**"
    return f"{'error' if answer['rc'] else 'success'}, the next tenant's bytes are intact"


@contextlib.contextmanager
def on_lease(suite, tenant, secs):
    """A stock engine that has written to a lease and read it; its segment too."""
    client, _ = engine(LEASE_BYTES)
    with client, Segment(tenant, LEASE_BYTES, secs) as segment:
        suite.equal("a lease: open, write of all bytes", [0, 0], [client.ask("open", segment.name)["rc"], client.ask("write", LEASE_BYTES, OWN)["rc"]])
        read = client.ask("read", LEASE_BYTES)
        suite.equal("a lease: read of all bytes", (0, OWN), (read["rc"], read["text"]))
        try:
            yield client, segment
        finally:
            give_back(tenant, segment.lease)


def start(client, kind):
    """Begins to read or to write until that fails; returns when it has begun."""
    first = client.ask("loop", kind, MOVED, OWN)
    if "rc" in first:
        raise RuntimeError(f"no {kind} succeeded: {first}")


def ended(suite, name, client):
    """The report of a loop on a lease: it ended with an error, and gave nothing but the client's own bytes."""
    report = client.answer()
    suite.check(f"{name}: error", report["rc"] != 0, "not 0", report["rc"])
    suite.equal(f"{name}: reads with success that gave other bytes", 0, report["other"])
    suite.equal(f"{name}: foreign bytes in the buffer of the failed one", 0, report["foreign"])
    return report


def expired(suite, table, node, device):
    """The term ends under a reader; the next tenant has the bytes, and the reader tries again."""
    tenant = node.tenant("alice")
    with on_lease(suite, tenant, TERM_SECS) as (client, segment), contextlib.ExitStack() as stack:
        deadline_ms = tenant.query(segment.lease)["expires_at_unix_ms"]
        start(client, "read")
        report = ended(suite, "expired", client)
        suite.equal("expired: the segment's end", ("expired", 0), segment.ended())
        next_tenant(stack, node.tenant("bob"), device)
        refused(suite, "expired, the next tenant has the bytes", client.ask("read", MOVED))
        after = (report["failed_at_ms"] - deadline_ms) / 1000
        table.put(LEASE, "expired", f"error {after:.2f} s after the deadline, no foreign byte", report)


def refused(suite, name, answer):
    """A read on a lease that has ended."""
    suite.check(f"{name}: error", answer["rc"] != 0, "not 0", answer)
    suite.check(f"{name}: the buffer is untouched", answer["blank"], True, answer)


def next_tenant(stack, tenant, device):
    """Leases the same bytes, as soon as they are clean, and writes its secret."""
    client = stack.enter_context(Client(device))
    lease = when_clean(lambda: tenant.alloc(LEASE_BYTES, LONG_SECS, client.peer))
    stack.callback(give_back, tenant, lease)
    client.connect(lease)
    client.write(0, NEXT.encode())
    return client


def idle(suite, table, node, device):
    """The lease is given back while its client is idle; the next tenant's bytes are neither read nor written."""
    tenant = node.tenant("alice")
    with on_lease(suite, tenant, LONG_SECS) as (client, segment), contextlib.ExitStack() as stack:
        table.put(LEASE, "use", "its own bytes")
        tenant.free(segment.lease)
        suite.equal("idle: the segment's end", "freed", segment.ended()[0])
        following = next_tenant(stack, node.tenant("bob"), device)
        read = client.ask("read", MOVED)
        refused(suite, "idle", read)
        table.put(LEASE, "idle", got(read), read)
        write = client.ask("write", len(STALE), STALE)
        now = following.read(0, len(NEXT)).data.decode()
        suite.check("stale write: error", write["rc"] != 0, "not 0", write)
        suite.equal("stale write: the next tenant's bytes", NEXT, now)
        table.put(LEASE, "stale", landed(write, now), write)
        table.put(LEASE, "pool", "cannot happen: the next lease begins after the cut")


def revoked(suite, table, node, _device):
    """An operator revokes under a writer."""
    with on_lease(suite, node.tenant("alice"), LONG_SECS) as (client, segment):
        start(client, "write")
        node.operator.revoke(segment.lease)
        told_at_ms = now_ms()
        report = ended(suite, "revoked", client)
        suite.check("revoked: no write that began after the end was told succeeded", report["last_begun_at_ms"] <= told_at_ms, told_at_ms, report)
        cause, status = segment.ended()
        suite.check("revoked: the segment's end", cause == "revoked" and status != 0, ("revoked", "not 0"), (cause, status))
        table.put(LEASE, "revoked", "error", report)
        refused(suite, "revoked, nobody has the bytes", read := client.ask("read", MOVED))
        table.put(LEASE, "nobody", got(read), read)


def killed(suite, table, node, _device):
    """SIGKILL of the daemon under a reader."""
    with contextlib.ExitStack() as stack:
        client, _ = engine(LEASE_BYTES)
        stack.enter_context(client)
        segment = stack.enter_context(Segment(node.tenant("alice"), LEASE_BYTES, LONG_SECS))
        suite.equal("killed: open, write", [0, 0], [client.ask("open", segment.name)["rc"], client.ask("write", LEASE_BYTES, OWN)["rc"]])
        start(client, "read")
        at_ms = now_ms()
        node.kill()
        report = ended(suite, "killed", client)
        table.put(LEASE, "killed", f"error after {(report['failed_at_ms'] - at_ms) / 1000:.1f} s, no foreign byte", report)
    node.start()


def handed_on(table, name, owner, client, target):
    """The owner of a buffer lets the next tenant have it, with its interface's means; the client still has its address."""
    owner.ask("fill", OWN)
    client.ask("open", target)
    table.put(name, "use", got(read := client.ask("read", MOVED)), read)
    owner.ask("fill", THIRD)
    table.put(name, "pool", got(read := client.ask("read", MOVED)), read)
    owner.ask("unregister")
    owner.ask("fill", NEXT)
    owner.ask("register")
    table.put(name, "idle", got(read := client.ask("read", MOVED)), read)
    write = client.ask("write", len(STALE), STALE)
    table.put(name, "stale", landed(write, owner.ask("begins")["text"]), write)
    owner.ask("unregister")
    owner.ask("fill", OWN)
    table.put(name, "nobody", got(read := client.ask("read", MOVED), OLD), read)
    table.put(name, "expired", NO_TERM)
    table.put(name, "revoked", NO_REVOKE)


def engines(suite, table, _node, _device):
    """Two plain engines."""
    (owner, target), (client, _) = engine(MOVED), engine(MOVED)
    with owner, client:
        handed_on(table, ENGINES, owner, client, target)
        suite.equal("two plain engines: they worked", "its own bytes", table.cells[ENGINES, "use"])
        if FULL:
            owner.ask("register")
            start(client, "read")
            owner.kill()
            table.put(ENGINES, "killed", "error" if (report := client.answer())["rc"] else "success", report)


def store(suite, table, _node, _device):
    """Mooncake Store, whose objects have leases."""
    with Master() as master, stock("mooncake_store.py", ADDRESS, DEVICE, master, MC_TRANSFER_TIMEOUT=str(stock_programs.TRANSFER_SECS)) as program:
        use, over, used_again, read, write, kept = (program.answer() for _ in range(6))
    suite.equal("Mooncake Store: it worked", (0, OWN), (use["rc"], use["text"]))
    table.put(STORE, "use", got(use), use)
    table.put(STORE, "expired", f"{got(over, OLD)} (its object's lease was over)", over)
    table.put(STORE, "nobody", got(over, OLD), over)
    if used_again["used_again"]:
        table.put(STORE, "idle", got(read), read)
        table.put(STORE, "stale", landed(write, kept["text"]), {**write, **kept})
    table.put(STORE, "revoked", NO_REVOKE)


def nixl(suite, table, _node, _device):
    """Two NIXL agents; two more whose UCX registers memory for each use, and keeps no registration for the next one."""
    for name, more in ((AGENTS, {}), (UNCACHED, UNCACHED_ENVIRONMENT)):
        (owner, target), (client, _) = agent("owner", MOVED, **more), agent("reader", MOVED, **more)
        with owner, client:
            handed_on(table, name, owner, client, target)
        suite.equal(f"{name}: it worked", "its own bytes", table.cells[name, "use"])


def main():
    """All cases, the deaths of daemons last."""
    device = lab_device()
    versions = {name: stock_programs.version(name) for name in (MOONCAKE, NIXL)}
    if not versions[MOONCAKE]:
        skip(f"{MOONCAKE} in {stock_programs.PLACE} (`cargo xtask compare` fetches it from PyPI)")
    if not (FULL and versions[NIXL]):
        del versions[NIXL]
    with Suite("compare") as suite, Node("--rdma-strategy", "region", mem_bytes=LEASE_BYTES) as node:
        table = Table()
        for section in (engines, *length((store,), ()), *((nixl,) if NIXL in versions else ()), expired, idle, *length((revoked, killed), ())):
            suite.section(section, suite, table, node, device)
        table.show(versions)


if __name__ == "__main__":
    main()
