#!/usr/bin/python3
# lab: one-vm clients timeout=1800
"""Mooncake's own transfer_engine_bench, as its wheel has it, on a lease that `fabricctl mooncake` serves, against the same
bench on its own target, in turns in one boot: what leasing costs on the data path. Absolute numbers of an emulated processor
mean nothing; the ratios do."""
import argparse
import contextlib
import re
import subprocess
import sys
import tempfile

from checks import lab_device, skip, until
from fabric import ADDRESS, Node
from ratios import interleaved, report
from stock_programs import DEVICE, MOONCAKE, PLACE, Segment, version

# A batch of all threads is exactly the lease.
BLOCK_BYTES, BATCH, THREADS = 65536, 8, 2
LEASE_BYTES = BLOCK_BYTES * BATCH * THREADS
LEASE_SECS, RUN_SECS = 3600, 120
NAMES = ("leased", "plain")


def command(mode, *more):
    """The same command line for both sides, and for the target."""
    bench, = PLACE.glob("lib/python3*/site-packages/mooncake/transfer_engine_bench")
    return [str(bench), f"-mode={mode}", "-metadata_server=P2PHANDSHAKE", f"-local_server_name={ADDRESS}", "-protocol=rdma",
            f"-device_name={DEVICE}", f"-buffer_size={LEASE_BYTES}", f"-block_size={BLOCK_BYTES}", f"-batch_size={BATCH}",
            f"-threads={THREADS}", "-logtostderr", *more]


@contextlib.contextmanager
def target():
    """The bench's own target; the name of its segment."""
    with tempfile.TemporaryFile("w+") as said, subprocess.Popen(command("target"), stdout=said, stderr=said) as process:
        def name():
            said.seek(0)
            found = re.search(r"listening on (\S+:\d+)\s", said.read())
            if process.poll() is not None:
                raise RuntimeError(f"transfer_engine_bench -mode=target ended with {process.returncode}")
            return found and found[1]
        try:
            yield until(name, what="the name of the target's segment")
        finally:
            process.kill()


def bandwidth(operation, secs, segment):
    """Runs the bench and returns its MiB/s."""
    words = (f"-operation={operation}", f"-segment_id={segment}", f"-duration={secs}", "-report_unit=MiB")
    ran = subprocess.run(command("initiator", *words), capture_output=True, text=True, timeout=RUN_SECS, check=False)
    said = ran.stdout + ran.stderr
    found = re.search(r"throughput ([0-9.]+) MiB/s", said)
    if ran.returncode or not found or not float(found[1]):
        raise RuntimeError(f"transfer_engine_bench, {operation}: exit {ran.returncode}: {said[-2000:]}")
    return float(found[1])


def main():
    """Reads and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--secs", type=int, default=5)
    chosen = parser.parse_args()
    lab_device()
    if not version(MOONCAKE):
        skip(f"{MOONCAKE} in {PLACE}")
    print(f"{MOONCAKE} {version(MOONCAKE)}", flush=True)
    with Node("--rdma-strategy", "region", mem_bytes=LEASE_BYTES) as node, Segment(node.tenant("bench"), LEASE_BYTES, LEASE_SECS) as leased, target() as plain:
        for operation in ("read", "write"):
            sides = [lambda segment=segment: bandwidth(operation, chosen.secs, segment) for segment in (leased.name, plain)]
            taken = interleaved(chosen.pairs, *sides)
            report(f"bench_mooncake/{operation}", f"transfer_engine_bench, {operation}, {THREADS} threads, batches of {BATCH} blocks of {BLOCK_BYTES} bytes",
                   "MiB/s, more is better", NAMES, taken)
    return 0


if __name__ == "__main__":
    sys.exit(main())
