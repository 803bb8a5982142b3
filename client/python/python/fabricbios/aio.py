"""The same leases for asyncio: what waits is awaited. Threads do the work.

    async with fabricbios.aio.mem(bytes=1 << 20) as m:
        await m.write(0, b"hello")

A call whose task is cancelled goes on in its thread, and holds its buffer until it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from . import _leases as sync

if TYPE_CHECKING:
    from typing_extensions import Buffer

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", bound=sync.Lease)
A = TypeVar("A")


def _thread(call: Callable[..., R], *arguments: Any, **options: Any) -> asyncio.Future[R]:
    """Begins a call on a thread of its own: the pool of asyncio is small, and the end of a loop waits for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()

    def tell(result: R | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = call(*arguments, **options)
        except BaseException as raised:  # the one who awaits gets it
            error = raised
        # Nobody awaits any more if the loop is closed.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=work, name="fabricbios aio", daemon=True).start()
    return done


class Lease(Generic[L]):
    """A lease of any kind; `sync` is the same lease with calls that wait."""

    def __init__(self, lease: L) -> None:
        self.sync = lease

    @property
    def lease_id(self) -> str:
        """The id, as `fabricctl` takes it."""
        return self.sync.lease_id

    @property
    def node_id(self) -> str | None:
        """The id of the node that granted the lease."""
        return self.sync.node_id

    @property
    def expires_at(self) -> int:
        """The end of the term in seconds of Unix time, by the clock of the node."""
        return self.sync.expires_at

    @property
    def remaining(self) -> float:
        """Seconds until access ends unless the lease is renewed."""
        return self.sync.remaining

    @property
    def health(self) -> sync.Health:
        """The state of the renewals."""
        return self.sync.health

    @property
    def info(self) -> dict[str, Any]:
        """The last answer of the node."""
        return self.sync.info

    @property
    def binding(self) -> dict[str, Any]:
        """The coordinates in the last answer."""
        return self.sync.binding

    async def query(self) -> dict[str, Any]:
        """Asks the node for the state of the lease."""
        return await _thread(self.sync.query)

    async def renew(self) -> None:
        """Begins another term."""
        await _thread(self.sync.renew)

    async def free(self) -> None:
        """Ends the lease."""
        await _thread(self.sync.free)

    async def ended(self) -> str:
        """Waits for the end of the lease; returns its cause, as `Lease.on_end` tells it."""
        cause, _error = await _thread(self.sync._native.end_watch().wait)
        return cause


class MemLease(Lease[sync.MemLease]):
    """Memory."""

    def __len__(self) -> int:
        return len(self.sync)

    @property
    def transport(self) -> str | None:
        """rdma or udp: that of the last transfer; None before the first."""
        return self.sync.transport

    async def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fills `buffer` with the bytes from `offset` on."""
        await _thread(self.sync.read_into, offset, buffer)

    async def write(self, offset: int, buffer: Buffer) -> None:
        """Writes all bytes of `buffer`."""
        await _thread(self.sync.write, offset, buffer)

    async def read(self, offset: int, length: int) -> bytes:
        """The `length` bytes from `offset` on."""
        return await _thread(self.sync.read, offset, length)


class BlockLease(Lease[sync.BlockLease]):
    """Block storage."""

    async def geometry(self) -> tuple[int, int]:
        """The number of blocks, and the bytes of one."""
        return await _thread(lambda: self.sync.geometry)

    async def read_blocks(self, first: int, buffer: Buffer) -> None:
        """Fills `buffer` with the blocks from `first` on."""
        await _thread(self.sync.read_blocks, first, buffer)

    async def write_blocks(self, first: int, buffer: Buffer) -> None:
        """Writes whole blocks."""
        await _thread(self.sync.write_blocks, first, buffer)

    async def flush(self) -> None:
        """Makes all earlier writes durable."""
        await _thread(self.sync.flush)


class CpuLease(Lease[sync.CpuLease]):
    """CPU cores of the node."""


class NetLease(Lease[sync.NetLease]):
    """A network function of the node."""


class GpuLease(Lease[sync.GpuLease]):
    """A GPU or part of one."""


class _Request(Generic[L]):
    """A request for a lease. The lease of a request that was given up is freed, on a thread: the loop may have ended."""

    def __init__(self, ask: Callable[[], L]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._lease: L | None = None
        self._is_given_up = False

    def run(self) -> L:
        """Waits for the lease."""
        lease = self._ask()
        with self._lock:
            self._lease = lease
            is_given_up = self._is_given_up
        if is_given_up:
            lease.free()
        return lease

    def give_up(self) -> None:
        """Nobody takes the lease."""
        with self._lock:
            self._is_given_up = True
            lease = self._lease
        if lease is not None:
            threading.Thread(target=lease.free, name="fabricbios aio", daemon=True).start()


def _context(ask: Callable[P, L], kind: Callable[[L], A]) -> Callable[P, contextlib.AbstractAsyncContextManager[A]]:
    """`ask` as an asynchronous context manager, which frees the lease at its end."""

    @contextlib.asynccontextmanager
    async def context(*arguments: P.args, **options: P.kwargs) -> AsyncIterator[A]:
        request = _Request(functools.partial(ask, *arguments, **options))
        try:
            lease = await _thread(request.run)
        except BaseException:
            request.give_up()
            raise
        error: BaseException | None = None
        try:
            yield kind(lease)
        except BaseException as raised:
            error = raised
            raise
        finally:
            # Shielded: the lease is freed although the task is cancelled.
            await asyncio.shield(_thread(lease.__exit__, type(error), error, None))

    context.__name__ = context.__qualname__ = ask.__name__
    context.__doc__ = ask.__doc__
    return context


mem = _context(sync.mem, MemLease)
block = _context(sync.block, BlockLease)
cpu = _context(sync.cpu, CpuLease)
net = _context(sync.net, NetLease)
gpu = _context(sync.gpu, GpuLease)
