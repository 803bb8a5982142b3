"""Blocks, over UDP."""

import pytest

import fabricbios


def test_blocks_are_written_flushed_and_read():
    with fabricbios.block(bytes=1 << 20, transport="udp") as b:
        blocks, block_bytes = b.geometry
        assert blocks * block_bytes == len(b) == 1 << 20
        wanted = bytes(range(256)) * (block_bytes // 256) * 2
        b.write_blocks(3, wanted)
        b.flush()
        into = bytearray(3 * block_bytes)
        b.read_blocks(2, into)
        assert into == bytes(block_bytes) + wanted


def test_what_is_no_whole_block_or_outside_is_refused_and_changes_nothing():
    with fabricbios.block(bytes=1 << 20, transport="udp") as b:
        blocks, block_bytes = b.geometry
        for first, length in ((0, block_bytes - 1), (blocks, block_bytes), (0, (blocks + 1) * block_bytes)):
            with pytest.raises(fabricbios.Error):
                b.write_blocks(first, b"x" * length)
        into = bytearray(b"y") * (1 << 20)
        b.read_blocks(0, into)
        assert not any(into)
        with pytest.raises(fabricbios.UsageError):
            b.write_blocks(-1, bytes(block_bytes))


def test_a_read_only_lease_takes_no_writes():
    with fabricbios.block(bytes=1 << 20, transport="udp", read_only=True) as b, pytest.raises(fabricbios.Error):
        b.write_blocks(0, bytes(b.geometry[1]))
