#!/usr/bin/python3
"""What a lab suite prints and how it ends: `ok NAME` or `FAILED NAME: expected … got …` for each check,
a count at the end; exit status 0 only if something was checked and nothing failed, 77 if something that
it needs is missing."""
import sys
import traceback

from fabric import Refused

SKIPPED = 77


def skip(missing):
    """Ends the suite as not run."""
    print(f"skipped: missing {missing}", flush=True)
    sys.exit(SKIPPED)


class Suite:
    """Counts checks. As a context it ends the program with the exit status."""

    def __init__(self, name):
        self.name, self.passed, self.failed = name, 0, 0

    def check(self, name, holds, expected=True, got=None):
        """One check; the line tells what was expected if it fails."""
        if holds:
            self.passed += 1
            print(f"ok {name}", flush=True)
        else:
            self.failed += 1
            print(f"FAILED {name}: expected {expected} got {got if got is not None else holds}", flush=True)
        return holds

    def equal(self, name, expected, got):
        """`got` is `expected`."""
        return self.check(name, expected == got, repr(expected), repr(got))

    def refused(self, name, call, status=None, code=None):
        """`call` is refused, with a JSON error object of the contract, this exit status and this code;
        `code` may be several."""
        try:
            got = call()
        except Refused as refusal:
            return self._is_refusal(name, refusal, status, code)
        return self.check(name, False, "a refusal", got)

    def _is_refusal(self, name, refusal, status, code):
        codes = (code,) if isinstance(code, str) else code
        complete = bool(refusal.error and refusal.message and refusal.code) and refusal.reason_class in (
            "permanent", "transient", "policy")
        holds = (complete and "\n" not in refusal.message and status in (None, refusal.status)
                 and (codes is None or refusal.code in codes))
        wanted = f"exit {status if status is not None else 'other than 0'}, reason {codes or 'any'}, a complete error object"
        return self.check(name, holds, wanted, f"exit {refusal.status}, stderr {refusal.stderr!r}")

    def section(self, run, *arguments):
        """Runs a group of checks. One that breaks is a failed check and the others still run."""
        try:
            run(*arguments)
        except Exception as error:  # Whatever it is, it is this section's result.
            traceback.print_exc(file=sys.stdout)
            self.check(run.__name__, False, "to run to its end", f"{type(error).__name__}: {error}")

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
