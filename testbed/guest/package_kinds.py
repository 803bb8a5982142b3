#!/usr/bin/python3
"""For each kind that needs a drop-in of its own beside those of suite_package.py: its settings, and leases in use that a client
looks at from its side."""
import contextlib
import os
import pathlib
import subprocess

import macvlan
import nvmet_tree
import vf
from block import get, loop_device, pattern, put, row_of, run, sh
from checks import until
from debs import log, operator
from fabric import ADDRESS, ensure_soft_roce
from frames import WIRE, Listener, Sender
from gpus import OWNED, ROOT, STAND_INS, copied, machine, opens, workers
from nvme_host import Fio, connect, disconnect, failed, gone
from rdma_client import Client, Device

MIB = 1 << 20
STRANGER = 65534
SECRET = b"bytes of a lease" * 256
LOOPBACK = 'auto-detect = true\nlisten = "127.0.0.1:5701"\n'
NO_RDMA = 'rdma-device = "none"\nmem-bytes = "1MiB"\nfbmu-listen = "127.0.0.1:5702"\n'


def named(name):
    """The processes of that name."""
    return {int(at.name) for at in pathlib.Path("/proc").iterdir() if at.name.isdigit() and comm(at) == name}


def comm(at):
    """The name of a process, if it lives."""
    try:
        return (at / "comm").read_text().strip()
    except OSError:
        return None


class Kind:
    """What most kinds have in common. `conf`: the drop-in of the examples, where it has another name."""
    drop_in = ""
    conf = None

    def hangs(self, suite, upgrades, lives):
        """Upgrades while a helper call of a lease is on its way and hangs."""


class Rdma(Kind):
    """Memory over RDMA: a lease of both transports in a file outlives the daemon, and its holder binds again; one of RDMA alone
    ends with the process."""
    name = "memory-rdma"

    def __init__(self):
        ensure_soft_roce()
        self.device = Device("rxe0")
        self.file = pathlib.Path("/dev/shm/fabricbios-rdma")
        self.settings = LOOPBACK + f'mem-bytes = "16MiB"\nmem-file = "{self.file}"\nrdma-device = "rxe0"\nfbmu-listen = "127.0.0.1:5702"\n'
        self.both = self.alone = None

    def take(self, suite):
        """Leases, and writes."""
        self.client, self.other = Client(self.device), Client(self.device)
        self.both = operator().alloc(65536, 3000, self.client.peer, 0, "--transport", "both")
        self.client.connect(self.both)
        suite.equal("written over RDMA", "success", self.client.write(0, SECRET).status)
        self.alone_again(suite)

    def alone_again(self, suite):
        """A lease over RDMA alone."""
        self.other.fresh()
        self.alone = operator().alloc(65536, 3000, self.other.peer, 0, "--transport", "rdma")
        self.other.connect(self.alone)
        suite.equal("written over RDMA alone", "success", self.other.write(0, SECRET).status)

    def leases(self):
        """Those that go on."""
        return [self.both]

    def lives(self, suite, what):
        """What the page on upgrades promises of both."""
        suite.check(f"{what}: access over RDMA alone has ended", not self.other.read(0, 16).ok, "an error")
        suite.equal(f"{what}: the lease over RDMA alone is told as ended", "revoked", operator().query(self.alone)["state"])
        self.client.fresh()
        self.client.connect(operator().bind(self.both, self.client.peer))
        suite.equal(f"{what}: bound again, the bytes are read over RDMA", SECRET, self.client.read(0, len(SECRET)).data)
        self.alone_again(suite)

    def ended(self, suite):
        """After a stop."""
        suite.check("stop: no access over RDMA", not self.client.read(0, 16).ok, "an error")
        self.client.close()
        self.other.close()


SLOW = "/dev/mapper/slow"


@contextlib.contextmanager
def suspended(device):
    """A device of device-mapper that answers nothing."""
    sh(f"DM_DISABLE_UDEV=1 dmsetup suspend --noflush --nolockfs {device}")
    try:
        yield
    finally:
        sh(f"DM_DISABLE_UDEV=1 dmsetup resume {device}")


