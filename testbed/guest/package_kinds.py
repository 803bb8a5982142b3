#!/usr/bin/python3
"""For each kind that needs a drop-in of its own beside those of suite_package.py: its settings, and leases in use that a client
looks at from its side."""
import os
import pathlib

import macvlan
import nvmet_tree
import vf
from block import get, loop_device, pattern, put, run, sh
from checks import until
from debs import log, operator
from fabric import ADDRESS, ensure_soft_roce
from frames import WIRE, Listener, Sender
from gpus import OWNED, ROOT, STAND_INS, copied, machine, opens, workers
from nvme_host import Fio, connect, disconnect, gone
from rdma_client import Client, Device

MIB = 1 << 20
STRANGER = 65534
SECRET = b"bytes of a lease" * 256
LOOPBACK = 'auto-detect = true\nlisten = "127.0.0.1:5701"\n'
NO_RDMA = 'rdma-device = "none"\nmem-bytes = "1MiB"\nfbmu-listen = "127.0.0.1:5702"\n'


class Rdma:
    """Memory over RDMA: a lease of both transports in a file outlives the daemon, and its holder binds again; one of RDMA alone
    ends with the process."""
    name = "memory-rdma"
    drop_in = ""

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


class Nvmet:
    """Blocks of a raw device over NVMe/TCP: the kernel serves them while the daemon is away."""
    name = "block-nvmet"
    drop_in = ""

    def __init__(self):
        for module in ("nvmet", "nvmet-tcp", "nvme-tcp", "dm-mod", "loop"):
            sh(f"modprobe {module}")
        if not nvmet_tree.ROOT.is_dir():
            sh("mount -t configfs configfs /sys/kernel/config")
        ensure_soft_roce()  # Its interface has the address.
        self.pool = loop_device(64)
        self.settings = LOOPBACK + NO_RDMA + f'block-pool = ["{self.pool}"]\nnvmet = ["tcp:{ADDRESS}:4420"]\nfbbu-listen = "none"\n'

    def take(self, suite):
        """Leases, connects by the lease's own line, writes, and goes on writing."""
        self.lease = operator().ask("lease", "alloc", "block", "--bytes", 4 * MIB, "--secs", 3000, "--transport", "nvme-tcp")
        self.device = connect(self.lease)
        self.bytes = pattern("kept")
        put(self.device, self.bytes, 3 * MIB)
        self.fio = Fio(self.device).started()
        suite.check("a host writes", self.fio.running())

    def leases(self):
        """Those that go on."""
        return [self.lease]

    def lives(self, suite, what):
        """The host has seen no error, and goes on."""
        before = self.fio.done()
        suite.check(f"{what}: the host goes on writing", until(lambda: self.fio.done() > before or not self.fio.running()) and self.fio.running(),
                    "no error")
        suite.equal(f"{what}: the host has its bytes", self.bytes, get(self.device, len(self.bytes), 3 * MIB))

    def ended(self, suite):
        """After a stop."""
        nqn = self.lease["binding"]["nvmeof"]["subnqn"]
        report = self.fio.report() if until(lambda: not self.fio.running(), 90, "the end of the writing") else None
        suite.check("stop: writing ends with an error", report["error"] or report["status"], "an error", report)
        disconnect(nqn)
        gone(nqn)


class Net:
    """A macvlan interface and a virtual function, which send all the time."""
    name = "net"
    drop_in = ""

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


class Gpu:
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


KINDS = {kind.name: kind for kind in (Rdma, Nvmet, Net, Gpu)}
