"""What the stock clients of suite_compare.py share: one buffer, and orders from standard input, one a line, each answered
by one line of JSON. A program says how its library registers, finds and moves memory; `text` is 16 bytes that fill a
buffer by repetition."""
import ctypes
import json
import mmap
import os
import sys
import time

# What a reader's buffer holds before each read.
BLANK = b"\xee"


def filled(text, length):
    """`length` bytes of `text`."""
    return (text.encode() * (length // len(text) + 1))[:length]


def now_ms():
    """Wall clock in milliseconds, as in `expires_at_unix_ms`."""
    return time.time_ns() / 1e6


class StockClient:
    """The buffer and the orders. A program's class has `register()`, which returns a status and what another client opens;
    `unregister()`, `open(target)` and `transfer(kind, length)`, which return a status, 0 for success."""

    def __init__(self, size):
        # Libraries print to standard output too; their lines go to standard error.
        self.answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self.size, self.memory = size, mmap.mmap(-1, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def say(self, **answer):
        """One answer."""
        print(json.dumps(answer), file=self.answers, flush=True)

    def read(self, length):
        """Reads into the blanked buffer; the status, and the bytes that the buffer holds then."""
        self.memory[:length] = BLANK * length
        return self.transfer("read", length), self.memory[:length]

    def write(self, length, text):
        """Writes `text`; the status."""
        self.memory[:length] = filled(text, length)
        return self.transfer("write", length)

    def loop(self, kind, length, text):
        """Reads or writes `text` until that fails. `other`: reads with success that were not all of `text`; `foreign`: bytes of
        the buffer after the failed one that are neither blank nor of `text`, part of which may have come before the failure."""
        good, other, begun_ms, wanted = 0, 0, None, filled(text, length)
        while True:
            now, data = now_ms(), wanted
            if kind == "read":
                rc, data = self.read(length)
            else:
                rc = self.write(length, text)
            if rc:
                break
            good, other, begun_ms = good + 1, other + (data != wanted), now
            if good == 1:
                self.say(running=True)
        failed_ms = now_ms()
        foreign = sum(byte not in (BLANK[0], own) for byte, own in zip(data, wanted))
        self.say(rc=rc, good=good, other=other, foreign=foreign, last_begun_at_ms=begun_ms, failed_at_ms=failed_ms)

    def obey(self, order, words):
        """One order."""
        if order == "fill":
            self.memory[:] = filled(words[0], self.size)
            self.say(rc=0)
        elif order == "begins":
            self.say(text=self.memory[:16].decode("latin1"))
        elif order == "register":
            rc, target = self.register()
            self.say(rc=rc, target=target)
        elif order == "unregister":
            self.say(rc=self.unregister())
        elif order == "open":
            self.say(rc=self.open(words[0]))
        elif order == "read":
            rc, data = self.read(int(words[0]))
            self.say(rc=rc, text=data[:16].decode("latin1"), blank=data == BLANK * len(data), at_ms=now_ms())
        elif order == "write":
            self.say(rc=self.write(int(words[0]), words[1]))
        else:
            self.loop(words[0], int(words[1]), words[2])

    def serve(self):
        """Obeys until standard input ends. The libraries' threads are not waited for."""
        self.say(ready=True)
        for line in sys.stdin:
            order, *words = line.split()
            self.obey(order, words)
        os._exit(0)