class Nvmet(Kind):
    """Blocks of raw devices over NVMe-oF: the kernel serves them while the daemon is away."""
    conf = "block-nvmet"

    def __init__(self):
        for module in ("nvmet", "nvmet-tcp", "nvmet-rdma", "nvme-tcp", "nvme-rdma", "dm-mod", "loop"):
            sh(f"modprobe {module}")
        if not nvmet_tree.ROOT.is_dir():
            sh("mount -t configfs configfs /sys/kernel/config")
        ensure_soft_roce()  # Its interface has the address.
        self.pool = loop_device(64)
        backing = loop_device(64)
        sh(f"DM_DISABLE_UDEV=1 dmsetup create slow --table '0 {64 * MIB // 512} linear {backing} 0'")
        self.settings = LOOPBACK + NO_RDMA + f'block-pool = ["{self.pool}", "{SLOW}"]\nnvmet = ["{self.port}"]\nfbbu-listen = "none"\n'

    def take(self, suite):
        """Leases, connects by the lease's own line, writes, and goes on writing. A lease of another device is idle."""
        self.bytes = pattern("kept")
        self.other = self.another(SLOW)
        self.idle = connect(self.other)
        put(self.idle, self.bytes)
        self.lease = self.another(self.pool)
        self.device = connect(self.lease)
        put(self.device, self.bytes, 3 * MIB)
        self.fio = Fio(self.device).started()
        suite.check("a host writes", self.fio.running())

    def words(self, pool):
        """The words that lease blocks of this pool."""
        return ("lease", "alloc", "block", "--bytes", 4 * MIB, "--secs", 3000, "--transport", self.name, "--resource", pool)

    def another(self, pool):
        """A lease of this pool."""
        return operator().ask(*self.words(pool))

    def leases(self):
        """Those that go on."""
        return [self.lease, self.other]

    def lives(self, suite, what):
        """The host has seen no error, and goes on."""
        before = self.fio.done()
        suite.check(f"{what}: the host goes on writing", until(lambda: self.fio.done() > before or not self.fio.running()) and self.fio.running(),
                    "no error")
        suite.equal(f"{what}: the host has its bytes", self.bytes, get(self.device, len(self.bytes), 3 * MIB))

    def ended(self, suite):
        """After a stop."""
        report = self.fio.report() if until(lambda: not self.fio.running(), 90, "the end of the writing") else None
        suite.check("stop: writing ends with an error", report["error"] or report["status"], "an error", report)
        for lease in self.leases():
            nqn = lease["binding"]["nvmeof"]["subnqn"]
            disconnect(nqn)
            gone(nqn)
        sh(f"DM_DISABLE_UDEV=1 dmsetup remove {SLOW}")


class NvmeTcp(Nvmet):
    """Over TCP."""
    name, port = "nvme-tcp", f"tcp:{ADDRESS}:4420"

    def hangs(self, suite, upgrades, lives):
        """A release and a grant, each while its storage does not answer."""
        self.release_hangs(suite, upgrades, lives)
        self.grant_hangs(suite, upgrades, lives)

    def release_hangs(self, suite, upgrades, lives):
        """A lease is revoked while its part of the device does not answer: it is fenced, and freed when the device answers."""
        what = f"{self.name}: upgrade while a release hangs"
        lease = self.another(self.pool)
        job = Fio(connect(lease)).started()
        part = next(line.split()[0] for line in sh("dmsetup ls").splitlines() if lease["lease_id"] in line)
        with suspended(part):
            operator().revoke(lease)
            hung = until(lambda: named("fb-rmdir"), 60, "the process that removes the namespace")
            upgrades.one(suite, what)
            suite.equal(f"{what}: it hangs still", hung, named("fb-rmdir"))
            lives(what)
            fence = until(operator().fences, 90, "a fence")[0]
            suite.equal(f"{what}: the lease is fenced, and told", (lease["lease_id"], "REVOKED"),
                        (fence["lease_id"], operator().query(lease)["status"]))
            suite.check(f"{what}: the fence names the process", f"process {hung.pop()} waits in" in fence["reason"], "its number",
                        fence["reason"])
            suite.check(f"{what}: its host has no access", failed(job.report()), "an error")
        suite.check(f"{what}: the fence goes when the device answers", until(lambda: not operator().fences(), 90, "no fence"))
        suite.check(f"{what}: so does the process", until(lambda: not named("fb-rmdir"), 60, "its end"))
        free = row_of(operator(), self.pool)["capacity"] - 4 * MIB
        suite.check(f"{what}: its blocks are free again", until(lambda: row_of(operator(), self.pool)["available"] == free, 90, "free blocks"))

    def grant_hangs(self, suite, upgrades, lives):
        """A lease is asked for while its device does not answer: the upgrade waits for the operator, and the daemon of before goes
        on; so does a lease of that device."""
        what = f"{self.name}: upgrade while a grant hangs"
        with suspended(SLOW):
            command, environment = operator().command(*self.words(SLOW))
            asked = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            until(lambda: named("fb-wipe"), 60, "the process that cleans blocks")
            sh("echo 3 > /proc/sys/vm/drop_caches")
            upgrades.refused(suite, what, SLOW)
            lives(what)
        suite.check(f"{what}: who asked is told", '"class":"transient"' in asked.communicate(timeout=60)[0], "a refusal")
        suite.check(f"{what}: the process ends when the device answers", until(lambda: not named("fb-wipe"), 60, "its end"))
        upgrades.configured(suite, what)
        lives(what)
        suite.equal(f"{what}: the lease of the device has its bytes", self.bytes, get(self.idle, len(self.bytes)))
        row = row_of(operator(), SLOW)
        suite.equal(f"{what}: the device is whole", (row["capacity"] - 4 * MIB, "ok"), (row["available"], row["health"]))


