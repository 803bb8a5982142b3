#!/usr/bin/env python3
"""A small cache of KV blocks in leased memory: the block that was not used for the longest time makes room, and all are gone
when the lease has ended. The cache then leases again, and what it had is computed again.

    pip install ./client/python
    export FABRICBIOS_NODE=NODE:5701 FABRICBIOS_IDENTITY=FILE
    ./kv_cache.py
"""
import sys
import threading
from collections import OrderedDict

import fabricbios


class KvCache:
    """`blocks` blocks of `block_bytes` bytes. Threads may share it."""

    def __init__(self, blocks, block_bytes, **options):
        self.blocks, self.block_bytes, self.options = blocks, block_bytes, options
        self.evicted = 0
        self._lock = threading.RLock()
        self._lease, self._places = None, OrderedDict()

    def put(self, key, block):
        """Keeps a block, as long as there is room and the lease lives."""
        if len(block) != self.block_bytes:
            raise ValueError(f"a block of {len(block)} bytes: they have {self.block_bytes}")
        with self._lock:
            lease = self._leased()
            place = self._places.pop(key, None)
            if place is None and len(self._places) == self.blocks:
                _, place = self._places.popitem(last=False)
                self.evicted += 1
            if place is None:
                place = len(self._places)
            try:
                lease.write(place * self.block_bytes, block)
            except fabricbios.Error:
                self._forget(lease)
                raise
            self._places[key] = place

    def get_into(self, key, buffer):
        """Fills `buffer` with the block and returns True; False if it is not there (any more)."""
        with self._lock:
            place, lease = self._places.get(key), self._lease
            if place is None:
                return False
            try:
                lease.read_into(place * self.block_bytes, buffer)
            except fabricbios.NotFoundError:
                # The lease is over: whatever the buffer has now is no block.
                self._forget(lease)
                return False
            self._places.move_to_end(key)
            return True

    def __len__(self):
        return len(self._places)

    def close(self):
        """Gives the memory back."""
        with self._lock:
            if self._lease is not None:
                with self._lease as lease:
                    self._forget(lease)

    def _leased(self):
        if self._lease is None:
            lease = fabricbios.mem(bytes=self.blocks * self.block_bytes, intent_kv_cache=("hot", self.block_bytes), **self.options)
            lease.on_end(lambda _cause: self._forget(lease))
            self._lease = lease
        return self._lease

    def _forget(self, lease):
        with self._lock:
            if self._lease is lease:
                self.evicted += len(self._places)
                self._places.clear()
                self._lease = None


def main():
    """The example: four blocks in room for three."""
    cache = KvCache(blocks=3, block_bytes=4096, secs=60)
    into = bytearray(4096)
    for number in range(4):
        cache.put(f"prompt {number}", bytes([number]) * 4096)
    print("the first made room:", not cache.get_into("prompt 0", into))
    print("the last is there:", cache.get_into("prompt 3", into) and into == b"\3" * 4096)
    cache.close()
    print("nothing after the end:", not cache.get_into("prompt 3", into), "evicted:", cache.evicted)


if __name__ == "__main__":
    try:
        main()
    except fabricbios.Error as failure:
        sys.exit(f"{failure.code}: {failure}")
