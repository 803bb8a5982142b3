#!/usr/bin/python3
# lab: one-vm timeout=1800
"""Stock perftest against its own server and against a lease, in turns in one boot: what leasing costs on the
data path. Absolute numbers of an emulated processor mean nothing; the ratios do. Write latency is that of
ib_write_bw with one write outstanding, from posting to completion: ib_write_lat cannot be used, because both of its
sides write, and a lease only answers."""
import argparse
import shutil
import statistics
import subprocess
import sys

from checks import lab_device, skip
from fabric import Node
from perftest import Perftest, device_of

# Tool, bytes a message, messages a run, title of the column, whether more is better, further options. One write
# outstanding makes bandwidth the reciprocal of latency.
MEASURED = (("ib_write_bw", 65536, 500, "BW average", True),
            ("ib_read_bw", 65536, 500, "BW average", True),
            ("ib_write_bw", 1024, 2000, "BW average", True, "-t", "1", "-Q", "1"),
            ("ib_read_lat", 8, 1000, "t_typical", False))
STOCK_PORT = 18516
# As many as a lease answers at once. By itself perftest would use the device's 128, and the comparison would measure
# that difference.
OUTSTANDING_READS = 16
RUN_SECS = 120


def command(tool, size, count, port, options, *server):
    """The same command line for both sides."""
    reads = ["-o", str(OUTSTANDING_READS)] if "read" in tool else []
    return [*device_of(tool), *reads, *options, "-s", str(size), "-n", str(count), "-p", str(port), *server]


def listening(port):
    """Whether something listens on the TCP port; perftest reports it only when its output is flushed."""
    with open("/proc/net/tcp", encoding="ascii") as table:
        return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in table.readlines()[1:])


def client(tool, size, count, port, column, options):
    """Runs the client and returns its number."""
    ran = subprocess.run(command(tool, size, count, port, options, "127.0.0.1"), capture_output=True, text=True,
                         timeout=RUN_SECS, check=False)
    rows = [line.split() for line in ran.stdout.splitlines() if line.split()[:2] == [str(size), str(count)]]
    if ran.returncode or not rows:
        raise RuntimeError(f"{tool}: exit {ran.returncode}: {ran.stdout[-500:]}{ran.stderr[-500:]}")
    # size, count, then peak and average bandwidth; or minimum, maximum and typical latency.
    return float(rows[0][3] if column == "BW average" else rows[0][4])


def stock(tool, size, count, column, options):
    """The number against perftest's own server."""
    with subprocess.Popen(command(tool, size, count, STOCK_PORT, options), stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as server:
        try:
            while not listening(STOCK_PORT):
                if server.poll() is not None:
                    raise RuntimeError(f"{tool}: the server ended with {server.returncode}")
            return client(tool, size, count, STOCK_PORT, column, options)
        finally:
            server.kill()


def spread(numbers):
    """Median and extent."""
    return f"{statistics.median(numbers):9.2f} ({min(numbers):.2f} to {max(numbers):.2f})"


def compare(pairs, leased_port, tool, size, count, column, more_is_better, *options):
    """Interleaved pairs, each side first in turn; prints both and the ratio leased to stock."""
    sides = {"stock": lambda: stock(tool, size, count, column, options),
             "leased": lambda: client(tool, size, count, leased_port, column, options)}
    taken = {"stock": [], "leased": []}
    for pair in range(pairs):
        for side in sorted(sides, reverse=bool(pair % 2)):
            taken[side].append(sides[side]())
    ratios = sorted(leased / own for leased, own in zip(taken["leased"], taken["stock"]))
    unit = "MB/s, more is better" if more_is_better else "µs, less is better"
    print(f"{' '.join((tool, *options))} {size} bytes, {pairs} pairs ({unit})\n   stock  {spread(taken['stock'])}\n"
          f"   leased {spread(taken['leased'])}\n   leased / stock: median {statistics.median(ratios):.3f}, {ratios[0]:.3f} to {ratios[-1]:.3f}", flush=True)


def main():
    """All tools."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    pairs = parser.parse_args().pairs
    lab_device()
    for tool in ("ib_write_bw", "ib_read_lat"):
        if not shutil.which(tool):
            skip(f"{tool} (Debian package perftest)")
    with Node() as node, Perftest(node.tenant("bench"), 1 << 20) as leases:
        for measured in MEASURED:
            compare(pairs, leases.port, *measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
