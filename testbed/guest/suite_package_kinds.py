#!/usr/bin/python3
# lab: one-vm systemd igb smp=4 full
# covers: packaging
"""Kinds with a drop-in of the packages each under a real systemd, one at a time: leases in use go on over SIGKILL, a restart, an
upgrade, and upgrades while the process that makes helper calls hangs, or a call of a lease over NVMe/TCP, as docs/upgrade.md
promises; a stop ends them. Names of kinds on the command line choose: `memory-rdma`, `nvme-tcp`, `nvme-rdma`, `net`, `gpu`. Needs
`cargo xtask package --profile dev`, and `cargo xtask stand-ins` for `gpu`."""
import os
import shutil
import signal
import sys

from block import run, sh
from checks import Suite, until
from debs import CONFIG, DROP_INS, EXAMPLES, UNIT, dpkg, exposure, install, killed, log, operator, package, pid, ready, serves, start, status, unit
from package_kinds import KINDS, named

# As docs/install.md has them; `systemd-analyze security` counts from 0 to 10.
EXPOSURE_MAX = {"memory-rdma": 3.4, "nvme-tcp": 4.1, "nvme-rdma": 4.1, "net": 4.6, "gpu": 5.3}


class Versions:
    """Later and later versions of the node's package."""

    def __init__(self):
        self.last = 0

    def next(self):
        """The next one."""
        self.last += 1
        return package(UNIT, f"0.1.{self.last}")

    def one(self, suite, what):
        """Installs the next one, with the node running."""
        before = pid()
        install(self.next())
        self.is_there(suite, what, before)

    def is_there(self, suite, what, before):
        """The last version is installed and runs."""
        suite.equal(f"{what}: installed", f"0.1.{self.last} installed", status(UNIT))
        serves()
        suite.check(f"{what}: another daemon runs", pid() not in (0, before), "another process", pid())

    def refused(self, suite, what, name):
        """The next one is unpacked, and its check says why the daemon of before goes on: it names this."""
        before = pid()
        finished = dpkg("-i", self.next())
        said = finished.stdout
        suite.check(f"{what}: it fails in words", finished.returncode and "the node of before goes on" in said and name in said
                    and "no progress for" in said, name, said)
        suite.equal(f"{what}: the daemon of before goes on", before, pid())

    def configured(self, suite, what):
        """What was refused is installed when its cause is gone."""
        before = pid()
        suite.equal(f"{what}: configured", 0, dpkg("--configure", UNIT).returncode)
        self.is_there(suite, what, before)


def prepared(kind):
    """The node with the settings and the one drop-in of this kind."""
    run("systemctl", "stop", UNIT)
    for at in DROP_INS.iterdir():
        if at.name != "lab.conf":
            at.unlink()
    shutil.copy(EXAMPLES / f"{kind.conf or kind.name}.conf", DROP_INS)
    if kind.drop_in:
        (DROP_INS / "stand-ins.conf").write_text(kind.drop_in)
    CONFIG.write_text(kind.settings)
    sh("systemctl daemon-reload")
    start()


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
    versions.one(suite, f"{name}: upgrade")
    lives(f"{name}: upgrade")
    hung = named("fb-supervisor")
    suite.check(f"{name}: a process makes helper calls", hung, "a process")
    for process in hung:
        os.kill(process, signal.SIGSTOP)
    versions.one(suite, f"{name}: upgrade while helper calls hang")
    lives(f"{name}: upgrade while helper calls hang")
    for process in hung:
        os.kill(process, signal.SIGCONT)
    suite.check(f"{name}: the process that hung ends when it goes on", until(lambda: not hung & named("fb-supervisor"), 60, "its end"))
    kind.hangs(suite, versions, lives)
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
