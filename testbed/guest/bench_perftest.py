#!/usr/bin/python3
# lab: one-vm timeout=1800
"""Stock perftest against its own server and against a lease, in turns in one boot: what leasing costs on the
data path. Absolute numbers of an emulated processor mean nothing; the ratios do. Write latency is that of
ib_write_bw with one write outstanding, from posting to completion: ib_write_lat cannot be used, because both of its
sides write, and a lease only answers."""
import argparse
import shutil
import subprocess
import sys

from checks import lab_device, skip
from fabric import Node
from perftest import Perftest, device_of
from ratios import interleaved, report

BANDWIDTH, LATENCY = ("BW average", "MB/s, more is better"), ("t_typical", "µs, less is better")
# Figure, tool, bytes a message, messages a run, title of the column and its unit, further options. One write outstanding
# makes bandwidth the reciprocal of latency.
MEASURED = (("write", "ib_write_bw", 65536, 500, *BANDWIDTH),
            ("read", "ib_read_bw", 65536, 500, *BANDWIDTH),
            ("one-write", "ib_write_bw", 1024, 2000, *BANDWIDTH, "-t", "1", "-Q", "1"),
            ("read-latency", "ib_read_lat", 8, 1000, *LATENCY))
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


def compare(pairs, leased_port, figure, tool, size, count, column, unit, *options):
    """Both servers in turns."""
    def leased():
        return client(tool, size, count, leased_port, column, options)

    def own():
        return stock(tool, size, count, column, options)
    report(f"bench_perftest/{figure}", f"{' '.join((tool, *options))}, {size} bytes", unit, ("leased", "stock"), interleaved(pairs, leased, own))


def main():
    """All tools."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
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
