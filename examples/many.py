#!/usr/bin/env python3
"""Leases memory and blocks at the same time with asyncio, fills both, and gives them back. The node needs a --block-pool.

    pip install ./client/python
    export FABRICBIOS_NODE=NODE:5701 FABRICBIOS_IDENTITY=FILE
    ./many.py
"""
import asyncio
import sys

import fabricbios


async def in_memory(number):
    """Writes and reads memory."""
    async with fabricbios.aio.mem(bytes=1 << 20) as m:
        await m.write(0, f"memory {number}".encode())
        return await m.read(0, 8)


async def in_blocks():
    """Writes and reads blocks; a flush makes them durable."""
    async with fabricbios.aio.block(bytes=1 << 20, transport="udp") as b:
        _, block_bytes = await b.geometry()
        await b.write_blocks(0, b"blocks".ljust(block_bytes))
        await b.flush()
        into = bytearray(block_bytes)
        await b.read_blocks(0, into)
        return bytes(into[:6])


async def main():
    """The example."""
    for read in await asyncio.gather(in_memory(1), in_memory(2), in_blocks()):
        print("read back:", read.decode())


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except fabricbios.Error as failure:
        sys.exit(f"{failure.code}: {failure}")
