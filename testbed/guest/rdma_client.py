#!/usr/bin/python3
"""A client of a leased piece of memory, with nothing but pyverbs: no code of fabricBIOS is used here.

It is documentation as much as a tool; docs/rdma-client.md walks through it. In short: make a queue
pair, tell the node its number, GID and first PSN (`--rdma-peer`), read the lease's coordinates from
`fabricctl --json`, connect, and read and write until a completion says that the lease has ended.

As a command it prints its `--rdma-peer` argument, then takes one order a line from standard input
and answers each with one line of JSON; `help` lists the orders.
"""
import argparse
import dataclasses
import ipaddress
import json
import os
import random
import sys
import time

from pyverbs import enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

PSN_LIMIT = 1 << 24
QUEUE_DEPTH = 16
MTU_OF_BYTES = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}
# The texts of ibv_wc_status_str of libibverbs, for the statuses of a requester.
STATUS_NAMES = {
    e.IBV_WC_SUCCESS: "success",
    e.IBV_WC_LOC_LEN_ERR: "local length error",
    e.IBV_WC_LOC_QP_OP_ERR: "local QP operation error",
    e.IBV_WC_LOC_PROT_ERR: "local protection error",
    e.IBV_WC_WR_FLUSH_ERR: "Work Request Flushed Error",
    e.IBV_WC_BAD_RESP_ERR: "bad response error",
    e.IBV_WC_REM_INV_REQ_ERR: "remote invalid request error",
    e.IBV_WC_REM_ACCESS_ERR: "remote access error",
    e.IBV_WC_REM_OP_ERR: "remote operation error",
    e.IBV_WC_RETRY_EXC_ERR: "transport retry counter exceeded",
    e.IBV_WC_RNR_RETRY_EXC_ERR: "RNR retry counter exceeded",
}
REMOTE_ACCESS_ERROR = STATUS_NAMES[e.IBV_WC_REM_ACCESS_ERR]
NO_ANSWER = STATUS_NAMES[e.IBV_WC_RETRY_EXC_ERR]
FLUSHED = STATUS_NAMES[e.IBV_WC_WR_FLUSH_ERR]
# Statuses that a client may get when its access has ended: the key was refused, the node's queue pair was already gone,
# or its own queue pair was already in the error state.
ENDS = frozenset((REMOTE_ACCESS_ERROR, NO_ANSWER, FLUSHED))


def now_ms():
    """Wall clock in milliseconds, as in `expires_at_unix_ms`."""
    return time.time_ns() / 1e6


def status_name(status):
    """A completion's status in words."""
    return STATUS_NAMES.get(status, f"status {status}")


@dataclasses.dataclass(frozen=True)
class Completion:
    """The result of one operation; times are wall clock."""
    status: str
    posted_at_ms: float
    completed_at_ms: float
    data: bytes = b""

    @property
    def ok(self):
        """Whether the operation succeeded."""
        return self.status == "success"


class Device:
    """An opened RDMA device and the address of this side."""

    def __init__(self, name=None, port=1):
        names = sorted(os.listdir("/sys/class/infiniband")) if os.path.isdir("/sys/class/infiniband") else []
        if not names or (name and name not in names):
            raise LookupError(f"RDMA device {name or '(any)'}: this machine has {names or 'none'}")
        self.name, self.port = name or names[0], port
        self.context = Context(name=self.name)
        self.gid_index, self.gid = self._roce_v2_ipv4_gid()
        attributes = self.context.query_device()
        self.max_rd_atomic = attributes.max_qp_init_rd_atom
        self.has_atomics = attributes.atomic_caps != e.IBV_ATOMIC_NONE

    def _roce_v2_ipv4_gid(self):
        """Finds the first RoCE v2 entry that is an IPv4-mapped address: the index differs between machines."""
        for entry in self.context.query_gid_table(64):
            address = ipaddress.IPv6Address(entry.gid_str())
            if entry.port_num == self.port and entry.gid_type == e.IBV_GID_TYPE_ROCE_V2 and address.ipv4_mapped:
                return entry.gid_index, address
        raise LookupError(f"{self.name} port {self.port}: no RoCE v2 GID with an IPv4 address; give its interface one")


