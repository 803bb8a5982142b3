#!/usr/bin/python3
# lab: one-vm timeout=900 disk=192M
# covers: rdma verbs arena fallback-udp nvmet pool node/src/kinds/memory node/src/kinds/block
"""A stopped daemon ends no lease over RDMA. Its watchdog ends them, each lease at its own deadline, and lets everything
else go on. If the watchdog lacks the rights, it kills the daemon, and the next start reports why. A daemon whose state
disk does not answer still ends on SIGTERM and SIGKILL, and a daemon whose program is on such a disk still cuts."""
import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import mem_peers
from block import MIB, BlockNode, alloc, directory_pool, ready, run, sh
from checks import Suite, give_back, in_full_length, lab_device, leased, length, skip, until
from fabric import Node, Refused, program, resources
from faults import held, thread_of
from rdma_client import ENDS, Client, now_ms
from writer import Writer

LEASE_BYTES = 65536
# Long enough for the work of a section before it stops the daemon; the short leases come last.
TERM_SECS = length(12, 12)
# The daemon has the first two seconds after a deadline, the watchdog the next two on an emulated processor.
WATCHDOG_MS, LATE_MS = 2000, 5000
DISK = "fabricbios-disk"
# process_madvise(2), and include/uapi/asm-generic/mman-common.h.
PROCESS_MADVISE, MADV_PAGEOUT = 440, 21
# After this many watchdogs that ended soon after their start, the next one is started 8 s later.
SOON_OVER = 4


def stopped(suite, device, strategy):
    """SIGSTOP of the daemon under the writers of three leases: two expire meanwhile, the third does not. The writer of the
    second has joined its lease beside another client."""
    empty = resources()
    with Node("--rdma-strategy", strategy) as node, contextlib.ExitStack() as stack:
        alice, bob = node.tenant("alice"), node.tenant("bob")
        first, second, witness = [stack.enter_context(Writer()) for _ in range(3)]
        if strategy == "region":
            # The same must hold for a watchdog that replaced another one.
            end_watchdog(node)
        going_on = bob.alloc(LEASE_BYTES, 600, witness.peer)
        suite.check(f"{strategy}: the witness writes", witness.start(going_on))
        other = stack.enter_context(Client(device))
        leases = [alice.alloc(LEASE_BYTES, TERM_SECS, first.peer), bob.alloc(LEASE_BYTES, TERM_SECS + 2, other.peer)]
        joined = bob.ask("lease", "bind", leases[1]["lease_id"], "--beside", "--rdma-peer", second.peer)
        leases[1] = mem_peers.of_the_last(joined)
        suite.equal(f"{strategy}: of its leases", {strategy}, {lease["binding"]["rdma"]["strategy"] for lease in (going_on, *leases)})
        for writer, lease in zip((first, second), leases):
            suite.check(f"{strategy}: a writer writes", writer.start(lease))
        node.process.send_signal(signal.SIGSTOP)
        stopped_at_ms = now_ms()
        for name, lease, writer in zip(("first", "second"), leases, (first, second)):
            ended_by_watchdog(suite, f"{strategy}, {name} lease", lease, writer.report())
            suite.equal(f"{strategy}, {name} lease: the daemon is as it was", "T", state_of(node.process.pid))
        node.process.send_signal(signal.SIGCONT)
        for name, tenant, lease in zip(("first", "second"), (alice, bob), leases):
            tenant.wait_until(lease, "expired")
            proof = node.wait_for_line(lease["lease_id"], "the watchdog had put its queue pairs in ERR", "destroy_qp")
            suite.check(f"{strategy}, {name} lease: the daemon proves its end, and who began it", proof, "a proof")
        suite.equal(f"{strategy}: nothing is fenced", [], node.operator.fences())
        with leased(alice, device) as (_, client):
            suite.equal(f"{strategy}: the next lease can be used", "success", client.write(0, b"next").status)
        before_ms = now_ms()
        bob.free(going_on)
        end = witness.report()
        print(f"   stopped for {(before_ms - stopped_at_ms) / 1000:.0f} s; the neighbour wrote {end['writes']} times", flush=True)
        suite.check(f"{strategy}: their neighbour wrote on until its lease was freed", end["failed_at_ms"] >= before_ms, before_ms, end)
        suite.equal(f"{strategy}: SIGTERM", 0, node.stop())
    suite.equal(f"{strategy}: nothing is left on the device", without_contexts(empty), without_contexts(resources()))


