"""Bytes of leased memory."""

import array
import ctypes

import pytest

import fabricbios

MIB = 1 << 20


@pytest.fixture
def m():
    """A lease of memory."""
    with fabricbios.mem(bytes=MIB) as lease:
        yield lease


def test_a_lease_is_read_and_written_like_a_bytearray(m):
    m[0:5] = b"hello"
    assert m[0:5] == b"hello"
    assert (len(m), m[1], m[-MIB + 1], m[2:2]) == (MIB, ord("e"), ord("e"), b"")
    m[-1] = 7
    assert m[MIB - 1] == 7
    assert m[MIB - 2 : MIB + 100] == b"\0\7"
    m[5:] = bytes(MIB - 5)
    assert m[:8] == b"hello\0\0\0"
    assert m.transport == "udp"


def test_a_slice_that_does_not_fit_changes_nothing(m):
    m[0:5] = b"hello"
    for where, given in ((slice(0, 5), b"four"), (slice(0, 5), b"sixsix"), (slice(0, 10, 2), b"fives"), (slice(MIB - 2, MIB + 3), b"hello")):
        with pytest.raises(fabricbios.UsageError):
            m[where] = given
    with pytest.raises(fabricbios.UsageError, match="step"):
        m[::-1]
    with pytest.raises(ValueError, match="range"):
        m[0] = 256
    with pytest.raises(IndexError, match=f"byte {MIB} is not within"):
        m[MIB]
    assert m[0:5] == b"hello"


def test_what_lies_outside_of_the_lease_is_refused_and_names_it(m):
    for call in (
        lambda: m.read(MIB - 1, 2),
        lambda: m.read(-1, 2),
        lambda: m.read(0, 1 << 62),
        lambda: m.read_into(MIB, bytearray(1)),
        lambda: m.write(MIB - 1, b"ab"),
        lambda: m.write(-1, b"a"),
        lambda: m.write((1 << 64) - 1, b"a"),
        lambda: m.write(1 << 64, b"a"),
    ):
        with pytest.raises(fabricbios.UsageError) as raised:
            call()
        assert (raised.value.code, raised.value.exit_status) == ("Usage", 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(4096),
        lambda: memoryview(bytearray(8192))[4096:],
        lambda: array.array("d", bytes(4096)),
        ctypes.c_uint32 * 1024,
        lambda: memoryview(bytearray(4096)).cast("B", (64, 64)),
    ],
    ids=["bytearray", "memoryview", "array", "ctypes", "two dimensions"],
)
def test_any_contiguous_buffer_is_filled_in_place(m, make):
    wanted = bytes(range(256)) * 16
    m.write(4096, wanted)
    buffer = make()
    m.read_into(4096, buffer)
    assert bytes(memoryview(buffer).cast("B") if memoryview(buffer).ndim == 1 else buffer) == wanted
    m.write(8192, buffer)
    assert m.read(8192, 4096) == wanted


def test_a_buffer_in_pieces_or_one_that_cannot_change_is_refused(m):
    with pytest.raises(fabricbios.UsageError, match="contiguous"):
        m.read_into(0, memoryview(bytearray(16))[::2])
    with pytest.raises(fabricbios.UsageError, match="read-only"):
        m.read_into(0, b"constant")
    with pytest.raises(fabricbios.UsageError, match="pointers"):
        m.read_into(0, (ctypes.py_object * 2)())
    with pytest.raises(TypeError):
        m.write(0, "text")
    m.read_into(MIB, bytearray())
    m.write(0, b"")


def test_what_the_lease_says_is_what_fabricctl_says(m, tenant):
    told = tenant.ask("lease", "query", m.lease_id)
    info = m.query()
    for changing in (told, info):
        changing.pop("remaining_ms")
    assert info == told
    assert m.binding["dp_key"] == told["binding"]["dp_key"]
    assert 0 < m.remaining <= 60
    assert m.expires_at == told["expires_at_unix_ms"] // 1000
    assert m.health == ("good", None)
    assert m.lease_id in repr(m)


def test_a_with_block_gives_the_lease_back_also_after_an_exception(tenant):
    with pytest.raises(KeyError), fabricbios.mem(bytes=4096) as m:
        raise KeyError
    assert tenant.query({"lease_id": m.lease_id})["state"] == m.info["state"] == "freed"
    assert m.remaining == 0
    with pytest.raises(fabricbios.NotFoundError) as raised:
        m.read(0, 1)
    assert (raised.value.code, raised.value.end_cause, raised.value.lease_id) == ("Ended", "freed", m.lease_id)


def test_all_that_can_be_asked_for_of_memory_reaches_the_node():
    wants = {"grace_secs": 3, "transport": "udp", "rotate_on_renew": True, "intent_kv_cache": ("hot", 65536)}
    with fabricbios.mem(bytes=4096, secs=33, affinity=["avoid:rack=r1"], payload_mac=True, data_transport="udp", **wants) as m:
        info = m.info
        assert info["intent"]["kv_cache"] == {"tier": "hot", "block_bytes": 65536}
        assert info["intent"]["affinities"] == [{"strength": "avoid", "category": "rack", "target": "r1"}]
        assert info["effective"] == {"transport": "udp", "rotate_on_renew": True}
        assert info["grace_ends_unix_ms"] - info["expires_at_unix_ms"] == 3000
        m[0:2] = b"ok"
        assert m[0:2] == b"ok"
