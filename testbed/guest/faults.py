#!/usr/bin/python3
"""Faults that suites make: a thread that a debugger holds, and a full disk."""
import contextlib
import ctypes
import os
import pathlib
import subprocess
import tempfile

# include/uapi/linux/ptrace.h, and __WALL of include/uapi/linux/wait.h.
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000


def thread_of(pid, name):
    """The id of the thread with that name."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return next(int(task.name) for task in tasks if (task / "comm").read_text(encoding="utf-8").strip() == name)


@contextlib.contextmanager
def held(thread):
    """Stops the thread with ptrace(2), as a debugger does."""
    libc = ctypes.CDLL(None, use_errno=True)
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        if libc.ptrace(request, thread, None, None):
            raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(thread, WALL)
    try:
        yield
    finally:
        libc.ptrace(PTRACE_DETACH, thread, None, None)


@contextlib.contextmanager
def small_disk(mebibytes=16):
    """The path of a file system of that size."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=700,size={mebibytes}M", "tmpfs", place], check=True)
        try:
            yield pathlib.Path(place)
        finally:
            subprocess.run(["umount", "-l", place], check=True)


@contextlib.contextmanager
def filled(place):
    """The file system has no space while this context lasts."""
    filler = place / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    try:
        yield
    finally:
        filler.unlink()
