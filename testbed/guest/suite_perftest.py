#!/usr/bin/python3
# lab: one-vm quiet timeout=900
# covers: client/cli rdma verbs arena node/src/kinds/memory
"""Unmodified perftest against `fabricctl perftest`: each tool runs on a lease and fails with it, and what is no perftest
client disturbs nobody. The perftest in the path is used."""
import contextlib
import pathlib
import shutil
import socket
import subprocess
import sys

from checks import Suite, in_full_length, lab_device, leased, length, skip, until, when_clean
from fabric import Node
from perftest import Perftest

LEASE_BYTES = 1 << 20
TOOLS = (("ib_write_bw", "-s", "65536", "-n", "200"), ("ib_read_bw", "-s", "65536", "-n", "200"),
         ("ib_read_lat", "-n", "200"), ("ib_atomic_lat", "-n", "200"), ("ib_atomic_bw", "-n", "200"),
         ("ib_write_bw", "-q", "8", "-s", "4096", "-n", "100"), ("ib_write_bw", "-s", str(LEASE_BYTES), "-n", "5"),
         ("ib_write_bw", "-m", "512", "-n", "50"))
# Each kind of request, and several queue pairs.
SOME_TOOLS = (TOOLS[0], TOOLS[2], TOOLS[3], TOOLS[5])
ENDLESS = (("ib_write_bw", "-s", "65536", "--run_infinitely"), ("ib_read_bw", "-s", "65536", "--run_infinitely"),
           ("ib_atomic_lat", "-n", "10000000"))
# perftest tells its device to try a request without an answer 7 times, which soft-RoCE takes for ever: a client whose
# request comes after the node's queue pair is gone does not fail. Then another client is taken, with twice the term.
TRIES = 3
FAILS_SECS = 20
# More than any handshake has.
RUNS_PACKETS = 200


def tools(suite, alice):
    """Each tool runs to its end, and its leases are given back."""
    with Perftest(alice, LEASE_BYTES) as perftest:
        for tool in length(TOOLS, SOME_TOOLS):
            name, before = " ".join(tool), len(perftest.events)
            ran = perftest.run(*tool)
            suite.check(f"{name}: runs", ran.returncode == 0, "exit 0", f"{ran.returncode}: {ran.stdout[-300:]}{ran.stderr[-300:]}")
            perftest.wait_for("done", before)
            pairs = int(tool[tool.index("-q") + 1]) if "-q" in tool else 1
            suite.equal(f"{name}: a lease for each queue pair", pairs,
                        len({it["lease_id"] for it in perftest.events[before:] if it["event"] == "leased"}))
            suite.equal(f"{name}: no lease is left", [], alice.ask("lease", "list")["leases"])


def too_long(suite, alice):
    """A client whose messages are longer than its lease, and one with more queue pairs than are served."""
    with Perftest(alice, LEASE_BYTES) as perftest:
        ran = perftest.run("ib_write_bw", "-s", str(2 * LEASE_BYTES), "-n", "5")
        suite.check("messages longer than the lease fail", ran.returncode != 0, "a failure", ran.stdout[-300:])
        perftest.wait_for("left")
        ran = perftest.run("ib_write_bw", "-q", "9", "-n", "5")
        suite.check("9 queue pairs fail", ran.returncode != 0, "a failure", ran.stdout[-300:])
        perftest.wait_for_failure("-q 8")
    suite.equal("no lease is left", [], alice.ask("lease", "list")["leases"])


def side_by_side(suite, alice):
    """Two clients at the same time, until they are stopped."""
    with Perftest(alice, LEASE_BYTES) as perftest:
        with running(perftest.client(*ENDLESS[0])):
            first = perftest.wait_for("leased")
            with running(perftest.client(*ENDLESS[1])):
                second = perftest.wait_for("leased", since=perftest.events.index(first) + 1)
                leases = {lease["lease_id"] for lease in alice.ask("lease", "list")["leases"]}
                suite.equal("side by side: each has its lease", {first["lease_id"], second["lease_id"]}, leases)
        for lease in (first, second):
            until(lambda: {"event": "left", "client": lease["client"]} in perftest.events, what="the end of a client that was killed")
        suite.equal("side by side: no lease is left", [], alice.ask("lease", "list")["leases"])


@in_full_length
def expired(suite, node, device):
    """The lease expires during a run."""
    ends(suite, node, device, "expired", length(12, 10), length(ENDLESS, ENDLESS[:1]))


def revoked(suite, node, device):
    """The lease is revoked during a run."""
    ends(suite, node, device, "revoked", 300, ENDLESS)


