#!/usr/bin/python3
# lab: one-vm timeout=900
# covers: nvmet pool fallback-udp client/attach/src node/src/kinds/block
"""The daemon is killed by SIGKILL under a connected client: the kernel goes on serving, and the next daemon adopts. A
lease that runs out meanwhile, or while the daemon is stopped, is cut at its deadline. Killed at each of its own steps,
the daemon leaves nothing that the next daemon does not adopt, remove or fence. A foreign subsystem beside it is not
affected.

BLOCK_STEPS=all goes through every step for both kinds of pool; without it, through some steps, for the device."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import nvmet_tree
from block import MIB, BlockNode, alloc, attached, device_of, directory_pool, get, leased, loop_device, nqn_of, pattern, put
from block import ready, resource_of, row_of, same_traces, settled, sh, size_of, traces
from checks import LATE_LIMIT_MS, STOPPED_LATE_MS, Suite, give_back, length, until
from fabric import program
from fbbu_client import Client
from nvme_host import Fio, connect, device, disconnect, failed, gone, verified
from steps import BLOCK

TERM_SECS = length(10, 7)
STEP_SECS = 15
SECRET = pattern("secret")
# Steps after which the left-behind state differs each time.
SOME_STEPS = length(("link anchor", "link port", "journal grant", "unlink port", "remove namespace", "unmap volume"), ("link port", "unmap volume"))
# Steps that a directory does not have: files are not mapped.
NOT_OF_A_DIRECTORY = ("unmap volume",)
DIE_AFTER = "FABRICBIOS_DIE_AFTER"
KEEP = ("--on-stop", "keep")
# Names and keys of a lease over NVMe-oF.
NAMES = ("subnqn", "hostnqn", "hostid", "dhchap_secret", "nsid", "traddr", "trsvcid")


def adopts(suite, node, pools):
    """A restart under I/O: no error, the same names and keys."""
    alice = node.tenant("alice")
    for kind, pool in pools.items():
        with attached(alice, pool=pool) as (lease, path):
            put(path, pattern("kept"), 3 << 20)
            job = Fio(path).started()
            node.kill()
            suite.check(f"{kind}: fio goes on without a daemon", job.running(), "running")
            node.start()
            again = alice.query(lease)
            same_names(suite, kind, lease, again)
            suite.check(f"{kind}: fio goes on", job.running(), "running")
            suite.equal(f"{kind}: without an error", 0, job.stop()["error"])
            disconnect(nqn_of(lease))
            path = connect(lease)
            suite.equal(f"{kind}: connected again by the old line", pattern("kept", 4096), get(path, 4096, 3 << 20))


def stopped_and_kept(suite, node, pools):
    """The same with SIGTERM, if the daemon was started with on-stop = keep."""
    alice = node.tenant("alice")
    node.kill()
    node.command.extend(KEEP)
    node.start()
    with attached(alice, pool=pools["device"]) as (lease, path):
        job = Fio(path).started()
        suite.equal("SIGTERM, leases kept: exit status", 0, node.stop())
        suite.check("SIGTERM, leases kept: fio goes on without a daemon", job.running(), "running")
        node.start()
        same_names(suite, "SIGTERM, leases kept", lease, alice.query(lease))
        suite.check("SIGTERM, leases kept: fio goes on", job.running(), "running")
        suite.equal("SIGTERM, leases kept: without an error", 0, job.stop()["error"])
    node.kill()
    del node.command[-len(KEEP):]
    node.start()


def same_names(suite, name, before, after):
    """Checks that names and keys of the lease over NVMe-oF have not changed."""
    names = [{field: lease["binding"]["nvmeof"][field] for field in NAMES} for lease in (before, after)]
    suite.equal(f"{name}: the same names and keys", *names)


def adopts_over_udp(suite, node, pools):
    """The same for a device over UDP: its client waits and then goes on."""
    alice = node.tenant("alice")
    with leased(alice, transport="udp", pool=pools["device"]) as lease, device_of(alice, lease) as path:
        job = Fio(path).started()
        node.kill()
        node.start()
        begun = job.done()
        until(lambda: job.done() > begun, 60, "more I/O")
        suite.equal("over UDP: fio goes on, without an error", (True, 0), (job.running(), job.stop()["error"]))
        suite.equal("over UDP: written and verified after that", 0, verified(path, size="1M")["error"])


def adopts_both(suite, node, pools):
    """One lease over both transports, with I/O over one transport and bytes that were written over the other."""
    alice, kept, at = node.tenant("alice"), pattern("kept", 65536), 3 * MIB
    with leased(alice, transport="both", pool=pools["device"]) as lease:
        job = Fio(connect(lease), size="1M").started()
        with Client(lease) as client:
            client.write(at // client.unit, kept)
        node.kill()
        node.start()
        again = alice.query(lease)
        same_names(suite, "both transports", lease, again)
        with Client(again) as client:
            suite.equal("both transports: over UDP the bytes of before, with the key of now", kept,
                        client.read(at // client.unit, len(kept) // client.unit))
        suite.equal("both transports: fio goes on over the other, without an error", (True, 0), (job.running(), job.stop()["error"]))
        disconnect(nqn_of(lease))


def expired_meanwhile(suite, node, pools):
    """A lease that runs out without a daemon is cut at its deadline, by the watchdog that the daemon has left
    running."""
    alice = node.tenant("alice")
    for (kind, pool), replaced in zip(pools.items(), (False, True)):
        if replaced:
            end_watchdog(node)
        lease = alloc(alice, secs=TERM_SECS, pool=pool)
        job = Fio(connect(lease)).started()
        node.kill()
        _ends_on_time(suite, f"{kind}, no daemon", lease, job)
        node.start()
        suite.equal(f"{kind}: expired", "expired", alice.query(lease)["state"])


def wedged(suite, node, pools):
    """A lease is also cut on time while the daemon is stopped; a renewed lease goes on."""
    alice = node.tenant("alice")
    with attached(alice, pool=pools["device"]) as (other, path):
        lease = alloc(alice, secs=TERM_SECS, pool=pools["device"])
        job = Fio(connect(lease)).started()
        node.process.send_signal(signal.SIGSTOP)
        _ends_on_time(suite, "a stopped daemon", lease, job, STOPPED_LATE_MS)
        suite.equal("a stopped daemon: another lease goes on", 1, nvmet_tree.listed(nqn_of(other)))
        put(path, pattern("other"))
        node.process.send_signal(signal.SIGCONT)
        suite.equal("a stopped daemon that goes on: expired", "expired", alice.query(lease)["state"])


def _ends_on_time(suite, name, lease, job, late_limit_ms=LATE_LIMIT_MS):
    """Checks that the lease ends not before its deadline, and soon after it."""
    until(lambda: not nvmet_tree.listed(nqn_of(lease)), TERM_SECS + 60, "the end of the lease")
    # The clock is read after the end was seen, so a slow suite makes an end look later, never earlier.
    late_ms = time.time() * 1000 - lease["expires_at_unix_ms"]
    print(f"   {name}: unlinked {late_ms:.0f} ms after the deadline", flush=True)
    suite.check(f"{name}: cut at its deadline", 0 <= late_ms < late_limit_ms, f"0 to {late_limit_ms} ms", late_ms)
    report = job.report()
    suite.check(f"{name}: fio meets errors", failed(report), "an error")
    gone(nqn_of(lease))


def watchdogs():
    """The process ids of the watchdogs."""
    return sh("pgrep -x fb-watchdog || true").split()


def end_watchdog(node):
    """Kills the watchdog; the daemon starts another one."""
    before = watchdogs()
    sh(f"kill -9 {' '.join(before)}")
    assert node.wait_for_line("another watchdog watches") and node.process.poll() is None


class Life(threading.Thread):
    """A tenant who takes a lease, writes, rotates the keys and gives the lease back, as far as the node lives."""

    def __init__(self, tenant, pool):
        super().__init__(daemon=True)
        self.tenant, self.pool, self.resource = tenant, pool, resource_of(tenant, pool)
        self.process, self.over = None, False
        self.start()

    def run(self):
        lease = self._ask("lease", "alloc", "block", "--bytes", 2 * MIB, "--secs", 300, "--transport", "nvme-tcp",
                          "--mutual-auth", "--resource", self.resource)
        if lease:
            with contextlib.suppress(OSError, StopIteration):
                put(volume_of(lease, self.pool), SECRET)
            self._ask("lease", "rotate", lease["lease_id"])
            self._ask("lease", "free", lease["lease_id"])

    def _ask(self, *words):
        if self.over:
            return None
        command = [program("fabricctl"), "--json", "--node", self.tenant.node, "--identity", self.tenant.identity]
        self.process = subprocess.Popen([*command, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, _ = self.process.communicate()
        return json.loads(out) if self.process.returncode == 0 and out.strip() else None

    def end(self):
        """Ends the tenant when the node is dead: its open requests get no answer."""
        self.over = True
        if self.process:
            self.process.kill()
        self.join(30)


def dies(suite, node, pools):
    """The daemon dies after a step of a lease; checks the state after the next daemon's recovery."""
    names, everything = BLOCK, os.environ.get("BLOCK_STEPS") == "all"
    if not everything:
        print(f"   {len(SOME_STEPS)} of {len(names)} steps, on the device pool; BLOCK_STEPS=all: each, on both", flush=True)
    suite.equal("the steps that are gone through are the daemon's", [], [name for name in SOME_STEPS if name not in names])
    for kind, pool in pools.items() if everything else [("device", pools["device"])]:
        left_out = NOT_OF_A_DIRECTORY if kind == "directory" else ()
        for name in (name for name in (names if everything else SOME_STEPS) if name not in left_out):
            _die(suite, node, pool, f"{kind}, {name}", name)


