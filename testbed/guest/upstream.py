#!/usr/bin/python3
"""Shared by the runners of public test suites, blktests and xfstests: starting their program `check`, rows of a table, and
what must be of a node after tests as it was before."""
import contextlib
import os
import signal
import subprocess

import block
import nvmet_tree
from checks import until

# Exit status of a runner when the next test has to run in another guest.
FRESH = 75
DYING_SECS = 20
# Long enough to clean the blocks of some leases on a slow machine.
CLEANED_SECS = 60


def cells(*words):
    """A row of a table."""
    return "| " + " | ".join(word.replace("|", "/") for word in words) + " |"


def check(checkout, words, environment, output):
    """Starts `check` in a session of its own, so that background processes of a test can be ended with it."""
    return subprocess.Popen(["./check", *words], cwd=checkout, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                            stdout=output, stderr=subprocess.STDOUT, start_new_session=True)


def end(process):
    """Kills the session of `check`; returns whether `check` is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(DYING_SECS)
    return process.poll() is not None


class Before:
    """A node as it was before the tests."""

    def __init__(self, node):
        self.node, self.traces = node, block.traces()
        self.free = self._available()

    def _available(self):
        return sorted(row["available"] for row in block.resources(self.node.operator).values())

    def changed(self):
        """The objects in the kernel that were added or changed since."""
        after = block.traces()
        words = [f"configfs: {path}" for path in nvmet_tree.difference(self.traces["nvmet"], after["nvmet"])]
        return words + (["device-mapper devices"] if after["dm"] != self.traces["dm"] else [])

    def unwell(self):
        """The differences, once leases that have ended are cleaned; or None."""
        with contextlib.suppress(TimeoutError):
            until(lambda: self._available() == self.free, CLEANED_SECS)
        words = [f"fenced: {fence['resource_id']}" for fence in self.node.operator.fences()] or self.changed()
        words += [] if self._available() == self.free else ["blocks that are not free"]
        return "; ".join(words[:3]) or None
