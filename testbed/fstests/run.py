#!/usr/bin/python3
"""Runs tests of xfstests in this guest and prints a row of a table for each, as it ends:
run.py CHECKOUT {ext4|xfs} {loop|nvme-tcp|nvme-rdma|udp} TEST…. The two devices that xfstests wants are leases, attached
by `fabricctl block attach`, or, to compare with, loop devices. The exit status is 0 when all were run, whatever they
found; FRESH when the next has to run in another guest."""
import contextlib
import os
import pathlib
import select
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "guest"))

import block  # noqa: E402
import results  # noqa: E402
import upstream  # noqa: E402

LIMIT_SECS = 240
DEVICE_MIB = 640
POOL_MIB = 2 * DEVICE_MIB + 64
LEASE_SECS = 3600
MOUNTS = {"TEST_DIR": "/mnt/test", "SCRATCH_MNT": "/mnt/scratch"}
PROGRAMS = pathlib.Path("/run/fstests-programs")
RESULTS, KEPT = pathlib.Path("/run/fstests-results"), pathlib.Path("/run/lab/share")


def fresh(test, what):
    """Ends this program, and with it the guest and a node that might not want to end."""
    print(f"{test} left {what}; the next test has a guest of its own", file=sys.stderr, flush=True)
    os._exit(upstream.FRESH)


# With udev /dev/mapper/NAME is a link to the kernel's /dev/dm-N, by whose name xfstests finds the device in sysfs.
DMSETUP = """#!/bin/sh
/usr/sbin/dmsetup "$@"
status=$?
for node in /dev/mapper/*; do
    if [ -L "$node" ] && [ ! -e "$node" ]; then rm "$node"; fi
    if [ -b "$node" ] && [ ! -L "$node" ]; then ln -sf "../dm-$((0x$(stat -c %T "$node")))" "$node"; fi
done
exit $status
"""


def without_udev():
    """The environment of a guest without udev: xfstests would wait for it for ever, and dmsetup leave device nodes to it."""
    PROGRAMS.mkdir(exist_ok=True)
    for name, text in {"udevadm": "#!/bin/sh\n", "dmsetup": DMSETUP}.items():
        (PROGRAMS / name).write_text(text, encoding="ascii")
        (PROGRAMS / name).chmod(0o755)
    return {"PATH": f"{PROGRAMS}:{os.environ['PATH']}", "DM_DISABLE_UDEV": "1"}


def run_all(checkout, fs, tests, devices):
    """Prints the rows of all tests; ends the program if a test has spoiled the guest."""
    for place in MOUNTS.values():
        pathlib.Path(place).mkdir(exist_ok=True)
    block.sh(f"mkfs.{fs} {'-F' if fs == 'ext4' else '-f'} -q {devices[0]}")
    environment = {**without_udev(), **MOUNTS, "FSTYP": fs, "TEST_DEV": devices[0], "SCRATCH_DEV": devices[1],
                   "RESULT_BASE": str(RESULTS)}
    process = upstream.check(checkout, tests, environment, subprocess.PIPE)
    said, shown, began = "", 0, time.monotonic()
    while piece := more(process.stdout):
        said += piece.decode(errors="replace")
        for test, status, why in results.rows(said)[shown:]:
            print(upstream.cells(test, f"{time.monotonic() - began:.0f} s", status, why), flush=True)
            shown, began = shown + 1, time.monotonic()
            keep(test, status)
    if shown < len(tests):
        why = f"it did not end within {LIMIT_SECS} s" if piece is None else f"check said: {' '.join(said.split())[-200:]}"
        print(upstream.cells(tests[shown], "", "fail", why), flush=True)
        fresh(tests[shown], "others undone")
    if not upstream.end(process):
        fresh(tests[-1], "a process that cannot be killed")
    block.run("umount", "--quiet", *MOUNTS.values())


def more(output):
    """What `check` says next, b"" at its end, or None if it says nothing for the time of a test."""
    return os.read(output.fileno(), 1 << 16) if select.select([output], [], [], LIMIT_SECS)[0] else None


def keep(test, status):
    """Keeps what a failed test said, for whoever looks for the cause."""
    if status == "fail":
        for path in RESULTS.glob(f"{test}*"):
            block.run("cp", path, KEPT / f"{test.replace('/', '-')}{path.suffix}")


@contextlib.contextmanager
def leased_device(tenant, transport):
    """The device of a lease."""
    with block.leased(tenant, DEVICE_MIB * block.MIB, secs=LEASE_SECS, transport=transport) as lease:
        with block.device_of(tenant, lease) as path:
            yield path


def on_leases(transport, run):
    """Runs on two leases; returns what of the node is not as before, or None."""
    with block.BlockNode(block.loop_device(POOL_MIB), ports=(block.TCP, block.RDMA)) as node:
        before, tenant = upstream.Before(node), node.tenant("fstests")
        with leased_device(tenant, transport) as test, leased_device(tenant, transport) as scratch:
            run([test, scratch])
        return before.unwell()


def main():
    """Runs all named tests in one guest."""
    checkout, fs, device, *tests = sys.argv[1:]
    block.ready()
    run = lambda devices: run_all(checkout, fs, tests, devices)
    if device == "loop":
        run([block.loop_device(DEVICE_MIB) for _ in range(2)])
    elif wrong := on_leases(device, run):
        print(upstream.cells("the node", f"after {tests[-1]}", "fail", wrong), flush=True)


if __name__ == "__main__":
    main()