def _die(suite, node, pool, title, step):
    """Runs a daemon that dies at the step, and one that recovers."""
    before, free = traces(), available(node, pool)
    node.stop()
    node.environment = {DIE_AFTER: step}
    with contextlib.suppress(RuntimeError):  # The step is one of the start.
        node.start()
        life = Life(node.tenant("alice"), pool)
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.process.wait(STEP_SECS)
        life.end()
    with contextlib.suppress(subprocess.TimeoutExpired):
        node.process.wait(60)
    died = node.process.poll() == -signal.SIGABRT
    node.environment = {}
    node.kill()
    node.start()
    suite.check(f"{title}: it died there", died, "a dead daemon")
    suite.check(f"{title}: what it left is adopted, removed or fenced", _tidied(node, pool, free), "no other traces")
    same_traces(suite, title, before, traces())
    if os.path.exists(pool) and not os.path.isdir(pool):
        suite.check(f"{title}: nothing of what was written is found", SECRET[:4096] not in get(pool, size_of(pool)), "no such bytes")


def _tidied(node, pool, free):
    """Frees adopted leases and clears fences; returns whether the whole pool is free then."""
    for lease in node.operator.ask("lease", "list").get("leases", []):
        if lease["state"] in ("active", "binding"):
            print(f"   adopted: {lease['lease_id']} {lease['state']}", flush=True)
            give_back(node.tenant("alice"), lease)
    for fence in fences(node):
        print(f"   fenced: {fence['reason']}", flush=True)
        node.operator.ask("fence", "clear", fence["resource_id"])
    return settled(node.operator, pool, free)


