#!/usr/bin/python3
"""Runs in a guest that several suites share. The host puts one command after the other into the shared directory;
after each, this tells its exit code, what it left behind in the guest, and the end of its output."""
import os
import pathlib
import select
import subprocess
import sys
import time

SHARE = pathlib.Path("/run/lab/share")
POLL_SECS = 0.05
OUTPUT_KEPT_BYTES = 64 * 1024
# Whoever still holds the output of a command that has ended gets this long for its last words.
LAST_WORDS_SECS = 2
# How long what has been given back may take to be gone: the kernel removes some of it later.
SETTLE_SECS = 15
# Everything in these is somebody's: the kernel's NVMe target, network namespaces, files in memory, blocked modules.
DIRECTORIES = ("/sys/kernel/config/nvmet/subsystems", "/sys/kernel/config/nvmet/hosts", "/sys/kernel/config/nvmet/ports",
               "/sys/class/nvme", "/sys/class/infiniband", "/sys/class/net", "/run/netns", "/dev/shm", "/dev/hugepages",
               "/etc/modprobe.d")


def main():
    """Until the host ends the guest."""
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
    """The exit code of a command and the end of its output, all of which is passed on."""
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
    """What differs from `before`, a line each, once it differs no less."""
    give_up_at = time.monotonic() + SETTLE_SECS
    while (now := state()) != before and time.monotonic() < give_up_at:
        time.sleep(POLL_SECS)
    return [f"left {thing}" for thing in sorted(now - before)] + [f"took away {thing}" for thing in sorted(before - now)]


def state():
    """Everything in this guest that one command could leave to the next."""
    found = set(processes())
    for directory in map(pathlib.Path, DIRECTORIES):
        if directory.is_dir():
            found |= {str(entry) for entry in directory.iterdir()}
    found |= {f"control group {place}" for place in pathlib.Path("/sys/fs/cgroup").rglob("*") if place.is_dir()}
    # A device of no size is a loop or network device that nothing is behind, and waits for its next use.
    found |= {f"block device {device.name}" for device in pathlib.Path("/sys/block").iterdir() if text(device / "size") != "0"}
    # That outlives what is behind the device.
    found |= {f"read-only {device.name}" for device in pathlib.Path("/sys/block").iterdir() if text(device / "ro") == "1"}
    # The first network namespace mounts the directory of them, and the last one leaves that.
    places = (line.split()[1] for line in text("/proc/mounts").splitlines())
    found |= {f"mount {place}" for place in places if place != "/run/netns" and not place.startswith("/sys")}
    found |= {f"huge pages {text('/proc/sys/vm/nr_hugepages')}"}
    # A link-local address comes some seconds after its device.
    found |= {f"address {' '.join(words[1:4])}" for words in rows("ip", "-oneline", "address") if not words[3].startswith("fe80")}
    found |= {f"queueing {' '.join(words)}" for words in rows("tc", "qdisc", "show")}
    # Of completion queues the kernel keeps a pool for each device, until that goes.
    for words in rows("rdma", "resource", "show"):
        found |= {f"rdma {words[1]} {kind} {count}" for kind, count in zip(words[2::2], words[3::2]) if kind != "cq"}
    return found


def processes():
    """Those of programs, the dead that nobody waited for among them; not the kernel's own threads."""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != "2":
            stat = text(entry / "stat")
            parent = stat.rpartition(")")[2].split()[1:2]
            if stat and parent != ["2"]:
                line = text(entry / "cmdline").replace("\0", " ").strip()
                yield f"process {entry.name} {line or stat.split()[1]}"


def text(path):
    """Of a file; of one that has just gone, nothing."""
    try:
        return pathlib.Path(path).read_text(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def rows(*command):
    """What a program prints, line by line, in words."""
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split() for line in shown.splitlines()]


main()
