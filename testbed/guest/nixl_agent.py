#!/usr/bin/python3
"""NAME BYTES: a NIXL agent as its wheel has it, over UCX, with the orders of stock_client.py. It uses the wheel's bindings
directly: the Python layer above them wants PyTorch."""
import importlib.util
import os
import pathlib
import sys
import time

from stock_client import StockClient

WHEEL = pathlib.Path(importlib.util.find_spec("nixl_cu12").origin).parent
os.environ["NIXL_PLUGIN_DIR"] = str(WHEEL.parent / ".nixl_cu12.mesonpy.libs/plugins")
POLL_SECS = 0.002


def bindings():
    """The module of the wheel, without its package."""
    path, = WHEEL.glob("_bindings.*.so")
    spec = importlib.util.spec_from_file_location("_bindings", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


nixl = bindings()


class Agent(StockClient):
    """One agent with the UCX backend."""

    def __init__(self, name, size):
        super().__init__(size)
        self.agent = nixl.nixlAgent(name, nixl.nixlAgentConfig(True))
        parameters, _ = self.agent.getPluginParams("UCX")
        self.backend = self.agent.createBackend("UCX", parameters)
        self.other, self.remote = None, 0

    def described(self, address, length, of=nixl.nixlXferDList):
        """A list of one piece of memory."""
        pieces = of(nixl.DRAM_SEG)
        pieces.addDesc((address, length, 0, "") if of is nixl.nixlRegDList else (address, length, 0))
        return pieces

    def register(self):
        """A client opens the agent's metadata, and the address of its buffer."""
        self.agent.registerMem(self.described(self.address, self.size, nixl.nixlRegDList), [self.backend])
        return 0, f"{self.agent.getLocalMD().hex()}@{self.address}"

    def unregister(self):
        """`deregisterMem`."""
        self.agent.deregisterMem(self.described(self.address, self.size, nixl.nixlRegDList), [self.backend])
        return 0

    def open(self, target):
        """Loads the other agent's metadata."""
        metadata, address = target.split("@")
        self.other, self.remote = self.agent.loadRemoteMD(bytes.fromhex(metadata)), int(address)
        return 0

    def transfer(self, kind, length):
        """At the beginning of both buffers; an exception of the bindings is a status other than 0."""
        operation = nixl.NIXL_READ if kind == "read" else nixl.NIXL_WRITE
        pieces = self.described(self.address, length), self.described(self.remote, length)
        other = self.other.decode() if isinstance(self.other, bytes) else self.other
        try:
            request = self.agent.createXferReq(operation, *pieces, other)
            status = self.agent.postXferReq(request)
            while status == nixl.NIXL_IN_PROG:
                time.sleep(POLL_SECS)
                status = self.agent.getXferStatus(request)
        except Exception as error:  # The bindings raise a class for each status.
            print(f"{kind}: {type(error).__name__}: {error}", file=sys.stderr)
            return -1
        return 0 if status == nixl.NIXL_SUCCESS else -1


if __name__ == "__main__":
    Agent(sys.argv[1], int(sys.argv[2])).serve()
