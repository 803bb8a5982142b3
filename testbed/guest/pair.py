#!/usr/bin/python3
"""What the suites of two machines share: the parts that run in each, messages in a directory that both can write, the RDMA
device on the link between them, and deadlines by the clock of the machine that asks."""
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time

import fabric
from checks import LATE_LIMIT_MS, Suite, skip
from rdma_client import ENDS, Device, now_ms

SHARE = pathlib.Path(os.environ.get("LAB_SHARE", "/run/lab/share"))
NODE, CLIENT = "192.168.77.1", "192.168.77.2"
PATIENCE_SECS = 300


def say(name, text=""):
    """Leaves a message for the other machine, whole or not at all."""
    part = SHARE / f".{name}"
    part.write_text(text, encoding="utf-8")
    part.rename(SHARE / name)


def hear(name):
    """Waits for a message. No kernel notifies of new files in a directory that the other kernel writes."""
    limit = time.monotonic() + PATIENCE_SECS
    while not (SHARE / name).exists():
        if (SHARE / "gave-up").exists():
            raise RuntimeError(f"the other machine gave up before it said {name!r}")
        if time.monotonic() > limit:
            raise TimeoutError(f"the other machine did not say {name!r} in {PATIENCE_SECS} s")
        time.sleep(0.05)
    return (SHARE / name).read_text(encoding="utf-8")


def hear_identity(name):
    """An identity that the other machine has said, in a file of its own."""
    path = pathlib.Path(f"/tmp/{name}.identity")
    path.touch(mode=0o600)
    path.write_text(hear(name), encoding="ascii")
    return path


def link_device(address):
    """soft-RoCE on the interface that leads to the other machine."""
    shown = subprocess.run(["ip", "-json", "address", "show"], capture_output=True, text=True, check=True)
    links = [link["ifname"] for link in json.loads(shown.stdout)
             if any(own.get("local") == address for own in link["addr_info"])]
    interface = os.environ.get("LAB_LINK") or (links or ["eth0"])[0]
    try:
        fabric.program("fabricctl")
        fabric.ensure_soft_roce("rxe0", interface, f"{address}/24")
        return Device("rxe0")
    except LookupError as missing:
        return skip(missing)


@dataclasses.dataclass(frozen=True)
class Deadline:
    """When a lease ends. The clocks of two machines differ, so it is computed from `remaining_ms`: the node counted it between
    the request and the answer."""
    earliest_ms: float
    latest_ms: float

    def on_time(self, suite, name, last_ok_ms, failed_ms, limit_ms=LATE_LIMIT_MS):
        """Checks that access ended at the deadline: not before, and not much later."""
        print(f"   {name}: last success {last_ok_ms - self.latest_ms:+.1f} ms from the latest and first failure "
              f"{failed_ms - self.earliest_ms:+.1f} ms from the earliest possible deadline", flush=True)
        suite.check(f"{name}: no error before the deadline", failed_ms >= self.earliest_ms, self.earliest_ms, failed_ms)
        suite.check(f"{name}: cut on time", last_ok_ms < self.latest_ms + limit_ms, self.latest_ms + limit_ms, last_ok_ms)

    def ended(self, suite, name, report, limit_ms=LATE_LIMIT_MS, last="last_ok_at_ms"):
        """The same of a writer, by its report; `last`: which time of its last success counts."""
        print(f"   {name}: {report['writes']} writes, {report['status']}", flush=True)
        if not suite.check(f"{name}: the client was writing", report["writes"] > 0, "writes", report):
            return
        suite.check(f"{name}: its access ends", report["status"] in ENDS, sorted(ENDS), report["status"])
        self.on_time(suite, name, report[last], report["failed_at_ms"], limit_ms)


def granted(ask):
    """The lease that `ask` returns, and its deadline."""
    asked_ms = now_ms()
    lease = ask()
    return lease, Deadline(asked_ms + lease["remaining_ms"], now_ms() + lease["remaining_ms"])


def run(name, be_node, be_client):
    """Runs the part of this machine."""
    roles = {"node": be_node, "client": be_client}
    role = sys.argv[1] if len(sys.argv) == 2 else os.environ.get("LAB_ROLE")
    if role not in roles:
        sys.exit(f"usage: {sys.argv[0]} node|client")
    with Suite(f"{name}, {role}", only=()) as suite:
        try:
            roles[role](suite)
        except BaseException:
            say("gave-up", role)
            raise
