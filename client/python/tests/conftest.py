"""A node of this checkout, with memory and blocks over UDP, and a tenant of it."""

import os
import pathlib
import signal
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPOSITORY / "testbed/guest"), str(REPOSITORY / "examples")]

import fabric  # noqa: E402

# A shell starts programs in the background with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)


def start(folder, *more, number=1):
    """A node at an address of its own, so that the default ports are free."""
    pid = os.getpid()
    address = f"127.{1 + pid // 250 % 250}.{1 + pid % 250}.{number}"
    pool = folder / "pool"
    pool.mkdir()
    flags = ("--block-pool", pool, *more)
    # A daemon does not outlive tests that were killed.
    within = ("setpriv", "--pdeathsig", "KILL")
    options = {"address": address, "mem_bytes": "80MiB", "state_dir": folder / "state", "within": within}
    return fabric.Node(*map(str, flags), device="none", **options)


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    """The node of most tests."""
    with start(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def own_node(tmp_path):
    """A node that the test may stop and kill."""
    with start(tmp_path, number=2) as running:
        yield running


@pytest.fixture(autouse=True)
def tenant(node, monkeypatch):
    """A tenant of the node, whom the environment names."""
    alice = node.tenant("alice")
    monkeypatch.setenv("FABRICBIOS_NODE", alice.node)
    monkeypatch.setenv("FABRICBIOS_IDENTITY", alice.identity)
    return alice
