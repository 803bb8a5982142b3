"""Objects freed during a transfer, signals, threads, fork, and the end of the interpreter."""

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref

import pytest

import fabricbios
from waiting import SECS, is_held, stopped, unread, until, until_freed, until_held

LENGTH = 4 << 20


def lease_of(node, **more):
    """A lease of a node of this test's own, which survives that the daemon is stopped for a while."""
    bob = node.tenant("bob")
    return fabricbios.mem(bytes=LENGTH, secs=600, node=bob.node, identity=bob.identity, **more)


class Bytes(bytearray):
    """A bytearray that can be referred to weakly."""


def test_a_buffer_that_everybody_has_forgotten_lives_until_its_transfer_has_ended(own_node):
    with lease_of(own_node) as m:
        m.write(0, b"x" * LENGTH)
        buffer = Bytes(LENGTH - 1)
        alive = weakref.ref(buffer)
        with stopped(own_node):
            reading = threading.Thread(target=m.read_into, args=(0, buffer))
            reading.start()
            until_held(buffer)
            with pytest.raises(BufferError):
                buffer.clear()
            del buffer
            gc.collect()
        reading.join(SECS)
        del reading
        until(lambda: gc.collect() >= 0 and alive() is None, "the buffer is freed")


def test_a_signal_ends_the_wait_and_not_the_hold_of_the_buffer(own_node):
    with lease_of(own_node) as m:
        m.write(0, b"x" * LENGTH)
        buffer = bytearray(LENGTH - 1)

        def interrupt():
            until_held(buffer)
            os.kill(os.getpid(), signal.SIGINT)

        with stopped(own_node):
            interrupting = threading.Thread(target=interrupt)
            interrupting.start()
            with pytest.raises(KeyboardInterrupt):
                m.read_into(0, buffer)
            interrupting.join(SECS)
            assert is_held(buffer)
        until(lambda: not is_held(buffer), "the transfer has ended")
        assert m.read(LENGTH - 1, 1) == b"x"


def test_a_lease_whose_request_a_signal_has_ended_is_freed(own_node):
    bob = own_node.tenant("bob")

    def interrupt():
        until(lambda: unread(own_node) > before, "the request")
        os.kill(os.getpid(), signal.SIGINT)

    with stopped(own_node):
        before = unread(own_node)
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            lease_of(own_node)
        interrupting.join(SECS)
    until_freed(bob)


def test_threads_share_a_lease_without_mixing_their_bytes():
    with fabricbios.mem(bytes=8 * 65536) as m:
        failures = []

        def work(number):
            mine = bytes([number]) * 65536
            for _ in range(10):
                m.write(number * 65536, mine)
                if m.read(number * 65536, 65536) != mine:
                    failures.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECS)
            assert not thread.is_alive()
        assert not failures


def test_a_lease_that_one_thread_frees_fails_in_the_others():
    m = fabricbios.mem(bytes=65536)
    begun, errors = threading.Event(), []

    def read():
        try:
            while True:
                m.read(0, 65536)
                begun.set()
        except fabricbios.Error as error:
            errors.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    assert begun.wait(SECS)
    m.free()
    reading.join(SECS)
    assert [(type(it), it.lease_id) for it in errors] == [(fabricbios.NotFoundError, m.lease_id)]


def program(text):
    """Runs a program of its own; its exit status and output."""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=SECS, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_child_of_fork_cannot_use_or_end_the_lease_of_its_parent():
    ended, printed, errors = program("""
import gc, os, sys, warnings
warnings.simplefilter("ignore")
import fabricbios
with fabricbios.mem(bytes=4096) as m:
    m[0:4] = b"mine"
    child = os.fork()
    if child == 0:
        getters = [lambda name=name: getattr(m, name) for name in ("node", "node_id", "expires_at", "remaining", "health", "info", "transport")]
        assert m.lease_id in repr(m)
        for call in (lambda: m[0:4], m.free, m.query, lambda: fabricbios.mem(bytes=4096), *getters, lambda: m.on_end(print)):
            try:
                call()
            except fabricbios.UsageError as error:
                assert "fork" in str(error), error
            else:
                os._exit(9)
        sys.exit(3)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), m[0:4], m.query()["state"])
""")
    assert (ended, printed, errors) == (0, "3 b'mine' active\n", "")


def test_a_child_of_fork_uses_the_package_if_its_parent_has_not():
    ended, printed, errors = program("""
import os
import fabricbios
child = os.fork()
if child == 0:
    with fabricbios.mem(bytes=4096) as m:
        m[0:4] = b"mine"
        print(m[0:4], flush=True)
else:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert (ended, printed, errors) == (0, "b'mine'\n0\n", "")


def test_the_interpreter_ends_while_threads_transfer_and_wait(own_node):
    bob = own_node.tenant("bob")
    text = f"""
import signal, sys, threading
sys.path.insert(0, {os.path.dirname(__file__)!r})
import fabricbios
from waiting import until_held
m = fabricbios.mem(bytes={LENGTH}, secs=600, node={bob.node!r}, identity={bob.identity!r})
m.on_end(print)
def read():
    while True:
        m.read_into(0, bytearray({LENGTH}))
for _ in range(2):
    threading.Thread(target=read, daemon=True).start()
m.write(0, bytes({LENGTH}))
"""
    for _ in range(5):
        assert program(text) == (0, "", "")
    interrupted = text + f"""
import os
buffer = bytearray({LENGTH - 1})
def interrupt():
    until_held(buffer)
    os.kill({own_node.process.pid}, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    while True:
        m.read_into(0, buffer)
except KeyboardInterrupt:
    print("interrupted")
"""
    try:
        assert program(interrupted) == (0, "interrupted\n", "")
    finally:
        os.kill(own_node.process.pid, signal.SIGCONT)
