#!/usr/bin/python3
# lab: one-vm systemd smp=4 full
# covers: packaging
"""The Debian packages under a real systemd: as installed the node leases memory; leases of memory in a file, blocks and CPU cores
outlive SIGKILL, restarts and upgrades, also those that fail; a stop ends them; a downgrade is refused; what is left after a purge
is the operator's. Needs `cargo xtask package --profile dev`."""
import pathlib
import re
import shutil
import subprocess

from block import run, sh
from checks import Suite, until
from cores import BUSY, enter, group_of, members
from debs import CONFIG, DROP_INS, EXAMPLES, STATE, UNIT, dpkg, exposure, install, killed, log, operator, package, pid, ready, serves, start, status, unit

OLD, NEW, NEWER = "0.0.9", "0.1.0", "0.1.1"
POOL = pathlib.Path("/srv/fabricbios/pool")
MEMORY = pathlib.Path("/dev/shm/fabricbios")
SETTINGS = f"""auto-detect = true
mem-bytes = "16MiB"
mem-file = "{MEMORY}"
rdma-device = "none"
listen = "127.0.0.1:5701"
fbmu-listen = "127.0.0.1:5702"
block-pool = ["{POOL}"]
fbbu-listen = "127.0.0.1:5703"
cpus = "all"
"""
SECRET = b"bytes of a lease" * 256
# Exposure of the unit as installed, as `systemd-analyze security` counts it: 0 to 10.
EXPOSURE_MAX = 1.6


class Leases:
    """A lease of each kind that outlives the daemon, in use."""

    def __init__(self):
        alloc = lambda *words: operator().ask("lease", "alloc", *words, "--secs", 3000)
        self.mem = alloc("mem", "--bytes", "1MiB")
        self.block = alloc("block", "--bytes", "4MiB", "--transport", "udp")
        self.cpu = alloc("cpu", "--cores", 1, "--isolation", "whole_core")
        self.process = enter(self.cpu, BUSY)
        for words in (("mem", "write", self.mem), ("block", "write", self.block)):
            self.copy(*words, data=SECRET)

    def copy(self, kind, way, lease, *more, data=None):
        """Writes the start of the lease, or reads it."""
        command, environment = operator().command(kind, way, lease["lease_id"], *more)
        return subprocess.run(command, input=data, capture_output=True, env=environment, check=True).stdout

    def live(self, suite, what):
        """Checks that all go on: state, deadline, bytes, and the process in the cores."""
        for lease in (self.mem, self.block, self.cpu):
            now = operator().query(lease)
            suite.equal(f"{what}: the lease of {lease['resource_type']} goes on to its deadline",
                        ("active", lease["expires_at_unix_ms"]), (now["state"], now["expires_at_unix_ms"]))
        for kind, lease in (("mem", self.mem), ("block", self.block)):
            suite.equal(f"{what}: {kind} has its bytes", SECRET, self.copy(kind, "read", lease, "--len", len(SECRET)))
        suite.equal(f"{what}: the process in the cores goes on", (None, {self.process.pid}),
                    (self.process.poll(), members(group_of(self.cpu))))


def as_installed(suite):
    """Installed, enabled: a lease of memory is written and read, by a daemon without any privilege."""
    said = install(package("fabricbios-node", OLD), package("fabricbios-client", OLD))
    suite.equal("installed", f"{OLD} installed", status("fabricbios-node"))
    suite.equal("nothing runs before it is asked for", "inactive", unit("ActiveState"))
    print(said, flush=True)
    sh(f"systemctl enable --now {UNIT}")
    serves()
    lease = operator().ask("lease", "alloc", "mem", "--bytes", "64KiB", "--secs", 60)
    write, environment = operator().command("mem", "write", lease["lease_id"])
    subprocess.run(write, input=SECRET, env=environment, check=True)
    read, _ = operator().command("mem", "read", lease["lease_id"], "--len", len(SECRET))
    suite.equal("a lease is written and read", SECRET, subprocess.run(read, env=environment, capture_output=True, check=True).stdout)
    operator().free(lease)
    status_lines = pathlib.Path(f"/proc/{pid()}/status").read_text()
    suite.equal("the daemon's user", "fabricbios", run("stat", "-c", "%U", STATE).stdout.strip())
    suite.check("its capabilities", re.search(r"CapBnd:\s+0{16}\n", status_lines), "none", status_lines)
    figure = exposure()
    print(f"   exposure {figure}", flush=True)
    suite.check("exposure of the unit", figure <= EXPOSURE_MAX, f"at most {EXPOSURE_MAX}", figure)
    for name, page in (("fabricctl", 1), ("fabricbiosd", 8)):
        suite.check(f"man page of {name}", run("man", "-w", str(page), name).returncode == 0)


def more_kinds():
    """The settings and drop-ins of three kinds, as the operator of a node sets them."""
    sh(f"systemctl stop {UNIT}")
    POOL.mkdir(parents=True, mode=0o700)
    for kind in ("memory-file", "block-directory", "cpu"):
        shutil.copy(EXAMPLES / f"{kind}.conf", DROP_INS)
    CONFIG.write_text(SETTINGS)
    sh("systemctl daemon-reload")
    start()


