#!/usr/bin/python3
# lab: one-vm timeout=900
# covers: node/src/journal
"""The disk of the state loses power behind any write. dm-log-writes records what reaches the disk, with a mark behind each
answer. Then the disk is made again up to marks, and to moments between them, without what was not flushed or with a part of
it by sectors; on each a node starts, and knows every lease that a client was told of."""
import contextlib
import os
import pathlib
import random
import shutil
import signal
import struct
import tempfile

from block import MIB, run, sh
from checks import Suite, lab_device, length, skip, until
from fabric import Node, Refused

TARGET = "fabricbios-writes"
MAGIC = 0x6A736677736872
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
SECTOR = 512
GRANTS = length(24, 6)
MOMENTS = length(40, 3)
NO_RDMA = "none"


def entries(log):
    """The writes and marks of the log, as (sector, flags, data)."""
    with open(log, "rb") as file:
        magic, version, count, block = struct.unpack("<QQQI", file.read(28))
        if (magic, version) != (MAGIC, 1):
            raise ValueError(f"{log}: no log of dm-log-writes")
        file.seek(block)
        for _ in range(count):
            head = file.read(block)
            sector, sectors, flags, size = struct.unpack("<QQQQ", head[:32])
            if flags & MARK:
                yield sector, flags, head[32:32 + size].rstrip(b"\0").decode()
            elif flags & DISCARD:
                yield sector, flags, bytes(sectors * SECTOR)
            else:
                yield sector, flags, file.read(sectors * SECTOR)
                file.seek(-sectors * SECTOR % block, os.SEEK_CUR)


def disk_at(image, base, log, until_, chance):
    """Makes the disk as a power cut behind the first `until_` entries leaves it: of what was not flushed each sector is
    there with this chance."""
    shutil.copyfile(base, image)
    done = list(entries(log))[:until_]
    safe = max((at for at, (_, flags, _) in enumerate(done) if flags & FLUSH), default=0)
    with open(image, "r+b") as file:
        for at, (sector, flags, data) in enumerate(done):
            if flags & MARK:
                continue
            if at < safe or flags & FUA:
                file.seek(sector * SECTOR)
                file.write(data)
                continue
            for offset in range(0, len(data), SECTOR):
                if random.random() < chance:
                    file.seek(sector * SECTOR + offset)
                    file.write(data[offset:offset + SECTOR])


@contextlib.contextmanager
def mounted(device):
    """The directory of a file system."""
    with tempfile.TemporaryDirectory(prefix="cut-") as directory:
        sh(f"mount {device} {directory}")
        try:
            yield pathlib.Path(directory)
        finally:
            # The journal's process may still close its files.
            until(lambda: not run("umount", directory).returncode, 60, "the end of the journal's process")


@contextlib.contextmanager
def recorded(image, log):
    """A device whose writes to the image are recorded."""
    below, of_log = (sh(f"losetup --find --show {it}") for it in (image, log))
    sectors = sh(f"blockdev --getsz {below}")
    sh(f"echo 0 {sectors} log-writes {below} {of_log} | dmsetup create {TARGET} && dmsetup mknodes")
    try:
        yield f"/dev/mapper/{TARGET}"
    finally:
        sh(f"dmsetup remove {TARGET}; losetup -d {below}; losetup -d {of_log}")


def scribe(node):
    """The process that writes the journal."""
    found = sh(f"pgrep --parent {node.process.pid} fb-journal").split()
    return int(found[0])


def granted(node):
    """A grant, as soon as the journal can be written."""
    def attempt():
        try:
            return node.operator.alloc(4096, 600)
        except Refused:
            return None
    return until(attempt, 60, "a grant")


def life(directory):
    """A node grants and frees; its journal's process is killed meanwhile, and the daemon. Returns the leases in the order of
    the marks."""
    leases = []
    with Node(device=NO_RDMA, state_dir=directory / "state") as node:
        for number in range(GRANTS):
            leases.append(granted(node))
            sh(f"dmsetup message {TARGET} 0 mark told-{number}")
            if number % 3 == 2:
                node.operator.free(leases[number])
            if number == GRANTS // 3:
                os.kill(scribe(node), signal.SIGKILL)
            if number == GRANTS * 2 // 3:
                node.kill()
                node.start()
        node.kill()
        sh(f"dmsetup message {TARGET} 0 mark end")
        # Its directory stays.
        node.state_dir = directory / "none"
    return leases


def knows(suite, name, image, leases):
    """Starts a node on this disk and asks for these leases."""
    device = sh(f"losetup --find --show {image}")
    try:
        with mounted(device) as directory, Node(device=NO_RDMA, state_dir=directory / "state") as node:
            unknown = []
            for lease in leases:
                try:
                    node.operator.query(lease)
                except Refused as refused:
                    unknown.append(str(refused))
            suite.equal(f"{name}: every lease that was told is known", [], unknown)
            node.kill()
    finally:
        sh(f"losetup -d {device}")


def cuts(suite):
    """One life, and power cuts behind it."""
    with tempfile.TemporaryDirectory(prefix="writes-", dir="/dev/shm") as place:
        image, base, log = (pathlib.Path(place) / name for name in ("image", "base", "log"))
        for path, mebibytes in ((image, 48), (log, 512)):
            with open(path, "wb") as file:
                file.truncate(mebibytes * MIB)
        sh(f"mkfs.ext4 -q -F {image}")
        shutil.copyfile(image, base)
        with recorded(image, log) as device, mounted(device) as directory:
            leases = life(directory)
        told = [at for at, (_, flags, text) in enumerate(entries(log)) if flags & MARK and text.startswith("told-")]
        suite.equal("a mark for each grant", len(leases), len(told))
        end = next(at for at, (_, flags, text) in enumerate(entries(log)) if flags & MARK and text == "end")
        chosen = [(at, 0) for at in told[::3]] + [(random.randrange(told[0], end), random.random()) for _ in range(MOMENTS)]
        for moment, chance in [*chosen, (end, 0)]:
            disk_at(image, base, log, moment + 1, chance)
            so_far = leases[:sum(at <= moment for at in told)]
            knows(suite, f"cut behind write {moment} of {end}, {len(so_far)} told, {chance:.2f} of the rest", image, so_far)


def main():
    """One section."""
    lab_device()
    for module in ("dm-log-writes", "ext4", "loop"):
        if run("modprobe", module).returncode:
            skip(f"kernel module {module}")
    seed = random.randrange(1 << 32)
    print(f"   seed {seed}", flush=True)
    random.seed(seed)
    with Suite("journal cut") as suite:
        suite.section(cuts, suite)


if __name__ == "__main__":
    main()