def ended_by_watchdog(suite, name, lease, report):
    """Checks that the lease ends two seconds after its deadline, and soon after that."""
    late_ms = report["failed_at_ms"] - lease["expires_at_unix_ms"]
    print(f"   {name}: {report['writes']} writes, last success {report['last_ok_at_ms'] - lease['expires_at_unix_ms']:+.0f} ms and "
          f"first failure {late_ms:+.0f} ms from the deadline, {report['status']}", flush=True)
    suite.check(f"{name}: access ends", report["status"] in ENDS, sorted(ENDS), report["status"])
    suite.check(f"{name}: 2 to 5 s after its deadline", WATCHDOG_MS <= late_ms < LATE_MS, f"{WATCHDOG_MS} to {LATE_MS} ms", late_ms)


def wedged(suite, device):
    """The daemon runs, but a debugger holds its driver thread: the watchdog stops the daemon only for the cut."""
    del device
    with Node() as node, Writer() as writer, Writer() as neighbour:
        alice = node.tenant("alice")
        other = alice.alloc(LEASE_BYTES, 600, neighbour.peer)
        neighbour.start(other)
        lease = alice.alloc(LEASE_BYTES, TERM_SECS, writer.peer)
        writer.start(lease)
        with held(thread_of(node.process.pid, "driver")):
            ended_by_watchdog(suite, "wedged", lease, writer.report())
            until(lambda: state_of(node.process.pid) == "S", 60, "the daemon to go on")
            suite.equal("wedged: the rest of the daemon answers", "unknown", alice.ask("ping")["health"])
        alice.wait_until(lease, "expired")
        proof = node.wait_for_line(lease["lease_id"], "the watchdog had put its queue pairs in ERR", "destroy_qp ok")
        suite.check("wedged: the daemon proves its end, and who began it", proof, "a proof")
        before_ms = now_ms()
        alice.free(other)
        suite.check("wedged: its neighbour wrote on", neighbour.report()["failed_at_ms"] >= before_ms, before_ms)
        suite.equal("wedged: nothing is fenced", [], node.operator.fences())


@in_full_length
def refused(suite, device):
    """A watchdog without the right to look into the daemon kills it, and the next start reports why."""
    del device
    with Node(within=("setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace")) as node:
        alice = node.tenant("alice")
        with Writer() as writer, Writer() as neighbour:
            other = alice.alloc(LEASE_BYTES, 600, neighbour.peer)
            neighbour.start(other)
            suite.check("may not: it is told at once", node.wait_for_line("should this daemon hang, its watchdog kills it"), "a warning")
            lease = alice.alloc(LEASE_BYTES, TERM_SECS, writer.peer)
            writer.start(lease)
            node.process.send_signal(signal.SIGSTOP)
            ended_by_watchdog(suite, "may not", lease, writer.report())
            suite.check("may not: its neighbours end with it", neighbour.report()["status"] in ENDS, sorted(ENDS))
        suite.equal("may not: the daemon is killed", -signal.SIGKILL, node.process.wait(60))
        node.start()
        said = node.wait_for_line("the run before was ended", "the watchdog killed the daemon", "pidfd_getfd", "CAP_SYS_PTRACE")
        suite.check("may not: the next start says why", said, "the reason")
        suite.equal("may not: the lease is over", "REVOKED", alice.query(lease)["status"])


