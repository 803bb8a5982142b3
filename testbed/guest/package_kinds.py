#!/usr/bin/python3
"""For each kind that needs a drop-in of its own beside those of suite_package.py: its settings, and leases in use that a client
looks at from its side."""
import pathlib

from debs import operator
from fabric import ensure_soft_roce
from rdma_client import Client, Device

SECRET = b"bytes of a lease" * 256
LOOPBACK = 'auto-detect = true\nlisten = "127.0.0.1:5701"\n'


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


KINDS = {kind.name: kind for kind in (Rdma,)}
