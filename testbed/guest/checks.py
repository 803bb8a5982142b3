#!/usr/bin/python3
"""The output and the exit status of a lab suite: `ok NAME` or `FAILED NAME: expected … got …` for each check,
a count at the end; exit status 0 only if something was checked and nothing failed, 77 if something that
it needs is missing."""
import contextlib
import os
import sys
import time
import traceback

import fabric
from fabric import Refused

SKIPPED = 77
FULL = bool(os.environ.get("FABRICBIOS_FULL"))
# Allowed delay of an end on a loaded emulated processor; on hardware the delay is some milliseconds.
LATE_LIMIT_MS = 2000
# A running daemon has two seconds to end a lease; then the watchdog ends the lease in its place.
STOPPED_LATE_MS = 3000 + LATE_LIMIT_MS


def length(full, short):
    """A time or a count: `full` if FABRICBIOS_FULL is set, else `short`. The suite asserts the same."""
    return full if FULL else short


def in_full_length(section):
    """Marks a section that the short form leaves out, unless the command line names it."""
    section.in_full_length = True
    return section


def skip(missing):
    """Ends the suite as not run."""
    print(f"skipped: missing {missing}", flush=True)
    sys.exit(SKIPPED)


try:
    from rdma_client import ENDS, Client, Device
    NO_RDMA = None
except ImportError as absent:  # The data plane over UDP is tested without.
    ENDS, NO_RDMA = frozenset(), f"python3-pyverbs ({absent})"


def until(condition, secs=60, what="condition"):
    """The first true value of `condition()`; TimeoutError with `what` if there is none in time."""
    limit = time.monotonic() + secs
    while True:
        begun = time.monotonic()
        if value := condition():
            return value
        ended = time.monotonic()
        if ended > limit:
            raise TimeoutError(f"{what}: not within {secs} s")
        # After an expensive condition, such as a call of fabricctl, this sleeps for as long as the call took, so that
        # other programs get the processor.
        time.sleep(max(0.05, ended - begun))


def when_clean(ask):
    """The answer of `ask`, which leases bytes; asked again while they are being cleaned after the lease before."""
    def granted():
        try:
            return ask()
        except fabric.Refused as refusal:
            if refusal.reason_class != "transient":
                raise
            return None
    return until(granted, what="bytes that are clean")


def programs():
    """Ends the suite as not run if one of the programs under test is missing."""
    try:
        fabric.program("fabricbiosd")
        fabric.program("fabricctl")
    except LookupError as missing:
        skip(missing)


def lab_device():
    """The soft-RoCE device, made if it does not exist. Also checks for the programs under test."""
    programs()
    if NO_RDMA:
        skip(NO_RDMA)
    try:
        fabric.ensure_soft_roce()
        return Device("rxe0")
    except LookupError as missing:
        return skip(missing)


@contextlib.contextmanager
def leased(tenant, device, length=65536, secs=300, grace_secs=0, buffer_bytes=65536):
    """A lease and a client that is connected to it; given back at the end unless it has ended already."""
    with Client(device, buffer_bytes) as client:
        lease = tenant.alloc(length, secs, client.peer, grace_secs)
        client.connect(lease)
        try:
            yield lease, client
        finally:
            give_back(tenant, lease)


def give_back(tenant, lease):
    """Frees a lease that may have ended; any other refusal is an error."""
    try:
        tenant.free(lease)
    except Refused as refusal:
        if refusal.code not in ("NotFound", "Expired", "Revoked"):
            raise


def rearm(tenant, lease, client):
    """Makes a new queue pair of the client, binds it to the lease and connects it; returns the lease as it is now."""
    client.fresh()
    armed = tenant.bind(lease, client.peer)
    client.connect(armed)
    return armed