@in_full_length
def frozen(suite, device):
    """The state disk does not answer: SIGTERM and SIGKILL still end the daemon at once, with its ports and its queue
    pairs. Only the process that writes the journal waits for the disk."""
    del device
    empty = resources()
    ready()
    with disk() as directory, BlockNode(directory_pool(), device="rxe0", fbbu=False, state_dir=directory / "state") as node:
        # First the device alone, under writes that the kernel holds; then with the file system on it.
        for told, how, within_secs, status in ((signal.SIGKILL, "--noflush --nolockfs", 5, -signal.SIGKILL), (signal.SIGTERM, "", 20, 1)):
            name = f"frozen disk, {told.name}"
            alice = node.tenant("alice")
            with Writer() as writer:
                lease = alice.alloc(LEASE_BYTES, 600, writer.peer)
                suite.check(f"{name}: a writer writes", writer.start(lease))
                scribe = child(node, "journal")
                its_own = ("socket:", "/dev/null", str(directory))
                others = [at for at in opened_by(scribe) if not at.startswith(its_own)]
                suite.equal(f"{name}: who writes the journal has nothing else open", [], others)
                over_nvmeof = alloc(alice, MIB)
                key = pathlib.Path(f"/sys/kernel/config/nvmet/hosts/{over_nvmeof['binding']['nvmeof']['hostnqn']}/dhchap_key")
                key_before = key.read_text()
                sh(f"dmsetup suspend {how} {DISK}")
                grants = [f"lease alloc {kind} --bytes 4KiB --secs 60" for kind in ("mem", "block --transport nvme-tcp")]
                asking = [subprocess.Popen([program("fabricctl"), "--node", alice.node, "--identity", alice.identity, *words.split()],
                                           stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for words in (*grants, f"lease rotate {over_nvmeof['lease_id']}")]
                until(lambda: state_of(scribe) == "D", 60, "a process that waits for the disk")
                until(lambda: key.read_text() != key_before, 60, "a new key, which is to be written down next")
                node.process.send_signal(told)
                suite.equal(f"{name}: the daemon is gone", status, node.process.wait(within_secs))
                suite.check(f"{name}: access ends with it", writer.report()["status"] in ENDS, sorted(ENDS))
                suite.equal(f"{name}: who writes the journal still waits", "D", state_of(scribe))
                for process in asking:
                    process.kill()
                    process.wait()
            # The resources of the writer are gone too.
            suite.equal(f"{name}: nothing is left on the device", without_contexts(empty), without_contexts(resources()))
            said = refused_start(node)
            suite.check(f"{name}: a start is refused, and says because of whom", f"process {scribe}," in said and "dmsetup resume" in said,
                        f"process {scribe}", said)
            sh(f"dmsetup resume {DISK}")
            node.start()
            suite.equal(f"{name}: the next start tells the end", "REVOKED", alice.query(lease)["status"])
            suite.equal(f"{name}: nothing is fenced", [], node.operator.fences())
            suite.check(f"{name}: blocks can be leased again", alice.free(alloc(alice, MIB)), "granted and freed")


@in_full_length
def program_disk(suite, device):
    """The disk with the program does not answer, and the system reclaims the memory of the program: leases still end on
    time."""
    del device
    ready()
    with disk() as directory:
        copy = shutil.copy2(program("fabricbiosd"), directory)
        # Only data that is on the disk can leave the memory.
        os.sync()
        with BlockNode(directory_pool(), device="rxe0", fbbu=False, within=("sh", "-c", 'shift; exec "$0" "$@"', copy)) as node, Writer() as writer:
            alice = node.tenant("alice")
            over_nvmeof = alloc(alice, MIB, secs=TERM_SECS)
            lease = alice.alloc(LEASE_BYTES, TERM_SECS, writer.peer)
            suite.check("program's disk: a writer writes", writer.start(lease))
            with contextlib.ExitStack() as suspended:
                suspended.callback(sh, f"dmsetup resume {DISK}")
                sh(f"dmsetup suspend --noflush --nolockfs {DISK}")
                page_out(node.process.pid, copy)
                suite.check("program's disk: access ends", writer.report()["status"] in ENDS, sorted(ENDS))
                for one in (over_nvmeof, lease):
                    alice.wait_until(one, "expired")
                proof = node.wait_for_line(lease["lease_id"], "destroy_qp ok")
                suite.check("program's disk: the daemon itself has cut", proof and "watchdog" not in proof, "no watchdog", proof)
                suite.equal("program's disk: nothing is fenced", [], node.operator.fences())


def page_out(pid, path):
    """Asks the kernel to page out this file from the memory of the process; the kernel refuses that for locked
    pages."""
    libc, pidfd = ctypes.CDLL(None, use_errno=True), os.pidfd_open(pid)
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
        if line.endswith(str(path)):
            start, end = (int(at, 16) for at in line.split()[0].split("-"))
            iovec = (ctypes.c_size_t * 2)(start, end - start)
            libc.syscall(PROCESS_MADVISE, pidfd, iovec, ctypes.c_size_t(1), MADV_PAGEOUT, 0)
    os.close(pidfd)


def refused_start(node):
    """The output of a daemon that does not become READY."""
    said = len(node.lines)
    try:
        node.start()
    except RuntimeError:
        for reader in node.readers:
            reader.join()
    return "\n".join(node.lines[said:])


def opened_by(pid):
    """The files that the process has open."""
    return [os.readlink(at) for at in pathlib.Path(f"/proc/{pid}/fd").iterdir()]


@in_full_length
def replaced(suite, device):
    """A watchdog that is stopped does not answer: another one replaces it. Until then no lease is granted over RDMA,
    and existing leases go on."""
    with Node() as node:
        alice = node.tenant("alice")
        with leased(alice, device) as (_, client):
            before = watchdog(node)
            suite.check("a watchdog's memory is locked", locked_bytes(before) > MIB, "its program and more")
            end_watchdog(node, signal.SIGSTOP)
            suite.check("a watchdog that is stopped is replaced", not os.path.exists(f"/proc/{before}"), "it is gone")
            for _ in range(SOON_OVER - 1):
                end_watchdog(node)
            os.kill(watchdog(node), signal.SIGKILL)
            until(lambda: not watchdog(node), 60, "the watchdog's end")
            suite.refused("without a watchdog: no lease over RDMA", lambda: alice.alloc(LEASE_BYTES, 60), None, "Unavailable", "watchdog")
            suite.equal("without a watchdog: a lease over UDP", "ACTIVE", alice.alloc(LEASE_BYTES, 60, None, 0, "--transport", "udp")["status"])
            suite.equal("without a watchdog: what runs goes on", "success", client.write(0, b"on").status)
            suite.check("all of this without a watchdog", not watchdog(node), "none")
            suite.check("it is started again", until(lambda: granted(alice), 60, "a watchdog and grants"), "grants")


def granted(tenant):
    """Whether a lease over RDMA is granted now."""
    try:
        give_back(tenant, tenant.alloc(LEASE_BYTES, 60, None, 0, "--transport", "rdma"))
        return True
    except Refused:
        return False


def watchdog(node):
    """The process id of the watchdog, or None."""
    return child(node, "watchdog")


def child(node, kind):
    """The process id of the daemon's child of that kind, or None."""
    found = run("pgrep", "--parent", node.process.pid, "--exact", f"fb-{kind}").stdout.split()
    return int(found[0]) if found else None


def end_watchdog(node, by=signal.SIGKILL):
    """Kills the watchdog; another one starts and receives all leases."""
    before = watchdog(node)
    os.kill(before, by)
    until(lambda: watchdog(node) not in (None, before), 60, "another watchdog")
    until(lambda: granted(node.tenant("alice")), 60, "grants")


def locked_bytes(pid):
    """The locked memory of the process in bytes."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmLck:"))) * 1024


def state_of(pid):
    """The state of a process, as in proc_pid_stat(5)."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(") ", 1)[1][0]


