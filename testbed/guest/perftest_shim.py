#!/usr/bin/python3
"""Lets a stock perftest client (ib_write_bw, ib_read_bw, ib_read_lat; Debian's 4.5) run against a lease.

A perftest client meets its server over TCP first: both send the same messages in the same order, the client
always before the server. One of them is a line of text with the sender's queue pair, PSN, key, address and
GID, the others are versions, sizes and reports. So this server sends back what it gets, except that line: it
asks for a lease with the client's queue pair and answers with the lease's coordinates. No perftest server
takes part, and none of ours does on the data path.

ib_write_lat is not served: there both sides write to each other, and a lease only answers.
"""
import argparse
import contextlib
import ipaddress
import re
import socket
import threading

from fabric import Fabric, Refused

PORT = 18515
# LID, outstanding reads, queue pair, PSN, key, address, GID; perftest pads the line with more fields or zeros.
KEYS = re.compile(rb"([0-9a-f]{4}):([0-9a-f]{4}):([0-9a-f]{6}):([0-9a-f]{6}):([0-9a-f]{8}):([0-9a-f]{16}):"
                  rb"((?:[0-9a-f]{2}:){16})")


class Shim:
    """Serves one client after the other, each with a lease of its own. As a context it listens in a thread."""

    def __init__(self, tenant, lease_bytes, secs=300, port=PORT):
        self.tenant, self.lease_bytes, self.secs = tenant, lease_bytes, secs
        self.listener = socket.create_server(("", port))
        self.refusals = []

    def serve_one(self):
        """One client from its connection to its end."""
        connection, _ = self.listener.accept()
        with connection:
            lease = answer = None
            try:
                while message := connection.recv(4096):
                    keys = KEYS.match(message)
                    if keys and not answer:
                        lease = self.tenant.alloc(self.lease_bytes, self.secs, peer_of(keys))
                        answer = line_of(lease["binding"]["rdma"], keys)
                    connection.sendall(answer + message[keys.end():] if keys else message)
            finally:
                if lease:
                    self.tenant.free(lease)

    def serve(self):
        """Serves until the listener is closed. If the lease of a client is refused, its connection ends."""
        while True:
            try:
                self.serve_one()
            except Refused as refusal:
                self.refusals.append(refusal)
                print(f"perftest_shim: {refusal}", flush=True)
            except ConnectionError:
                continue  # A perftest client may end with a reset instead of an orderly close.
            except OSError:
                return

    def __enter__(self):
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        # shutdown wakes the thread that waits in accept; close alone does not.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


def peer_of(keys):
    """The client's line as `--rdma-peer`."""
    gid = ipaddress.IPv6Address(bytes.fromhex(keys.group(7).decode().replace(":", "")))
    return f"qpn={int(keys.group(3), 16)},gid={gid},psn={int(keys.group(4), 16)}"


def line_of(rdma, keys):
    """The lease's coordinates as the line that a perftest server would have sent."""
    gid = "".join(f"{byte:02x}:" for byte in ipaddress.IPv6Address(rdma["gid"]).packed)
    reads = min(rdma["max_rd_atomic"], int(keys.group(2), 16)) or rdma["max_rd_atomic"]
    return (f"0000:{reads:04x}:{rdma['qp_num']:06x}:{rdma['psn']:06x}:{rdma['rkey']:08x}:"
            f"{rdma['remote_addr']:016x}:{gid}").encode()


def main():
    """The server as a program."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--node", required=True, help="ADDR:PORT of the node")
    parser.add_argument("--identity", required=True)
    parser.add_argument("--bytes", type=int, default=1 << 20, help="twice the client's message size at least")
    parser.add_argument("--secs", type=int, default=300)
    parser.add_argument("--port", type=int, default=PORT)
    asked = parser.parse_args()
    with Shim(Fabric(asked.identity, asked.node), asked.bytes, asked.secs, asked.port) as shim:
        print(f"waiting for perftest clients on port {asked.port}", flush=True)
        shim.thread.join()


if __name__ == "__main__":
    main()
