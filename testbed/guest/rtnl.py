"""The kernel's lock of network devices (rtnl), held as long as a suite wants."""
import contextlib
import ctypes
import fcntl
import mmap
import os
import socket
import struct
import threading

SYS_USERFAULTFD = 323
UFFDIO_API, UFFDIO_REGISTER, UFFDIO_ZEROPAGE = 0xC018AA3F, 0xC020AA00, 0xC020AA04
UFFD_API, MISSING = 0xAA, 1
SIOCGIFCONF = 0x8912
PAGE = mmap.PAGESIZE


@contextlib.contextmanager
def held():
    """Under the lock the kernel lists the addresses of this namespace into a page; the page fault is answered only at
    the end of the context."""
    libc = ctypes.CDLL(None, use_errno=True)
    faults = libc.syscall(SYS_USERFAULTFD, os.O_CLOEXEC)
    if faults < 0:
        raise OSError(ctypes.get_errno(), "userfaultfd")
    page = mmap.mmap(-1, PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    at = ctypes.addressof(ctypes.c_char.from_buffer(page))
    fcntl.ioctl(faults, UFFDIO_API, struct.pack("QQQ", UFFD_API, 0, 0))
    fcntl.ioctl(faults, UFFDIO_REGISTER, struct.pack("QQQQ", at, PAGE, MISSING, 0))
    wanted = ctypes.create_string_buffer(struct.pack("i4xQ", PAGE, at))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        lister = threading.Thread(target=libc.ioctl, args=(asking.fileno(), SIOCGIFCONF, wanted))
        lister.start()
        # The fault: the lock is held now.
        os.read(faults, 32)
        try:
            yield
        finally:
            fcntl.ioctl(faults, UFFDIO_ZEROPAGE, struct.pack("QQQq", at, PAGE, 0, 0))
            lister.join()
            os.close(faults)
