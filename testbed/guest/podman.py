"""Containers of stock podman that get a device by its name."""
import contextlib
import pathlib
import shutil

# Debian's busybox is static: it needs nothing else in its container.
BUSYBOX = "/bin/busybox"


def container(place, device, script, *more):
    """The command of a container with busybox in it, which runs the script with the device."""
    root = pathlib.Path(place, "root")
    for directory in ("bin", "dev", "etc", "proc", "run", "sys", "tmp"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    shutil.copy(BUSYBOX, root / "bin")
    return ["podman", "--cgroup-manager=cgroupfs", "--storage-driver=vfs", "--events-backend=file", f"--root={place}/storage",
            f"--runroot={place}/run", "run", "--rm", "--network=none", "--log-driver=none", f"--device={device}", *more,
            "--rootfs", root, BUSYBOX, "sh", "-c", script]


def with_python(place, device, script, *more):
    """The same, with this machine's Python and libraries, and the directory as /mnt."""
    root = pathlib.Path(place, "root")
    for name in ("usr", "mnt", "bin"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("lib", "lib64"):
        with contextlib.suppress(FileExistsError):
            (root / name).symlink_to(f"usr/{name}")
    return container(place, device, script, "--volume=/usr:/usr:ro", f"--volume={place}:/mnt:ro", *more)


def clean():
    """Removes what podman leaves on a machine when its containers have ended."""
    pathlib.Path("/dev/shm/libpod_lock").unlink(missing_ok=True)
    for name in ("conmon", ""):
        with contextlib.suppress(FileNotFoundError):
            pathlib.Path("/sys/fs/cgroup/libpod_parent", name).rmdir()
