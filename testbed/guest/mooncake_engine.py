#!/usr/bin/python3
"""ADDRESS DEVICE BYTES: a Mooncake Transfer Engine as its wheel has it, with the orders of stock_client.py. It owns memory, or
it is the client of another engine or of a lease; nothing here knows which."""
import sys

from mooncake.engine import TransferEngine

from stock_client import StockClient


class Engine(StockClient):
    """One engine in Mooncake's P2P mode, over RDMA."""

    def __init__(self, address, device, size):
        super().__init__(size)
        self.engine = TransferEngine()
        if rc := self.engine.initialize(address, "P2PHANDSHAKE", "rdma", device):
            sys.exit(f"TransferEngine.initialize: {rc}")
        self.name = f"{address}:{self.engine.get_rpc_port()}"
        self.target, self.remote = None, 0

    def register(self):
        """The owner's name is what a client opens."""
        return self.engine.register_memory(self.address, self.size), self.name

    def unregister(self):
        """No client reaches the memory after this, says the interface."""
        return self.engine.unregister_memory(self.address)

    def open(self, target):
        """Asks for the address of the first buffer there."""
        self.target, self.remote = target, self.engine.get_first_buffer_address(target)
        return 0 if self.remote else -1

    def transfer(self, kind, length):
        """At the beginning of both buffers."""
        move = self.engine.transfer_sync_read if kind == "read" else self.engine.transfer_sync_write
        return move(self.target, self.address, self.remote, length)


if __name__ == "__main__":
    Engine(sys.argv[1], sys.argv[2], int(sys.argv[3])).serve()
