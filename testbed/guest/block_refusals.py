#!/usr/bin/python3
"""Connections that the kernel must refuse: the name or the key of the lease is missing."""
import contextlib
import pathlib
import uuid

from nvme_host import attempt, changed, controllers, gen_key


# Messages of both kernels about a refusal by the target: of a host, of a subsystem, of a key, and of a missing key. A
# host that does not even connect logs none of them.
REFUSALS = (" not allowed", "connect request for invalid subsystem", "host response mismatch", "qid 0: no key")
PATIENCE = pathlib.Path("/sys/module/nvme_core/parameters/admin_timeout")


@contextlib.contextmanager
def patience(secs):
    """Sets how long this host waits for an answer. With a wrong key the target may close its end of the connection
    before its answer (Linux 6.12, nvmet_execute_auth_receive), and the host would then wait for a minute."""
    before = PATIENCE.read_text(encoding="ascii")
    PATIENCE.write_text(str(secs), encoding="ascii")
    try:
        yield
    finally:
        PATIENCE.write_text(before, encoding="ascii")


def host(number=None):
    """A host NQN and the host id that goes with it."""
    name = number or str(uuid.uuid4())
    return {"hostnqn": f"nqn.2014-08.org.nvmexpress:uuid:{name}", "hostid": name}


def identity_of(lease):
    """Host NQN, host id and key of another lease."""
    binding = lease["binding"]["nvmeof"]
    return {"hostnqn": binding["hostnqn"], "hostid": binding["hostid"], "dhchap_secret": binding["dhchap_secret"]}


def strangers(suite, name, lease, other, wrong_key=True):
    """Tries connections without the right host, key or both. `other` is a lease of another tenant."""
    binding = lease["binding"]["nvmeof"]
    line, own = binding["connect"], binding["hostnqn"]
    wrong = {"another host with the right key": changed(line, **host()),
             "the right host with another key": changed(line, dhchap_secret=gen_key(own)),
             "the right host without a key": changed(line, dhchap_secret=None),
             "another host without a key": changed(line, dhchap_secret=None, **host()),
             "another tenant's host with its key": changed(line, **identity_of(other)),
             "another tenant's host with this key": changed(line, **{**identity_of(other), "dhchap_secret": binding["dhchap_secret"]})}
    if not wrong_key:
        del wrong["the right host with another key"]
    for what, words in wrong.items():
        refused(suite, f"{name}: {what}", words, binding["subnqn"])


def refused(suite, name, options, nqn):
    """Checks that this connection is refused and leaves no controller on this host."""
    before = set(controllers(nqn))
    with patience(5):
        error, said = attempt(options, nqn)
    print(f"   {name}: {said[:300]}", flush=True)
    added = set(controllers(nqn)) - before
    refusal = error and any(words in said for words in REFUSALS)
    suite.check(f"{name} is refused", refusal and not added, f"one of {REFUSALS} and no controller", f"errno {error}, {said}, controllers {added}")
