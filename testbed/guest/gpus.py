#!/usr/bin/python3
"""Shared by the suites of GPU leases: a node whose GPUs are stand-ins, their knobs, leases, and programs in leases."""
import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile

from checks import give_back, programs, skip, until
from fabric import Node, Refused, program

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
STAND_INS = REPOSITORY / "target/stand-ins"
PTX = REPOSITORY / "testbed/stand-ins/ptx"
CGROUPS = pathlib.Path("/sys/fs/cgroup")
SOCKET = "/run/fabricbios/local.sock"
# Device nodes of the GPUs, where no real machine has any, with the kernel's files about them.
ROOT = pathlib.Path("/dev/gpu-root")
NODE = ROOT / "dev/nvidia240"
# Device number of kmsg, which can be opened and read: a refusal then comes from the node's mode or from a device
# controller. The other numbers belong to no driver.
KMSG = (1, 11)
GPU_NODES = {"nvidia240": KMSG, "nvidiactl": KMSG, "nvidia-uvm": KMSG, "kfd": (1, 12), "dri/renderD240": (1, 13)}
PARTITIONS_MAX = 7
# Of each device. The node wipes all of it after each lease, and a test reads all of it.
MEMORY_BYTES = 16 << 20
OWNED, NOT_OWNED = "ModifyDeviceFiles: 0", "ModifyDeviceFiles: 1"
SHARED, SESSION, DEVICE = (["--exclusivity", name] for name in ("shared", "session", "device"))
PATTERN = b"a tenant was here"
SENT, BACK = pathlib.Path("/tmp/sent.bin"), pathlib.Path("/tmp/back.bin")


def ready():
    """Ends the suite as not run if something is missing."""
    programs()
    for name in ("libnvidia-ml.so.1", "libcuda.so.1", "libamdhip64.so.6"):
        if not (STAND_INS / name).exists():
            skip(f"{STAND_INS / name}: `cargo xtask stand-ins` makes it")


def machine(parameters):
    """Makes the files that drivers make: nodes that everybody may open, and files of the kernel."""
    shutil.rmtree(ROOT, ignore_errors=True)
    files = {"proc/driver/nvidia/params": parameters, "sys/bus/pci/devices/f1b0:f2:00.0/drm/renderD240/dev": "1:13"}
    nodes = dict(GPU_NODES)
    for number in range(PARTITIONS_MAX):
        of_gpu = f"proc/driver/nvidia/capabilities/gpu240/mig/gi{number}"
        for place, cap in ((of_gpu, 10 + 2 * number), (f"{of_gpu}/ci0", 11 + 2 * number)):
            files[f"{place}/access"] = f"DeviceFileMinor: {cap}"
            nodes[f"nvidia-caps/nvidia-cap{cap}"] = (1, 100 + cap)
    for name, text in files.items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(text + "\n")
    for name, (major, minor) in nodes.items():
        at = ROOT / "dev" / name
        at.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(at, 0o20666, os.makedev(major, minor))
        at.chmod(0o666)
    pathlib.Path("/proc/sys/kernel/dmesg_restrict").write_text("0")


def opens(uid, path=NODE):
    """The result when a user of this machine opens the node: `opens`, or the error text of the kernel."""
    program = ("import os, sys\ntry:\n    os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)\n    print('opens')\n"
               "except OSError as error:\n    print(error.strerror)\n")
    return subprocess.run(["python3", "-c", program, str(path)], user=uid, group=uid, extra_groups=[], capture_output=True, text=True,
                          check=True).stdout.strip()


class GpuNode(Node):
    """A node with one NVIDIA and one AMD device; both are stand-ins with a state directory of their own."""

    def __init__(self, *more, mode="exclusive", knobs=None, parameters=OWNED, **settings):
        self.stand_ins = pathlib.Path(tempfile.mkdtemp(prefix="stand-ins-"))
        self.stand_ins.chmod(0o1777)
        for name, value in {"memory": MEMORY_BYTES, **(knobs or {})}.items():
            self.knob(name, value)
        machine(parameters)
        os.environ["FABRICBIOS_GPU_ROOT"] = str(ROOT)
        os.environ["LD_LIBRARY_PATH"] = str(STAND_INS)
        os.environ["FABRICBIOS_STAND_IN_DIR"] = str(self.stand_ins)
        os.environ["PATH"] = f"{STAND_INS / 'bin'}:{os.environ['PATH']}"
        super().__init__("--gpus", "all", "--gpu-share-mode", mode, "--local-socket", SOCKET, *more, device="none", mem_bytes="1MiB",
                         address="127.0.0.1", **settings)

    def knob(self, name, value=None):
        """Sets a knob of the stand-ins; without a value the knob is switched off."""
        at = self.stand_ins / name
        at.write_text("" if value is None else f"{value}\n")

    def __exit__(self, *ended):
        root = self.root
        super().__exit__(*ended)
        shutil.rmtree(self.stand_ins, ignore_errors=True)
        if root:
            root.rmdir()

    @property
    def root(self):
        """The control group of the node's leases."""
        return next(CGROUPS.glob("fabricbios-gpu-*"), None)


