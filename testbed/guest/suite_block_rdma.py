#!/usr/bin/python3
# lab: one-vm alone timeout=600
# covers: nvmet pool client/attach/src node/src/kinds/block
"""Blocks over NVMe/RDMA on soft-RoCE: the lease's own connect line connects, nobody else gets in. Free and expiry end
the access under running I/O while a neighbour's I/O goes on; the death of the daemon and a change of keys do not."""
import subprocess

import block_daemon
from block import ADDRESS, ADDRESS6, RDMA, RDMA_PORT, BlockNode, alloc, attached, device_of, directory_pool, leased, loop_device, nqn_of, ready, resources
from block import same_traces, settled, traces, ways_to_end
from block_refusals import refused, strangers
from checks import FULL, Suite, in_full_length, lab_device, length
from fabric import program
from nvme_host import CONTROLLERS, Fio, changed, connect, controllers, device, failed, gen_key, gone, options_of, text_of, verified
from suite_block_ends import together
from suite_block_restart import same_names

TERM_SECS = length(10, 7)
# Short, so that a block daemon queries the lease often.
KEYS_SECS = 60
OVER = "nvme-rdma"


def transfer(suite, node, pools):
    """A connect line used unchanged, and the same bytes read back; strangers do not get in."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    for kind, pool in pools.items() if FULL else [("directory", pools["directory"])]:
        with attached(alice, pool=pool, transport=OVER) as (lease, path):
            suite.equal(f"{kind}: over RDMA", "rdma", lease["binding"]["nvmeof"]["trtype"])
            suite.equal(f"{kind}: written and verified", 0, verified(path, size="2M")["error"])
    with attached(alice, transport=OVER) as (lease, _), attached(bob, transport=OVER) as (other, _):
        strangers(suite, "two tenants", lease, other, wrong_key=False)


def ends(suite, node, pools):
    """Free and expiry under fio, beside a neighbour."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    with attached(alice, pool=pools["device"], transport=OVER) as (_, path):
        neighbour = Fio(path).started()
        # The short forms of suite_block_ends and suite_block_tcp have all ways, over TCP.
        for name, secs, end in ways_to_end(node, bob, TERM_SECS)[length(0, 2):]:
            lease = alloc(bob, secs=secs, pool=pools["device"], transport=OVER)
            job = Fio(connect(lease)).started()
            end(lease)
            suite.check(f"{name}: fio meets errors", failed(job.report()), "an error")
            gone(nqn_of(lease))
            refused(suite, f"{name}: the lease's own line", options_of(lease["binding"]["nvmeof"]["connect"]), nqn_of(lease))
        suite.check("the neighbour goes on", neighbour.running(), "running")
        suite.equal("the neighbour met no error", 0, neighbour.stop()["error"])


def asked(suite, node, pools):
    """The port answers the connects with which the daemon proves a cut."""
    lease = alloc(node.tenant("alice"), pool=pools["device"], transport=OVER)
    suite.equal("asked: a lease, for a stranger", "status 4184", ask(nqn_of(lease)))
    suite.equal("asked: what never was", "status 4182", ask(nqn_of(lease) + "x"))
    suite.equal("asked: where nobody listens", "nobody", ask(nqn_of(lease), port=RDMA_PORT + 1000))
    node.tenant("alice").free(lease)
    line = node.wait_for_line("Connect refused with status 0x4182", lease["lease_id"])
    suite.check("asked: the cut is proved by the port's answer", line)
    print(f"   {line}", flush=True)
    suite.equal("asked: the lease is gone", "status 4182", ask(nqn_of(lease)))


def ask(subsystem, port=RDMA_PORT):
    """Connects as an unknown host, with the daemon's code; returns the result."""
    question = f"{ADDRESS}:{port} {'0' * 32} {subsystem} nqn.2014-08.org:stranger\n"
    words = [program("fabricbiosd"), "ask-rdma"]
    return subprocess.run(words, input=question, check=True, capture_output=True, text=True, timeout=30).stdout.strip()


@in_full_length
def all_together(suite, node, pools):
    """Leases that end together at SIGTERM."""
    together(suite, node, pools, OVER, 8)


@in_full_length
def restarts(suite, node, pools):
    """The daemon is killed under running I/O and starts again; then both keys of a device from `block attach` are
    changed."""
    alice = node.tenant("alice")
    with attached(alice, pool=pools["device"], transport=OVER) as (lease, path):
        job = Fio(path).started()
        node.kill()
        node.start()
        again = alice.query(lease)
        suite.equal("restart: the lease goes on", "active", again["state"])
        same_names(suite, "restart", lease, again)
        suite.equal("restart: fio goes on, without an error", (True, 0), (job.running(), job.stop()["error"]))
    with leased(alice, secs=KEYS_SECS, pool=pools["device"], transport=OVER, more=("--mutual-auth",)) as lease:
        with device_of(alice, lease) as path:
            job = Fio(path).started()
            block_daemon.changes_keys(suite, "keys", alice, lease)
            suite.equal("keys: fio goes on, without an error", (True, 0), (job.running(), job.stop()["error"]))


def wrong_key(suite, node):
    """The right host with another key. Debian's host side over RDMA may miss the refusal and then wait for it for ever,
    so this section comes last and checks only that there is never a connection."""
    alice = node.tenant("alice")
    lease = alloc(alice, transport=OVER)
    options = changed(lease["binding"]["nvmeof"]["connect"], dhchap_secret=gen_key(lease["binding"]["nvmeof"]["hostnqn"]))
    words = ["nvme", "connect", *(f"--{name}={value}" for name, value in options.items())]
    tried = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        suite.check("another key: refused", tried.wait(length(60, 6)) != 0, "an error")
    except subprocess.TimeoutExpired:
        print("   another key: this host's kernel waits on", flush=True)
    states = [text_of(CONTROLLERS / name / "state") for name in controllers(nqn_of(lease))]
    suite.check("another key: no connection", "live" not in states and device(nqn_of(lease)) is None, "none", states)
    suite.equal("another key: the lease is given back", "freed", alice.free(lease)["state"])


def six(suite, node):
    """The same over IPv6, with a node that has no other port."""
    with attached(node.tenant("alice"), transport=OVER) as (lease, path):
        suite.equal("IPv6: the line's address", ADDRESS6, lease["binding"]["nvmeof"]["traddr"])
        suite.equal("IPv6: written and verified", 0, verified(path, size="1M")["error"])
    line = node.wait_for_line("Connect refused with status 0x4182", lease["lease_id"])
    suite.check("IPv6: the cut is proved by the port's answer", line)


def main():
    """Nearly all sections on one node."""
    lab_device()
    ready()
    pools = {"directory": directory_pool(64), "device": loop_device(64)}
    with Suite("block over rdma") as suite:
        before = traces()
        with BlockNode(*pools.values(), ports=(RDMA,)) as node:
            free = {pool: row["available"] for pool, row in resources(node.operator).items()}
            for section in (transfer, asked, ends, restarts):
                suite.section(section, suite, node, pools)
            for pool, available in free.items():
                settled(node.operator, pool, available)
            suite.section(all_together, suite, node, pools)
        same_traces(suite, "the node is gone", before, traces())
        with BlockNode(loop_device(16), ports=(f"rdma:[{ADDRESS6}]:{RDMA_PORT}",)) as node:
            suite.section(six, suite, node)
            suite.section(wrong_key, suite, node)


if __name__ == "__main__":
    main()
