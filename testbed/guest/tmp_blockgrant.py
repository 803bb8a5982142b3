import os, statistics, sys, time
from block import MIB, BlockNode, alloc, directory_pool, ready, run, sh
import pathlib
root = pathlib.Path(__file__).resolve().parents[2] / "target"
ready()
def once(which):
    os.environ["FABRICBIOS_BIN"] = str(root / which)
    grants, frees, pings = [], [], []
    with BlockNode(directory_pool()) as node:
        alice = node.tenant("alice")
        for n in range(25):
            a = time.monotonic(); alice.run("ping"); b = time.monotonic()
            lease = alloc(alice, MIB); c = time.monotonic()
            alice.free(lease); d = time.monotonic()
            pings.append(b - a); grants.append(c - b); frees.append(d - c)
    m = lambda it: statistics.median(it) * 1000
    print(f"{which}: ping {m(pings):.0f} ms, grant {m(grants):.0f} ms, free {m(frees):.0f} ms; grant-ping {m(grants)-m(pings):.0f}, free-ping {m(frees)-m(pings):.0f}", flush=True)
for _ in range(3):
    for which in ("base", "new"):
        once(which)
