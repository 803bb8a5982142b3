#!/usr/bin/python3
"""Block storage without a node: a shell script that makes a backing, a host with a key and a subsystem in configfs, and
connects. It does the steps of a lease without the guarantees of a lease."""
import os
import pathlib
import subprocess
import uuid

import nvmet_tree
from block import MIB, sh
from fabric import ADDRESS
from nvme_host import disconnect

PORT = 4498

WIRE = r"""
set -e
cd /sys/kernel/config/nvmet
key=$(nvme gen-dhchap-key --nqn "$HOST")
mkdir "hosts/$HOST"
echo "$key" > "hosts/$HOST/dhchap_key"
mkdir "subsystems/$NQN"
echo 0 > "subsystems/$NQN/attr_allow_any_host"
ln -s "$PWD/hosts/$HOST" "subsystems/$NQN/allowed_hosts/$HOST"
mkdir "subsystems/$NQN/namespaces/1"
echo "$BACKING" > "subsystems/$NQN/namespaces/1/device_path"
echo 1 > "subsystems/$NQN/namespaces/1/enable"
ln -s "$PWD/subsystems/$NQN" "ports/$PORT/subsystems/$NQN"
exec nvme connect -t "$TRTYPE" -a "$ADDRESS" -s "$PORT" -n "$NQN" -q "$HOST" -I "$ID" -S "$key" \
    --ctrl-loss-tmo=5 --reconnect-delay=2 --keep-alive-tmo=5
"""
# A file, or a part of a device. Without udev the script also makes the node of the part.
BACKINGS = {"directory": 'fallocate -l "$BYTES" "$BACKING"\n',
            "device": 'dmsetup create "$NAME" --table "0 $((BYTES / 512)) linear $POOL 0"\n'
                      'dmsetup mknodes "$NAME"\n'}


class Port:
    """A port for as long as the context lasts, because a node's port also exists before the lease."""

    def __init__(self, trtype="tcp", number=PORT):
        self.place, self.trtype, self.number = nvmet_tree.ROOT / "ports" / str(number), trtype, number

    def __enter__(self):
        self.place.mkdir()
        for name, value in (("addr_trtype", self.trtype), ("addr_adrfam", "ipv4"), ("addr_traddr", ADDRESS),
                            ("addr_trsvcid", self.number)):
            (self.place / name).write_text(str(value), encoding="ascii")
        return self

    def __exit__(self, *_):
        self.place.rmdir()


class Loan:
    """A backing of `kind` from `pool` (a directory, or a device that no other program uses now), and its connection."""

    def __init__(self, kind, pool, port, length=4 * MIB):
        number = str(uuid.uuid4())
        self.kind, self.port, self.name = kind, port, f"by-hand-{number}"
        self.nqn, self.host = f"nqn.2014-08.org.example:{self.name}", f"nqn.2014-08.org.nvmexpress:uuid:{number}"
        self.backing = f"/dev/mapper/{self.name}" if kind == "device" else os.path.join(pool, self.name)
        self.words = {"HOST": self.host, "ID": number, "NQN": self.nqn, "NAME": self.name, "BACKING": self.backing,
                      "BYTES": str(length), "POOL": pool, "PORT": str(port.number), "ADDRESS": ADDRESS,
                      "TRTYPE": port.trtype}

    def connect(self):
        """Runs the script; the device appears a little later."""
        done = subprocess.run(["sh", "-c", BACKINGS[self.kind] + WIRE], env={**os.environ, **self.words},
                              capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(f"by hand: exit {done.returncode}: {done.stderr.strip()}")

    def remove(self):
        """Undoes the script."""
        disconnect(self.nqn)
        place = nvmet_tree.ROOT / "subsystems" / self.nqn
        (self.port.place / "subsystems" / self.nqn).unlink()
        (place / "namespaces" / "1").rmdir()
        (place / "allowed_hosts" / self.host).unlink()
        place.rmdir()
        (nvmet_tree.ROOT / "hosts" / self.host).rmdir()
        if self.kind == "device":
            sh(f"dmsetup remove {self.name}")
        else:
            pathlib.Path(self.backing).unlink()
