#!/usr/bin/python3
# lab: one-vm timeout=600
"""Blocks over NVMe/RDMA on soft-RoCE: the lease's own line connects, nobody else gets in, and free and expiry end it
under running I/O while a neighbour's goes on."""
import subprocess

from block import RDMA, BlockNode, alloc, attached, directory_pool, loop_device, nqn_of, ready, resources, same_traces
from block import settled, traces, ways_to_end
from block_refusals import refused, strangers
from checks import Suite, lab_device
from nvme_host import CONTROLLERS, Fio, changed, connect, controllers, device, failed, gen_key, gone, options_of, text_of, verified

TERM_SECS = 10
OVER = "nvme-rdma"


def transfer(suite, node, pools):
    """A connect line as it is, and bytes that come back; strangers do not get in."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    for kind, pool in pools.items():
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
        for name, secs, end in ways_to_end(node, bob, TERM_SECS):
            if name == "revoke":
                continue
            lease = alloc(bob, secs=secs, pool=pools["device"], transport=OVER)
            job = Fio(connect(lease)).started()
            end(lease)
            suite.check(f"{name}: fio meets errors", failed(job.report()), "an error")
            gone(nqn_of(lease))
            refused(suite, f"{name}: the lease's own line", options_of(lease["binding"]["nvmeof"]["connect"]), nqn_of(lease))
        suite.check("the neighbour goes on", neighbour.running(), "running")
        suite.equal("the neighbour met no error", 0, neighbour.stop()["error"])


def wrong_key(suite, node, _pools):
    """The right host with another key. Debian's host side over RDMA may miss the refusal and then waits for it without
    an end, so this comes last, and what matters is that there is never a connection."""
    alice = node.tenant("alice")
    lease = alloc(alice, transport=OVER)
    options = changed(lease["binding"]["nvmeof"]["connect"], dhchap_secret=gen_key(lease["binding"]["nvmeof"]["hostnqn"]))
    words = ["nvme", "connect", *(f"--{name}={value}" for name, value in options.items())]
    tried = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        suite.check("another key: refused", tried.wait(20) != 0, "an error")
    except subprocess.TimeoutExpired:
        print("   another key: this host's kernel waits for ever", flush=True)
    states = [text_of(CONTROLLERS / name / "state") for name in controllers(nqn_of(lease))]
    suite.check("another key: no connection", "live" not in states and device(nqn_of(lease)) is None, "none", states)
    suite.equal("another key: the lease is given back", "freed", alice.free(lease)["state"])


def main():
    """All sections on one node."""
    lab_device()
    ready()
    pools = {"directory": directory_pool(64), "device": loop_device(64)}
    with Suite("block over rdma") as suite:
        before = traces()
        with BlockNode(*pools.values(), ports=(RDMA,)) as node:
            free = {pool: row["available"] for pool, row in resources(node.operator).items()}
            for section in (transfer, ends, wrong_key):
                suite.section(section, suite, node, pools)
            for pool, available in free.items():
                settled(node.operator, pool, available)
            suite.equal("SIGTERM", 0, node.stop())
        same_traces(suite, "the node is gone", before, traces())


if __name__ == "__main__":
    main()
