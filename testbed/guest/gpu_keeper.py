#!/usr/bin/python3
"""Opens a device node (the second argument) and keeps it open in one of several ways (the first argument), for ever."""
import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys
import threading
import time

SYS_EXIT, CLONE_FILES = 60, 0x400
SYS_IO_URING_SETUP, SYS_IO_URING_REGISTER = 425, 427
REGISTER_FILES, REGISTER_RING_FDS = 2, 20
libc = ctypes.CDLL(None, use_errno=True)
has_it = threading.Event()


def take():
    """Opens the node and reports that."""
    opened = os.open(sys.argv[2], os.O_RDONLY | os.O_NONBLOCK)
    print("has it", flush=True)
    has_it.set()
    return opened


def stay():
    """Sleeps for ever."""
    while True:
        time.sleep(1000)


def hold():
    """A thread that has the node open."""
    take()
    stay()


def own_table():
    """A thread with a file table of its own."""
    if libc.unshare(CLONE_FILES):
        sys.exit("unshare")
    hold()


def chain():
    """Each process lives only until it has forked, and its child inherits the open node."""
    take()
    while True:
        if os.fork():
            os._exit(0)


def ring():
    """The node is a registered file of an io_uring, and the io_uring is a registered file of itself: neither is in a
    file table."""
    opened = os.open(sys.argv[2], os.O_RDONLY | os.O_NONBLOCK)
    made = libc.syscall(SYS_IO_URING_SETUP, 4, (ctypes.c_uint32 * 30)())
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap(None, ctypes.c_size_t(4096), 3, 1, made, ctypes.c_long(0))  # Readable, writable, shared.
    itself = ctypes.create_string_buffer(struct.pack("IIQ", 0xFFFFFFFF, 0, made))
    done = (libc.syscall(SYS_IO_URING_REGISTER, made, REGISTER_FILES, ctypes.byref(ctypes.c_int(opened)), 1),
            libc.syscall(SYS_IO_URING_REGISTER, made, REGISTER_RING_FDS, itself, 1))
    if made < 0 or done != (0, 1):
        sys.exit(f"ring: {made}, {done}")
    os.close(opened)
    os.close(made)
    print("has it", flush=True)


def main():
    """Keeps the node open in the chosen way."""
    how = sys.argv[1]
    if how == "closed":
        os.close(take())
        while True:
            time.sleep(0.05)
            with contextlib.suppress(OSError):
                os.close(os.open(sys.argv[2], os.O_RDONLY | os.O_NONBLOCK))
    if how == "ring":
        ring()
    if how == "first-thread":
        threading.Thread(target=hold).start()
        has_it.wait()
        libc.syscall(SYS_EXIT, 0)
    if how == "own-table":
        threading.Thread(target=own_table).start()
    if how == "chain":
        # The end of a container's first process ends all others, so this process stays and a child starts the chain.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        if not os.fork():
            chain()
    if how == "in-flight":
        near, _far = socket.socketpair()
        opened = take()
        socket.send_fds(near, [b"x"], [opened])
        os.close(opened)
    stay()


if __name__ == "__main__":
    main()
