#!/usr/bin/python3
"""Parses the output of xfstests' `check`. Runs no program, so test_results.py can check all of it on any machine."""
import re

TEST = re.compile(r"^((?:generic|ext4|xfs)/\d+) ", re.MULTILINE)
# The line behind the last test.
LAST = re.compile(r"^(?:Ran|Not run|Interrupted!|Failures): ?", re.MULTILINE)
TIME = re.compile(r"(?:\d+s \.\.\. +)?\d+s")
NOT_RUN = "[not run] "


def rows(output):
    """Rows of the tests that have ended, in their order: test, status, and the reason."""
    tests = list(TEST.finditer(output))
    last = LAST.search(output)
    if not last:
        tests, open_tests = tests[:-1], tests[-1:]
    ends = [test.start() for test in tests[1:]] + [last.start() if last else open_tests[0].start() if tests else 0]
    return [(test[1], *result(output[test.end():end])) for test, end in zip(tests, ends)]


def result(said):
    """Status and reason of a test by what `check` prints behind its name."""
    said = said.strip()
    if TIME.fullmatch(said):
        return "pass", ""
    if NOT_RUN in said:
        return "skip", "; ".join(said.split(NOT_RUN, 1)[1].split("\n"))
    return "fail", reason(said)


def reason(said):
    """The unexpected or the missing output of a failed test, or else what `check` says of it."""
    lines = said.splitlines()
    diff = [line.strip() for line in lines if line.startswith("    ")]
    diff = [line for line in diff if line[:1] in "+-" and line[:4] not in ("+++ ", "--- ")]
    more = [line[1:] for line in diff if line[0] == "+"]
    said = [line for line in lines if line.startswith("_check_")]
    said += more or [f"not printed: {line[1:]}" for line in diff]
    return "; ".join(list(dict.fromkeys(said or lines))[:3])
