#!/usr/bin/python3
"""The block daemon, which `fabricctl block attach` starts: its process, its record, its log, and ways to end it."""
import json
import os
import pathlib
import signal
import subprocess

from checks import until
from fabric import program
from nvme_host import controllers

DIRECTORY = pathlib.Path("/run/fabricbios-attach")


def record(lease):
    """The record of the attached lease; {} if there is none."""
    try:
        return json.loads(_file(lease, "json").read_text(encoding="utf-8") or "{}")
    except FileNotFoundError:
        return {}


def log(lease):
    """The log of the block daemons of the lease."""
    return _file(lease, "log").read_text(encoding="utf-8")


def said(lease, *parts, secs=30):
    """Waits for a line of the log that has all `parts`."""
    find = lambda: next((line for line in log(lease).splitlines() if all(part in line for part in parts)), None)
    return until(find, secs, f"{parts} in the log of {lease['lease_id']}: {log(lease)!r}")


def changes_keys(suite, name, tenant, lease):
    """Rotates the keys of an attached lease: a connection with the new keys replaces the old one."""
    before = controllers(lease["binding"]["nvmeof"]["subnqn"])
    tenant.rotate(lease)
    said(lease, "connected with the new keys")
    after = controllers(lease["binding"]["nvmeof"]["subnqn"])
    suite.check(f"{name}: another connection in place of the first", len(after) == 1 and after != before, f"one, not {before}", after)


def kill(lease):
    """Sends SIGKILL to the daemon and waits until it is gone."""
    pid = record(lease)["keeper_pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not pathlib.Path(f"/proc/{pid}/exe").exists(), 60, "the end of the block daemon")


def words(tenant, lease):
    """The command line that starts a block daemon."""
    return [program("fabricctl"), "--node", tenant.node, "--identity", tenant.identity, "block", "keep", lease["lease_id"]]


class Child:
    """A block daemon that is a child of this process, so that its exit status can be read."""

    def __init__(self, tenant, lease):
        self.process = subprocess.Popen(words(tenant, lease), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.device = json.loads(self.process.stdout.readline())["device"]

    def end(self, number):
        """Sends the signal; returns exit status and log."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


def _file(lease, extension):
    return DIRECTORY / f"{lease['lease_id']}.{extension}"
