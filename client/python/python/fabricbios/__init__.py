"""Leases of other machines' memory, block storage, CPU cores, network functions and GPUs.

    with fabricbios.mem(bytes=1 << 20) as m:
        m[0:5] = b"hello"

docs/python.md has the whole page. `fabricbios.aio` has the same for asyncio.
"""

from . import aio
from ._errors import Error, FailedError, FencedError, NotFoundError, RefusedError, UnreachableError, UsageError
from ._leases import BlockLease, CpuLease, GpuLease, Health, Lease, MemLease, NetLease, block, cpu, gpu, mem, net

__all__ = [
    "BlockLease",
    "CpuLease",
    "Error",
    "FailedError",
    "FencedError",
    "GpuLease",
    "Health",
    "Lease",
    "MemLease",
    "NetLease",
    "NotFoundError",
    "RefusedError",
    "UnreachableError",
    "UsageError",
    "aio",
    "block",
    "cpu",
    "gpu",
    "mem",
    "net",
]
