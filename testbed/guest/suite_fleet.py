#!/usr/bin/python3
# lab: two-vm etcd full timeout=600
# covers: scheduler placement
"""Two nodes on two machines, a scheduler and its etcd: leases that the scheduler places are used by stock clients over RDMA
and NVMe/TCP. Under their traffic etcd's disk stalls, etcd is killed, started again and stopped, and the scheduler is killed: the
traffic goes on, leases are placed without etcd and got at a node without the scheduler, and each ends at its deadline."""
import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import fabric
from block import MIB, alloc, directory_pool, get, nqn_of, pattern, put, ready
from checks import STOPPED_LATE_MS, length, skip, until
from etcd import Disk, Scheduler, Stall
from nvme_host import Fio, Watch, connect, disconnect, failed, gone
from pair import CLIENT, NODE, granted, hear, hear_identity, link_device, run, say
from perftest import Perftest
from rdma_client import Client, now_ms
from writer import Writer

SCHEDULER = f"{NODE}:5704"
# A node has room for two of these leases of memory, and for two of blocks: it is the policy that spreads them.
MEM_BYTES, THIRD_OF_MEM = 16 * MIB, 5 * MIB
POOL_MIB, THIRD_OF_POOL = 36, 12 * MIB
LEASE_BYTES, PERFTEST_BYTES = 65536, MIB
LONG_SECS = 1800
# Leases that end by their terms. A lease is in use long before, also where other programs have the processors.
MEM_SECS, BLOCK_SECS = 30, 90
# The lease of a scheduler's presence in etcd.
PRESENCE_SECS = 30
NEWCOMER_PORT, NEWCOMER_UDP_PORT = 5711, 5712
PERFTEST = ("ib_write_bw", "-s", "65536", "-n", length("500", "100"))


def node_flags(address, *more):
    """The flags of a node of this fleet: memory, blocks over NVMe/TCP, and the scheduler."""
    pool = directory_pool(POOL_MIB)
    # A cut is due at the deadline, whatever its proof takes on a busy host: within the default of a second it can end in a fence.
    return ["--block-pool", pool, "--nvmet", f"tcp:{address}:4420", "--scheduler", SCHEDULER, "--cut-within-ms", "10000", *more]


def prepared(address):
    """The RDMA device of this machine. Ends the suite as not run if something is missing."""
    for tool, package in (("etcd", "etcd-server"), ("ib_write_bw", "perftest")):
        if not shutil.which(tool):
            skip(f"{tool} (Debian package {package})")
    ready()
    try:
        fabric.program("fabricbios-scheduler")
    except LookupError as missing:
        skip(missing)
    return link_device(address)


def be_node(suite):
    """The fabric's directory, the scheduler with etcd, and a node; does what the client orders."""
    prepared(NODE)
    place = pathlib.Path(tempfile.mkdtemp(prefix="fleet-"))
    directory = place / "fabric"
    admin = fabric.Fabric(directory / "admin.identity", SCHEDULER)
    admin.ask("fabric", "init", directory)
    admin.ask("identity", "issue", "--tenant", "blue", "--fabric-dir", directory, "--out", place / "blue.identity")
    say("admin", pathlib.Path(admin.identity).read_text(encoding="ascii"))
    say("blue", (place / "blue.identity").read_text(encoding="ascii"))
    before = fabric.resources()
    disk = Disk()
    with Scheduler(directory / "scheduler.identity", SCHEDULER, disk.place) as scheduler, contextlib.ExitStack() as stack:
        stack.enter_context(disk)
        stall = Stall(suite, disk, scheduler, lambda: stack.enter_context(newcomer(directory)))
        with fabric.Node(*node_flags(NODE, "--fabric-dir", str(directory)), address=NODE, mem_bytes=MEM_BYTES) as node:
            sign(admin, directory)
            orders = {"kill etcd": scheduler.etcd.kill, "start etcd": scheduler.etcd.start, "stop etcd": scheduler.etcd.stop,
                      "let etcd go on": scheduler.etcd.go_on, "kill the scheduler": scheduler.kill,
                      "start the scheduler": scheduler.start_again, "stall etcd's disk": stall.begin,
                      "let etcd's disk go on": stall.end}
            obey(orders)
            suite.equal("the client's checks", "0 failed", hear("client-done"))
            suite.equal("no panic in a log", [], [line for line in node.lines + scheduler.lines if "panicked" in line])
            suite.equal("SIGTERM: exit status of the node", 0, node.stop())
            show_warnings(suite, node, scheduler)
        suite.equal("SIGTERM: exit status of the scheduler", 0, scheduler.stop())
    suite.equal("nothing is left on the device", before, fabric.resources())


