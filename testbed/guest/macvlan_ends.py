#!/usr/bin/python3
"""Sections of suite_net_macvlan.py about the end of leases: each end is on time and complete, whatever tenants,
neighbours and the daemon do."""
import itertools
import signal
import subprocess
import threading
import time

from checks import LATE_LIMIT_MS, STOPPED_LATE_MS, in_full_length, length, until
from fabric import Refused
from frames import Flood, Listener, Sender, ends_on_time
from macvlan import NETNS, PARENT, SOCKET, alloc, flow, hand_over, ip, is_as_before, links, namespaces, pings, state
from steps import MACVLAN

MAC = "02:00:00:00:00:42"
TERM_SECS = length(15, 8)
STORM_SECS = 5
BUSY_MS = 400  # Many times the 20 ms that the shaper keeps.
DIE_AFTER = "FABRICBIOS_DIE_AFTER"
# The start tries the kernel and passes most steps once or twice; so the third time is in a lease. An object that the
# start makes has a note from its second step on.
SOME_STEPS = [("make macvlan", 1), ("make veth pair", 1), *((step, 3) for step in MACVLAN)]


def ends(suite, node):
    """Expiry under traffic, and a namespace that is deleted first."""
    alice, start = node.tenant("alice"), state()
    with namespaces("a"):
        lease = alloc(alice, 100, "--hand-over", "netns", secs=6)
        hand_over(node.operator, lease, "a", "10.9.0.2")
        ping = subprocess.Popen(["ip", "netns", "exec", "a", "ping", "-i0.05", "10.9.0.1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        node.operator.wait_until(lease, "expired")
        is_as_before(suite, "expired under traffic", start)
        suite.check("and no way to the wire", not pings("a", "10.9.0.1"))
        ping.kill()
        ping.wait()
    with namespaces("a"):
        lease = alloc(alice, 100, "--hand-over", "netns")
        hand_over(node.operator, lease, "a", "10.9.0.2")
        ip("netns", "del", "a")
        alice.free(lease)
        is_as_before(suite, "the namespace was deleted first", start)


@in_full_length
def storm(suite, node):
    """A tenant keeps the kernel's lock of links busy at the deadline of another tenant, who floods the wire and asks to
    enter its lease once more: work that waits for the lock does not delay the cut."""
    alice, start = node.tenant("alice"), state()
    with namespaces("a", "storm"):
        # As many links as can be made in this time: on a fast machine their removal must take long too.
        numbers, begun = iter(range(100_000)), time.monotonic()
        while time.monotonic() < begun + STORM_SECS:
            many = "".join(f"link add d{it} type dummy\n" for it in itertools.islice(numbers, 500))
            subprocess.run(["ip", "-n", "storm", "-batch", "-"], input=many, text=True, check=True)
        lease = alloc(alice, 100, "--hand-over", "netns", "--mac", MAC, secs=TERM_SECS + 4)
        device = hand_over(node.operator, lease, "a", "10.9.0.2")
        deadline, waited, entered = lease["expires_at_unix_ms"] / 1e3, [], []

        def keep_busy():
            time.sleep(max(0, deadline - 0.3 - time.time()))
            ip("netns", "del", "storm")
            time.sleep(max(0, deadline - time.time()))
            ip("link", "show", PARENT)
            waited.append(1e3 * (time.time() - deadline))

        def enter():
            time.sleep(max(0, deadline - 0.5 - time.time()))
            while not entered or time.time() < deadline:
                node.operator.run("lease", "enter", lease["lease_id"], "--netns", NETNS / "a", "--local-socket", SOCKET)
                entered.append(1e3 * (time.time() - deadline))
        threads = [threading.Thread(target=it) for it in (keep_busy, enter)]
        for thread in threads:
            thread.start()
        with Listener(MAC, namespace="wire") as heard, Sender(NETNS / "a", device, MAC, 0.001, burst=20, size=1400):
            for thread in threads:
                thread.join()
            # A cut that waits for the lock would end when the lock is free.
            ends_on_time(suite, "under a storm", lease, heard, waited[0] / 2)
        print(f"   the lock was busy for {waited[0]:.0f} ms after the deadline, a caller waited for {entered[-1]:.0f} ms", flush=True)
        suite.check("the kernel's lock is busy at the deadline", waited[0] > BUSY_MS, f"more than {BUSY_MS} ms", waited[0])
        suite.equal("under a storm: the lease is expired", "expired", node.operator.wait_until(lease, "expired")["state"])
        suite.equal("under a storm: nothing is fenced", [], node.operator.fences())
        alice.free(alloc(alice, 100))
    is_as_before(suite, "after the storm", start)


def without_daemon(suite, node):
    """The watchdog ends access at the deadline, whether the daemon is dead or stopped, and ends no other lease; later
    the daemon reports the end, and leases the same address again."""
    alice, start = node.tenant("alice"), state()
    with namespaces("a", "b"):
        long = alloc(alice, 50, "--hand-over", "netns")
        hand_over(node.operator, long, "b", "10.9.0.3")
        # The short form of suite_net_vf has the dead one.
        for name, late_limit_ms in (*length((("a dead daemon", LATE_LIMIT_MS),), ()), ("a stopped daemon", STOPPED_LATE_MS)):
            short = alloc(alice, 100, "--hand-over", "netns", "--mac", MAC, secs=TERM_SECS)
            device = hand_over(node.operator, short, "a", "10.9.0.2")
            with flow("a", device, MAC) as heard:
                suite.check(f"{name}: frames flow", heard.flows())
                if name == "a dead daemon":
                    node.kill()
                else:
                    node.process.send_signal(signal.SIGSTOP)
                suite.check(f"{name}: they flow on", heard.flows())
                ends_on_time(suite, name, short, heard, late_limit_ms)
            suite.check(f"{name}: no way to the wire", not pings("a", "10.9.0.1"))
            suite.check(f"{name}: the other lease goes on", pings("b", "10.9.0.1"))
            if name == "a dead daemon":
                node.start()
            else:
                node.process.send_signal(signal.SIGCONT)
            suite.equal(f"{name}: later it tells the end", "expired", node.operator.wait_until(short, "expired")["state"])
            suite.equal(f"{name}: nothing is fenced", [], node.operator.fences())
            suite.check(f"{name}: the other lease still goes on", pings("b", "10.9.0.1"))
            works(suite, name, node)
        alice.free(long)
    is_as_before(suite, "without a daemon", start)


@in_full_length
def kept(suite, node):
    """SIGTERM with on-stop = keep leaves leases and their interfaces. The watchdog ends the leases on time, and the
    next daemon adopts them."""
    alice, start = node.tenant("alice"), state()
    with node.keeping(), namespaces("a", "b"):
        long = alloc(alice, 50, "--hand-over", "netns")
        hand_over(node.operator, long, "b", "10.9.0.3")
        short = alloc(alice, 100, "--hand-over", "netns", "--mac", MAC, secs=TERM_SECS)
        device = hand_over(node.operator, short, "a", "10.9.0.2")
        with flow("a", device, MAC) as heard:
            suite.check("kept: frames flow", heard.flows())
            suite.equal("kept: the daemon has stopped in order", 0, node.stop())
            suite.check("kept: they flow on", heard.flows())
            ends_on_time(suite, "kept", short, heard, LATE_LIMIT_MS)
        suite.check("kept: the other lease goes on", pings("b", "10.9.0.1"))
        node.start()
        suite.equal("kept: later it tells the end", "expired", node.operator.wait_until(short, "expired")["state"])
        suite.equal("kept: the other lease is adopted", "active", alice.query(long)["state"])
        suite.equal("kept: nothing is fenced", [], node.operator.fences())
        suite.check("kept: and still goes on", pings("b", "10.9.0.1"))
        alice.free(long)
    is_as_before(suite, "kept", start)


def works(suite, name, node):
    """Makes a new lease with an address that an earlier lease had, and uses it."""
    alice = node.tenant("alice")
    with namespaces("new"):
        lease = until(lambda: granted(alice), 60, "a new lease")
        device = hand_over(node.operator, lease, "new", "10.9.0.4")
        with flow("new", device, MAC) as heard:
            suite.check(f"{name}: a new lease with the same address sends", heard.flows())
        alice.free(lease)


def granted(tenant):
    """A lease of the address; None while the release of the previous lease goes on."""
    try:
        return alloc(tenant, 100, "--hand-over", "netns", "--mac", MAC)
    except Refused as refusal:
        if "another lease" not in refusal.message:
            raise
        return None


@in_full_length
def loud_neighbour(suite, node):
    """A tenant that floods the wire goes on, frame by frame, while the lease beside it is cut and cleaned."""
    alice, bob, start = node.tenant("alice"), node.tenant("bob"), state()
    with namespaces("a", "loud"):
        loud = alloc(bob, 500, "--hand-over", "netns")
        device = hand_over(node.operator, loud, "loud", "10.9.0.3")
        with Flood(NETNS / "loud", device, loud["binding"]["net"]["mac"], "wire") as flood:
            beside = links()
            lease = alloc(alice, 100, "--hand-over", "netns", "--mac", MAC, secs=TERM_SECS)
            with flow("a", hand_over(node.operator, lease, "a", "10.9.0.2"), MAC) as heard:
                suite.check("beside a flood: frames flow", heard.flows())
                ends_on_time(suite, "beside a flood", lease, heard)
            node.operator.wait_until(lease, "expired")
            until(lambda: links() == beside, 60, "the release")
            flood.is_whole(suite, "the flood", heard.last)
        bob.free(loud)
    is_as_before(suite, "after the flood", start)


@in_full_length
def dies(suite, node):
    """The daemon is killed after any of its own steps, while it tries the kernel at its start and in a lease. It leaves
    nothing that the next daemon does not adopt or remove."""
    alice, start = node.tenant("alice"), state()
    node.stop()
    for step, time in SOME_STEPS:
        name = f"{step}, time {time}"
        node.environment[DIE_AFTER] = f"{step}#{time}"
        with namespaces("a"):
            try:
                node.start()
                # Each turn passes every step at least once.
                for _ in range(time):
                    alice.free(alloc(alice, 100))
                    lease = alloc(alice, 100, "--hand-over", "netns")
                    hand_over(node.operator, lease, "a", "10.9.0.2")
                    alice.free(lease)
            except (Refused, RuntimeError):
                pass  # Of a daemon that has died.
            suite.equal(f"{name}: the daemon died there", -signal.SIGABRT, node.process.wait(60))
            node.environment.clear()
            node.start()
            alice.free_all()
            is_as_before(suite, name, start)
        works(suite, name, node)
        is_as_before(suite, f"{name}, after a new lease", start)
        node.stop()
    node.start()
