"""Containers of stock podman that get a device by its name."""
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
