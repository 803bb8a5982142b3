#!/usr/bin/python3
# lab: one-vm timeout=3600
"""fio on the namespace of a lease against fio on one wired by hand through configfs, with the same backing and both
with a key, in turns in one boot. Absolute numbers of an emulated processor mean nothing; the ratios do. One fio does
all rounds of a comparison, so that none pays for its start."""
import argparse
import json
import subprocess
import sys

from block import MIB, RDMA, TCP, BlockNode, attached, directory_pool, loop_device, ready
from block_by_hand import Loan, Port
from checks import until
from nvme_host import device
from ratios import interleaved, report

LENGTH = 32 * MIB
# Figure, title and fio options of each measurement.
MEASURED = (("random-read", "4 KiB random reads, 16 in flight", {"rw": "randread", "bs": "4k", "iodepth": 16}),
            ("random-write", "4 KiB random writes, 16 in flight", {"rw": "randwrite", "bs": "4k", "iodepth": 16}),
            ("read", "1 MiB sequential reads, 2 in flight", {"rw": "read", "bs": "1m", "iodepth": 2}),
            ("write", "1 MiB sequential writes, 2 in flight", {"rw": "write", "bs": "1m", "iodepth": 2}))


def rounds(pairs, secs, paths, options):
    """Bytes per second of each path, by pair: one fio with a job for each round, one after the other."""
    words = ["fio", "--output-format=json", "--direct=1", "--ioengine=libaio", "--time_based", f"--runtime={secs}",
             "--thread", *(f"--{name}={value}" for name, value in options.items())]
    order = interleaved(pairs, lambda: _job(words, paths[0]), lambda: _job(words, paths[1]))
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120 + 4 * pairs * secs, check=False)
    if ran.returncode:
        raise RuntimeError(f"fio: exit {ran.returncode}: {ran.stderr.strip()[-500:]}")
    jobs = {job["jobname"]: job for job in json.loads(ran.stdout[ran.stdout.index("{"):])["jobs"]}
    way = "write" if "write" in options["rw"] else "read"
    return [[jobs[name][way]["bw_bytes"] / MIB for name in names] for names in order]


def _job(words, path):
    """Adds a job to the command line; returns its name."""
    name = f"round{sum(word.startswith('--name=') for word in words)}"
    words += [f"--name={name}", f"--filename={path}", "--stonewall"]
    return name


def compare(pairs, secs, paths, where):
    """Compares all kinds of load."""
    for figure, title, options in MEASURED:
        name = f"bench_block_fio/{figure}-{where.replace(', ', '-')}"
        report(name, f"{title}, {where}", "MiB/s, more is better", ("leased", "by hand"), rounds(pairs, secs, paths, options))


def both(tenant, kind, pools, port):
    """A lease and a namespace made by hand, both connected, and the commands to run on their devices."""
    loan = Loan(kind, pools[1], port, LENGTH)
    try:
        loan.connect()
        own = until(lambda: device(loan.nqn), 60, "the device by hand")
        with attached(tenant, LENGTH, pool=pools[0], transport=f"nvme-{port.trtype}") as (_, path):
            yield path, own
    finally:
        loan.remove()


def main():
    """Both kinds of backing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--secs", type=int, default=2, help="of each round")
    parser.add_argument("--kinds", default="device,directory")
    parser.add_argument("--transport", default="tcp", choices=("tcp", "rdma"))
    chosen = parser.parse_args()
    ready()
    # The namespace by hand has a pool of its own, of the same kind and size, so that neither side finds the other's
    # data.
    pools = {"device": (loop_device(64), loop_device(64)), "directory": (directory_pool(64), directory_pool(64))}
    pools = {kind: pools[kind] for kind in chosen.kinds.split(",")}
    offered = {"tcp": TCP, "rdma": RDMA}[chosen.transport]
    with BlockNode(*(pair[0] for pair in pools.values()), ports=(offered,)) as node, Port(chosen.transport) as port:
        for kind, pair in pools.items():
            for paths in both(node.tenant("bench"), kind, pair, port):
                compare(chosen.pairs, chosen.secs, paths, f"{kind}, {chosen.transport}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
