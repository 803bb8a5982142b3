#!/usr/bin/python3
# lab: one-vm timeout=1800
"""How long a program takes to join a lease through rdma_cm, with a code that it has already, against a plain connection by
rdma_cm to a server that makes a queue pair for each caller, in turns in one boot: from rdma_connect to ESTABLISHED. Absolute
numbers of an emulated processor mean nothing; the ratio does. Both sides of the plain connection, and the caller of the
lease, are `cm_bench.c`."""
import argparse
import contextlib
import pathlib
import subprocess
import sys
import tempfile

from checks import lab_device, skip, until
from fabric import ADDRESS, Node, program
from ratios import interleaved, report

CM_PORT, PLAIN_PORT = 7471, 7472
LEASE_BYTES, LEASE_SECS, RUN_SECS = 65536, 3600, 120
NAMES = ("leased", "plain")


def compiled(place):
    """Path of the program of both sides, built."""
    source, built = pathlib.Path(__file__).with_name("cm_bench.c"), f"{place}/cm_bench"
    made = subprocess.run(["gcc", "-O1", "-o", built, str(source), "-lrdmacm", "-libverbs"], capture_output=True, text=True, check=False)
    if "rdma_cma.h" in made.stderr:
        skip("rdma/rdma_cma.h (Debian package librdmacm-dev)")
    if made.returncode:
        raise RuntimeError(made.stderr)
    return built


@contextlib.contextmanager
def server(bench):
    """The plain server, as soon as it listens."""
    with subprocess.Popen([bench, "serve", ADDRESS, str(PLAIN_PORT)], stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout.readline() != "listening\n":
                raise RuntimeError("cm_bench serve does not listen")
            yield
        finally:
            process.kill()


def connected(bench, port, *code):
    """The µs that one connection took."""
    ran = subprocess.run([bench, "connect", ADDRESS, str(port), *code], capture_output=True, text=True, timeout=RUN_SECS, check=False)
    if ran.returncode:
        raise RuntimeError(f"cm_bench connect, port {port}: exit {ran.returncode}: {ran.stderr[-500:]}")
    return float(ran.stdout)


def main():
    """Pairs of connections."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    pairs = parser.parse_args().pairs
    lab_device()
    print(f"the node is {program('fabricbiosd')}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        bench = compiled(place)
        for strategy in ("window", "region"):
            with Node("--rdma-cm-listen", f"{ADDRESS}:{CM_PORT}", "--rdma-strategy", strategy, mem_bytes=LEASE_BYTES) as node, server(bench):
                tenant = node.tenant("bench")
                lease = tenant.alloc(LEASE_BYTES, LEASE_SECS)

                def leased(tenant=tenant, lease=lease):
                    told = tenant.ask("lease", "bind", lease["lease_id"], "--attach-code")
                    took = connected(bench, CM_PORT, told["binding"]["rdma"]["attach"]["code"])
                    # Else the lease would be full after some.
                    until(lambda: "rkey" not in tenant.query(lease)["binding"]["rdma"], what="a lease without queue pairs")
                    return took

                def plain():
                    return connected(bench, PLAIN_PORT)
                # The first of each side also loads what the later ones share.
                leased(), plain()
                report(f"bench_rdma_cm/{strategy}", f"from rdma_connect to ESTABLISHED, a lease as a {strategy}", "µs, less is better", NAMES, interleaved(pairs, leased, plain))
                tenant.free(lease)
    return 0


if __name__ == "__main__":
    sys.exit(main())