def show_warnings(suite, *daemons):
    """After a failure, what these daemons have warned of."""
    for line in (line for daemon in daemons for line in daemon.lines if suite.failed and ("WARN" in line or "ERROR" in line)):
        print(f"   {line}", flush=True)


def newcomer(directory):
    """A second node on this machine, with memory alone."""
    flags = ["--fabric-dir", str(directory), "--scheduler", SCHEDULER, "--fbmu-listen", f"{NODE}:{NEWCOMER_UDP_PORT}"]
    return fabric.Node(*flags, address=NODE, port=NEWCOMER_PORT, mem_bytes=MEM_BYTES)


def sign(admin, directory):
    """Signs the request of the other machine's node."""
    request = directory.with_name("node.csr")
    request.write_text(hear("request"), encoding="ascii")
    say("answer", admin.ask("fabric", "sign", request, "--role", "node", "--label", "rack=r2", "--dir", directory)["answer"])


def obey(orders):
    """Orders, one after the other, until there is none."""
    number = 0
    while order := hear(f"order-{number}"):
        orders[order]()
        say(f"done-{number}")
        number += 1


class Fleet:
    """The client's view: the scheduler, asked by the operator and by a tenant, and traffic that goes on meanwhile."""

    def __init__(self, device, node, stack):
        self.device, self.node, self.stack = device, node, stack
        self.operator = fabric.Fabric(hear_identity("admin"), SCHEDULER)
        self.tenant = fabric.Fabric(hear_identity("blue"), SCHEDULER)
        self.orders = 0
        self.writers, self.leases, self.blocks, self.fio, self.watch, self.ending = [], [], None, None, None, None

    def order(self, what):
        """Has the other machine do it; returns when it is done. The empty order is the last one."""
        say(f"order-{self.orders}", what)
        if what:
            hear(f"done-{self.orders}")
        self.orders += 1

    def listed(self):
        """Address and id of the nodes that `node list` shows, and of those that are away; None where nobody answers."""
        try:
            told = self.operator.ask("node", "list")
        except fabric.Refused:
            return None
        return tuple(sorted((node["address"], node["node_id"]) for node in told[which]) for which in ("nodes", "away"))

    def ids(self):
        """The ids of the leases that the traffic uses."""
        return {lease["lease_id"] for lease in [*self.leases, self.blocks]}

    def listed_leases(self):
        """The ids of the tenant's leases at all nodes."""
        return {lease["lease_id"] for lease in self.tenant.ask("lease", "list")["leases"]}

    def wait_for_a_report(self):
        """Waits until the scheduler knows of two nodes that were alike that one has less free memory."""
        free = lambda: {it["available"] for node in self.operator.ask("node", "list")["nodes"] for it in node["resources"]
                        if it["resource_type"] == "mem"}
        until(lambda: len(free()) == 2, what="the report of a lease")

    def wait_for_nodes(self, present, away=0):
        """Waits until so many nodes report and so many are away; returns both."""
        counts = lambda found: found and tuple(map(len, found)) == (present, away) and found
        return until(lambda: counts(self.listed()), what=f"{present} nodes, and {away} away")

    def start_the_scheduler(self):
        """Starts it anew, and waits until both nodes report; returns what it lists."""
        self.order("start the scheduler")
        return self.wait_for_nodes(2)

    def goes_on(self, suite, name):
        """Checks that the traffic goes on: more packets, and more writes of fio. That no writer had an error is in its report."""
        before = packets()
        until(lambda: packets() > before + 100, what="packets of the writers")
        self.fio.started()
        suite.check(f"{name}: the traffic goes on", self.fio.running() and self.watch.lost_at_ms is None, "fio runs")


def packets():
    """Packets that the device has received."""
    return int(pathlib.Path("/sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts").read_text(encoding="ascii"))


def join(node, socket):
    """The running node joins the fabric of the other machine: its key stays here."""
    words = [fabric.program("fabricbiosd"), "node-request", "--state-dir", str(node.state_dir)]
    say("request", subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout)
    answer = node.state_dir / "answer.pem"
    answer.write_text(hear("answer"), encoding="ascii")
    words = [fabric.program("fabricbiosd"), "node-accept", str(answer), "--state-dir", str(node.state_dir), "--local-socket", socket]
    subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)


