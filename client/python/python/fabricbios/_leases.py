"""Leases, and the functions that ask for them. The native module does the work; what is decided is decided in the SDK."""

from __future__ import annotations

import atexit
import builtins
import os
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, overload

from . import _native
from ._errors import Error, UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

N = TypeVar("N", int, int | None)

atexit.register(_native.close_at_exit)


class Health(NamedTuple):
    """The state of a lease's renewals, without a request."""

    state: str
    """good; retrying: the last renewal has failed and another one follows; lost: the lease has ended, or will with its term."""
    error: Error | None
    """Why, unless it is good."""


class Lease:
    """A lease of any kind. It renews itself until it is freed, at the latest when its `with` block ends. Threads may share it."""

    def __init__(self, native: _native.Lease) -> None:
        self._native = native

    @property
    def lease_id(self) -> str:
        """The id, as `fabricctl` takes it."""
        return self._native.lease_id

    @property
    def node(self) -> str:
        """The address of the node that granted the lease: of the one that a scheduler has named, where that was asked."""
        return self._native.node

    @property
    def node_id(self) -> str | None:
        """The id of the node that granted the lease. Another node that answers at its address later is refused."""
        return self._native.node_id

    @property
    def expires_at(self) -> int:
        """The end of the term in seconds of Unix time, by the clock of the node."""
        return self._native.expires_at

    @property
    def remaining(self) -> float:
        """Seconds until access ends unless the lease is renewed, independent of wall clocks."""
        return self._native.remaining

    @property
    def health(self) -> Health:
        """The state of the renewals."""
        return Health(*self._native.health())

    @property
    def info(self) -> dict[str, Any]:
        """The last answer of the node, with the names of `fabricctl --json lease query`. It has the keys of the lease."""
        return self._native.info()

    @property
    def binding(self) -> dict[str, Any]:
        """The coordinates in the last answer: what the holder finds on the node, and the keys."""
        return self.info["binding"]

    def query(self) -> dict[str, Any]:
        """Asks the node for the state of the lease; returns the new `info`."""
        self._native.query()
        return self.info

    def renew(self) -> None:
        """Begins another term; the node allows this in the last fifth of the current one."""
        self._native.renew()

    def free(self) -> None:
        """Ends the lease; when this returns, access has ended. Calls of other threads fail from now on."""
        self._native.free()

    def on_end(self, callback: Callable[[str], object]) -> None:
        """Calls `callback` once, on a thread of its own, when the lease gives no access any more.

        Its argument is the cause as `fabricctl` writes it, such as expired, freed or revoked, or unknown. An exception that
        it raises goes to sys.unraisablehook.
        """
        watch = self._native.end_watch()
        name = f"fabricbios end of {self.lease_id}"
        threading.Thread(target=_tell, args=(watch, callback), name=name, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # The lease belongs to the parent of a process that fork() has made.
        if self._native.is_forked():
            return
        try:
            self.free()
        except Error as failed:
            # A lease that has ended gives no access, which is what was wanted; an exception of the block is not replaced.
            if error is None and failed.error != "not_found" and self.remaining > 0:
                raise

    def __repr__(self) -> str:
        state = "of the parent process" if self._native.is_forked() else self.health.state
        return f"<{type(self).__name__} {self.lease_id}, {state}>"


def _tell(watch: _native.EndWatch, callback: Callable[[str], object]) -> None:
    cause, _error = watch.wait()
    try:
        callback(cause)
    except BaseException as error:  # whatever it is, nobody else sees it
        _native.report(error, callback)


class MemLease(Lease):
    """Memory. `lease[a:b]` reads and writes bytes like a bytearray; `read_into` and `write` do it without a copy."""

    def __len__(self) -> int:
        return self._native.capacity

    @property
    def transport(self) -> str | None:
        """rdma or udp: that of the last transfer; None before the first."""
        return self._native.transport

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fills `buffer` with the bytes from `offset` on. Any object with contiguous bytes that can be changed will do."""
        self._native.read_into(_number("offset", offset, 64), buffer)

    def write(self, offset: int, buffer: Buffer) -> None:
        """Writes all bytes of `buffer`; when this returns they are in the memory of the lease."""
        self._native.write(_number("offset", offset, 64), buffer)

    def read(self, offset: int, length: int) -> bytes:
        """The `length` bytes from `offset` on."""
        if offset < 0 or length < 0 or offset + length > len(self):
            message = f"{length} bytes at {offset} are not within the {len(self)} bytes of lease {self.lease_id}"
            raise UsageError(message, code="Usage", lease_id=self.lease_id)
        into = bytearray(length)
        self.read_into(offset, into)
        return bytes(into)

    @overload
    def __getitem__(self, where: int) -> int: ...
    @overload
    def __getitem__(self, where: slice) -> bytes: ...
    def __getitem__(self, where: int | slice) -> int | bytes:
        start, length = self._place(where)
        read = self.read(start, length)
        return read if isinstance(where, slice) else read[0]

    @overload
    def __setitem__(self, where: int, value: int) -> None: ...
    @overload
    def __setitem__(self, where: slice, value: Buffer) -> None: ...
    def __setitem__(self, where: int | slice, value: int | Buffer) -> None:
        start, length = self._place(where)
        given = memoryview(value if isinstance(where, slice) else builtins.bytes([value]))  # type: ignore[arg-type, list-item]
        if given.nbytes != length:
            message = f"{given.nbytes} bytes do not fit a slice of {length}: a lease does not change its size"
            raise UsageError(message, code="Usage", lease_id=self.lease_id)
        self.write(start, given)

    def _place(self, where: int | slice) -> tuple[int, int]:
        if isinstance(where, slice):
            start, stop, step = where.indices(len(self))
            if step != 1:
                raise UsageError("a slice of a lease is one piece: leave the step out", code="Usage", lease_id=self.lease_id)
            return start, max(stop - start, 0)
        index = where + len(self) if where < 0 else where
        if not 0 <= index < len(self):
            raise IndexError(f"byte {where} is not within the {len(self)} bytes of lease {self.lease_id}")
        return index, 1


class BlockLease(Lease):
    """Block storage, over UDP; `fabricctl block attach` makes it a device of the kernel."""

    @property
    def geometry(self) -> tuple[int, int]:
        """The number of blocks, and the bytes of one."""
        return self._native.geometry()

    def __len__(self) -> int:
        blocks, block_bytes = self.geometry
        return blocks * block_bytes

    def read_blocks(self, first: int, buffer: Buffer) -> None:
        """Fills `buffer`, which is whole blocks long, with the blocks from `first` on."""
        self._native.read_blocks(_number("first", first, 64), buffer)

    def write_blocks(self, first: int, buffer: Buffer) -> None:
        """Writes whole blocks; each is written completely or not at all. `flush` makes them durable."""
        self._native.write_blocks(_number("first", first, 64), buffer)

    def flush(self) -> None:
        """Makes all earlier writes durable: after this they survive a power cut of the node."""
        self._native.flush()


class CpuLease(Lease):
    """CPU cores of the node. `fabricctl run --lease ID` there starts a command on them; `binding["cpu"]` describes them."""


class NetLease(Lease):
    """A network function of the node; `binding["net"]` describes it."""


class GpuLease(Lease):
    """A GPU or part of one; `binding["gpu"]` describes it. `fabricctl gpu run --lease ID` runs kernels on it."""


def mem(
    bytes: int,
    *,
    secs: int = 60,
    node: str | None = None,
    node_id: str | None = None,
    identity: str | os.PathLike[str] | None = None,
    resource: str | None = None,
    affinity: Iterable[str] = (),
    grace_secs: int = 0,
    transport: str = "auto",
    rotate_on_renew: bool = False,
    intent_kv_cache: tuple[str, int] | None = None,
    data_transport: str | None = None,
    payload_mac: bool = False,
    give_up_secs: float | None = None,
    auto_renew: bool = True,
    patience_secs: float = 10.0,
) -> MemLease:
    """Leases memory. `intent_kv_cache`: hot, warm or cold, and the bytes of one block of the cache."""
    common = _common(node, node_id, identity, secs, resource, affinity, auto_renew, patience_secs)
    stored = _stored(bytes, grace_secs, transport, rotate_on_renew, data_transport, payload_mac, give_up_secs)
    if intent_kv_cache is not None:
        _number("the bytes of intent_kv_cache", intent_kv_cache[1], 32)
    return MemLease(_native.mem(common, stored, intent_kv_cache))


def block(
    bytes: int,
    *,
    secs: int = 60,
    node: str | None = None,
    node_id: str | None = None,
    identity: str | os.PathLike[str] | None = None,
    resource: str | None = None,
    affinity: Iterable[str] = (),
    grace_secs: int = 0,
    transport: str = "auto",
    rotate_on_renew: bool = False,
    read_only: bool = False,
    hostnqn: str | None = None,
    hostid: str | None = None,
    mutual_auth: bool = False,
    payload_mac: bool = False,
    give_up_secs: float | None = None,
    auto_renew: bool = True,
    patience_secs: float = 10.0,
) -> BlockLease:
    """Leases block storage."""
    common = _common(node, node_id, identity, secs, resource, affinity, auto_renew, patience_secs)
    stored = _stored(bytes, grace_secs, transport, rotate_on_renew, None, payload_mac, give_up_secs)
    return BlockLease(_native.block(common, stored, read_only, hostnqn, hostid, mutual_auth))


def cpu(
    cores: int,
    *,
    secs: int = 60,
    node: str | None = None,
    node_id: str | None = None,
    identity: str | os.PathLike[str] | None = None,
    resource: str | None = None,
    affinity: Iterable[str] = (),
    isolation: str | None = None,
    execution_mode: str | None = None,
    execution_width: int | None = None,
    partition: str | None = None,
    auto_renew: bool = True,
    patience_secs: float = 10.0,
) -> CpuLease:
    """Leases CPU cores."""
    common = _common(node, node_id, identity, secs, resource, affinity, auto_renew, patience_secs)
    cores, width = _number("cores", cores, 16), _number("execution_width", execution_width, 16)
    return CpuLease(_native.cpu(common, cores, isolation, execution_mode, width, partition))


def net(
    mbps: int,
    *,
    secs: int = 60,
    node: str | None = None,
    node_id: str | None = None,
    identity: str | os.PathLike[str] | None = None,
    resource: str | None = None,
    affinity: Iterable[str] = (),
    vlan: int | None = None,
    mac: str | None = None,
    hand_over: str | None = None,
    auto_renew: bool = True,
    patience_secs: float = 10.0,
) -> NetLease:
    """Leases a network function with a transmit rate, in megabits per second."""
    common = _common(node, node_id, identity, secs, resource, affinity, auto_renew, patience_secs)
    mbps, vlan = _number("mbps", mbps, 32), _number("vlan", vlan, 16)
    return NetLease(_native.net(common, mbps, vlan, mac, hand_over))


def gpu(
    vram: int,
    *,
    secs: int = 60,
    node: str | None = None,
    node_id: str | None = None,
    identity: str | os.PathLike[str] | None = None,
    resource: str | None = None,
    affinity: Iterable[str] = (),
    exclusivity: str | None = None,
    execution_mode: str | None = None,
    compute_slices: int | None = None,
    auto_renew: bool = True,
    patience_secs: float = 10.0,
) -> GpuLease:
    """Leases a GPU or part of one, with at least `vram` bytes of memory."""
    common = _common(node, node_id, identity, secs, resource, affinity, auto_renew, patience_secs)
    vram, slices = _number("vram", vram, 64), _number("compute_slices", compute_slices, 16)
    return GpuLease(_native.gpu(common, vram, exclusivity, execution_mode, slices))


def _common(
    node: str | None,
    node_id: str | None,
    identity: str | os.PathLike[str] | None,
    secs: int,
    resource: str | None,
    affinity: Iterable[str],
    auto_renew: bool,
    patience_secs: float,
) -> dict[str, object]:
    return {
        "node": node,
        "node_id": node_id,
        "identity": None if identity is None else os.fspath(identity),
        "secs": _number("secs", secs, 32),
        "resource": resource,
        "affinity": list(affinity),
        "auto_renew": auto_renew,
        "patience_secs": patience_secs,
    }


def _stored(
    bytes: int,
    grace_secs: int,
    transport: str,
    rotate_on_renew: bool,
    data_transport: str | None,
    payload_mac: bool,
    give_up_secs: float | None,
) -> dict[str, object]:
    return {
        "bytes": _number("bytes", bytes, 64),
        "grace_secs": _number("grace_secs", grace_secs, 32),
        "transport": transport,
        "rotate_on_renew": rotate_on_renew,
        "data_transport": data_transport,
        "payload_mac": payload_mac,
        "give_up_secs": give_up_secs,
    }


def _number(name: str, number: N, bits: int) -> N:
    """The number, if an unsigned integer of this many bits can be it."""
    if number is not None and not 0 <= number < 1 << bits:
        raise UsageError(f"{name} {number}: write a number from 0 to {(1 << bits) - 1}", code="Usage")
    return number