def restarts(suite, leases):
    """SIGKILL, restarts, and a restart with a broken file."""
    killed()
    leases.live(suite, "SIGKILL")
    sh(f"systemctl restart {UNIT}")
    serves()
    leases.live(suite, "restart")
    CONFIG.write_text(SETTINGS + 'mem-bites = "16MiB"\n')
    said = len(log())
    suite.check("a restart with a broken file fails", run("systemctl", "restart", UNIT).returncode != 0, "a failure")
    suite.check("in words", "mem-bites" in log()[said:], "the name of the setting", log()[said:])
    suite.equal("the process in the cores goes on without a daemon", None, leases.process.poll())
    CONFIG.write_text(SETTINGS)
    serves()
    leases.live(suite, "the file is corrected")


def upgrades(suite, leases):
    """Upgrades with live leases: one that works, and ones that do not."""
    before = pid()
    install(package("fabricbios-node"), package("fabricbios-client"))
    suite.equal("upgraded", f"{NEW} installed", status("fabricbios-node"))
    suite.check("another daemon runs", pid() not in (0, before), "another process", pid())
    serves()
    leases.live(suite, "upgrade")

    newer, before = package("fabricbios-node", NEWER), pid()
    CONFIG.write_text(SETTINGS + 'mem-bites = "16MiB"\n')
    finished = dpkg("--force-confold", "-i", newer)
    suite.check("an upgrade with a broken file fails in words", finished.returncode and "mem-bites" in finished.stdout
                and "the node of before goes on" in finished.stdout, "the name of the setting", finished.stdout)
    suite.equal("the node of before goes on", before, pid())
    CONFIG.write_text(SETTINGS)
    leases.live(suite, "broken upgrade")
    finished = dpkg("--configure", "fabricbios-node")
    suite.equal("configured when the file is corrected", (0, f"{NEWER} installed"), (finished.returncode, status("fabricbios-node")))
    suite.check("another daemon runs", pid() not in (0, before), "another process", pid())
    serves()
    leases.live(suite, "corrected upgrade")

    before = pid()
    finished = dpkg("-i", package("fabricbios-node"))
    suite.check("a downgrade is refused in words", finished.returncode and "does not read the state" in finished.stdout,
                "a refusal", finished.stdout)
    suite.equal("and nothing was changed", (f"{NEWER} installed", before), (status("fabricbios-node"), pid()))
    leases.live(suite, "refused downgrade")

    newest = package("fabricbios-node", "0.1.2")
    full = f"/usr/share/doc/{UNIT}"
    sh(f"mount -t tmpfs -o size=16k full {full}")
    finished = dpkg("-i", newest)
    sh(f"umount {full}")
    suite.check("an upgrade on a full disk fails", finished.returncode and "No space left" in finished.stdout, "no space left", finished.stdout)
    suite.equal("the node of before goes on", before, pid())
    leases.live(suite, "full disk")

    command = ["dpkg", "-i", str(newest)]
    two = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in two]
    print(f"   two at once: {[process.returncode for process in two]}", flush=True)
    suite.check("of two upgrades at once one is made", 0 in [process.returncode for process in two], "a status of 0", said)
    suite.equal("and it is whole", "0.1.2 installed", status("fabricbios-node"))
    serves()
    leases.live(suite, "two upgrades at once")


def stopped(suite, leases):
    """A stop ends what a restart keeps."""
    sh(f"systemctl stop {UNIT}")
    suite.check("a stop ends the processes in the cores", until(lambda: leases.process.poll() is not None, 60, "their end"))
    suite.equal("systemd counts it as a good end", "success", unit("Result"))
    start()
    ended = [operator().query(lease)["state"] for lease in (leases.mem, leases.block, leases.cpu)]
    suite.equal("a stop ends all leases", ["revoked"] * 3, ended)


def removed(suite):
    """Removed, the state is kept; purged, only what the operator has made is left."""
    shipped = [path for path in run("dpkg", "-L", UNIT, "fabricbios-client").stdout.split("\n") if "fabric" in path]
    daemon = pathlib.Path("/proc", str(pid()))
    finished = dpkg("-r", UNIT, "fabricbios-client")
    suite.equal("removed", 0, finished.returncode)
    suite.equal("the daemon has ended", False, daemon.exists())
    suite.check("its state is kept", (STATE / "journal.redb").exists() and CONFIG.exists())
    finished = dpkg("--purge", UNIT, "fabricbios-client")
    suite.equal("purged", 0, finished.returncode)
    suite.equal("nothing of the packages is left", [], [path for path in shipped if pathlib.Path(path).exists()])
    found = run("find", "/etc", "/run", "/srv", "/dev/shm", "/var/lib", "/sys/fs/cgroup", "-xdev", "(", "-path", "/var/lib/dpkg", "-o",
                "-path", "/run/lab", ")", "-prune", "-o", "-name", "*fabricbios*", "-print").stdout.split()
    ours = {str(DROP_INS), str(POOL.parent), str(MEMORY)}
    ours |= {str(path) for path in pathlib.Path("/run").glob("fabricbios-*.deb")}
    suite.equal("what is left is the operator's", set(), {path for path in found if not path.startswith(tuple(ours))})


def main():
    """One node from its installation to its purge."""
    ready()
    with Suite("packages under systemd", only=[]) as suite:
        suite.section(as_installed, suite)
        more_kinds()
        leases = Leases()
        for section in (restarts, upgrades, stopped):
            suite.section(section, suite, leases)
        suite.section(removed, suite)


if __name__ == "__main__":
    main()