@contextlib.contextmanager
def disk():
    """Makes a file system on a device that can be suspended."""
    sectors = int(sh("blockdev --getsz /dev/vda"))
    sh(f"echo 0 {sectors} linear /dev/vda 0 | dmsetup create {DISK} && dmsetup mknodes")
    directory = tempfile.mkdtemp(prefix="disk-")
    sh(f"mkfs.ext4 -q /dev/mapper/{DISK} && mount /dev/mapper/{DISK} {directory}")
    try:
        yield pathlib.Path(directory)
    finally:
        sh(f"dmsetup resume {DISK}; umount {directory} && dmsetup remove {DISK}")


def without_contexts(counts):
    """The counted resources of the kernel, except opened devices."""
    return {kind: count for kind, count in counts.items() if kind != "ctx"}


def main():
    """Each section on a node of its own."""
    device = lab_device()
    for module in ("dm-mod", "ext4"):
        if run("modprobe", module).returncode:
            skip(f"kernel module {module}")
    with Suite("mem of a stopped daemon") as suite:
        for section in (windows, regions, wedged, refused, frozen, program_disk, replaced):
            suite.section(section, suite, device)


@in_full_length
def windows(suite, device):
    """The sections with leases as windows."""
    stopped(suite, device, "window")


def regions(suite, device):
    """The sections with leases as regions."""
    stopped(suite, device, "region")


if __name__ == "__main__":
    main()
