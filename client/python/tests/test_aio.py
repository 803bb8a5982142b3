"""The same with asyncio."""

import asyncio

import pytest

import fabricbios
from waiting import is_held, leased, stopped, until, until_freed


def test_transfers_of_several_leases_are_awaited(tenant):
    async def main():
        async with fabricbios.aio.mem(bytes=65536) as one, fabricbios.aio.block(bytes=1 << 20, transport="udp") as two:
            into = bytearray(5)
            await asyncio.gather(one.write(0, b"hello"), two.write_blocks(0, bytes(4096)))
            await one.read_into(0, into)
            assert into == await one.read(0, 5) == b"hello"
            assert len(one) == 65536
            assert (await one.query())["state"] == "active"
            blocks, block_bytes = await two.geometry()
            assert blocks * block_bytes == 1 << 20
            await two.flush()
            with pytest.raises(fabricbios.UsageError):
                await one.read(65536, 1)
            ended = asyncio.ensure_future(one.ended())
        assert await ended == "freed"

    asyncio.run(main())
    assert leased(tenant) == []


def test_a_cancelled_call_holds_its_buffer_until_it_has_ended(own_node):
    bob = own_node.tenant("bob")
    buffer = bytearray(4 << 20)

    async def main():
        async with fabricbios.aio.mem(bytes=len(buffer) + 1, secs=600, node=bob.node, identity=bob.identity) as m:
            with stopped(own_node):
                reading = asyncio.ensure_future(m.read_into(0, buffer))
                while not is_held(buffer):
                    await asyncio.sleep(0.01)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
                assert is_held(buffer)

    asyncio.run(main())
    until(lambda: not is_held(buffer), "the transfer has ended")
    until(lambda: leased(bob) == [], "the lease is freed")


def test_a_lease_whose_request_was_cancelled_is_freed(own_node):
    bob = own_node.tenant("bob")

    async def ask():
        async with fabricbios.aio.mem(bytes=4096, secs=600, node=bob.node, identity=bob.identity):
            raise AssertionError("it was cancelled before")

    async def main():
        with stopped(own_node):
            asking = asyncio.ensure_future(ask())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        await asyncio.to_thread(until_freed, bob)

    asyncio.run(main())


def test_a_lease_that_comes_after_the_end_of_the_loop_is_freed(own_node):
    bob = own_node.tenant("bob")

    async def ask():
        async with fabricbios.aio.mem(bytes=4096, secs=600, node=bob.node, identity=bob.identity):
            raise AssertionError("the node is stopped")

    async def main():
        await asyncio.wait_for(ask(), 0.1)

    with stopped(own_node), pytest.raises(TimeoutError):
        asyncio.run(main())
    until_freed(bob)
