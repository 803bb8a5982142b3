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
from checks import FULL, LATE_LIMIT_MS, STOPPED_LATE_MS, Suite, give_back, in_full_length, length, until
from fabric import program
from fbbu_client import Client
from nvme_host import Fio, connect, device, disconnect, failed, gone, verified
from steps import BLOCK

TERM_SECS = length(10, 7)
STEP_SECS = 15
SECRET = pattern("secret")
# Steps after which the left-behind state differs each time.
SOME_STEPS = length(("link anchor", "link port", "journal grant", "unlink port", "remove namespace", "unmap volume"), ("link port",))
# Steps that a directory does not have: files are not mapped.
NOT_OF_A_DIRECTORY = ("unmap volume",)
DIE_AFTER = "FABRICBIOS_DIE_AFTER"
# Names and keys of a lease over NVMe-oF.
NAMES = ("subnqn", "hostnqn", "hostid", "dhchap_secret", "nsid", "traddr", "trsvcid")


def adopts(suite, node, pools):
    """A restart under I/O on each kind of pool, to a device over UDP, and to one lease over both transports: no error,
    the same names and keys, and the bytes of before. A client over UDP waits for the daemon and then goes on."""
    alice, marked, at = node.tenant("alice"), pattern("kept", 65536), 3 * MIB
    with contextlib.ExitStack() as held:
        over_tcp = {kind: held.enter_context(attached(alice, pool=pool)) for kind, pool in pools.items() if FULL or kind == "directory"}
        over_udp = held.enter_context(leased(alice, transport="udp", pool=pools["device"]))
        device_over_udp = held.enter_context(device_of(alice, over_udp))
        over_both = held.enter_context(leased(alice, transport="both", pool=pools["device"]))
        for _, path in over_tcp.values():
            put(path, marked, at)
        with Client(over_both) as client:
            client.write(at // client.unit, marked)
        places = {**{kind: path for kind, (_, path) in over_tcp.items()}, "both transports": connect(over_both)}
        jobs = {kind: Fio(path, size="1M", rate=10).started() for kind, path in (*places.items(), ("over UDP", device_over_udp))}
        node.kill()
        suite.equal("fio goes on without a daemon", [True] * len(places), [jobs[kind].running() for kind in places])
        node.start()
        for kind, lease in (*((kind, lease) for kind, (lease, _) in over_tcp.items()), ("both transports", over_both)):
            same_names(suite, kind, lease, alice.query(lease))
        with Client(alice.query(over_both)) as client:
            suite.equal("both transports: over UDP the bytes of before, with the key of now", marked,
                        client.read(at // client.unit, len(marked) // client.unit))
        begun = jobs["over UDP"].done()
        until(lambda: jobs["over UDP"].done() > begun, 60, "more I/O")
        for kind, job in jobs.items():
            suite.equal(f"{kind}: fio goes on, without an error", (True, 0), (job.running(), job.stop()["error"]))
        suite.equal("over UDP: written and verified after that", 0, verified(device_over_udp, size="1M")["error"])
        disconnect(nqn_of(over_both))
        for kind, (lease, _) in over_tcp.items():
            disconnect(nqn_of(lease))
            suite.equal(f"{kind}: connected again by the old line", marked[:4096], get(connect(lease), 4096, at))


@in_full_length
def stopped_and_kept(suite, node, pools):
    """The same with SIGTERM, if the daemon was started with on-stop = keep."""
    alice = node.tenant("alice")
    with node.keeping(), attached(alice, pool=pools["device"]) as (lease, path):
        job = Fio(path).started()
        suite.equal("SIGTERM, leases kept: exit status", 0, node.stop())
        suite.check("SIGTERM, leases kept: fio goes on without a daemon", job.running(), "running")
        node.start()
        same_names(suite, "SIGTERM, leases kept", lease, alice.query(lease))
        suite.check("SIGTERM, leases kept: fio goes on", job.running(), "running")
        suite.equal("SIGTERM, leases kept: without an error", 0, job.stop()["error"])


def same_names(suite, name, before, after):
    """Checks that names and keys of the lease over NVMe-oF have not changed."""
    names = [{field: lease["binding"]["nvmeof"][field] for field in NAMES} for lease in (before, after)]
    suite.equal(f"{name}: the same names and keys", *names)


def expired_meanwhile(suite, node, pools):
    """Leases that run out without a daemon are cut at their deadlines, by the watchdog that the daemon has left
    running. It has replaced another one."""
    alice = node.tenant("alice")
    end_watchdog(node)
    leases = {kind: alloc(alice, secs=TERM_SECS + 5, pool=pool) for kind, pool in pools.items()}
    jobs = {kind: Fio(connect(lease)).started() for kind, lease in leases.items()}
    node.kill()
    _end_on_time(suite, "no daemon", leases, jobs)
    node.start()
    suite.equal("no daemon: expired", ["expired"] * len(leases), [alice.query(lease)["state"] for lease in leases.values()])


def wedged(suite, node, pools):
    """A lease is also cut on time while the daemon is stopped; a longer lease goes on."""
    alice = node.tenant("alice")
    with attached(alice, pool=pools["device"]) as (other, path):
        lease = alloc(alice, secs=TERM_SECS, pool=pools["device"])
        job = Fio(connect(lease)).started()
        node.process.send_signal(signal.SIGSTOP)
        _end_on_time(suite, "a stopped daemon", {"device": lease}, {"device": job}, STOPPED_LATE_MS)
        suite.equal("a stopped daemon: another lease goes on", 1, nvmet_tree.listed(nqn_of(other)))
        put(path, pattern("other"))
        node.process.send_signal(signal.SIGCONT)
        suite.equal("a stopped daemon that goes on: expired", "expired", alice.query(lease)["state"])


def _end_on_time(suite, name, leases, jobs, late_limit_ms=LATE_LIMIT_MS):
    """Checks that each lease ends not before its deadline, and soon after it."""
    late_ms = {}

    def ended():
        # The clock is read after the end was seen, so a slow suite makes an end look later, never earlier.
        for kind in leases.keys() - late_ms.keys():
            if not nvmet_tree.listed(nqn_of(leases[kind])):
                late_ms[kind] = time.time() * 1000 - leases[kind]["expires_at_unix_ms"]
        return len(late_ms) == len(leases)
    until(ended, TERM_SECS + 60, "the end of the leases")
    for kind, job in jobs.items():
        print(f"   {kind}, {name}: unlinked {late_ms[kind]:.0f} ms after the deadline", flush=True)
        suite.check(f"{kind}, {name}: cut at its deadline", 0 <= late_ms[kind] < late_limit_ms, f"0 to {late_limit_ms} ms", late_ms[kind])
        suite.check(f"{kind}, {name}: fio meets errors", failed(job.report()), "an error")
        gone(nqn_of(leases[kind]))


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
    for fence in node.operator.fences():
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


def main():
    """All sections on one state directory, beside a foreign subsystem."""
    ready()
    pools = {"directory": directory_pool(32), "device": loop_device(32)}
    foreign = nvmet_tree.Foreign(loop_device(16))
    with Suite("block across restarts") as suite, BlockNode(*pools.values()) as node:
        subprocess.run(["sh", "-c", foreign.line], check=True)
        witness = Fio(until(lambda: device(foreign.nqn), 60, "the foreign device"), size="1M", iodepth=1).started()
        theirs = nvmet_tree.below(nvmet_tree.snapshot(), foreign.nqn)
        for section in (adopts, stopped_and_kept, expired_meanwhile, wedged, dies):
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
