#!/usr/bin/python3
# lab: one-vm timeout=3600
"""Macvlan leases: grants and cuts (`fabricbios-bench net`), and how near the rate of one TCP connection comes to the leased
one, each way. The bare veth pair tells how much an emulated processor can carry at all."""
import argparse
import itertools
import random
import subprocess
import sys

from checks import skip
from fabric import program
from ratios import lines_of_figures, report
from suite_net_macvlan import PARENT, WIRE, NetNode, alloc, hand_over, ip, namespaces, rate

NODE, OWN, FAR = "/proc/1/ns/net", "10.9.0.2", "10.9.0.1"
# Data share of a TCP connection with timestamps in a frame of 1514 bytes; the shaper counts all bytes of the frame.
DATA_OF_FRAME = 1448 / 1514
RATES = (20, 100, 1000)
MODULES = ("macvlan", "veth", "sch_htb", "sch_fq_codel", "cls_flower", "cls_matchall", "act_gact", "act_mirred")


def both_ways(near, secs):
    """Mbit/s from a namespace to the wire and back."""
    ends = {"sent": (near, "wire", FAR), "received": ("wire", near, OWN)}
    return {way: rate(*words, random.randrange(20000, 30000), secs) for way, words in ends.items()}


def leased_rates(node, mbps, secs):
    """The same rates through a lease."""
    tenant = node.tenant("bench")
    with namespaces("tenant"):
        lease = alloc(tenant, mbps, "--hand-over", "netns")
        try:
            hand_over(node.operator, lease, "tenant", OWN)
            return both_ways("tenant", secs)
        finally:
            tenant.free(lease)


def bare_rates(secs):
    """The same rates without a lease."""
    ip("addr", "add", f"{OWN}/24", "dev", PARENT)
    try:
        return both_ways(NODE, secs)
    finally:
        ip("addr", "del", f"{OWN}/24", "dev", PARENT)


def rates(node, rounds, secs):
    """All rates in turns."""
    taken = {}
    for _ in range(rounds):
        measured = {mbps: leased_rates(node, mbps, secs) for mbps in RATES} | {None: bare_rates(secs)}
        for mbps, way in itertools.product(measured, ("sent", "received")):
            taken.setdefault((mbps, way), []).append(measured[mbps][way])
    print(f"\none TCP connection. Full frames at the leased rate carry {DATA_OF_FRAME:.1%} of it as data; the shaper's burst (128 KiB, or "
          "2 ms if that is more) comes on top")
    for mbps, way in itertools.product(RATES, ("sent", "received")):
        # What the processor cannot carry is compared with the bare pair.
        is_carried = mbps < min(taken[None, way])
        peer = ("data of the leased rate", [mbps * DATA_OF_FRAME] * rounds) if is_carried else ("bare veth pair", taken[None, way])
        report(f"bench_net/{mbps}-{way}", f"{way} over a macvlan lease of {mbps} Mbit/s, one TCP connection", "Mbit/s, more is better",
               ("leased", peer[0]), (taken[mbps, way], peer[1]))


def main():
    """Grants and cuts, then rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100, help="of a grant and a cut, each with that of the shell script")
    parser.add_argument("--rounds", type=int, default=15, help="of each rate")
    parser.add_argument("--secs", type=int, default=2, help="of each connection")
    chosen = parser.parse_args()
    missing = subprocess.run(["modprobe", "-a", *MODULES], check=False, capture_output=True, text=True)
    if missing.returncode:
        skip(f"a kernel module ({missing.stderr.strip()})")
    with namespaces("wire"):
        ip("link", "add", PARENT, "type", "veth", "peer", "name", WIRE)
        ip("link", "set", WIRE, "netns", "wire")
        ip("link", "set", PARENT, "up")
        ip("addr", "add", f"{FAR}/24", "dev", WIRE, ns="wire")
        ip("link", "set", WIRE, "up", ns="wire")
        subprocess.run([program("fabricbios-bench"), *lines_of_figures(), "net", f"--macvlan-parent={PARENT}", f"--rounds={chosen.pairs}"], check=True)
        with NetNode() as node:
            rates(node, chosen.rounds, chosen.secs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
