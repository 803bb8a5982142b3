#!/usr/bin/python3
# lab: one-vm systemd smp=4
# covers: cpu cgroup local node/src/kinds/cpu
"""Leases of CPU cores beside systemd as process 1: systemd takes no controller, CPU or process from leases, whatever
its own units ask for, and does not kill the leases' processes with the daemon's service."""
import os
import pathlib

from block import run, sh
from checks import Suite, in_full_length, skip, until
from cores import BUSY, CpuNode, alloc, cpus_of, enter, group_of, leased, members, numbers, read, ready
from faults import WALL, held, thread_of

UNITS = pathlib.Path("/run/systemd/system")
# AllowedCPUs names all CPUs, the leased ones too.
NEIGHBOUR = "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/sleep 1000\nAllowedCPUs=0-3\nCPUQuota=50%\nStandardOutput=null\n"


@in_full_length
def neighbours(suite, node):
    """Units start and stop, and systemd reloads all units and re-executes itself."""
    alice = node.tenant("alice")
    with leased(alice, 1, "whole_core") as core, leased(alice, 1, "best_effort") as share:
        inside = [enter(lease, BUSY) for lease in (core, share)]
        before = state(node, core, share)
        print(f"   leases beside systemd: {before}", flush=True)
        (UNITS / "neighbour.service").write_text(NEIGHBOUR)
        for name, line in (("daemon-reload", "systemctl daemon-reload"), ("a unit starts", "systemctl start neighbour"),
                           ("another reload", "systemctl daemon-reload"), ("it stops", "systemctl stop neighbour"),
                           ("a scope of its own", "systemd-run --quiet --scope -p DefaultDependencies=no -p CPUWeight=500 true"),
                           ("daemon-reexec", "systemctl daemon-reexec")):
            sh(line)
            suite.equal(f"{name}: leases as before", before, state(node, core, share))
        sh("systemctl start neighbour")
        pid = int(sh("systemctl show --property MainPID --value neighbour"))
        allowed = numbers(next(line.split()[1] for line in read(f"/proc/{pid}/status").splitlines() if line.startswith("Cpus_allowed_list")))
        suite.equal("a unit with AllowedCPUs of a lease runs elsewhere", {0, 1, 2, 3} - cpus_of(core), allowed)
        sh("systemctl stop neighbour")
        suite.equal("processes in leases go on", [None, None], [process.poll() for process in inside])
    for process in inside:
        process.wait()
    controllers = read(node.root / "cgroup.controllers")
    sh("systemctl daemon-reload")
    suite.equal("without a lease: the controllers stay", controllers, read(node.root / "cgroup.controllers"))
    with leased(alice, 1, "whole_core") as lease:
        suite.equal("and the next lease is granted", "root" if len(cpus_of(lease)) > 1 else "isolated",
                    read(group_of(lease) / "cpuset.cpus.partition"))


def state(node, core, share):
    """The state that systemd must not change."""
    return {"controllers": read(node.root / "cgroup.controllers"), "partition": read(group_of(core) / "cpuset.cpus.partition"),
            "cpus": read(group_of(core) / "cpuset.cpus.effective"), "cap": read(group_of(share) / "cpu.max"),
            "processes": [sorted(members(group_of(lease))) for lease in (core, share)]}


def service(suite):
    """The daemon is a service with `Type=notify`, `KillMode=process`, `Restart=on-failure` and a watchdog."""
    with CpuNode() as node:
        node.stop()
        config = node.state_dir / "node.toml"
        config.write_text("lease-secs-max = 3600\n")
        settings = ("DefaultDependencies=no", "Type=notify", "KillMode=process", "Restart=on-failure", "WatchdogSec=10",
                    "ExecReload=/bin/kill -HUP $MAINPID", "StandardOutput=null", "StandardError=null")
        words = [word for it in settings for word in ("-p", it)]
        started = run("systemd-run", "--quiet", "--unit=node", *words, *node.command, "--config", str(config))
        suite.equal("systemd starts the daemon", 0, started.returncode)
        alice = node.tenant("alice")
        lease = alloc(alice, 1, "whole_core")
        process = enter(lease, BUSY)
        sh("systemctl kill --kill-whom=main --signal=KILL node")
        until(lambda: run("systemctl", "is-active", "node").stdout.strip() == "active" and answers(alice), 60, "the next daemon")
        suite.equal("killed and started again by systemd: the lease is adopted", "active", alice.query(lease)["state"])
        suite.equal("its process goes on", None, process.poll())
        suite.equal("it is in the lease", {process.pid}, members(group_of(lease)))
        config.write_text("lease-secs-max = 60\n")
        sh("systemctl reload node")
        longer = ("lease", "alloc", "cpu", "--cores", 1, "--isolation", "best_effort", "--secs", 600)
        suite.check("after a reload no lease is granted for ten minutes",
                    until(lambda: "this node allows 60 at most" in alice.run(*longer).stderr, 60, "the refusal"), "the new limit")
        suite.equal("the lease above the limit goes on", "active", alice.query(lease)["state"])
        suite.equal("the service is active", "active", run("systemctl", "is-active", "node").stdout.strip())
        before = main_pid()
        driver = thread_of(before, "driver")
        with held(driver):
            suite.check("a daemon whose driver hangs is killed by systemd", os.WIFSIGNALED(os.waitpid(driver, WALL)[1]), "a kill")
        until(lambda: main_pid() not in ("0", before) and answers(alice), 60, "the daemon after one that hung")
        suite.equal("it is started again, and the lease is adopted", "active", alice.query(lease)["state"])
        suite.equal("its process goes on after that", None, process.poll())
        sh("systemctl stop node")
        suite.check("systemctl stop ends the lease", until(lambda: process.poll() is not None, 60, "its end"), "its end")
        suite.check("and removes it", not group_of(lease).exists(), "no control group")


def main_pid():
    """The process of the service."""
    return run("systemctl", "show", "--property", "MainPID", "--value", "node").stdout.strip()


def answers(tenant):
    """Whether the node answers."""
    return tenant.run("lease", "list").returncode == 0


def main():
    """Both sections."""
    ready(4)
    if read("/proc/1/comm") != "systemd":
        skip("systemd as process 1 (cargo xtask lab --systemd)")
    with Suite("cpu leases beside systemd") as suite:
        with CpuNode() as node:
            suite.section(neighbours, suite, node)
        suite.section(service, suite)


if __name__ == "__main__":
    main()