def available(node, pool):
    """Free bytes of a pool."""
    return row_of(node.operator, pool)["available"]


def volume_of(lease, pool):
    """The path of the lease's bytes on the node."""
    if os.path.isdir(pool):
        return next(path for path in pathlib.Path(pool).rglob("*") if lease["lease_id"] in path.name)
    name = next(line.split()[0] for line in sh("dmsetup ls").splitlines() if lease["lease_id"] in line)
    return f"/dev/{os.path.basename(sh(f'dmsetup info -c --noheadings -o blkdevname {name}'))}"


def fences(node):
    """The current fences."""
    return node.operator.ask("fence", "list")["fences"]


def main():
    """All sections on one state directory, beside a foreign subsystem."""
    ready()
    pools = {"directory": directory_pool(32), "device": loop_device(32)}
    foreign = nvmet_tree.Foreign(loop_device(16))
    with Suite("block across restarts") as suite, BlockNode(*pools.values()) as node:
        subprocess.run(["sh", "-c", foreign.line], check=True)
        witness = Fio(until(lambda: device(foreign.nqn), 60, "the foreign device"), size="1M", iodepth=1).started()
        theirs = nvmet_tree.below(nvmet_tree.snapshot(), foreign.nqn)
        for section in (adopts, stopped_and_kept, adopts_over_udp, adopts_both, expired_meanwhile, wedged, dies):
            suite.section(section, suite, node, pools)
        suite.check("the foreign subsystem: fio goes on", witness.running(), "running")
        suite.equal("the foreign subsystem: without an error", 0, witness.stop()["error"])
        suite.equal("the foreign subsystem: untouched", [], nvmet_tree.difference(theirs, nvmet_tree.below(nvmet_tree.snapshot(), foreign.nqn)))
        disconnect(foreign.nqn)
        foreign.remove()
        suite.equal("SIGTERM", 0, node.stop())
        suite.check("no watchdog is left", until(lambda: not watchdogs(), 60, "the watchdog's end"), "none")


if __name__ == "__main__":
    main()