class Suite:
    """Counts checks. As a context manager it ends the program with the exit status. If the command line names sections,
    only those run."""

    def __init__(self, name, only=None):
        self.name, self.passed, self.failed = name, 0, 0
        self.only = sys.argv[1:] if only is None else only

    def check(self, name, holds, expected=True, got=None):
        """One check; if it fails, the line shows the expected value."""
        if holds:
            self.passed += 1
            print(f"ok {name}", flush=True)
        else:
            self.failed += 1
            print(f"FAILED {name}: expected {expected} got {got if got is not None else holds}", flush=True)
        return holds

    def equal(self, name, expected, got):
        """Checks that `got` equals `expected`."""
        return self.check(name, expected == got, repr(expected), repr(got))

    def ended(self, name, report, told_at_ms, ends=ENDS):
        """Checks that the access of a writer ended, and that no request that it posted after the reported end
        succeeded."""
        self.check(f"{name}: the writer was writing", report["writes"] > 0, "writes before the end", report)
        self.check(f"{name}: the writer's access ends", report["status"] in ends, sorted(ends), report["status"])
        self.check(f"{name}: no write posted after the end was told succeeds",
                   (report["last_posted_at_ms"] or 0) <= told_at_ms, f"last success posted before {told_at_ms}", report)

    def on_time(self, name, lease, report):
        """Checks that a writer's access ended at the deadline: not before, and not much later."""
        if not report["writes"]:
            return
        deadline_ms = lease["expires_at_unix_ms"]
        last_ms, failed_ms = report["last_ok_at_ms"] - deadline_ms, report["failed_at_ms"] - deadline_ms
        print(f"   {name}: {report['writes']} writes, last success {last_ms:+.1f} ms and first failure {failed_ms:+.1f} ms "
              f"from the deadline, {report['status']}", flush=True)
        self.check(f"{name}: no error before the deadline", failed_ms >= 0, "0 ms or later", failed_ms)
        self.check(f"{name}: cut on time", last_ms < LATE_LIMIT_MS, f"last success before {LATE_LIMIT_MS} ms", last_ms)

    def refused(self, name, call, status=None, code=None, word="", of_class=None):
        """Checks that `call` is refused, with a JSON error object of the contract, this exit status and this code;
        `code` may be several. The message has `word`, and the refusal is of this class."""
        try:
            got = call()
        except Refused as refusal:
            return self._is_refusal(name, refusal, status, code, word, of_class)
        return self.check(name, False, "a refusal", got)

    def _is_refusal(self, name, refusal, status, code, word, of_class):
        codes = (code,) if isinstance(code, str) else code
        complete = bool(refusal.error and refusal.message and refusal.code) and refusal.reason_class in (
            "permanent", "transient", "policy")
        holds = (complete and "\n" not in refusal.message and word in refusal.message and status in (None, refusal.status)
                 and (codes is None or refusal.code in codes) and of_class in (None, refusal.reason_class))
        wanted = f"exit {status if status is not None else 'other than 0'}, reason {codes or 'any'}, class {of_class or 'any'}, a complete error object{word and f' with {word!r}'}"
        return self.check(name, holds, wanted, f"exit {refusal.status}, stderr {refusal.stderr!r}")

    def section(self, run, *arguments):
        """Runs a group of checks. A group that raises is a failed check; the other groups still run."""
        if self.only and run.__name__ not in self.only:
            return
        if getattr(run, "in_full_length", False) and not FULL and not self.only:
            print(f"   {run.__name__}: in full length only", flush=True)
            return
        began = time.monotonic()
        try:
            run(*arguments)
        except Exception as error:  # Any exception is the result of this section.
            traceback.print_exc(file=sys.stdout)
            self.check(run.__name__, False, "to run to its end", f"{type(error).__name__}: {error}")
        print(f"   {run.__name__}: {time.monotonic() - began:.0f} s", flush=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if kind and not issubclass(kind, SystemExit):
            traceback.print_exc(file=sys.stdout)
            self.check(self.name, False, "to run to its end", f"{kind.__name__}: {error}")
        elif kind:
            return False
        print(f"{self.name}: {self.passed} ok, {self.failed} failed", flush=True)
        if not self.passed:
            print(f"FAILED {self.name}: nothing was checked", flush=True)
        sys.exit(1 if self.failed or not self.passed else 0)
