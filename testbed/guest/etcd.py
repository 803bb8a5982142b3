#!/usr/bin/python3
"""A scheduler with an etcd that a suite kills, stops and starts again, whether the scheduler runs or not, and whose disk it
stalls."""
import atexit
import base64
import contextlib
import json
import os
import pathlib
import re
import signal
import ssl
import subprocess
import tempfile
import urllib.request

from block import loop_device, run, sh
from checks import until
from fabric import Daemon, program

# etcd keeps two log files of 64 MiB.
DISK_MIB = 256


class Disk:
    """A file system of its own. While it is frozen, as a disk that stalls is, nothing that is written comes back."""

    def __init__(self):
        self.place = tempfile.mkdtemp(prefix="disk-")
        device = loop_device(DISK_MIB)
        sh(f"mkfs.ext4 -q -F {device} && mount {device} {self.place}")
        atexit.register(run, "umount", self.place)

    def stall(self):
        """Returns when it is frozen."""
        sh(f"fsfreeze --freeze {self.place}")

    def go_on(self):
        """What waits is written."""
        sh(f"fsfreeze --unfreeze {self.place}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        run("fsfreeze", "--unfreeze", self.place)  # After a failure: nothing that waits for it can be killed.


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

    def members(self):
        """How many nodes it has a record of."""
        identity = self._value_of("--cert-file")
        context = ssl.create_default_context(cafile=self._value_of("--trusted-ca-file"))
        context.load_cert_chain(identity)
        everything = base64.b64encode(b"\0").decode()
        body = json.dumps({"key": everything, "range_end": everything, "keys_only": True}).encode()
        request = urllib.request.Request(self._value_of("--advertise-client-urls") + "/v3/kv/range", body)
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            keys = [base64.b64decode(it["key"]) for it in json.load(answer).get("kvs", [])]
        return sum(b"/nodes/" in key for key in keys)

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
    """A scheduler, and an etcd of its own with its data in the directory `place`."""

    def __init__(self, identity, listen, place):
        self.own = [program("fabricbios-scheduler"), "--identity", str(identity), "--listen", listen]
        super().__init__(["env", f"TMPDIR={place}", *self.own, "--etcd", "embedded-dev"])
        self.etcd = Etcd(self)

    def start_again(self):
        """Starts it after a SIGKILL, with the etcd that has outlived it."""
        self.command = [*self.own, *self.etcd.flags()]
        self.start()

    def __exit__(self, *_):
        super().__exit__()
        with contextlib.suppress(ProcessLookupError):  # A suite that has failed may have killed it.
            self.etcd.kill()


class Stall:
    """etcd's disk stalls while the scheduler writes a record: of a node that `joins` starts."""

    def __init__(self, suite, disk, scheduler, joins):
        self.suite, self.disk, self.scheduler, self.joins = suite, disk, scheduler, joins
        self.since, self.node = 0, None

    def begin(self):
        """Returns when the scheduler says that it cannot use etcd."""
        until(lambda: self.scheduler.etcd.members() == 2, what="the records of both nodes in etcd")
        self.since = len(self.scheduler.lines)
        self.disk.stall()
        self.node = self.joins()
        told = self.scheduler.wait_for_line("etcd cannot be used", since=self.since)
        self.suite.check("etcd's disk stalls: the scheduler says that it goes on from memory", told, "a line")

    def end(self):
        """Returns when etcd has the record; the node stops."""
        self.disk.go_on()
        told = self.scheduler.wait_for_line("etcd answers", since=self.since)
        self.suite.check("etcd's disk goes on: the scheduler says that etcd answers", told, "a line")
        until(lambda: self.scheduler.etcd.members() == 3, what="the record of the node that has joined in etcd")
        self.suite.equal("etcd's disk goes on: exit status of the node that had joined", 0, self.node.stop())
