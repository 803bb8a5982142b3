#!/usr/bin/python3
"""The kernel's NVMe target as configfs shows it: a full snapshot for comparison, and a subsystem that the test makes by
hand, independent of the node."""
import contextlib
import os
import pathlib

ROOT = pathlib.Path("/sys/kernel/config/nvmet")


def snapshot(secret=()):
    """Every object and attribute, by path below configfs's nvmet. `secret`: subsystems whose namespaces must not be
    listed now, because a release of them is in progress."""
    found = {}
    pending = [ROOT]
    while pending:
        place = pending.pop()
        for entry in sorted(os.scandir(place), key=lambda entry: entry.name):
            name = str(pathlib.Path(entry.path).relative_to(ROOT))
            if entry.is_symlink():
                found[name] = os.path.basename(os.readlink(entry.path))
            elif entry.is_dir():
                found[name] = ""
                if not (entry.name == "namespaces" and place.name in secret):
                    pending.append(pathlib.Path(entry.path))
            else:
                found[name] = _value(entry.path)
    return found


def _value(path):
    if path.endswith("/attr_serial"):  # The kernel makes a random one for each subsystem.
        return "?"
    try:
        return pathlib.Path(path).read_text(encoding="ascii").strip()
    except OSError:  # Write-only, or not readable in this state.
        return "?"


def difference(before, after):
    """Paths that were added, removed or changed; never values, which may be keys."""
    return [f"{'+' if path not in before else '-' if path not in after else '~'}{path}"
            for path in sorted(before.keys() | after.keys()) if before.get(path) != after.get(path)]


def below(tree, *parts):
    """The part of a snapshot whose paths contain any of `parts`."""
    return {path: value for path, value in tree.items() if any(part in path for part in parts)}


def subsystems():
    """NQNs of the existing subsystems."""
    return sorted(os.listdir(ROOT / "subsystems"))


def listed(nqn):
    """The number of ports that the subsystem is linked to."""
    return len(list(ROOT.glob(f"ports/*/subsystems/{nqn}")))


class Foreign:
    """A subsystem wired by hand on a port of its own, open to any host."""

    def __init__(self, backing, nqn="nqn.2014-08.org.example:foreign", address="10.77.0.1", service=4499, port=4499, trtype="tcp"):
        self.nqn, self.place, self.port = nqn, ROOT / "subsystems" / nqn, ROOT / "ports" / str(port)
        self.line = f"nvme connect -t {trtype} -a {address} -s {service} -n {nqn} --ctrl-loss-tmo=5 --reconnect-delay=2"
        self.place.mkdir()
        (self.place / "namespaces" / "1").mkdir()
        _write(self.place / "attr_allow_any_host", 1)
        _write(self.place / "namespaces/1/device_path", backing)
        _write(self.place / "namespaces/1/enable", 1)
        self.port.mkdir()
        for name, value in (("addr_trtype", trtype), ("addr_adrfam", "ipv4"), ("addr_traddr", address), ("addr_trsvcid", service)):
            _write(self.port / name, value)
        (self.port / "subsystems" / nqn).symlink_to(self.place)

    def remove(self):
        """Removes the objects, the last one first."""
        with contextlib.suppress(FileNotFoundError):
            (self.port / "subsystems" / self.nqn).unlink()
            self.port.rmdir()
            (self.place / "namespaces" / "1").rmdir()
            self.place.rmdir()


def _write(path, value):
    """Writes one attribute; configfs needs the whole value in one write."""
    with open(path, "w", encoding="ascii") as attribute:
        attribute.write(str(value))
