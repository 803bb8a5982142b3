"""Control groups with limits like those of containers: of memory, of processes, of devices."""
import contextlib
import ctypes
import os
import pathlib
import struct

from checks import until

CGROUPS = pathlib.Path("/sys/fs/cgroup")
# From the kernel's include/uapi/linux/bpf.h.
SYS_BPF = 321
PROG_LOAD, PROG_ATTACH = 5, 8
CGROUP_DEVICE_PROGRAM, CGROUP_DEVICE, ALLOW_MULTI = 15, 6, 2
BLOCK, CHARACTER = 1, 2


@contextlib.contextmanager
def limited(name, denies=None, **limits):
    """A control group with these limits (`memory_max="96M"`); its processes can make or open no device of the kind
    `denies`."""
    at = CGROUPS / name
    for controller in ("memory", "pids"):
        (CGROUPS / "cgroup.subtree_control").write_text(f"+{controller}")
    at.mkdir()
    try:
        for file, value in limits.items():
            (at / file.replace("_", ".")).write_text(str(value))
        if denies:
            deny(at, denies)
        yield at
    finally:
        # `fabricctl run` leaves a process there that ends a moment after its command.
        until(lambda: not (at / "cgroup.procs").read_text(), 60, "the end of the last process")
        at.rmdir()


def into(at):
    """For `preexec_fn`: moves the started program into this control group."""
    return lambda: (at / "cgroup.procs").write_text(str(os.getpid()))


def deny(at, kind):
    """Attaches a program of the device controller that refuses devices of a kind and allows all others."""
    program = b"".join(struct.pack("<BBhi", *instruction) for instruction in (
        (0x61, 0x12, 0, 0),  # r2 = the kind of access and of device
        (0x57, 0x02, 0, 0xffff),
        (0xb7, 0x00, 0, 1),
        (0x55, 0x02, 1, kind),
        (0xb7, 0x00, 0, 0),
        (0x95, 0x00, 0, 0)))
    instructions, license_name = ctypes.create_string_buffer(program), ctypes.create_string_buffer(b"GPL")
    loaded = bpf(PROG_LOAD, struct.pack("<IIQQIIQII", CGROUP_DEVICE_PROGRAM, len(program) // 8, ctypes.addressof(instructions),
                                        ctypes.addressof(license_name), 0, 0, 0, 0, 0))
    group = os.open(at, os.O_RDONLY | os.O_DIRECTORY)
    bpf(PROG_ATTACH, struct.pack("<IIII", group, loaded, CGROUP_DEVICE, ALLOW_MULTI))
    os.close(group)
    os.close(loaded)


def bpf(command, attributes):
    """Calls bpf(2); raises OSError."""
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    libc = ctypes.CDLL(None, use_errno=True)
    made = libc.syscall(SYS_BPF, command, buffer, len(attributes))
    if made < 0:
        raise OSError(ctypes.get_errno(), f"bpf({command}): {os.strerror(ctypes.get_errno())}")
    return made
