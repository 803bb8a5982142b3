#!/usr/bin/python3
# lab: one-vm topology=1x2x1 examples timeout=300
# covers: examples
"""The programs in examples/ run as their first lines say, against a node, and do what they are for."""
import os
import pathlib
import subprocess
import tempfile

import block
import cores
import gpus
from checks import ENDS, Suite, lab_device, skip
from fabric import Node, program

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
FBBU = ("--fbbu-listen", f"{block.ADDRESS}:{block.FBBU_PORT}")
HEADER = pathlib.Path("/usr/include/infiniband/verbs.h")
TERM_SECS = 5
# The Python package, where the step `pip` has installed it.
PACKAGE = EXAMPLES.parent / "target/wheels/dev/installed/bin/python"
# What only the lab has: RDMA, and cores.
IN_THE_LAB = """
import array, fabricbios
with fabricbios.mem(bytes=4 << 20, data_transport="rdma") as m, fabricbios.cpu(cores=1, isolation="whole_core") as core:
    sent = array.array("Q", range(1 << 19))
    m.write(0, sent)
    into = bytearray(4 << 20)
    m.read_into(0, into)
    print("the same:", into == sent.tobytes(), m.transport, core.binding["cpu"]["cpus"])
    m[0:5] = b"hello"
    print(m[0:5])
"""


def example(tenant, *words, **environment):
    """Runs an example as the tenant, with `fabricctl` in its PATH; returns its exit status, output and errors."""
    path = f"{pathlib.Path(program('fabricctl')).parent}:{os.environ['PATH']}"
    names = {"PATH": path, "FABRICBIOS_NODE": tenant.node, "FABRICBIOS_IDENTITY": tenant.identity, **environment}
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=120, env={**os.environ, **names}, check=False)
    print("".join(f"   {line}\n" for line in (done.stdout + done.stderr).splitlines()), end="", flush=True)
    return done


def rust(name):
    """The program of examples/NAME.rs."""
    return pathlib.Path(program("fabricctl")).parent / "examples" / name


def shown(suite, name, done, *parts):
    """Checks that an example ended well and printed all `parts`."""
    suite.check(name, done.returncode == 0 and all(part in done.stdout for part in parts), f"exit 0 and {parts}",
                (done.returncode, done.stdout, done.stderr))


def nothing_left(suite, name, tenant):
    """Checks that the example has given its leases back."""
    left = [it for it in tenant.ask("lease", "list").get("leases", []) if it["state"] in ("active", "binding")]
    suite.equal(f"{name}: nothing stays leased", [], left)


def in_c(suite, node):
    """rdma.c builds without a warning, and its writes end with the lease."""
    alice = node.tenant("alice")
    with tempfile.TemporaryDirectory() as place:
        built = subprocess.run(["cc", "-Wall", "-Wextra", "-o", f"{place}/rdma", EXAMPLES / "rdma.c", "-libverbs"],
                               capture_output=True, text=True, check=False)
        suite.equal("rdma.c: built without a warning", (0, ""), (built.returncode, built.stderr))
        done = example(alice, f"{place}/rdma", "rxe0", TERM_SECS)
        shown(suite, "rdma.c: writes, reads back, and ends with the lease", done, "read back: written by libibverbs\n", " writes, then: ")
        writes, _, status = done.stdout.splitlines()[-1].partition(" writes, then: ")
        suite.check("rdma.c: it was writing", int(writes) > 0, "writes", writes)
        suite.check("rdma.c: the status of the end", status in ENDS, sorted(ENDS), status)
        done = example(alice, f"{place}/rdma", "mlx5_9")
        suite.check("rdma.c: a device that is not there", done.returncode == 1 and "mlx5_9" in done.stderr, "exit 1 and its name", done)


def in_shell(suite, node):
    """lease.sh keeps its lease beyond the first term; block.sh has a block device."""
    alice = node.tenant("alice")
    done = example(alice, EXAMPLES / "lease.sh")
    shown(suite, "lease.sh: reads what it wrote, after the first term", done, "written by a shell\n")
    nothing_left(suite, "lease.sh", alice)
    block.sh("modprobe nbd")
    done = example(alice, EXAMPLES / "block.sh")
    shown(suite, "block.sh: reads what it wrote", done, "/dev/nbd", "written to a block device\n")
    nothing_left(suite, "block.sh", alice)


def in_python(suite, node):
    """memory.py reads what it wrote, and is refused behind the end."""
    alice = node.tenant("alice")
    done = example(alice, EXAMPLES / "memory.py")
    shown(suite, "memory.py", done, "read back: written by Python\n", "one byte past the end: ")
    nothing_left(suite, "memory.py", alice)


def with_the_package(suite, node):
    """buffer.py over RDMA, and a lease of a core."""
    alice = node.tenant("alice")
    done = example(alice, PACKAGE, EXAMPLES / "buffer.py")
    shown(suite, "buffer.py: over RDMA", done, "read back: hello\n", "the same numbers: True over rdma\n")
    done = example(alice, PACKAGE, "-c", IN_THE_LAB)
    shown(suite, "the package: 4 MiB over RDMA, and a core", done, "the same: True rdma 1\n", "b'hello'\n")
    nothing_left(suite, "the package", alice)


def in_rust(suite, node):
    """The programs on the Rust SDK."""
    alice = node.tenant("alice")
    done = example(alice, rust("memory"))
    shown(suite, "memory.rs: over RDMA", done, "read back: written to the memory of another machine\n", "transport: rdma\n")
    done = example(alice, rust("blocks"))
    shown(suite, "blocks.rs", done, " has what was written: true\n")
    done = example(alice, rust("cores"), FABRICBIOS_LOCAL_SOCKET=gpus.SOCKET)
    shown(suite, "cores.rs: the program has the leased CPU only", done, "Cpus_allowed_list:\t1\n", "exit status: 0\n")
    nothing_left(suite, "Rust", alice)


def on_a_gpu(suite):
    """gpu.rs on a stand-in of NVIDIA's library."""
    with gpus.GpuNode() as node:
        done = example(node.tenant("alice"), rust("gpu"), gpus.PTX / "vector_add.ptx")
        shown(suite, "gpu.rs", done, "1024 sums are right: true\n")


def main():
    """On one node for memory, blocks and cores, and on one for GPUs."""
    lab_device()
    cores.ready(2)
    gpus.ready()
    if not rust("memory").exists():
        skip(f"{rust('memory')}: `cargo build -p fabricbios-client --examples` makes it")
    pool = block.directory_pool()
    with Suite("the examples") as suite:
        with Node("--cpus", "all", "--local-socket", gpus.SOCKET, "--block-pool", pool, *FBBU) as node:
            if HEADER.exists():
                suite.section(in_c, suite, node)
            else:
                print(f"   skipped rdma.c: no {HEADER} (libibverbs-dev)")
            suite.section(in_shell, suite, node)
            suite.section(in_python, suite, node)
            if PACKAGE.exists():
                suite.section(with_the_package, suite, node)
            else:
                print(f"   skipped the Python package: no {PACKAGE} (`cargo xtask test --only pip` makes it)")
            suite.section(in_rust, suite, node)
            root = next(cores.CGROUPS.glob("fabricbios-*"))
        for at in (root / "shared", root):
            at.rmdir()
        suite.section(on_a_gpu, suite)


if __name__ == "__main__":
    main()
