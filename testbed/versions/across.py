"""Runs nodes and clients of two versions with each other: `across.py EARLIER LATER`, two directories of programs.

The node of each version grants leases of memory and blocks over UDP. The clients of both versions lease, write, read, renew, list and
free on it. Then the node is killed, and the other version starts on the same state directory and must go on with every lease."""
import contextlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

TERM_SECS = 10


class Node:
    """A daemon on free ports of loopback."""

    def __init__(self, programs, place):
        self.place = place
        (place / "pool").mkdir(exist_ok=True)
        words = ["control-server", "--state-dir", place / "state", "--listen", "127.0.0.1:0", "--rdma-device", "none",
                 "--mem-bytes", "4MiB", "--mem-file", place / "arena", "--fbmu-listen", "127.0.0.1:0",
                 "--block-pool", place / "pool", "--fbbu-listen", "127.0.0.1:0"]
        with open(place / "log", "a", encoding="utf-8") as log:
            self.process = subprocess.Popen([programs / "fabricbiosd", *words], stdout=subprocess.PIPE, stderr=log, text=True)
        ready = self.process.stdout.readline()
        found = re.search(r" listen=(\S+)", ready)
        assert found, f"{programs}: no READY but {ready!r}: {(place / 'log').read_text()[-2000:]}"
        self.address = found[1]

    def client(self, programs):
        """A function that runs fabricctl of these programs and returns what it prints."""
        def run(*words, stdin=""):
            start = [programs / "fabricctl", "--node", self.address, "--identity", self.place / "state/admin.identity"]
            done = subprocess.run([*start, *words], check=False, input=stdin, capture_output=True, text=True)
            assert done.returncode == 0, f"{programs}: {words}: {done.stderr}"
            return done.stdout
        return run

    def kill(self):
        self.process.kill()
        self.process.wait()


def lease(run, kind, *more):
    got = json.loads(run("--json", "lease", "alloc", kind, "--bytes", "64KiB", "--secs", "600", "--transport", "udp", *more))
    return got["lease_id"]


def life(run):
    """A lease from its beginning to its end, by one client. Returns the ids of a lease of memory and one of blocks that stay."""
    brief = json.loads(run("--json", "lease", "alloc", "mem", "--bytes", "4KiB", "--secs", str(TERM_SECS), "--transport", "udp"))
    keeping = brief["lease_id"]
    stays = lease(run, "mem"), lease(run, "block")
    run("mem", "write", stays[0], stdin="hello")
    assert run("mem", "read", stays[0], "--len", "5") == "hello"
    run("mem", "write", keeping, stdin="brief")
    time.sleep(TERM_SECS * 0.85)
    run("lease", "renew", keeping)
    assert run("mem", "read", keeping, "--len", "5") == "brief"
    run("lease", "free", keeping)
    there = run("lease", "list")
    assert all(it in there for it in stays) and keeping not in there, there
    assert "mem0" in run("inventory")
    return stays


def across(first, second):
    """Clients of both versions on a node of the first, and on one of the second that goes on where the first was killed."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as at_end:
        place = pathlib.Path(directory)
        node = Node(first, place)
        at_end.callback(node.kill)
        stay = [life(node.client(programs)) for programs in (first, second)]
        node.kill()
        at_end.pop_all()
        node = Node(second, place)
        at_end.callback(node.kill)
        for programs in (first, second):
            run = node.client(programs)
            there = run("lease", "list")
            for memory, blocks in stay:
                assert memory in there and blocks in there, there
                assert run("mem", "read", memory, "--len", "5") == "hello"
            life(run)
        run = node.client(first)
        for ids in stay:
            for it in ids:
                run("lease", "free", it)


def main():
    earlier, later = (pathlib.Path(it) for it in sys.argv[1:])
    for name, first, second in (("upgrade", earlier, later), ("back again", later, earlier)):
        across(first, second)
        print(f"ok: {name}: clients of both versions on both nodes, and the leases go on")


if __name__ == "__main__":
    sys.exit(main())
