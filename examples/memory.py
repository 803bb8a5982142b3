#!/usr/bin/python3
"""Leases memory of a node, writes and reads it, and gives it back. Nothing but Python's standard library and `fabricctl` is
needed; buffer.py does the same with the Python package.

    export FABRICBIOS_NODE=NODE:5701 FABRICBIOS_IDENTITY=FILE
    ./memory.py
"""
import contextlib
import json
import subprocess
import sys


class Failed(Exception):
    """`fabricctl` has failed: `code` and `reason_class` as docs/rdma-client.md lists them."""

    def __init__(self, error):
        reason = error.get("reason", {})
        self.code, self.reason_class = reason.get("code"), reason.get("class")
        super().__init__(error.get("message"))


def fabricctl(*words, given=b""):
    """The bytes that `fabricctl --json` prints, with `given` on its standard input; raises Failed."""
    done = subprocess.run(["fabricctl", "--json", *map(str, words)], input=given, capture_output=True, check=False)
    if done.returncode:
        raise Failed(json.loads(done.stderr.splitlines()[-1]))
    return done.stdout


@contextlib.contextmanager
def memory(length, secs=60):
    """A lease as long as the context lasts, at most `secs` seconds; `fabricctl lease keep` would renew it."""
    lease = json.loads(fabricctl("lease", "alloc", "mem", "--bytes", length, "--secs", secs))
    try:
        yield lease
    finally:
        fabricctl("lease", "free", lease["lease_id"])


def main():
    """The example."""
    with memory(1 << 20) as lease:
        name = lease["lease_id"]
        print(f"lease {name}: {lease['capacity']} bytes over {lease['effective']['transport']}")
        fabricctl("mem", "write", name, "--offset", 4096, given=b"written by Python")
        print("read back:", fabricctl("mem", "read", name, "--offset", 4096, "--len", 17).decode())
        try:
            fabricctl("mem", "read", name, "--offset", lease["capacity"], "--len", 1)
        except Failed as refusal:
            print(f"one byte past the end: {refusal.code}")


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(f"{failure.code}: {failure}")