def ends(suite, node, device, how, secs, tools_of_run):
    """A client whose lease ends during its run fails, and the next tenant of the bytes sees nothing of it."""
    alice = node.tenant("alice")
    for tool in tools_of_run:
        name, status = f"{how}: {' '.join(tool)}", None
        for nth in range(TRIES):
            with Perftest(alice, LEASE_BYTES, secs << nth) as perftest, running(perftest.client(*tool)) as client:
                idle = packets()
                lease = perftest.wait_for("leased")
                until(lambda: packets() > idle + RUNS_PACKETS or perftest.has("over"), what=f"{name}: packets of its run")
                if perftest.has("over"):
                    print(f"   {name}: over before its run", flush=True)
                    continue
                if how == "revoked":
                    node.operator.revoke(lease)
                over = perftest.wait_for("over")
                suite.equal(f"{name}: told", (lease["lease_id"], how), (over["lease_id"], over["message"]))
                status = next_tenant(suite, name, node, device, client)
            if status is not None:
                break
            print(f"   {name}: it tries for ever", flush=True)
        suite.check(f"{name}: the client does not succeed", status != 0, "a failure", status)


def packets():
    """Packets that the device has received."""
    return int(pathlib.Path("/sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts").read_text(encoding="ascii"))


def next_tenant(suite, name, node, device, client):
    """Leases all the memory for another tenant, waits for the end of the client and compares the bytes. Returns its exit
    status, or None if it goes on."""
    pattern = bytes(range(1, 256)) * 256
    with contextlib.ExitStack() as stack:
        next_client = leased_when_clean(stack, node.tenant("bob"), device)
        written = [next_client.write(at, pattern).status for at in (0, LEASE_BYTES - len(pattern))]
        suite.equal(f"{name}: the next tenant writes", ["success", "success"], written)
        status = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = client.wait(FAILS_SECS)
        found = [next_client.read(at, len(pattern)).data for at in (0, LEASE_BYTES - len(pattern))]
        suite.check(f"{name}: and reads its own bytes", found == [pattern, pattern], "its own bytes", "others")
    return status


def leased_when_clean(stack, tenant, device):
    """The client of a lease of all the memory; asked for again while the last lease's bytes are being cleaned."""
    return when_clean(lambda: stack.enter_context(leased(tenant, device, LEASE_BYTES)))[1]


@contextlib.contextmanager
def running(command):
    """A program that is killed at the end if it has not ended."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
        try:
            yield client
        finally:
            client.kill()


def bad_input(suite, alice):
    """What is no perftest client is named and disconnected, and the next client is served."""
    with Perftest(alice, LEASE_BYTES) as perftest, contextlib.ExitStack() as open_sockets:
        def connect():
            return open_sockets.enter_context(socket.create_connection(("127.0.0.1", perftest.port)))
        silent = connect()
        cases = (("garbage", b"\x00\xff" * 40, "no perftest client"), ("another protocol", b"GET / HTTP/1.1\r\n\r\n", "GET / HTTP"),
                 ("a very long line", b"6" * 1_000_000, "no perftest client"), ("half a message", b"6.06\0", "5 bytes"))
        for name, sent, why in cases:
            client = connect()
            peer = name_of(client)
            with contextlib.suppress(OSError):  # The server may be gone before the last byte.
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
            suite.check(f"{name}: the reason is told", why in (got := perftest.wait_for_failure(peer)), why, got)
        ran = perftest.run("ib_write_bw", "-n", "50")
        suite.check("the next client runs", ran.returncode == 0, "exit 0", f"{ran.returncode}: {ran.stderr[-300:]}")
        if not length(True, False):
            return  # It takes half a minute.
        suite.check("a silent client is sent away", "said nothing" in (got := perftest.wait_for_failure(name_of(silent))), "said nothing", got)
        suite.equal("its connection is closed", b"", silent.recv(1))


def name_of(client):
    """How the lines about a client begin."""
    return "client {}:{}: ".format(*client.getsockname())


def stopped(suite, alice):
    """SIGTERM during a run: the leases are given back, and the command ends with 0."""
    with Perftest(alice, LEASE_BYTES) as perftest, running(perftest.client(*ENDLESS[0])):
        perftest.wait_for("leased")
        suite.equal("SIGTERM: exit status", 0, perftest.stop())
        suite.equal("SIGTERM: no lease is left", [], alice.ask("lease", "list")["leases"])


def main():
    """All sections."""
    device = lab_device()
    for tool in ("ib_write_bw", "ib_atomic_lat"):
        if not shutil.which(tool):
            skip(f"{tool} (Debian package perftest)")
    version = subprocess.run(["ib_write_bw", "-V"], capture_output=True, text=True, check=False).stdout.strip()
    print(f"   perftest's handshake: {version}", flush=True)
    with Suite("perftest") as suite:
        with Node(mem_bytes=8 * LEASE_BYTES) as node:
            for section in (tools, too_long, side_by_side, bad_input, stopped):
                suite.section(section, suite, node.tenant("alice"))
        # The next tenant gets the same bytes: there are no others.
        with Node(mem_bytes=LEASE_BYTES) as node:
            for section in (expired, revoked):
                suite.section(section, suite, node, device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
