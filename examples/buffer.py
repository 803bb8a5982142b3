#!/usr/bin/env python3
"""Leases memory of a node with the Python package, and writes, reads and fills a buffer of this program.

    pip install ./client/python
    export FABRICBIOS_NODE=NODE:5701 FABRICBIOS_IDENTITY=FILE
    ./buffer.py
"""
import array
import sys
import threading

import fabricbios


def main():
    """The example."""
    told = threading.Event()

    def tell(cause):
        print("the lease has ended:", cause)
        told.set()

    # The lease renews itself until the block ends.
    with fabricbios.mem(bytes=1 << 20, secs=60) as m:
        m.on_end(tell)
        m[0:5] = b"hello"
        print("read back:", m[0:5].decode())
        numbers = array.array("d", range(1000))
        m.write(4096, numbers)  # as it lies in memory: nothing is copied before it is sent
        again = array.array("d", bytes(8 * len(numbers)))
        m.read_into(4096, again)
        print("the same numbers:", again == numbers, "over", m.transport)
        try:
            m.read(len(m), 1)
        except fabricbios.Error as error:
            print(f"one byte past the end: {error.code}, as fabricctl's exit status {error.exit_status}")
    # At the end of a program, callbacks that have not begun are not called.
    told.wait()


if __name__ == "__main__":
    try:
        main()
    except fabricbios.Error as failure:
        sys.exit(f"{failure.code}: {failure}")
