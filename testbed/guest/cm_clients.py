#!/usr/bin/python3
"""Clients of a node's rdma_cm listener: `rpma_client.c` is an unmodified librpma, `cm_client.c` has no queue pair."""
import contextlib
import pathlib
import subprocess

from checks import skip
from fabric import ADDRESS

CM_PORT = 7471
LEASE_BYTES = 65536
TEXT = "WRITTEN-BY-LIBRPMA"
NEXT = b"of the next tenant"
REASON = "attach code refused"
ACCEPTED = "RDMA_CM_EVENT_CONNECT_RESPONSE:"
# A reader whose queue pair is gone before its request gets no answer; the connection's end flushes the request.
ENDS = ("remote access error", "Work Request Flushed Error")


def compiled(place):
    """The two clients, built."""
    here = pathlib.Path(__file__).parent
    for name, libraries in (("rpma_client", ("-lrpma", "-libverbs")), ("cm_client", ("-lrdmacm", "-libverbs"))):
        made = subprocess.run(["gcc", "-O1", "-o", f"{place}/{name}", str(here / f"{name}.c"), *libraries],
                              capture_output=True, text=True, check=False)
        if made.returncode:
            if "librpma.h" in made.stderr or "rdma_cma.h" in made.stderr:
                skip("librpma.h and rdma/rdma_cma.h (Debian packages librpma-dev and librdmacm-dev)")
            raise RuntimeError(made.stderr)


class Clients:
    """Starts the clients."""

    def __init__(self, place):
        self.place = place

    def cm(self, *words):
        """What `cm_client` prints."""
        return subprocess.run([f"{self.place}/cm_client", ADDRESS, str(CM_PORT), *map(str, words)], capture_output=True,
                              text=True, check=True, timeout=120).stdout.strip()

    @contextlib.contextmanager
    def silent(self, codes):
        """Callers that present these codes at once, and answer no acceptance."""
        words = [f"{self.place}/cm_client", ADDRESS, str(CM_PORT), "silent", *codes]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield Silent(process)
            finally:
                process.kill()

    @contextlib.contextmanager
    def rpma(self):
        """A client on librpma that waits for its first line."""
        with subprocess.Popen([f"{self.place}/rpma_client", ADDRESS, str(CM_PORT)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as process:
            try:
                yield Rpma(process)
            finally:
                process.kill()


class Silent:
    """Callers of `cm_client silent`."""

    def __init__(self, process):
        self.process, self.calls, self.answers = process, 0, []

    def called(self, count):
        """Waits until so many have sent their request."""
        while self.calls < count:
            self._read()

    def hear(self, count=1):
        """The next answers."""
        while len(self.answers) < count:
            self._read()
        heard, self.answers = self.answers[:count], self.answers[count:]
        return heard

    def _read(self):
        line = self.process.stdout.readline()
        if not line:
            raise EOFError("cm_client has ended")
        what = line.split(" ", 1)[1].strip()
        if what == "called":
            self.calls += 1
        else:
            self.answers.append(what)


class Rpma:
    """A running client on librpma."""

    def __init__(self, process):
        self.process = process

    def say(self, line):
        """Gives it a line, without waiting."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self):
        """Its next line."""
        return self.process.stdout.readline().rstrip("\n")

    def ask(self, line):
        """Gives it a line and returns its answer."""
        self.say(line)
        return self.hear()


def code_of(tenant, lease):
    """A new attach code of the lease."""
    return tenant.ask("lease", "bind", lease["lease_id"], "--attach-code")["binding"]["rdma"]["attach"]["code"]


def pairs(tenant, lease):
    """How many connected queue pairs the lease has."""
    rdma = tenant.query(lease)["binding"]["rdma"]
    return len(rdma.get("qps", [rdma])) if "rkey" in rdma else 0


def attached(stack, clients, tenant, lease, suite, name):
    """A librpma client that has joined the lease."""
    client = stack.enter_context(clients.rpma())
    suite.equal(f"{name}: it is let in, and told the length", f"established {LEASE_BYTES}",
                client.ask(f"code {code_of(tenant, lease)}"))
    return client
