#!/usr/bin/python3
"""Starts and stops the daemon, and asks it through `fabricctl --json`: all that the suites and the demo know of
fabricBIOS is here. FABRICBIOS_BIN names the directory of the two programs; without it, the newest build of this
checkout is used."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time

ADDRESS = "10.77.0.1"
PORT = 5701
READY_SECS = 60
KEEPS = "--on-stop=keep"
DONE, OTHER, USAGE, REFUSED, NOT_FOUND, FENCED, UNREACHABLE = range(7)


def program(name):
    """Path of a program under test; LookupError names the places where it was looked for."""
    named = os.environ.get("FABRICBIOS_BIN")
    target = pathlib.Path(__file__).resolve().parents[2] / "target"
    places = [pathlib.Path(named)] if named else [target / "release", target / "debug"]
    found = [place / name for place in places if (place / name).is_file()]
    if not found:
        raise LookupError(f"{name} (looked in {', '.join(map(str, places))})")
    return str(max(found, key=lambda path: path.stat().st_mtime))


class Refused(Exception):
    """`fabricctl` failed: its exit status and the error object from its standard error."""

    def __init__(self, words, finished):
        self.status = finished.returncode
        self.stderr = finished.stderr.strip()
        self.object = self._error_object()
        reason = self.object.get("reason", {})
        self.error = self.object.get("error")
        self.message = self.object.get("message", "")
        self.reason_class, self.code = reason.get("class"), reason.get("code")
        super().__init__(f"fabricctl {' '.join(words)}: exit {self.status}: {self.stderr or '(nothing on stderr)'}")

    def _error_object(self):
        """The last line that is a JSON object; a program that failed in another way prints none."""
        for line in reversed(self.stderr.splitlines()):
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                return value
        return {}


class Fabric:
    """One tenant's (or the operator's) view of one node. `daemon`: the `Node`, if this program has started it."""

    def __init__(self, identity, node=f"{ADDRESS}:{PORT}", daemon=None):
        self.identity, self.node, self.daemon = str(identity), node, daemon
        self.pool_ids = {}  # By the paths of pools, as far as known.

    def command(self, *words, as_json=True):
        """The command line of `fabricctl`, and the environment that it needs."""
        # Without patience: refusals are not repeated, so that a suite sees each one.
        environment = {"FABRICBIOS_NODE": self.node, "FABRICBIOS_IDENTITY": self.identity, "FABRICBIOS_PATIENCE_SECS": "0"}
        return [program("fabricctl"), *(["--json"] if as_json else []), *map(str, words)], environment

    def run(self, *words, as_json=True, timeout_secs=60):
        """Runs `fabricctl` and returns the finished process."""
        command, environment = self.command(*words, as_json=as_json)
        return subprocess.run(command, capture_output=True, text=True,
                              timeout=timeout_secs, env={**os.environ, **environment}, check=False)

    def ask(self, *words):
        """Runs `fabricctl --json` and returns its output; raises Refused."""
        finished = self.run(*words)
        if finished.returncode:
            raise Refused(list(map(str, words)), finished)
        return json.loads(finished.stdout) if finished.stdout.strip() else None

    def alloc(self, length, secs, peer=None, grace_secs=0, *more):
        """Leases memory."""
        words = ["lease", "alloc", "mem", "--bytes", length, "--secs", secs]
        words += ["--grace-secs", grace_secs] if grace_secs else []
        words += ["--rdma-peer", peer] if peer else []
        return self.ask(*words, *more)

    def bind(self, lease, peer):
        """Binds the lease to another queue pair of the client."""
        return self.ask("lease", "bind", lease["lease_id"], "--rdma-peer", peer)

    def renew(self, lease, *more):
        """Renews the lease."""
        return self.ask("lease", "renew", lease["lease_id"], *more)

    def rotate(self, lease, *more):
        """Rotates the key of the lease."""
        return self.ask("lease", "rotate", lease["lease_id"], *more)

    def query(self, lease):
        """The state of the lease."""
        return self.ask("lease", "query", lease["lease_id"])

    def free(self, lease):
        """Gives the lease back."""
        return self.ask("lease", "free", lease["lease_id"])

    def revoke(self, lease):
        """Revokes a lease; an operator may do this."""
        return self.ask("lease", "revoke", lease["lease_id"])

    def free_all(self):
        """Gives back the leases that have not ended, such as those that a restarted daemon has adopted."""
        for lease in self.ask("lease", "list").get("leases", []):
            if lease["state"] in ("active", "binding"):
                self.free(lease)

    def fences(self):
        """The current fences."""
        return self.ask("fence", "list")["fences"]

    def wait_for_fence(self, timeout_secs=60):
        """The first fence, as soon as there is one. Waits for the line in the daemon's log: requests would take the processor
        from the work that ends in a fence."""
        since = len(self.daemon.lines)
        if not (found := self.fences()):
            if not self.daemon.wait_for_line("FENCED", since=since, timeout_secs=timeout_secs):
                raise TimeoutError(f"a fence: not within {timeout_secs} s")
            found = self.fences()
        return found[0]

    def issue(self, tenant, path, role="tenant"):
        """Issues an identity for `tenant` with this (operator's) identity; returns that tenant's view."""
        self.ask("identity", "issue", "--tenant", tenant, "--role", role, "--out", path)
        return Fabric(path, self.node, self.daemon)

    def wait_until(self, lease, *states, timeout_secs=60):
        """Asks until the lease is in one of `states`; for the end of its term once at first, and then from that end on."""
        deadline = time.monotonic() + timeout_secs
        if "expired" in states and self.query(lease)["state"] not in states:
            time.sleep(min(timeout_secs, max(0, lease["expires_at_unix_ms"] / 1000 - time.time())))
        while (answer := self.query(lease))["state"] not in states:
            if time.monotonic() > deadline:
                raise TimeoutError(f"lease {lease['lease_id']}: still {answer['state']}, waited for {states}")
            # Long enough to leave the processors to other suites.
            time.sleep(0.2)
        return answer


class Daemon:
    """A running program that prints READY on standard output, and its output."""

    def __init__(self, command):
        self.command = command
        self.environment = {}  # Added to the environment of the next start.
        self.lines, self.news = [], threading.Condition()
        self.process = None
        self.start()

    def start(self):
        """Starts the daemon and waits until it prints READY on standard output."""
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, "NO_COLOR": "1", **self.environment})
        start, ready, self.is_ready = len(self.lines), threading.Event(), False
        self.readers = [threading.Thread(target=self._read, args=(pipe, ready), daemon=True)
                        for pipe in (self.process.stdout, self.process.stderr)]
        for reader in self.readers:
            reader.start()
        if not ready.wait(READY_SECS) or not self.is_ready:
            self.process.kill()
            raise RuntimeError("the daemon did not become READY; it said:\n" + "\n".join(self.lines[start:]))

    def _read(self, pipe, ready):
        for line in pipe:
            with self.news:
                self.lines.append(line.rstrip())
                self.news.notify_all()
            if pipe is self.process.stdout and "READY" in line:
                self.is_ready = True
                ready.set()
        if pipe is self.process.stdout:
            ready.set()

    def wait_for_line(self, *parts, since=0, timeout_secs=60):
        """The first line of its output, or of that behind the first `since` lines, that contains all `parts`, or None."""
        def find():
            return next((line for line in self.lines[since:] if all(part in line for part in parts)), None)
        with self.news:
            self.news.wait_for(find, timeout_secs)
            return find()

    def kill(self):
        """Sends SIGKILL, so the daemon cannot clean up. Returns when it is gone."""
        self.process.kill()
        self._finish()

    def stop(self):
        """SIGTERM; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._finish()

    def _finish(self):
        try:
            status = self.process.wait(READY_SECS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise RuntimeError(f"the daemon did not end in {READY_SECS} s; it said last:\n" + "\n".join(self.lines[-20:])) from None
        for reader in self.readers:
            reader.join(READY_SECS)
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Node(Daemon):
    """A node. Its state directory outlives the daemon, so that it can be started again on the same state."""

    def __init__(self, *more, device="rxe0", mem_bytes="16MiB", address=ADDRESS, state_dir=None, port=PORT, within=()):
        """`more`: further flags. `within`: words before the daemon's own, such as `ip netns exec NAME`."""
        self.state_dir = pathlib.Path(state_dir or tempfile.mkdtemp(prefix="fabricbios-"))
        self.address = f"{address}:{port}"
        super().__init__([*within, program("fabricbiosd"), "control-server", "--auto-detect", "--state-dir", str(self.state_dir),
                          "--listen", self.address, "--mem-bytes", str(mem_bytes), "--rdma-device", device, *more])

    @property
    def operator(self):
        """The view of the operator, with the identity that the first start made."""
        return Fabric(self.state_dir / "admin.identity", self.address, self)

    def tenant(self, name):
        """The view of a tenant of this node."""
        path = self.state_dir / f"{name}.identity"
        return Fabric(path, self.address, self) if path.exists() else self.operator.issue(name, path)

    @contextlib.contextmanager
    def keeping(self):
        """While this context lasts, SIGTERM keeps leases (on-stop = keep). The context begins and ends with a SIGKILL
        and a start, which end no lease."""
        self.kill()
        self.command.append(KEEPS)
        self.start()
        try:
            yield
        finally:
            self.kill()
            self.command.remove(KEEPS)
            self.start()

    def __exit__(self, *_):
        super().__exit__()
        shutil.rmtree(self.state_dir, ignore_errors=True)


def resources(device="rxe0"):
    """The resources of the RDMA device that the kernel counts: queue pairs, regions and so on."""
    shown = subprocess.run(["rdma", "-j", "resource", "show"], capture_output=True, text=True, check=True)
    rows = [row for row in json.loads(shown.stdout) if row.get("ifname") == device]
    if not rows:
        raise LookupError(f"RDMA device {device} (rdma resource show does not list it)")
    return {kind: count for kind, count in rows[0].items() if isinstance(count, int) and kind != "ifindex"}


def ensure_soft_roce(device="rxe0", interface=None, address=f"{ADDRESS}/24"):
    """Makes the soft-RoCE device if it does not exist: on `interface`, or on a veth pair of its own. Raises LookupError
    that names the missing requirement."""
    if os.path.isdir(f"/sys/class/infiniband/{device}"):
        return
    if os.geteuid() != 0:
        raise LookupError(f"RDMA device {device} (and only root can make one)")
    steps = [] if interface else ["ip link add d0 type veth peer name d1", "ip link set d1 up"]
    interface = interface or "d0"
    steps = ["modprobe rdma_rxe", *steps, f"ip addr replace {address} dev {interface}", f"ip link set {interface} up",
             f"rdma link add {device} type rxe netdev {interface}"]
    for step in steps:
        made = subprocess.run(step.split(), capture_output=True, text=True, check=False)
        if made.returncode:
            raise LookupError(f"RDMA device {device} (`{step}`: {made.stderr.strip()})")
