#!/usr/bin/python3
"""Runs tests of blktests' NVMe group in this guest and prints a row of a table for each, as it ends:
run.py CHECKOUT TRTYPE {node|kernel} TEST…. With `node` the target is a node and its namespaces are leases; with `kernel`
it is the kernel's own, wired by blktests itself, to compare with. The exit status is 0 when all were run, whatever they
found; FRESH when the next has to run in another guest."""
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "guest"))

import block  # noqa: E402
import nvme_host  # noqa: E402
import nvmet_tree  # noqa: E402
import rows  # noqa: E402
import upstream  # noqa: E402
from checks import give_back  # noqa: E402
from fabric import Refused  # noqa: E402
from upstream import DYING_SECS, FRESH, cells  # noqa: E402

LIMIT_SECS = 240
IMAGE_MIB = 64
POOL_MIB = 1024
STATE, REMARKS = pathlib.Path("/run/blktests-lease"), pathlib.Path("/run/blktests-remarks")
PROGRAMS = pathlib.Path("/run/blktests-programs")
PORTS = {"tcp": block.TCP, "rdma": block.RDMA}


class Kernel:
    """No node: blktests wires the kernel's target itself."""

    environment = {}

    def __init__(self, trtype):
        self.trtype = trtype

    def refuses(self, _own, _known):
        """Refuses no test."""
        return

    @contextlib.contextmanager
    def device(self):
        """A device for tests that need one."""
        wired = nvmet_tree.Foreign(block.loop_device(IMAGE_MIB), trtype=self.trtype)
        block.sh(wired.line)
        try:
            yield nvme_host.until(lambda: nvme_host.device(wired.nqn), what="a device")
        finally:
            nvme_host.disconnect(wired.nqn)
            wired.remove()

    def leftover(self):
        """Nothing: blktests removes its own objects."""
        return

    unwell = leftover


class Leases:
    """A node is the target."""

    def __init__(self, node, trtype):
        self.node, self.tenant, self.trtype = node, node.tenant("blktests"), trtype
        self.environment = {"NVME_TARGET_CONTROL": str(HERE / "nvme_target_control"), "FABRICBIOS_NODE": node.address,
                            "FABRICBIOS_IDENTITY": str(self.tenant.identity), "BLKTESTS_STATE": str(STATE),
                            "BLKTESTS_REMARKS": str(REMARKS)}
        self.before = upstream.Before(node)
        self.unwell = self.before.unwell

    def refuses(self, own, known):
        """Why a test is not run at all, or None."""
        wiring = rows.wires(own, known)
        return wiring and f"it changes the kernel's target itself in configfs, past the hook, by {wiring}()"

    @contextlib.contextmanager
    def device(self):
        """A leased device, connected by the lease's own connect line."""
        with block.attached(self.tenant, IMAGE_MIB * block.MIB, transport=f"nvme-{self.trtype}") as (_, path):
            yield path

    def leftover(self):
        """Gives back the leases that a test has left; returns the remaining differences from the start, or None. If the
        test gave back its lease and the hook forgot the lease, this sends no request to the node."""
        if not STATE.exists() and not self.before.changed():
            return None
        STATE.unlink(missing_ok=True)
        for lease in self.tenant.ask("lease", "list")["leases"]:
            give_back(self.tenant, lease)
        return self.unwell()