def be_client(suite):
    """The second node, and the clients of both."""
    device = prepared(CLIENT)
    socket = os.path.join(tempfile.mkdtemp(prefix="fleet-"), "local.sock")
    flags = node_flags(CLIENT, "--local-socket", socket)
    with fabric.Node(*flags, address=CLIENT, mem_bytes=MEM_BYTES) as node, contextlib.ExitStack() as stack:
        join(node, socket)
        fleet = Fleet(device, node, stack)
        fleet.wait_for_nodes(2)
        for section in (placed, etcd_disk_stalls, etcd_killed, etcd_stopped, scheduler_killed, blocks_end, given_back, away):
            suite.section(section, suite, fleet)
        suite.equal("no panic in the log", [], [line for line in node.lines if "panicked" in line])
        show_warnings(suite, node)
        fleet.order("")
        say("client-done", f"{suite.failed} failed")


def placed(suite, fleet):
    """Two leases of memory and two of blocks go to two nodes each, and clients begin to use them."""
    for which in range(2):
        writer = fleet.stack.enter_context(Writer())
        lease = fleet.tenant.alloc(THIRD_OF_MEM, LONG_SECS, writer.peer)
        suite.check("memory: the client writes", writer.start(lease), "a write", writer.first)
        fleet.writers.append(writer)
        fleet.leases.append(lease)
        if not which:
            fleet.wait_for_a_report()
    suite.equal("memory: two leases are on two nodes", 2, len({lease["node_id"] for lease in fleet.leases}))
    fleet.blocks = alloc(fleet.tenant, THIRD_OF_POOL, LONG_SECS)
    fleet.watch, fleet.fio = use_blocks(suite, fleet.blocks)
    fleet.goes_on(suite, "blocks and memory")
    suite.equal("the scheduler lists the leases of both nodes", fleet.ids(), fleet.listed_leases())


def etcd_disk_stalls(suite, fleet):
    """While etcd's disk stalls for longer than its times, a node joins, and leases are placed, used and end; then etcd gets the record."""
    name, (both, _) = "etcd's disk stalls", fleet.wait_for_nodes(2)
    fleet.order("stall etcd's disk")
    began = time.monotonic()
    three, _ = fleet.wait_for_nodes(3)
    fleet.goes_on(suite, name)
    blocks = alloc(fleet.tenant, THIRD_OF_POOL, LONG_SECS)
    suite.check(f"{name}: blocks are placed on the other node", blocks["node_id"] != fleet.blocks["node_id"], "another", blocks)
    path = connect(blocks)
    put(path, pattern("stalled", 65536))
    suite.check(f"{name}: what was written is read", get(path, 65536) == pattern("stalled", 65536), "the same bytes")
    disconnect(nqn_of(blocks))
    fleet.tenant.free(blocks)
    writes_to_the_end(suite, fleet, f"{name}, memory")
    fleet.goes_on(suite, f"{name}, at the end")
    suite.equal(f"{name}: node list", (three, []), fleet.listed())
    suite.check(f"{name}: longer than the lease of the scheduler's presence", time.monotonic() - began > PRESENCE_SECS, PRESENCE_SECS)
    fleet.order("let etcd's disk go on")
    present, away = fleet.wait_for_nodes(2, away=1)
    suite.equal("etcd's disk goes on: who had joined and stopped is away", (both, [it for it in three if it not in both]), (present, away))
    # etcd has a record of it: else the scheduler refused this.
    fleet.operator.ask("node", "forget", away[0][1])
    suite.equal("etcd's disk goes on: node list without who is forgotten", (both, []), fleet.wait_for_nodes(2))
    suite.equal("etcd's disk goes on: the leases of the traffic are there", fleet.ids(), fleet.listed_leases())


def etcd_killed(suite, fleet):
    """Without etcd the scheduler places leases, which end on time, and knows the nodes; with etcd again it knows them still."""
    both = fleet.wait_for_nodes(2)
    fleet.order("kill etcd")
    fleet.goes_on(suite, "etcd killed")
    blocks, deadline = granted(lambda: alloc(fleet.tenant, THIRD_OF_POOL, BLOCK_SECS))
    suite.check("etcd killed: blocks are placed on the other node", blocks["node_id"] != fleet.blocks["node_id"], "another", blocks)
    fleet.ending = blocks, deadline, use_blocks(suite, blocks)
    writes_to_the_end(suite, fleet, "etcd killed, memory")
    with Perftest(fleet.tenant, PERFTEST_BYTES) as perftest:
        ran = perftest.run(*PERFTEST)
        suite.check("etcd killed: stock perftest runs on a lease", ran.returncode == 0, "exit 0", f"{ran.returncode}: {ran.stderr[-300:]}")
        perftest.wait_for("done")
    suite.equal("etcd killed: node list", both, fleet.listed())
    fleet.goes_on(suite, "etcd killed, at the end")
    fleet.order("start etcd")
    suite.equal("etcd started again: node list", both, fleet.wait_for_nodes(2))