class Client:
    """One reliable connected queue pair, one local buffer, and the lease that they access."""

    def __init__(self, device, buffer_bytes=65536):
        self.device = device
        self.pd = PD(device.context)
        self.channel = CompChannel(device.context)
        self.cq = CQ(device.context, 4 * QUEUE_DEPTH, None, self.channel, 0)
        self.cq.req_notify()
        self.buffer_bytes = buffer_bytes
        self.buffer = MR(self.pd, buffer_bytes, e.IBV_ACCESS_LOCAL_WRITE)
        self.qp = None
        self.rdma = None
        self.fresh()

    def fresh(self):
        """Makes a new queue pair in place of the old one, which cannot be used again after an error. The first PSN is
        drawn anew, so that late packets of the old queue pair are not taken for packets of the new one."""
        if self.qp:
            self.qp.close()
        capabilities = QPCap(max_send_wr=2 * QUEUE_DEPTH, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=capabilities))
        self.psn = random.randrange(PSN_LIMIT)
        self._to_init()

    def close(self):
        """Destroys all objects, in the order that the kernel requires."""
        for part in (self.qp, self.buffer, self.cq, self.channel, self.pd):
            part.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def peer(self):
        """The queue pair of this side, as the value of `--rdma-peer`."""
        return f"qpn={self.qp.qp_num},gid={self.device.gid.exploded},psn={self.psn}"

    def _to_init(self):
        attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=self.device.port)
        attr.pkey_index = 0
        attr.qp_access_flags = 0  # The memory of this side is not remotely accessible.
        self.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS)

    def connect(self, lease, which=0):
        """Connects to the coordinates of `lease`, the JSON object that `fabricctl --json` printed. Of several queue
        pairs it connects to the one at the position that this client's queue pair had among the given peers."""
        rdma = lease["binding"]["rdma"]
        self.rdma = {**rdma, **rdma["qps"][which]} if "qps" in rdma else rdma
        self._to_rtr()
        self._to_rts()

    def _to_rtr(self):
        """Ready to receive: sets the identity of the other side. The node's first PSN is the PSN that this side
        expects."""
        route = GlobalRoute(dgid=GID(self.rdma["gid"]), sgid_index=self.device.gid_index, hop_limit=64)
        attr = QPAttr(qp_state=e.IBV_QPS_RTR, port_num=self.device.port)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=self.device.port)
        attr.path_mtu = MTU_OF_BYTES[self.rdma["path_mtu"]]
        attr.dest_qp_num = self.rdma["qp_num"]
        attr.rq_psn = self.rdma["psn"]
        attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer = 12
        self.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
                       | e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER)

    def _to_rts(self):
        """Ready to send: sets this side's first PSN, and how long to wait for an answer before it counts as an error:
        4.096 µs · 2^14 = 67 ms, and six times more. Not seven: soft-RoCE takes seven for "for ever", and a client of a
        dead node would wait without end."""
        attr = QPAttr(qp_state=e.IBV_QPS_RTS, port_num=self.device.port)
        attr.sq_psn = self.psn
        attr.timeout = 14
        attr.retry_cnt = 6
        attr.rnr_retry = 7
        attr.max_rd_atomic = max(1, min(self.device.max_rd_atomic, self.rdma.get("max_rd_atomic", 1)))
        self.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_SQ_PSN | e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT
                       | e.IBV_QP_RNR_RETRY | e.IBV_QP_MAX_QP_RD_ATOMIC)

    def write(self, offset, data, rkey=None):
        """RDMA WRITE of `data` at `offset` of the lease."""
        if len(data) > self.buffer_bytes:
            raise ValueError(f"write of {len(data)} bytes: the local buffer has {self.buffer_bytes}")
        self.buffer.write(data, len(data))
        return self._run(e.IBV_WR_RDMA_WRITE, offset, len(data), rkey)

    def read(self, offset, length, rkey=None):
        """RDMA READ; the bytes are in the completion's `data`."""
        if length > self.buffer_bytes:
            raise ValueError(f"read of {length} bytes: the local buffer has {self.buffer_bytes}")
        done = self._run(e.IBV_WR_RDMA_READ, offset, length, rkey)
        return dataclasses.replace(done, data=self.buffer.read(length, 0)) if done.ok else done

    def compare_and_swap(self, offset, expected, new, rkey=None):
        """Replaces the 8 bytes at `offset` by `new` if they are `expected`; `data` has the old bytes."""
        return self._atomic(e.IBV_WR_ATOMIC_CMP_AND_SWP, offset, rkey, expected, new)

    def fetch_and_add(self, offset, addend, rkey=None):
        """Adds to the 8 bytes at `offset`; `data` has the old bytes."""
        return self._atomic(e.IBV_WR_ATOMIC_FETCH_AND_ADD, offset, rkey, addend, 0)

    def _atomic(self, opcode, offset, rkey, compare_add, swap):
        done = self._run(opcode, offset, 8, rkey, (compare_add, swap))
        return dataclasses.replace(done, data=self.buffer.read(8, 0)) if done.ok else done

    def _run(self, opcode, offset, length, rkey, operands=None):
        """Posts one request and waits for its completion: nothing else is in flight, so the next completion belongs to
        this request."""
        address, key = self.rdma["remote_addr"] + offset, self.rdma["rkey"] if rkey is None else rkey
        piece = SGE(self.buffer.buf, length, self.buffer.lkey)
        request = SendWR(opcode=opcode, num_sge=1, sg=[piece], send_flags=e.IBV_SEND_SIGNALED)
        if operands:
            request.set_wr_atomic(key, address, *operands)
        else:
            request.set_wr_rdma(key, address)
        posted_at_ms = now_ms()
        self.qp.post_send(request)
        status = self.completions()[0].status
        return Completion(status_name(status), posted_at_ms, now_ms())

    def completions(self, most=1):
        """Waits until a posted request has completed; returns at most `most` completions, in the order of posting."""
        while True:
            count, ended = self.cq.poll(most)
            if count:
                return ended
            # One event is always armed; one more poll finds a completion that came before the event was armed again.
            self.channel.get_cq_event(self.cq)
            self.cq.ack_events(1)
            self.cq.req_notify()


