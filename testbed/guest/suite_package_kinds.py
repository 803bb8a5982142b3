#!/usr/bin/python3
# lab: one-vm systemd igb smp=4 full
# covers: packaging
"""The drop-ins of the packages under a real systemd, one at a time: leases in use go on over SIGKILL, a restart,
an upgrade, and an upgrade while the process that makes helper calls hangs, as docs/upgrade.md promises; a stop ends them. Names of
drop-ins on the command line choose. Needs `cargo xtask package --profile dev`, and `cargo xtask stand-ins` for `gpu`."""
import os
import pathlib
import shutil
import signal
import sys

from block import run, sh
from checks import Suite, until
from debs import CONFIG, DROP_INS, EXAMPLES, UNIT, exposure, install, killed, log, operator, package, pid, ready, serves, start, status, unit
from package_kinds import KINDS

# As docs/install.md has them; `systemd-analyze security` counts from 0 to 10.
EXPOSURE_MAX = {"memory-rdma": 3.4, "block-nvmet": 4.1, "net": 4.6, "gpu": 5.3}


class Versions:
    """Later and later versions of the node's package."""

    def __init__(self):
        self.last = 0

    def upgrade(self, suite, what):
        """Installs the next one, with the node running."""
        self.last += 1
        version, before = f"0.1.{self.last}", pid()
        install(package(UNIT, version))
        suite.equal(f"{what}: installed", f"{version} installed", status(UNIT))
        serves()
        suite.check(f"{what}: another daemon runs", pid() not in (0, before), "another process", pid())


def prepared(kind):
    """The node with the settings and the one drop-in of this kind."""
    run("systemctl", "stop", UNIT)
    for at in DROP_INS.iterdir():
        if at.name != "lab.conf":
            at.unlink()
    shutil.copy(EXAMPLES / f"{kind.name}.conf", DROP_INS)
    if kind.drop_in:
        (DROP_INS / "stand-ins.conf").write_text(kind.drop_in)
    CONFIG.write_text(kind.settings)
    sh("systemctl daemon-reload")
    start()


def supervisors():
    """The processes that make helper calls."""
    return {int(at.name) for at in pathlib.Path("/proc").iterdir() if at.name.isdigit() and comm(at) == "fb-supervisor"}


def comm(at):
    """The name of a process, if it lives."""
    try:
        return (at / "comm").read_text().strip()
    except OSError:
        return None


def outlives(suite, versions, name):
    """The life of leases of one kind under the unit."""
    kind = KINDS[name]()
    prepared(kind)
    figure = exposure()
    print(f"   exposure of the unit with {name}: {figure}", flush=True)
    suite.check(f"{name}: exposure of the unit", figure <= EXPOSURE_MAX[name], f"at most {EXPOSURE_MAX[name]}", figure)
    kind.take(suite)

    def lives(what):
        for lease in kind.leases():
            now = operator().query(lease)
            suite.equal(f"{what}: a lease of {name} goes on to its deadline", ("active", lease["expires_at_unix_ms"]),
                        (now["state"], now["expires_at_unix_ms"]))
        kind.lives(suite, what)
    killed()
    lives(f"{name}: SIGKILL")
    sh(f"systemctl restart {UNIT}")
    serves()
    lives(f"{name}: restart")
    versions.upgrade(suite, f"{name}: upgrade")
    lives(f"{name}: upgrade")
    hung = supervisors()
    suite.check(f"{name}: a process makes helper calls", hung, "a process")
    for process in hung:
        os.kill(process, signal.SIGSTOP)
    versions.upgrade(suite, f"{name}: upgrade while helper calls hang")
    lives(f"{name}: upgrade while helper calls hang")
    for process in hung:
        os.kill(process, signal.SIGCONT)
    suite.check(f"{name}: the process that hung ends when it goes on", until(lambda: not hung & supervisors(), 60, "its end"))
    sh(f"systemctl stop {UNIT}")
    suite.equal(f"{name}: a stop is a good end", "success", unit("Result"))
    kind.ended(suite)


def main():
    """One node; each kind in turn."""
    ready()
    chosen = sys.argv[1:] or list(KINDS)
    with Suite("packages: drop-ins of kinds", only=[]) as suite:
        install(package(UNIT), package("fabricbios-client"))
        versions = Versions()
        for name in chosen:
            since, failed = len(log()), suite.failed
            suite.section(outlives, suite, versions, name)
            if suite.failed > failed:
                print(log()[since:][-6000:], flush=True)


if __name__ == "__main__":
    main()
