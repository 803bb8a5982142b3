#!/usr/bin/python3
# lab: one-vm timeout=1800
"""The cut of a memory lease over RDMA at its deadline, while a client writes without pause, against a bare program that
destroys the same objects at a deadline under the same writer, in turns in one boot. Both times run from the deadline until
all is over: of the lease by the node's own clock (`after_deadline_us` of its log), proof included. Absolute numbers of an
emulated processor mean nothing; the ratio does. A third side shows how near the goal a cut can come: a program that takes the
steps of the node's cut, in a second thread, and nothing else. The writer and both programs are `cut_bench.c`."""
import argparse
import contextlib
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from checks import lab_device, skip
from fabric import Node
from ratios import interleaved, report

LEASE_BYTES, TERM_SECS, BARE_MS = 65536, 2, 300
LATE = re.compile(r"after_deadline_us=(\d+)")
STEP = re.compile(r"([a-z][a-z_A-Z ]*?) ok ([0-9.]+) ms")


def compiled(place):
    """Path of the program of both sides, built."""
    source, built = pathlib.Path(__file__).with_name("cut_bench.c"), f"{place}/cut_bench"
    made = subprocess.run(["gcc", "-O1", "-o", built, str(source), "-libverbs", "-pthread"], capture_output=True, text=True, check=False)
    if "verbs.h" in made.stderr:
        skip("infiniband/verbs.h (Debian package libibverbs-dev)")
    if made.returncode:
        raise RuntimeError(made.stderr)
    return built


class Program:
    """A running `cut_bench`."""

    def __init__(self, *words):
        self.words = words
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self):
        """The words of its next line."""
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"{' '.join(self.words)}: ended with {self.process.wait()}")
        return line.split()

    def ask(self, *words):
        """The words of its answer."""
        print(*words, file=self.process.stdin, flush=True)
        return self.line()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(60)


class Lease:
    """The node's side."""

    def __init__(self, node, gid):
        self.node, self.tenant, self.gid = node, node.tenant("bench"), gid
        self.steps = {}

    def __call__(self, writer):
        """µs from the deadline to the end of the cut."""
        number, psn = writer.line()
        lease = self.tenant.alloc(LEASE_BYTES, TERM_SECS, f"qpn={number},gid={self.gid},psn={psn}")
        rdma = lease["binding"]["rdma"]
        writer.ask(rdma["qp_num"], rdma["psn"], rdma["rkey"], rdma["remote_addr"])
        writer.line()
        line = self.node.wait_for_line(lease["lease_id"], "lease ended", timeout_secs=30)
        if not line:
            raise LookupError(f"no line of the end of lease {lease['lease_id']} in the node's log")
        for name, took_ms in STEP.findall(line):
            self.steps.setdefault(name, []).append(1000 * float(took_ms))
        return float(LATE.search(line)[1])


def destroyed(program, writer):
    """µs from the deadline until the program has destroyed its objects."""
    coordinates = program.ask(*writer.line())
    writer.ask(*coordinates)
    late_us, = map(float, program.ask(BARE_MS))
    writer.line()
    return late_us


def compare(pairs, strategy, built, device):
    """Leases of a strategy against the bare program."""
    place = (device.name, str(device.gid_index))
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(Node("--rdma-strategy", strategy))
        bare, steps = (stack.enter_context(Program(built, "serve", *place, strategy, str(LEASE_BYTES), how)) for how in ("bare", "steps"))
        # On two emulated processors it would otherwise leave the others no time.
        writer = stack.enter_context(Program("nice", built, "write", *place))
        lease = Lease(node, device.gid.exploded)
        # The first of each side also loads what the later ones share.
        lease(writer), destroyed(bare, writer), destroyed(steps, writer)
        lease.steps.clear()
        cuts, others = interleaved(pairs, lambda: lease(writer), lambda: (destroyed(bare, writer), destroyed(steps, writer)))
        bares, in_steps = zip(*others)
        what = f"the end of access over RDMA under a writer, from its deadline, a {strategy}"
        report(f"bench_rdma_cut/{strategy}", what, "µs, less is better", ("lease", "bare destroy"), (cuts, bares))
        report(f"bench_rdma_cut/{strategy}-steps", what, "µs, less is better", ("lease", "its steps alone"), (cuts, in_steps))
        report(f"bench_rdma_cut/{strategy}-limit", what, "µs, less is better", ("its steps alone", "bare destroy"), (in_steps, bares))
        for name, taken_us in lease.steps.items():
            print(f"   {name:20} {statistics.median(taken_us):8.0f} µs")


def main():
    """Windows, then regions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    pairs = parser.parse_args().pairs
    device = lab_device()
    with tempfile.TemporaryDirectory() as place:
        built = compiled(place)
        for strategy in ("window", "region"):
            compare(pairs, strategy, built, device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
