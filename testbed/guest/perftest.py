#!/usr/bin/python3
"""`fabricctl perftest` as a context, with its events, and the command lines of perftest's tools."""
import json
import os
import signal
import subprocess
import threading

from fabric import program


class Perftest:
    """Serves perftest's clients on `port` of the loopback address, each queue pair with a lease of this tenant."""

    def __init__(self, tenant, lease_bytes, secs=300):
        self.command = [program("fabricctl"), "--json", "perftest", "--listen", "127.0.0.1:0",
                        "--bytes", str(lease_bytes), "--secs", str(secs)]
        self.environment = {**os.environ, "FABRICBIOS_NODE": tenant.node, "FABRICBIOS_IDENTITY": tenant.identity}

    def __enter__(self):
        self.events, self.failures, self.news = [], [], threading.Condition()
        self.process = subprocess.Popen(self.command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.readers = [threading.Thread(target=self._read, args=pair, daemon=True)
                        for pair in ((self.process.stdout, self.events), (self.process.stderr, self.failures))]
        for reader in self.readers:
            reader.start()
        self.port = int(self.wait_for("listening")["address"].rsplit(":", 1)[1])
        return self

    def _read(self, pipe, into):
        for line in pipe:
            with self.news:
                into.append(json.loads(line))
                self.news.notify_all()

    def _wait(self, find, what, timeout_secs):
        with self.news:
            if not self.news.wait_for(find, timeout_secs):
                raise TimeoutError(f"{what}: not within {timeout_secs} s; events {self.events}, failures {self.failures}")
            return find()

    def has(self, event):
        """Whether there was an event of this name."""
        return any(it["event"] == event for it in self.events)

    def wait_for(self, event, since=0, timeout_secs=60):
        """The first event of this name behind the first `since`."""
        return self._wait(lambda: next((it for it in self.events[since:] if it["event"] == event), None), event, timeout_secs)

    def wait_for_failure(self, part, timeout_secs=60):
        """The first message of a failure that contains `part`."""
        return self._wait(lambda: next((it["message"] for it in self.failures if part in it["message"]), None), part, timeout_secs)

    def run(self, tool, *options):
        """Runs a client to its end."""
        return subprocess.run(self.client(tool, *options), capture_output=True, text=True, timeout=120, check=False)

    def client(self, tool, *options):
        """The command line of a client."""
        return [*device_of(tool), *options, "-p", str(self.port), "127.0.0.1"]

    def stop(self):
        """SIGTERM; returns the exit status, after the last event was read."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        for reader in self.readers:
            reader.join(60)
        return status

    def __exit__(self, *_):
        self.stop()


def device_of(tool):
    """The beginning of every command line of a tool."""
    return [tool, "-d", "rxe0", "-x", "1", "-F"]
