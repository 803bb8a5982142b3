#!/usr/bin/python3
"""A scheduler with an etcd that a suite kills, stops and starts again, whether the scheduler runs or not."""
import contextlib
import os
import pathlib
import re
import signal
import subprocess

from checks import until
from fabric import Daemon, program


class Etcd:
    """The etcd that a scheduler has started for itself. It is started again with the words that it was started with."""

    def __init__(self, scheduler):
        pid = scheduler.process.pid
        self.pid = int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii"))
        place = pathlib.Path(f"/proc/{self.pid}")
        self.words = (place / "cmdline").read_text(encoding="utf-8").split("\0")[:-1]
        self.environment = dict(it.split("=", 1) for it in (place / "environ").read_text(encoding="utf-8").split("\0")[:-1])
        self.process = None

    def _value_of(self, flag):
        return re.search(rf"{flag}[= ](\S+)", " ".join(self.words))[1]

    def flags(self):
        """The flags with which another scheduler uses it."""
        return ["--etcd", self._value_of("--advertise-client-urls"), "--etcd-identity", self._value_of("--cert-file")]

    def kill(self):
        """SIGKILL; returns when it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        if self.process:
            self.process.wait(60)
        # Before, its scheduler is its parent, and need not wait for it.
        until(lambda: not os.path.exists(f"/proc/{self.pid}/exe"), what="the end of etcd")

    def start(self):
        """Starts it on the data that it has, as a process of this program."""
        self.process = subprocess.Popen(self.words, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.pid = self.process.pid

    def stop(self):
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self):
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)


class Scheduler(Daemon):
    """A scheduler, and an etcd of its own."""

    def __init__(self, identity, listen):
        self.own = [program("fabricbios-scheduler"), "--identity", str(identity), "--listen", listen]
        super().__init__([*self.own, "--etcd", "embedded-dev"])
        self.etcd = Etcd(self)

    def start_again(self):
        """Starts it after a SIGKILL, with the etcd that has outlived it."""
        self.command = [*self.own, *self.etcd.flags()]
        self.start()

    def __exit__(self, *_):
        super().__exit__()
        with contextlib.suppress(ProcessLookupError):  # A suite that has failed may have killed it.
            self.etcd.kill()
