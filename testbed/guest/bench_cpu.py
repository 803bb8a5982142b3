#!/usr/bin/python3
# lab: one-vm topology=1x2x1 timeout=1800
"""Leases of CPU cores: grants and cuts (`fabricbios-bench cpu`), and stock cyclictest in a whole_core lease and in a
best_effort lease beside busy neighbours, in turns in one boot. A guest must not have more CPUs than its host: otherwise the
host keeps them waiting, whatever the guest does."""
import argparse
import json
import shutil
import subprocess
import sys
import tempfile

from checks import skip
from cores import CpuNode, beside, enter, leased, ready
from fabric import program
from ratios import interleaved, lines_of_figures, percentile, report, spread

CPUS = 2
# A longer latency counts as the longest latency of its round.
HISTOGRAM_US = 200_000


def latencies(tenant, isolation, secs):
    """How late cyclictest woke up each time, in microseconds, in a lease of one core."""
    with tempfile.NamedTemporaryFile() as result:
        command = ["cyclictest", "--quiet", "--policy=other", "--interval=1000", f"--duration={secs}", f"--histogram={HISTOGRAM_US}",
                   "--histfile=/dev/null", f"--json={result.name}"]
        with leased(tenant, 1, isolation) as lease, enter(lease, command, stdout=subprocess.DEVNULL) as process:
            if status := process.wait():
                raise RuntimeError(f"cyclictest: exit {status}")
        thread = json.load(result)["thread"]["0"]
    late = [int(late_us) for late_us, count in thread["histogram"].items() for _ in range(count)]
    if not late:
        raise RuntimeError("cyclictest woke up at no time")
    return late + [thread["max"]] * (thread["cycles"] - len(late))


def jitter(tenant, pairs, secs, neighbours):
    """Measures both classes in turns."""
    names = ("whole_core", "best_effort")
    with beside(count=neighbours):
        rounds = interleaved(pairs, *(lambda name=name: latencies(tenant, name, secs) for name in names))
    print(f"\nlatency of cyclictest beside {neighbours} busy neighbours, rounds of {secs} s")
    for name, taken in zip(names, rounds):
        every = [late for one in taken for late in one]
        print(f"   {name:12} µs {spread(every)}, p99 {percentile(every, 99)}, p99.9 {percentile(every, 99.9)}, {len(every)} times")
    for percent in (50, 99, 100):
        report(f"bench_cpu/jitter-p{percent}", f"lateness of cyclictest beside busy neighbours, p{percent} of a round", "µs, less is better", names, [[percentile(one, percent) for one in taken] for taken in rounds])


def main():
    """Jitter, then grants and cuts, whose node leaves an empty control group that has all CPUs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="pairs of a grant and a cut, of each class")
    parser.add_argument("--pairs", type=int, default=20, help="of rounds of cyclictest")
    parser.add_argument("--secs", type=int, default=2, help="of a round of cyclictest")
    parser.add_argument("--neighbours", type=int, default=2 * CPUS, help="busy processes outside the leases")
    chosen = parser.parse_args()
    ready(CPUS)
    if not shutil.which("cyclictest"):
        skip("cyclictest (Debian package rt-tests)")
    with CpuNode() as node:
        jitter(node.tenant("bench"), chosen.pairs, chosen.secs, chosen.neighbours)
    subprocess.run([program("fabricbios-bench"), *lines_of_figures(), "cpu", f"--rounds={chosen.rounds}"], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
