"""Runs the stock clients of suite_compare.py: where their wheels are, and the two ends that they talk to. FABRICBIOS_CLIENTS
names the virtual environment; without it, that of this checkout is used (target/tools/clients)."""
import json
import os
import pathlib
import socket
import subprocess
import threading

from checks import until
from fabric import ADDRESS

DEVICE = "rxe0"
HERE = pathlib.Path(__file__).resolve().parent
PLACE = pathlib.Path(os.environ.get("FABRICBIOS_CLIENTS") or HERE.parents[1] / "target/tools/clients")
MOONCAKE, NIXL = "mooncake-transfer-engine-non-cuda", "nixl-cu12"
# How long Mooncake waits for a transfer that the device does not answer: its default is 30 s.
TRANSFER_SECS = 15
ANSWER_SECS = 120
MASTER_PORT = 50051
# The libibverbs in NIXL's wheel finds no drivers of devices where Debian has them; Debian's own takes its place.
NIXL_ENVIRONMENT = {"LD_PRELOAD": "libibverbs.so.1", "UCX_NET_DEVICES": f"{DEVICE}:1", "UCX_TLS": "rc,ud", "NIXL_LOG_LEVEL": "WARN"}
UNCACHED_ENVIRONMENT = {"UCX_IB_REG_METHODS": "direct", "UCX_RCACHE_ENABLE": "n", "UCX_IB_RCACHE_ENABLE": "n", "UCX_MEM_EVENTS": "n"}


def version(package):
    """The version of an installed wheel, or None."""
    lookup = f"from importlib.metadata import version; print(version({package!r}))"
    try:
        found = subprocess.run([PLACE / "bin/python", "-c", lookup], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return found.stdout.strip() or None


class Program:
    """A process that answers orders by lines of JSON. Its standard error is shown if it ends."""

    def __init__(self, command, **environment):
        self.name, self.errors = " ".join(map(str, command)), os.fdopen(os.memfd_create("errors"), "w+")
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        text=True, env={**os.environ, **environment})

    def answer(self):
        """The next line that is an object of JSON. A program without an answer is killed."""
        timer = threading.Timer(ANSWER_SECS, self.process.kill)
        timer.start()
        try:
            for line in self.process.stdout:
                if line.startswith("{"):
                    return json.loads(line)
        finally:
            timer.cancel()
        status = self.process.wait()
        self.errors.seek(0)
        raise RuntimeError(f"{self.name} ended with {status}: {self.errors.read()[-2000:]}")

    def order(self, *words):
        """Sends an order."""
        print(*words, file=self.process.stdin, flush=True)

    def ask(self, *words):
        """An order and its answer."""
        self.order(*words)
        return self.answer()

    def kill(self):
        """SIGKILL; returns when it is gone."""
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            pipe.close()


def stock(program, *words, **environment):
    """One of the programs beside this file, on the wheels' Python."""
    return Program([PLACE / "bin/python", "-B", HERE / program, *words], **environment)


def engine(size):
    """A stock Mooncake engine with a registered buffer; returns it and the name of its segment."""
    started = stock("mooncake_engine.py", ADDRESS, DEVICE, size, MC_TRANSFER_TIMEOUT=str(TRANSFER_SECS))
    started.answer()
    return started, started.ask("register")["target"]


def agent(name, size, **environment):
    """A stock NIXL agent with a registered buffer, over UCX on the RDMA device; returns it and what another one opens."""
    started = stock("nixl_agent.py", name, size, **NIXL_ENVIRONMENT, **environment)
    started.answer()
    return started, started.ask("register")["target"]


class Master:
    """Mooncake Store's master, whose leases of objects last one second."""

    def __enter__(self):
        package, = PLACE.glob("lib/python3*/site-packages/mooncake")
        self.program = Program([package / "mooncake_master", "-default_kv_lease_ttl=1000", f"-rpc_port={MASTER_PORT}"])
        until(self.listens, what="mooncake_master listens")
        return f"127.0.0.1:{MASTER_PORT}"

    def listens(self):
        """Whether it takes connections."""
        if self.program.process.poll() is not None:
            self.program.answer()  # Raises, with what it said.
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", MASTER_PORT)) == 0

    def __exit__(self, *_):
        self.program.__exit__()


class Segment:
    """A lease that `fabricctl mooncake` serves to Mooncake's clients."""

    def __init__(self, tenant, length, secs):
        words = ("mooncake", "--bytes", length, "--secs", secs, "--listen", f"{ADDRESS}:0")
        command, environment = tenant.command(*words)
        # With patience: the bytes of the lease before may still be being cleaned.
        self.program = Program(command, **{**environment, "FABRICBIOS_PATIENCE_SECS": str(ANSWER_SECS)})
        self.lease = self.program.answer()
        self.name = self.lease["segment"]

    def ended(self):
        """Waits for its end; the cause that it tells, and its exit status."""
        while (event := self.program.answer()).get("event") != "ended":
            pass
        return event["end_cause"], self.program.process.wait(ANSWER_SECS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.__exit__()
