"""Exceptions: the same class, code and exit status as `fabricctl`."""

import inspect

import pytest

import fabricbios
from fabric import Refused
from waiting import leased


def both(tenant, words, call):
    """The exception, which is about the same as the failure of `fabricctl`."""
    with pytest.raises(Refused) as of_cli:
        tenant.ask(*words)
    with pytest.raises(fabricbios.Error) as raised:
        call()
    it, cli = raised.value, of_cli.value
    assert (it.error, it.code, it.exit_status, it.reason_class) == (cli.error, cli.code, cli.status, cli.reason_class)
    assert type(it) is not fabricbios.Error
    return it


def test_refusals_of_every_kind_are_those_of_fabricctl(tenant):
    def alloc(*words):
        return ("lease", "alloc", *words, "--secs", 60)

    once = {"patience_secs": 0}
    both(tenant, alloc("mem", "--bytes", "4GiB"), lambda: fabricbios.mem(bytes=4 << 30, **once))
    both(tenant, alloc("block", "--bytes", 4 << 50), lambda: fabricbios.block(bytes=4 << 50, **once))
    both(tenant, alloc("cpu", "--cores", 1), lambda: fabricbios.cpu(cores=1, isolation="whole_core", execution_width=1, **once))
    both(tenant, alloc("net", "--mbps", 100), lambda: fabricbios.net(mbps=100, vlan=7, hand_over="netns", **once))
    both(tenant, alloc("gpu", "--vram", "1GiB"), lambda: fabricbios.gpu(vram=1 << 30, exclusivity="device_exclusive", **once))


def test_a_node_that_is_not_there_is_unreachable(tenant):
    def call():
        fabricbios.mem(bytes=4096, node="127.0.0.1:9", patience_secs=0)

    error = both(tenant, ("--node", "127.0.0.1:9", "lease", "alloc", "mem", "--bytes", 4096, "--secs", 60), call)
    assert isinstance(error, fabricbios.UnreachableError)


def test_another_node_than_the_named_one_is_not_asked_for_a_lease(tenant, monkeypatch):
    node_id, wrong = tenant.ask("identity", "show")["node_id"], "07" * 32
    words = ("lease", "alloc", "mem", "--bytes", 4096, "--secs", 60)
    both(tenant, ("--node-id", wrong, *words), lambda: fabricbios.mem(bytes=4096, node_id=wrong))
    with fabricbios.mem(bytes=4096, node_id=node_id) as m:
        assert m.node_id == node_id
        assert m.node == tenant.node
    # The environment names the id of the node that it names.
    monkeypatch.setenv("FABRICBIOS_NODE_ID", wrong)
    error = both(tenant, words, lambda: fabricbios.mem(bytes=4096))
    assert error.code == "UntrustedNode" and wrong in str(error) and node_id in str(error)
    with fabricbios.mem(bytes=4096, node=tenant.node) as m:
        assert m.node_id == node_id
    for malformed in ("", "07"):
        monkeypatch.setenv("FABRICBIOS_NODE_ID", malformed)
        with pytest.raises(fabricbios.UsageError, match="FABRICBIOS_NODE_ID"):
            fabricbios.mem(bytes=4096)
    monkeypatch.delenv("FABRICBIOS_NODE_ID")
    assert leased(tenant) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"bytes": 0},
        {"bytes": -1},
        {"bytes": 1 << 64},
        {"secs": 0},
        {"secs": 1 << 32},
        {"grace_secs": -1},
        {"intent_kv_cache": ("hot", 1 << 32)},
        {"transport": "pigeon"},
        {"data_transport": "pigeon"},
        {"resource": "mem0"},
        {"affinity": ["near"]},
        {"intent_kv_cache": ("boiling", 1)},
        {"identity": "/nowhere"},
        {"patience_secs": -1},
        {"patience_secs": float("nan")},
        {"give_up_secs": float("inf")},
        {"node": ""},
        {"node_id": ""},
        {"node_id": "07"},
    ],
    ids=str,
)
def test_wrong_arguments_are_told_before_anything_is_leased(wrong, tenant):
    with pytest.raises(fabricbios.UsageError) as raised:
        fabricbios.mem(**{"bytes": 4096, **wrong})
    assert isinstance(raised.value, ValueError)
    assert raised.value.exit_status == 2
    assert leased(tenant) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: fabricbios.cpu(cores=-1),
        lambda: fabricbios.cpu(cores=1, execution_width=1 << 16),
        lambda: fabricbios.net(mbps=-1),
        lambda: fabricbios.net(mbps=1, vlan=70000),
        lambda: fabricbios.gpu(vram=-1),
        lambda: fabricbios.gpu(vram=1, compute_slices=-1),
    ],
)
def test_numbers_out_of_range_are_wrong_arguments_of_every_kind(call):
    with pytest.raises(fabricbios.UsageError, match="write a number from 0 to"):
        call()


def test_each_class_has_its_number():
    statuses = {it.error: it.exit_status for it in vars(fabricbios).values() if inspect.isclass(it) and issubclass(it, fabricbios.Error)}
    assert statuses == {"failed": 1, "usage": 2, "refused": 3, "not_found": 4, "fenced": 5, "unreachable": 6}
