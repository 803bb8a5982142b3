#!/usr/bin/python3
"""The process that `fabricctl block attach` leaves behind: who it is, what it said, and how it can be ended."""
import json
import os
import pathlib
import signal
import subprocess

from fabric import program
from nvme_host import controllers, until

DIRECTORY = pathlib.Path("/run/fabricbios/attach")


def record(lease):
    """What is written down of the attached lease; {} if nothing is."""
    try:
        return json.loads(_file(lease, "json").read_text(encoding="utf-8") or "{}")
    except FileNotFoundError:
        return {}


def log(lease):
    """What its keepers did."""
    return _file(lease, "log").read_text(encoding="utf-8")


def said(lease, *parts, secs=30):
    """Waits for a line of the log with all `parts`."""
    find = lambda: next((line for line in log(lease).splitlines() if all(part in line for part in parts)), None)
    return until(find, secs, f"{parts} in the log of {lease['lease_id']}: {log(lease)!r}")


def changes_keys(suite, name, tenant, lease):
    """Other keys for an attached lease: a connection with them takes the place of the one that there is."""
    before = controllers(lease["binding"]["nvmeof"]["subnqn"])
    tenant.rotate(lease)
    said(lease, "connected with the new keys")
    after = controllers(lease["binding"]["nvmeof"]["subnqn"])
    suite.check(f"{name}: another connection in place of the first", len(after) == 1 and after != before, f"one, not {before}", after)


def kill(lease):
    """SIGKILL; returns when it is gone."""
    pid = record(lease)["keeper_pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not pathlib.Path(f"/proc/{pid}/exe").exists(), 30, "the keeper's end")


def words(tenant, lease):
    """Its command line."""
    return [program("fabricctl"), "--node", tenant.node, "--identity", tenant.identity, "block", "keep", lease["lease_id"]]


class Child:
    """A keeper of this process, so that its exit status can be had."""

    def __init__(self, tenant, lease):
        self.process = subprocess.Popen(words(tenant, lease), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.device = json.loads(self.process.stdout.readline())["device"]

    def end(self, number):
        """Sends the signal; exit status and log."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


def _file(lease, extension):
    return DIRECTORY / f"{lease['lease_id']}.{extension}"
