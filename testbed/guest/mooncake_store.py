#!/usr/bin/python3
"""ADDRESS DEVICE MASTER: Mooncake Store as its wheel has it. A reader learns where an object is; the object's lease ends, it
is removed, and the store gives the bytes to another object. Prints what the reader gets then, one line of JSON a step."""
import sys
import time

from mooncake.store import MooncakeDistributedStore

from mooncake_engine import Engine

OBJECT_BYTES, READ_BYTES, POOL_BYTES = 1 << 20, 65536, 16 << 20
OWN, NEXT, STALE = "TENANT-A-DATA...", "TENANT-B-SECRET.", "A-OVERWRITES-B.."
# So many objects are stored until one has the first one's bytes.
TRIES = 16


def place(store, key):
    """Address and endpoint of an object's first replica."""
    piece = store.get_replica_desc(key)[0].get_memory_descriptor().buffer_descriptor
    return tuple(getattr(piece, f"{name}_", None) or getattr(piece, name) for name in ("buffer_address", "transport_endpoint"))


def put(store, key, text):
    """Stores an object."""
    if rc := store.put(key, text.encode() * (OBJECT_BYTES // len(text))):
        sys.exit(f"put {key}: {rc}")


def stored_on(store, address):
    """Stores objects of the next tenant until one is at `address`; its key, or None."""
    for number in range(TRIES):
        put(store, key := f"next-{number}", NEXT)
        if place(store, key)[0] == address:
            return key
    return None


def main(address, device, master):
    """The steps."""
    store = MooncakeDistributedStore()
    if rc := store.setup(address, "P2PHANDSHAKE", POOL_BYTES, POOL_BYTES, "rdma", device, master):
        sys.exit(f"setup: {rc}")
    reader = Engine(address, device, READ_BYTES)
    put(store, "own", OWN)
    reader.register()
    reader.remote, reader.target = place(store, "own")
    reader.obey("read", [READ_BYTES])
    while store.remove("own"):  # It is refused until the object's lease is over.
        time.sleep(0.1)
    reader.obey("read", [READ_BYTES])
    key = stored_on(store, reader.remote)
    reader.say(used_again=bool(key))
    reader.obey("read", [READ_BYTES])
    reader.obey("write", [len(STALE), STALE])
    reader.say(text=store.get(key)[:16].decode("latin1") if key else "")


if __name__ == "__main__":
    main(*sys.argv[1:])