def gpus(tenant):
    """The GPUs in the inventory, by vendor."""
    rows = [row for row in tenant.ask("inventory")["resources"] if row["resource_type"] == "gpu"]
    return {("amd" if "AMD" in row["name"] else "nvidia"): row for row in rows}


def alloc(tenant, vram="1MiB", secs=600, *more, resource=None):
    """Leases a part of a GPU."""
    words = ["lease", "alloc", "gpu", "--vram", vram, "--secs", secs]
    return tenant.ask(*words, *(["--resource", resource] if resource else []), *more)


def granted(tenant, *request, **terms):
    """A lease, or None if the device is still being cleaned at the second request. In between this waits for the end of a
    lease in the node's log: further requests would take the processor from the cleaning."""
    for _ in range(2):
        since = len(tenant.daemon.lines)
        try:
            return alloc(tenant, *request, **terms)
        except Refused as refusal:
            if "is being cleaned" not in refusal.message:
                raise
        tenant.daemon.wait_for_line("lease ended", since=since, timeout_secs=2)
    return None


@contextlib.contextmanager
def leased(tenant, *request, **terms):
    """A lease, as soon as the device is clean. It is given back at the end unless it has ended already."""
    lease = until(lambda: granted(tenant, *request, **terms), 60, "a device that is clean")
    try:
        yield lease
    finally:
        give_back(tenant, lease)


def kernel(tenant, lease, module, *arguments, name=None, grid="1", block="1"):
    """Runs a kernel of the stand-ins' PTX in a session of the lease. Without `name` the kernel has the module's
    name."""
    words = [word for argument in arguments for word in ("--arg", argument)]
    return tenant.ask("gpu", "run", "--lease", lease["lease_id"], "--ptx", PTX / f"{module}.ptx", "--kernel", name or module,
                      "--grid", grid, "--block", block, *words)


@contextlib.contextmanager
def program_of(tenant, *words):
    """`fabricctl` in the background; killed at the end if it still runs."""
    command = [program("fabricctl"), "--node", tenant.node, "--identity", tenant.identity, *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def workers():
    """The worker processes."""
    found = set()
    for at in pathlib.Path("/proc").iterdir():
        if at.name.isdigit():
            with contextlib.suppress(OSError):
                words = (at / "cmdline").read_bytes().split(b"\0")
                found |= {int(at.name)} if b"gpu-worker" in words[1:2] else set()
    return found


def run_in(tenant, lease, *command, **more):
    """Starts a program on this machine in a lease, as `fabricctl run` does."""
    words = [program("fabricctl"), "run", "--lease", lease["lease_id"], "--local-socket", SOCKET, "--", *map(str, command)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def device_bytes(node, vendor="nvidia"):
    """All memory of a stand-in."""
    at = next(path for path in node.stand_ins.iterdir() if path.name.startswith(vendor) and path.suffix == ".device-memory")
    return at.read_bytes()


def gone(pids, secs=30):
    """Waits until these processes have ended."""
    return until(lambda: not any(pathlib.Path(f"/proc/{pid}/exe").exists() for pid in pids), secs, f"the end of {pids}")


@contextlib.contextmanager
def filled(node, tenant, lease, size=16 << 10):
    """Three copies of a pattern in device memory, until the worker ends: the inputs of a kernel that does not end."""
    source = pathlib.Path("/tmp/pattern")
    source.write_bytes(PATTERN * (size // len(PATTERN)))
    node.knob("hang-launch", 1)
    arguments = [word for _ in range(3) for word in ("--arg", f"in:{source}")]
    words = ["gpu", "run", "--lease", lease["lease_id"], "--ptx", PTX / "vector_add.ptx", "--kernel", "vector_add", *arguments,
             "--arg", "u32:1"]
    with program_of(tenant, *words) as client:
        until(lambda: PATTERN in device_bytes(node), 60, "the pattern in the device")
        try:
            yield client
        finally:
            node.knob("hang-launch")


def copying(lease, count):
    """Arguments of `fabricctl`: random bytes go to the device and come back after a kernel that changes none of
    them."""
    SENT.write_bytes(os.urandom(count))
    module = PTX / "fill.ptx"
    if lease["binding"]["gpu"]["vendor"] == "amd":
        text = module.read_bytes()
        module = pathlib.Path("/tmp/fill.object")
        module.write_bytes(b"\x7fELF stand-in code object\n" + text + b"\n.end\n")
    return ["gpu", "run", "--lease", lease["lease_id"], "--ptx", module, "--kernel", "fill", "--arg", f"inout:{SENT}:{BACK}",
            "--arg", "u32:0", "--arg", "u32:0"]


def copied(tenant, lease, *words):
    """The number of bytes that came back from the device unchanged."""
    tenant.ask(*copying(lease, 1 << 20), *words)
    if BACK.read_bytes() != SENT.read_bytes():
        raise RuntimeError("bytes came back from the device changed")
    return BACK.stat().st_size


def leases_again(tenant, resource, secs=600):
    """A lease of the resource, or None while the node refuses it."""
    try:
        return granted(tenant, "1MiB", secs, resource=resource)
    except Refused:
        return None


def cleared(node, resource):
    """Whether the fence is gone; clears it if not."""
    if not any(it["resource_id"] == resource for it in node.operator.fences()):
        return True
    node.operator.run("fence", "clear", resource)
    return False
