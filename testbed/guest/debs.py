#!/usr/bin/python3
"""The packages of `cargo xtask package --profile dev` in a guest with systemd: other versions of them, dpkg, and the unit of
the node with its lines of the log."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from block import run, sh
from checks import skip, until
from fabric import Fabric

UNIT = "fabricbios-node"
CONFIG = pathlib.Path("/etc/fabricbios/node.toml")
STATE = pathlib.Path("/var/lib/fabricbios")
EXAMPLES = pathlib.Path(f"/usr/share/doc/{UNIT}/examples")
DROP_INS = pathlib.Path(f"/etc/systemd/system/{UNIT}.service.d")
# Without the targets of a booted Debian, of which this guest has none, and without a journal of systemd.
IN_THE_LAB = "[Unit]\nDefaultDependencies=no\n[Service]\nStandardOutput=append:/run/node.log\nStandardError=append:/run/node.log\n"
ADDRESS = "127.0.0.1:5701"


def ready():
    """Ends the suite as not run if something is missing. Prepares the guest for dpkg and the unit."""
    if pathlib.Path("/proc/1/comm").read_text().strip() != "systemd":
        skip("systemd as process 1 (cargo xtask lab --systemd)")
    for name in ("fabricbios-node", "fabricbios-client", "fabricbios-scheduler"):
        if not list(made().glob(f"{name}_*.deb")):
            skip(f"the package {name} in {made()} (cargo xtask package --profile dev)")
    # dpkg would read all man pages of the host anew.
    pathlib.Path("/var/lib/man-db/auto-update").unlink(missing_ok=True)
    # Images for containers forbid dpkg to start and stop services.
    pathlib.Path("/usr/sbin/policy-rc.d").unlink(missing_ok=True)
    sh("systemctl mask --runtime network-online.target")
    DROP_INS.mkdir(parents=True)
    (DROP_INS / "lab.conf").write_text(IN_THE_LAB)
    os.environ["FABRICBIOS_BIN"] = "/usr/bin"


def made():
    """The directory of the packages."""
    return pathlib.Path(__file__).resolve().parents[2] / "target/package/dev"


def package(name, version=None):
    """The package, or a copy of it that says that it has this version."""
    path = next(made().glob(f"{name}_*.deb"))
    if version is None:
        return path
    place = pathlib.Path(tempfile.mkdtemp(dir="/run"))
    other = place.with_name(f"{name}_{version}.deb")
    sh(f"dpkg-deb -R {path} {place}")
    control = place / "DEBIAN/control"
    lines = control.read_text().splitlines()
    control.write_text("\n".join(f"Version: {version}" if line.startswith("Version:") else line for line in lines) + "\n")
    sh(f"dpkg-deb -Znone -b {place} {other}")
    shutil.rmtree(place)
    return other


def dpkg(*words, **more):
    """Runs dpkg; its standard error is part of its output."""
    return subprocess.run(["dpkg", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, **more)


def install(*packages):
    """Installs packages, which must not fail."""
    finished = dpkg("-i", *packages)
    if finished.returncode:
        raise RuntimeError(f"dpkg -i: {finished.stdout}")
    return finished.stdout


def status(name):
    """Version and state of a package as dpkg tells them."""
    return run("dpkg-query", "-W", "-f", "${Version} ${db:Status-Status}", name).stdout


def unit(name):
    """A property of the node's unit."""
    return run("systemctl", "show", "--property", name, "--value", UNIT).stdout.strip()


def pid():
    """The process id of the daemon, 0 without one."""
    return int(unit("MainPID"))


def exposure():
    """Exposure of the node's unit as `systemd-analyze security` counts it: 0 to 10."""
    shown = run("systemd-analyze", "security", "--no-pager", UNIT).stdout
    return float(re.search(r"Overall exposure level for \S+: ([0-9.]+)", shown)[1])


def killed():
    """Kills the daemon with SIGKILL, and waits until systemd has started the next one."""
    first = pid()
    sh(f"systemctl kill --kill-whom=main --signal=KILL {UNIT}")
    until(lambda: pid() not in (0, first), 60, "the next daemon")
    serves()


def operator():
    """The view of the first operator."""
    return Fabric(STATE / "admin.identity", ADDRESS)


def start():
    """Starts the unit, which must not fail."""
    said = len(log())
    if run("systemctl", "start", UNIT).returncode:
        raise RuntimeError(f"the unit does not start: {log()[said:]}")
    serves()


def serves():
    """Waits until the unit is active and the node answers."""
    until(lambda: unit("ActiveState") == "active" and operator().run("ping").returncode == 0, 120, "a node that answers")


def log():
    """What the daemons have said so far."""
    path = pathlib.Path("/run/node.log")
    return path.read_text() if path.exists() else ""
