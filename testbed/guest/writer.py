#!/usr/bin/python3
"""A client that writes without pause until its access ends: the live traffic that the suites cut. Two
batches are always with the device, so that a write is under way at any moment.

`keep_writing` does it in this process; `Writer` does it in a process of its own, outside of full length
with short pauses. That process is this file run as a program: it prints its `--rdma-peer`, and for each
line of standard input (`OFFSET LEASE_JSON`) it connects with it, writes until the end and prints the report.
"""
import argparse
import json
import os
import subprocess
import sys
import time

from pyverbs import enums as e
from pyverbs.wr import SGE, SendWR

from checks import length
from rdma_client import QUEUE_DEPTH, Client, Device, now_ms, status_name

WORD = 8
# Pauses for the other suites on the same processors.
PAUSE_SECS = length(0, 0.005)


def _batch(client, slot, offset):
    """Posts QUEUE_DEPTH requests in a chain, each for its own word of the local buffer."""
    buffer, rdma, chain = client.buffer, client.rdma, []
    for place in reversed(range(slot * QUEUE_DEPTH, (slot + 1) * QUEUE_DEPTH)):
        request = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, send_flags=e.IBV_SEND_SIGNALED,
                         sg=[SGE(buffer.buf + place * WORD, WORD, buffer.lkey)], next_wr=chain[0] if chain else None)
        request.set_wr_rdma(rdma["rkey"], rdma["remote_addr"] + offset)
        chain.insert(0, request)
    return chain


class _Stream:
    """1, 2, 3 … written at one offset. The completions come word by word, in the order of posting."""

    def __init__(self, client, offset):
        self.client, self.done, self.posted, self.posted_at_ms = client, 0, 0, [0.0, 0.0]
        self.batches = [_batch(client, slot, offset) for slot in (0, 1)]
        self.last_ok_at_ms = self.last_posted_at_ms = None

    def post(self):
        """Posts the next batch, in the slot whose requests have all completed."""
        slot = self.posted // QUEUE_DEPTH % 2
        values = range(self.posted + 1, self.posted + QUEUE_DEPTH + 1)
        words = b"".join(value.to_bytes(WORD, "big") for value in values)
        self.client.buffer.write(words, len(words), slot * len(words))
        self.posted_at_ms[slot] = now_ms()
        self.client.qp.post_send(self.batches[slot][0])
        self.posted += QUEUE_DEPTH

    def take(self, ended):
        """Counts successes; returns the report at the first failure."""
        at_ms = now_ms()
        for completion in ended:
            posted_at_ms = self.posted_at_ms[self.done // QUEUE_DEPTH % 2]
            if completion.status != e.IBV_WC_SUCCESS:
                return self.report(completion.status, posted_at_ms, at_ms)
            self.done += 1
            self.last_ok_at_ms, self.last_posted_at_ms = at_ms, posted_at_ms
        return None

    def report(self, status, posted_at_ms, at_ms):
        """The report. `in_doubt` words after the last success may have arrived too."""
        return {"writes": self.done, "in_doubt": self.posted - self.done, "status": status_name(status),
                "last_ok_at_ms": self.last_ok_at_ms, "last_posted_at_ms": self.last_posted_at_ms,
                "failed_at_ms": at_ms, "failed_posted_at_ms": posted_at_ms}


def keep_writing(client, offset=0, on_first=None, pause_secs=0):
    """Writes 1, 2, 3 … (8 bytes, big-endian) at `offset` until a write fails. The queue pair is in the
    error state afterwards; the flushed rest is taken from the completion queue."""
    stream, report = _Stream(client, offset), None
    stream.post()
    while not report:
        if stream.posted - stream.done <= QUEUE_DEPTH:
            stream.post()
        time.sleep(pause_secs)
        before = stream.done
        report = stream.take(client.completions(QUEUE_DEPTH))
        if on_first and not before and stream.done:
            on_first()
    _drain(client)
    return report


def _drain(client):
    """Drains a failed queue pair, which flushes at once; the completions are ignored."""
    while client.cq.poll(QUEUE_DEPTH)[0]:
        pass


class Writer:
    """A writer in a process of its own. `peer` is its `--rdma-peer`."""

    def __init__(self, device="rxe0"):
        self.process = subprocess.Popen([sys.executable, __file__, "--device", device],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.peer = self._answer()["rdma_peer"]
        self.first = {}

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the writer's process ended with {self.process.wait()}")
        return json.loads(line)

    def start(self, lease, offset=0):
        """Connects and begins; returns after the first write succeeded (False: none did)."""
        print(offset, json.dumps(lease), file=self.process.stdin, flush=True)
        self.first = self._answer()
        return "writing" in self.first

    def report(self):
        """Waits for its end and returns keep_writing's report; `peer` is a fresh queue pair's then."""
        report = self._answer() if "writing" in self.first else self.first
        self.peer = report["rdma_peer"]
        return report

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(60)


def _say(answer):
    print(json.dumps(answer), flush=True)


def main():
    """The writer's process."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--device")
    os.nice(10)  # On two emulated processors four writers would otherwise leave the node no time at all.
    client = Client(Device(parser.parse_args().device))
    _say({"rdma_peer": client.peer})
    for line in sys.stdin:
        offset, lease = line.split(None, 1)
        client.connect(json.loads(lease))
        report = keep_writing(client, int(offset), lambda: _say({"writing": True}), PAUSE_SECS)
        client.fresh()
        _say({**report, "rdma_peer": client.peer})


if __name__ == "__main__":
    main()
