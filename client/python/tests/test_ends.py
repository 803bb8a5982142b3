"""Renewals, and the ends of leases."""

import sys
import threading

import pytest

import fabricbios
from waiting import Told, until


def ended(lease):
    """The error of a call after the end."""
    with pytest.raises(fabricbios.Error) as raised:
        lease.renew()
    return raised.value


def test_a_lease_renews_itself_and_keeps_its_bytes():
    with fabricbios.mem(bytes=4096, secs=20) as m:
        m[0:4] = b"kept"
        first = m.expires_at
        until(lambda: m.expires_at > first, "a renewal")
        assert m[0:4] == b"kept"


def test_the_end_of_the_term_calls_back_on_a_thread_of_its_own():
    m, told = fabricbios.mem(bytes=4096, secs=2, auto_renew=False), Told()
    m.on_end(told)
    assert told.wait() == ["expired"]
    assert told.threads[0] is not threading.main_thread()
    until(lambda: m.health.state == "lost", "the end by the clock of this machine")
    assert ended(m).error == "not_found"


def test_a_revocation_is_told_with_its_cause(node):
    with fabricbios.mem(bytes=4096) as m:
        told, late = Told(), Told()
        m.on_end(told)
        node.operator.revoke({"lease_id": m.lease_id})
        assert told.wait() == ["revoked"]
        m.on_end(late)
        assert late.wait() == ["revoked"]
        error = ended(m)
        assert (type(error), error.end_cause) == (fabricbios.NotFoundError, "revoked")


def test_a_lease_of_a_daemon_that_was_killed_ends_with_its_term(own_node):
    bob = own_node.tenant("bob")
    told = Told()
    with fabricbios.mem(bytes=4096, secs=4, node=bob.node, identity=bob.identity, patience_secs=0) as m:
        m.on_end(told)
        own_node.kill()
        with pytest.raises(fabricbios.UnreachableError):
            m.query()
        assert told.wait() == ["expired"]


def test_an_exception_of_a_callback_is_reported_and_hurts_nobody(monkeypatch):
    seen, there = [], threading.Event()

    def hook(it):
        seen.append(it)
        there.set()

    monkeypatch.setattr(sys, "unraisablehook", hook)

    def fails(_cause):
        raise RuntimeError("mine")

    with fabricbios.mem(bytes=4096) as m:
        m.on_end(fails)
    assert there.wait(60)
    assert (seen[0].exc_type, str(seen[0].exc_value), seen[0].object) == (RuntimeError, "mine", fails)


def test_a_renewal_that_comes_too_early_says_when():
    with fabricbios.mem(bytes=4096, secs=600) as m, pytest.raises(fabricbios.RefusedError) as raised:
        m.renew()
    assert raised.value.code == "RenewTooEarly"
    assert raised.value.renewable_at_unix_ms > 0