class NvmeRdma(Nvmet):
    """Over RDMA, on soft-RoCE."""
    name, port = "nvme-rdma", f"rdma:{ADDRESS}:4420"


class Net(Kind):
    """A macvlan interface and a virtual function, which send all the time."""
    name = "net"

    def __init__(self):
        for module in ("macvlan", "veth", "sch_htb", "sch_fq_codel", "cls_flower", "cls_matchall", "act_mirred", "act_gact", "act_vlan",
                       "igbvf"):
            run("modprobe", module)
        vf.set_up()
        sh("ip netns add wire")
        sh(f"ip link add {macvlan.PARENT} type veth peer name {WIRE} netns wire")
        sh(f"ip link set {macvlan.PARENT} up && ip -n wire link set {WIRE} up")
        self.settings = LOOPBACK + NO_RDMA + (f'macvlan-parent = ["{macvlan.PARENT}=1000"]\nsriov-pf = ["{vf.CARD}"]\n'
                                              'net-vlan = ["admin=0,7"]\nlocal-socket = "/run/fabricbios/local.sock"\n')
        self.rows = []

    def take(self, suite):
        """Leases, and sends."""
        found = {row["name"]: row["resource_id"] for row in operator().ask("inventory")["resources"] if row["resource_type"] == "net"}
        for parent, namespace, more in ((macvlan.PARENT, "wire", []), (vf.CARD, vf.PEER, ["--vlan", 7])):
            lease = operator().ask("lease", "alloc", "net", "--mbps", 10, "--secs", 3000, "--hand-over", "interface",
                                   "--resource", found[parent], *more)
            coordinates = lease["binding"]["net"]
            sh(f"ip link set {coordinates['ifname']} up")
            listener = Listener(coordinates["mac"], coordinates.get("vlan"), namespace=namespace)
            self.rows.append((parent, lease, listener, Sender("/proc/1/ns/net", coordinates["ifname"], coordinates["mac"])))
            suite.check(f"{parent}: frames arrive", listener.flows())

    def leases(self):
        """Those that go on."""
        return [row[1] for row in self.rows]

    def lives(self, suite, what):
        """Frames of both go on."""
        for parent, _, listener, _ in self.rows:
            suite.check(f"{what}: frames from {parent} arrive", listener.flows())

    def ended(self, suite):
        """After a stop."""
        for parent, lease, listener, sender in self.rows:
            sender.close()
            suite.equal(f"stop: the interface from {parent} is gone", False,
                        os.path.exists(f"/sys/class/net/{lease['binding']['net']['ifname']}"))
            suite.check(f"stop: nothing of {parent} arrives", listener.is_silent())


class Gpu(Kind):
    """A GPU that is a stand-in, with a session."""
    name = "gpu"

    def __init__(self):
        self.place = pathlib.Path("/run/stand-ins")
        self.place.mkdir()
        self.place.chmod(0o1777)
        (self.place / "memory").write_text(f"{16 << 20}\n")
        machine(OWNED)
        self.drop_in = (f"[Service]\nEnvironment=FABRICBIOS_GPU_ROOT={ROOT} LD_LIBRARY_PATH={STAND_INS} "
                        f"FABRICBIOS_STAND_IN_DIR={self.place} PATH={STAND_INS}/bin:/usr/sbin:/usr/bin:/sbin:/bin\n")
        self.settings = LOOPBACK + NO_RDMA + 'gpus = "all"\nlocal-socket = "/run/fabricbios/local.sock"\n'

    def take(self, suite):
        """Leases, and copies to the device and back."""
        self.lease = operator().ask("lease", "alloc", "gpu", "--vram", "1MiB", "--secs", 3000)
        suite.equal("copies come back from the device", MIB, copied(operator(), self.lease))
        self.workers = workers()
        suite.check("a worker has the device", self.workers, "a process")
        suite.check("nothing of its isolation is missing", "a part of the isolation of workers" not in log(), "no such warning")
        suite.equal("no stranger opens a GPU", "Permission denied", opens(STRANGER))

    def leases(self):
        """Those that go on."""
        return [self.lease]

    def lives(self, suite, what):
        """The worker goes on, and works."""
        suite.equal(f"{what}: copies come back from the device", MIB, copied(operator(), self.lease))
        suite.equal(f"{what}: the session's process is the same", self.workers, workers())

    def ended(self, suite):
        """After a stop."""
        suite.equal("stop: no process of a session", set(), workers())
        suite.equal("stop: the node of a GPU is as it was", "opens", opens(STRANGER))


KINDS = {kind.name: kind for kind in (Rdma, NvmeTcp, NvmeRdma, Net, Gpu)}
