#!/usr/bin/python3
# lab: one-vm systemd smp=4 full
# covers: packaging docs/install.md
"""docs/install.md by its own commands, under a real systemd: from `apt install` to a lease that is written, and the seconds that
takes. Needs `cargo xtask package --profile dev`."""
import os
import pathlib
import re
import time

from block import run, sh
from checks import Suite
from debs import STATE, UNIT, made, ready

PAGE = pathlib.Path(__file__).parents[2] / "docs/install.md"


def commands(section):
    """The commands of the section's first block."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [line.split("#")[0].strip() for line in text.split("```sh\n")[1].split("```")[0].splitlines()]


def follow(suite, section):
    """Runs the commands in one place, with the variables that they export. LEASE is the id that one of them prints. Returns the
    seconds to the end of each, and the last output."""
    exports, lease, began, said, times = [], "LEASE", time.monotonic(), "", {}
    for line in commands(section):
        if line.startswith("export "):
            exports.append(line)
            continue
        done = run("bash", "-c", "\n".join([*exports, line.replace("LEASE", lease)]), cwd=made(), input="y\n",
                   env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
        times[line] = time.monotonic() - began
        suite.check(f"{section}: {line}", done.returncode == 0, "exit 0", done.stdout + done.stderr)
        if found := re.search(r"\b[0-9a-f]{16,}\b", done.stdout if "lease alloc" in line else ""):
            lease = found[0]
        said = done.stdout if "read" in line else said
    return times, said


def first_lease(suite):
    """The page alone."""
    times, said = follow(suite, "A first lease")
    suite.equal("the lease has what was written", "hello\n", said)
    written = next(secs for line, secs in times.items() if "mem write" in line)
    print(f"   from apt install to a written lease: {written:.1f} s", flush=True)


def purged(suite):
    """A purge where the state directory is a disk of its own."""
    run("systemctl", "stop", UNIT)
    sh(f"mount -t tmpfs tmpfs {STATE} && mkdir {STATE}/below && touch {STATE}/below/file")
    sh(f"dpkg --purge {UNIT}")
    suite.equal("purge: nothing is left on the disk of the state directory", ([], True), (os.listdir(STATE), os.path.ismount(STATE)))


def main():
    """The first section of the page, and a purge."""
    ready()
    with Suite("the page on installing") as suite:
        suite.section(first_lease, suite)
        suite.section(purged, suite)


if __name__ == "__main__":
    main()
