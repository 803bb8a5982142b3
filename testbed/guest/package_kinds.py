#!/usr/bin/python3
"""For each kind that needs a drop-in of its own beside those of suite_package.py: its settings, and leases in use that a client
looks at from its side."""
import pathlib

import nvmet_tree
from block import get, loop_device, pattern, put, sh
from checks import until
from debs import operator
from fabric import ADDRESS, ensure_soft_roce
from nvme_host import Fio, connect, disconnect, gone
from rdma_client import Client, Device

MIB = 1 << 20
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


KINDS = {kind.name: kind for kind in (Rdma, Nvmet)}