def _answer(client, words):
    """Answers one command from standard input."""
    order = words[0]
    numbers = [int(word, 0) for word in (words[1:2] if order == "write" else words[1:])]
    if order == "write":
        done = client.write(*numbers, " ".join(words[2:]).encode())
    elif order == "read":
        done = client.read(*numbers)
    elif order == "swap":
        done = client.compare_and_swap(*numbers)
    elif order == "add":
        done = client.fetch_and_add(*numbers)
    else:
        return {"error": f"unknown order {order!r}", "orders": "connect LEASE_JSON | fresh | write OFFSET TEXT | "
                "read OFFSET LENGTH | swap OFFSET EXPECTED NEW | add OFFSET ADDEND"}
    return {"status": done.status, "data": done.data.hex(), "text": done.data.decode(errors="replace")}


def _say(answer):
    print(json.dumps(answer), flush=True)


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--device", help="RDMA device; the first one if left out")
    client = Client(Device(parser.parse_args().device))
    _say({"rdma_peer": client.peer})
    for line in sys.stdin:
        words = line.split()
        if not words:
            continue
        try:
            if words[0] == "connect":
                client.connect(json.loads(line.split(None, 1)[1]))
                _say({"connected": True})
            elif words[0] == "fresh":
                client.fresh()
                _say({"rdma_peer": client.peer})
            else:
                _say(_answer(client, words))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            _say({"error": f"{words[0]}: {error!r}"})


if __name__ == "__main__":
    main()