def check(checkout, test, environment):
    """The output of `check`, and whether it ended by itself; None instead if even SIGKILL did not end it."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = upstream.check(checkout, [test], environment, output)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LIMIT_SECS)
        ended = process.poll() is not None
        gone = upstream.end(process)
        output.seek(0)
        return output.read(), ended if gone else None


def run(checkout, test, trtype, target, about, wants_device):
    """One test: its rows, and whether this guest can go on."""
    environment = {"PATH": f"{PROGRAMS}:{os.environ['PATH']}", "BLKTESTS_TRTYPE": trtype, "NVMET_TRTYPES": trtype,
                   "NVMET_BLKDEV_TYPES": "device", "USE_RXE": "1", "NVME_IMG_SIZE": f"{IMAGE_MIB}m", "NVME_NUM_ITER": "10",
                   "TIMEOUT": "30", **target.environment}
    with contextlib.ExitStack() as stack:
        if wants_device:
            environment["TEST_DEVS"] = stack.enter_context(target.device())
        output, ended = check(checkout, test, environment)
    found = rows.rows(output)
    if found and (mebibytes := rows.image_needed(found[0][3])):
        output, ended = check(checkout, test, {**environment, "NVME_IMG_SIZE": f"{mebibytes}m"})
        found = rows.rows(output)
    if not ended:
        found = [(test, about, "fail", f"it did not end within {LIMIT_SECS} s")]
    return found or [(test, about, "fail", f"check said: {output.strip()[-200:]}")], ended is not None


def explained(found):
    """The rows with the refusals of the hook: a refusal explains more than the output of the test."""
    remarks = "; ".join(dict.fromkeys(REMARKS.read_text(encoding="utf-8").splitlines())) if REMARKS.exists() else ""
    return [(test, about, status, f"{remarks}: {why}" if remarks and status == "fail" else why) for test, about, status, why in found]


def controllers():
    """The controllers of this guest, which has no NVMe devices of its own."""
    return sorted(os.listdir(nvme_host.CONTROLLERS))


def tidy(target):
    """Removes what a test has left in this guest; returns what cannot be removed, or None."""
    for name in controllers():
        block.run("nvme", "disconnect", "--device", name, timeout=DYING_SECS)
    block.run("sh", "-c", "grep -o ' /mnt/blktests[^ ]*' /proc/mounts | xargs -r umount; losetup -ln -O NAME,BACK-FILE"
                          " | grep /results/ | cut -d' ' -f1 | xargs -rn1 losetup -d")
    left = target.leftover()
    return left or (controllers() and "a controller that does not go away")


def run_all(checkout, trtype, tests, target):
    """Prints the rows of all tests; ends the program if a test has spoiled the guest."""
    for test in tests:
        REMARKS.unlink(missing_ok=True)
        about, (own, known) = rows.about(checkout, test), rows.sources(checkout, test)
        if why := target.refuses(own, known):
            print(cells(test, about, "skip", why), flush=True)
            continue
        found = [(test, about, "fail", "this guest was not fit for it")]
        try:
            found, usable = run(checkout, test, trtype, target, about, rows.wants_device(own))
            left = tidy(target) if usable else "a process that cannot be killed"
        except (OSError, RuntimeError, TimeoutError, subprocess.SubprocessError, Refused) as error:
            left = f"a guest where this failed: {error}"
        for row in explained(found):
            print(cells(*row), flush=True)
        if left:
            print(f"{test} left {left}; the next test has a guest of its own", file=sys.stderr, flush=True)
            os._exit(FRESH)  # The guest goes, and with it a node that might not want to.
    if wrong := target.unwell():
        print(cells("the node", f"after {tests[-1]}", "fail", wrong), flush=True)


@contextlib.contextmanager
def target_of(kind, trtype):
    """The target of the tests: the kernel's own, or a node."""
    if kind == "kernel":
        yield Kernel(trtype)
        return
    with block.BlockNode(block.loop_device(POOL_MIB), ports=(PORTS[trtype],), fbbu=False) as node:
        yield Leases(node, trtype)


def kernel_names():
    """What blktests needs to know of the kernel: its configuration under /boot, and a version that it can parse. Its
    arithmetic fails on 6.12.117+deb12, so its scripts see 6.12.117-deb12."""
    release = os.uname().release
    name = release.replace("+", "-")
    modules, config = pathlib.Path("/lib/modules"), pathlib.Path(f"/boot/config-{name}")
    config.parent.mkdir(exist_ok=True)
    for place, to in ((modules / name, modules / release), (config, modules / release / "config")):
        if not place.exists():
            place.symlink_to(to)
    PROGRAMS.mkdir(exist_ok=True)
    (PROGRAMS / "uname").write_text('#!/bin/sh\n/bin/uname "$@" | tr + -\n', encoding="ascii")
    (PROGRAMS / "uname").chmod(0o755)


def main():
    """Runs all named tests in one guest."""
    checkout, trtype, kind, *tests = sys.argv[1:]
    block.ready()
    kernel_names()
    with target_of(kind, trtype) as target:
        run_all(checkout, trtype, tests, target)


if __name__ == "__main__":
    main()