def writes_to_the_end(suite, fleet, name, meanwhile=lambda: None):
    """A lease of memory ends at its deadline. A busy client hears late of a success, so the time counts at which the write was posted."""
    with Writer() as writer:
        lease, deadline = granted(lambda: fleet.tenant.alloc(LEASE_BYTES, MEM_SECS, writer.peer))
        writer.start(lease)
        meanwhile()
        suite.check(f"{name}: until then it was not due", now_ms() < deadline.earliest_ms, "before the deadline")
        deadline.ended(suite, name, writer.report(), STOPPED_LATE_MS, "last_posted_at_ms")
    return lease


def use_blocks(suite, lease):
    """Connects as the lease says, reads what was written, and has fio go on; the watch of the connection, and fio."""
    path, watch = connect(lease), Watch(nqn_of(lease))
    put(path, pattern("fleet", 65536))
    suite.check("blocks: what was written is read", get(path, 65536) == pattern("fleet", 65536), "the same bytes")
    return watch, Fio(path).started()


def etcd_stopped(suite, fleet):
    """A stopped etcd keeps no request waiting."""
    with Client(fleet.device) as client:
        fleet.order("stop etcd")
        lease = fleet.tenant.alloc(LEASE_BYTES, LONG_SECS, client.peer)
        client.connect(lease)
        suite.equal("etcd stopped: a lease is placed and written", "success", client.write(0, b"stopped").status)
        fleet.tenant.free(lease)
    fleet.goes_on(suite, "etcd stopped")
    fleet.order("let etcd go on")


def scheduler_killed(suite, fleet):
    """Leases outlive the scheduler and end on time; clients ask a node itself; one that starts anew knows both nodes."""
    both = fleet.wait_for_nodes(2)
    lease = writes_to_the_end(suite, fleet, "scheduler killed, memory", lambda: fleet.order("kill the scheduler"))
    fleet.goes_on(suite, "scheduler killed")
    for placed in fleet.leases:
        node = fabric.Fabric(fleet.tenant.identity, placed["node"])
        with Client(fleet.device) as client:
            direct = node.alloc(LEASE_BYTES, LONG_SECS, client.peer)
            client.connect(direct)
            suite.equal("scheduler killed: a node that is asked itself grants", "success", client.write(0, b"direct").status)
            node.free(direct)
    at = fabric.Fabric(fleet.tenant.identity, lease["node"])
    suite.equal("scheduler killed: the node says that the lease is", "EXPIRED", at.query(lease)["status"])
    suite.equal("scheduler started again: node list", both, fleet.start_the_scheduler())


def blocks_end(suite, fleet):
    """The blocks that were placed without etcd end at their deadline."""
    blocks, deadline, (watch, fio) = fleet.ending
    lost_at_ms = watch.report(BLOCK_SECS) or 0
    deadline.on_time(suite, "blocks", lost_at_ms, lost_at_ms, STOPPED_LATE_MS)
    suite.check("blocks: fio fails", failed(fio.report()), "an error")
    gone(nqn_of(blocks))


def given_back(suite, fleet):
    """What was placed at first is freed through the scheduler that was started last; until then nobody had an error."""
    until(lambda: fleet.listed_leases() == fleet.ids(), what="the leases of both nodes in the list of the scheduler")
    for which, (writer, lease) in enumerate(zip(fleet.writers, fleet.leases)):
        before_ms = now_ms()
        fleet.tenant.free(lease)
        told_ms, report = now_ms(), writer.report()
        suite.ended(f"writer {which}", report, told_ms)
        suite.check(f"writer {which}: it wrote until its lease was freed", report["failed_at_ms"] >= before_ms, before_ms, report)
    suite.check("blocks: the connection of the beginning is there", fleet.watch.lost_at_ms is None, "no loss", fleet.watch.lost_at_ms)
    suite.equal("blocks: fio has written and verified without an error", 0, fleet.fio.stop()["error"])
    disconnect(nqn_of(fleet.blocks))
    fleet.tenant.free(fleet.blocks)


def away(suite, fleet):
    """A node that stops is away, also for a scheduler that starts anew, which knows it from etcd alone."""
    present, _ = fleet.wait_for_nodes(2)
    suite.equal("SIGTERM: exit status", 0, fleet.node.stop())
    stopped = [it for it in present if it[0] == fleet.node.address]
    left = [it for it in present if it not in stopped]
    suite.equal("a node that has stopped is listed as away", (left, stopped), fleet.wait_for_nodes(1, away=1))
    fleet.order("kill the scheduler")
    fleet.order("start the scheduler")
    suite.equal("and so it is at a scheduler that starts anew", (left, stopped), fleet.wait_for_nodes(1, away=1))


if __name__ == "__main__":
    run("a fleet of two machines", be_node, be_client)
