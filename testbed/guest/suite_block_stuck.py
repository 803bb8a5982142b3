#!/usr/bin/python3
# lab: one-vm timeout=600
# covers: nvmet pool client/attach/src node/src/kinds/block
"""Storage that hangs under a lease: the client is still cut on time. The release gives up, fences what it cannot
finish, and names the device. All other grants, cuts and I/O go on. When the storage answers again, the fence is
cleared."""
from block import BlockNode, alloc, attached, directory_pool, leased, loop_device, nqn_of, on_time, ready, resource_of, row_of
from block import settled, sh
from checks import FULL, Suite, length, until
from fabric import Refused
from nvme_host import Fio, Watch, connect, failed, gone, verified

TERM_SECS = length(15, 12)


def slice_of(lease):
    """The device-mapper name of a lease's part of a device."""
    names = [line.split()[0] for line in sh("dmsetup ls").splitlines()]
    return next(name for name in names if lease["lease_id"] in name)


def kernel_name(name):
    """The kernel's name of a device-mapper device, such as `dm-1`."""
    return sh(f"dmsetup info -c --noheadings -o blkdevname {name}").rsplit("/", 1)[-1]


def stuck(suite, node, pools, resumed_by):
    """A lease on suspended storage ends; `resumed_by` resumes the storage and clears the fence."""
    alice, bob = node.tenant("alice"), node.tenant("bob")
    with attached(alice, pool=pools["device"]) as (_, path):
        neighbour = Fio(path).started()
        lease = alloc(bob, secs=TERM_SECS, more=("--resource", pools["device"]))
        suite.equal("a pool is named by its path", resource_of(bob, pools["device"]), lease["resource_id"])
        victim, name = Fio(connect(lease)).started(), slice_of(lease)
        sh(f"dmsetup suspend --noflush --nolockfs {name}")
        try:
            watch = Watch(nqn_of(lease))
            on_time(suite, "stuck", lease, watch.report())
            suite.check("stuck: fio meets errors", failed(victim.report()), "an error")
            gone(nqn_of(lease))
            fence = until(node.operator.fences, 60, "a fence")[0]
            suite.check("stuck: the fence names the device", kernel_name(name) in fence["reason"], kernel_name(name), fence["reason"])
            print(f"   stuck: {fence['reason']}", flush=True)
            if resumed_by is heals or FULL:
                others(suite, node, pools, lease)
            suite.check("stuck: the neighbour goes on", neighbour.running(), "running")
        finally:
            sh(f"dmsetup resume {name}")
        resumed_by(suite, node, fence)
        suite.check("healed: the neighbour goes on", neighbour.running(), "running")
        suite.equal("the neighbour met no error", 0, neighbour.stop()["error"])
    for pool in pools.values():
        row = row_of(node.operator, pool)
        suite.check(f"healed: all of {pool} is free", settled(node.operator, pool, row["capacity"]))


def others(suite, node, pools, stuck_lease):
    """Beside the stuck release: grants, transfers, frees and an expiry."""
    carol = node.tenant("carol")
    with attached(carol, pool=pools["directory"]) as (_, path):
        suite.equal("stuck: another lease is granted, written and verified", 0, verified(path, size="1M")["error"])
    with leased(carol, pool=pools["directory"], secs=6) as lease:
        connect(lease)
        watch = Watch(nqn_of(lease))
        on_time(suite, "stuck, another lease", lease, watch.report())
        gone(nqn_of(lease))
    freed = alloc(carol, pool=pools["directory"])
    suite.equal("stuck: another lease is freed", "freed", carol.free(freed)["state"])
    revoked = alloc(carol, pool=pools["directory"])
    suite.check("stuck: another lease is revoked", node.operator.revoke(revoked))
    with attached(carol, pool=pools["device"]) as (_, path):
        suite.equal("stuck: the rest of the same pool is granted, written and verified", 0, verified(path, size="1M")["error"])
    flags = {kind: row_of(node.operator, pool)["flags"] for kind, pool in pools.items()}
    suite.equal("stuck: its pool is degraded, the other is not", {"device": ["degraded"], "directory": []}, flags)
    parts = {kind: row_of(node.operator, pool).get("fenced_part") for kind, pool in pools.items()}
    suite.equal("stuck: the inventory tells how much of which pool is fenced", {"device": stuck_lease["capacity"], "directory": None}, parts)


def heals(suite, node, _fence):
    """The late release clears its own fence."""
    suite.check("resumed: the late release clears the fence", until(lambda: not node.operator.fences(), 60, "no fence"))


def cleared(suite, node, fence):
    """An operator clears the fence, or finds that it is gone already."""
    try:
        node.operator.ask("fence", "clear", fence["resource_id"])
    except Refused as refusal:
        print(f"   fence clear: {refusal.message}", flush=True)
        suite.equal("fence clear: nothing left to clear", "NotFound", refusal.code)
    suite.equal("fence clear: no fence", [], node.operator.fences())


def main():
    """On one node with both kinds of pool; in full length twice."""
    ready()
    pools = {"directory": directory_pool(64), "device": loop_device(64)}
    with Suite("block over stuck storage") as suite, BlockNode(*pools.values()) as node:
        for after in (*length((heals,), ()), cleared):
            suite.section(stuck, suite, node, pools, after)
        suite.equal("nothing is fenced", [], node.operator.fences())


if __name__ == "__main__":
    main()
