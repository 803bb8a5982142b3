#!/usr/bin/python3
"""Runs in a guest that several suites share. The host puts one command after the other into the shared directory. After
each command this program reports its exit code, the things that it left behind in the guest, and the end of its
output."""
import os
import pathlib
import select
import subprocess
import sys
import time

SHARE = pathlib.Path("/run/lab/share")
POLL_SECS = 0.05
OUTPUT_KEPT_BYTES = 64 * 1024
# How long a process that still holds the output of an ended command may write to it.
LAST_WORDS_SECS = 2
# How long removed objects may take to disappear: the kernel removes some of them later.
SETTLE_SECS = 15
# Every entry in these directories was made by a program: the kernel's NVMe target, network namespaces, shared memory,
# blocked modules.
DIRECTORIES = ("/sys/kernel/config/nvmet/subsystems", "/sys/kernel/config/nvmet/hosts", "/sys/kernel/config/nvmet/ports",
               "/sys/class/nvme", "/sys/class/infiniband", "/sys/class/net", "/run/netns", "/dev/shm", "/dev/hugepages",
               "/etc/modprobe.d")


def main():
    """Runs commands until the host ends the guest."""
    before, number = state(), 0
    while True:
        number += 1
        command = SHARE / f"command-{number}"
        while not command.exists():
            time.sleep(POLL_SECS)
        code, output = run(command)
        left = remains(before)
        text = "\n".join([f"{os.environ['LAB_NONCE']} {code} {len(left)}", *left, ""]).encode() + output
        told = SHARE / f"ended-{number}"
        unfinished = told.with_suffix(".part")
        unfinished.write_bytes(text)
        unfinished.rename(told)


def run(command):
    """Runs a command and passes its output on; returns its exit code and the end of its output."""
    process = subprocess.Popen(["bash", str(command)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True)
    source, kept = process.stdout.fileno(), b""
    ended, waiting = os.pidfd_open(process.pid), select.poll()
    waiting.register(source, select.POLLIN)
    waiting.register(ended, select.POLLIN)
    give_up_at = None
    while give_up_at is None or time.monotonic() < give_up_at:
        ready = dict(waiting.poll(None if give_up_at is None else LAST_WORDS_SECS * 1000))
        if ended in ready:
            waiting.unregister(ended)
            give_up_at = time.monotonic() + LAST_WORDS_SECS
        if source in ready:
            data = os.read(source, 65536)
            if not data:
                break
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            kept = (kept + data)[-OUTPUT_KEPT_BYTES:]
    os.close(ended)
    process.stdout.close()
    code = process.wait()
    return (128 - code if code < 0 else code), kept


def remains(before):
    """The differences from `before`, a line each, after waiting for them to disappear."""
    give_up_at = time.monotonic() + SETTLE_SECS
    while (now := state()) != before and time.monotonic() < give_up_at:
        time.sleep(POLL_SECS)
    return [f"left {thing}" for thing in sorted(now - before)] + [f"took away {thing}" for thing in sorted(before - now)]


def state():
    """Everything in this guest that one command could leave to the next one."""
    found = set(processes())
    for directory in map(pathlib.Path, DIRECTORIES):
        if directory.is_dir():
            found |= {str(entry) for entry in directory.iterdir()}
    found |= {f"control group {place}" for place in pathlib.Path("/sys/fs/cgroup").rglob("*") if place.is_dir()}
    # A block device of size 0 is an unused loop or nbd device.
    found |= {f"block device {device.name}" for device in pathlib.Path("/sys/block").iterdir() if text(device / "size") != "0"}
    # The read-only flag stays when the contents of the device are gone.
    found |= {f"read-only {device.name}" for device in pathlib.Path("/sys/block").iterdir() if text(device / "ro") == "1"}
    # The first network namespace mounts the directory of all of them, and the last one leaves that mount.
    places = (line.split()[1] for line in text("/proc/mounts").splitlines())
    found |= {f"mount {place}" for place in places if place != "/run/netns" and not place.startswith("/sys")}
    found |= {f"huge pages {text('/proc/sys/vm/nr_hugepages')}"}
    # A link-local address appears some seconds after its device.
    found |= {f"address {' '.join(words[1:4])}" for words in rows("ip", "-oneline", "address") if not words[3].startswith("fe80")}
    found |= {f"queueing {' '.join(words)}" for words in rows("tc", "qdisc", "show")}
    # The kernel keeps a pool of completion queues for each device until the device is removed.
    for words in rows("rdma", "resource", "show"):
        found |= {f"rdma {words[1]} {kind} {count}" for kind, count in zip(words[2::2], words[3::2]) if kind != "cq"}
    return found


def processes():
    """User processes, zombies among them; no kernel threads."""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != "2":
            stat = text(entry / "stat")
            parent = stat.rpartition(")")[2].split()[1:2]
            if stat and parent != ["2"]:
                line = text(entry / "cmdline").replace("\0", " ").strip()
                yield f"process {entry.name} {line or stat.split()[1]}"


def text(path):
    """The text of a file; empty if the file has just disappeared."""
    try:
        return pathlib.Path(path).read_text(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def rows(*command):
    """The output of a program: for each line its words."""
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split() for line in shown.splitlines()]


main()
