"""The programs in examples/ that use the package, as their first lines say; and the cache when its lease ends."""

import subprocess
import sys

import kv_cache
import pytest

from conftest import REPOSITORY
from waiting import leased, until


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        (
            "buffer",
            "read back: hello\nthe same numbers: True over udp\none byte past the end: Usage, as fabricctl's exit status 2\n"
            "the lease has ended: freed\n",
        ),
        ("kv_cache", "the first made room: True\nthe last is there: True\nnothing after the end: True evicted: 4\n"),
        ("many", "read back: memory 1\nread back: memory 2\nread back: blocks\n"),
    ],
)
def test_it_runs_and_leaves_nothing_leased(name, printed, tenant):
    command = [sys.executable, REPOSITORY / f"examples/{name}.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == printed
    assert leased(tenant) == []


def test_the_cache_loses_its_blocks_with_the_lease_and_leases_again(node):
    cache, into = kv_cache.KvCache(blocks=2, block_bytes=4096), bytearray(4096)
    cache.put("a", b"a" * 4096)
    assert cache.get_into("a", into)
    assert into == b"a" * 4096
    node.operator.revoke({"lease_id": cache._lease.lease_id})
    until(lambda: len(cache) == 0, "the eviction at the end of the lease")
    assert not cache.get_into("a", into)
    cache.put("b", b"b" * 4096)
    assert cache.get_into("b", into)
    assert into == b"b" * 4096
    cache.close()
