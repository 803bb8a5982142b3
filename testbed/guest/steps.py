#!/usr/bin/python3
"""The daemon's steps after which suites kill it, from the lists in its source. A suite goes through every step of its
lists, or this program has the reason why not. Run alone, this program checks that; so does every suite that imports
it."""
import pathlib
import re
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
STUCK = "needs a process that cannot die, which the section `stuck` of suite_cpu.py has"
CONTAINER = "needs a container, which cannot end before the daemon is there again"


def listed(*sources):
    """The names in the lists STEPS of these source files, in their order."""
    names = []
    for source in sources:
        text = (REPOSITORY / source).read_text(encoding="utf-8")
        names += re.findall(r'"([^"]+)"', text.split("STEPS: &[&str] = &[", 1)[1].split("];", 1)[0])
    return tuple(names)


BLOCK = listed("host/pool/src/steps.rs", "premium/nvmet/src/steps.rs")
MACVLAN = listed("sriov/src/macvlan/steps.rs")


class Cpu:
    """CPU cores."""
    SOURCE = "host/cpu/src/steps.rs"
    # Steps of a start that finds no control group of an earlier start.
    START = ("make root", "enable controllers", "root exclusive", "make shared", "shared cpus")
    # Steps of an exclusive lease, and then of a share.
    GRANT = ("make lease", "limit lease", "cpus", "mems", "exclusive", "partition", "thaw")
    SHARE = ("quota",)
    ENTER = ("make caller", "limit caller", "enter")
    END = ("freeze", "kill", "dissolve", "remove lease")
    ALL = (*START, *GRANT, *SHARE, *ENTER, *END)
    LEFT_OUT = {"move aside": STUCK, "aside cpus": STUCK, "remove aside": STUCK}


class Gpu:
    """GPUs."""
    SOURCE = "gpu/src/steps.rs"
    START = ("make root", "enable controllers")
    GRANT = ("make record", "make lease", "limit lease", "device controller", "take containers", "write CDI spec", "open nodes", "thaw")
    SESSION = ("make worker cgroup", "start worker")
    ENTER = ("make caller", "limit caller", "enter")
    END = ("close worker", "remove CDI spec", "close nodes", "take no containers", "deny devices", "freeze", "kill", "kill worker",
           "scrub", "remove lease", "remove record")
    ALL = (*START, *GRANT, *SESSION, *ENTER, *END)
    LEFT_OUT = {"move aside": STUCK, "remove aside": STUCK, "end containers": CONTAINER,
                "end holders": "needs a process outside of the lease that has the device, which the section `keepers` has",
                "reset device": "needs a device that is not wiped, which the section `scrub` has"}


class Vf:
    """Virtual functions."""
    SOURCE = "sriov/src/vf/steps.rs"
    INTERFACE = ("claim function", "set address", "set VLAN", "set rate", "bind driver", "name interface",
                 "set interface up", "bus master off", "unbind driver", "reset function", "remove record")
    NAMESPACE = ("move to namespace",)
    # Steps of a start that finds this setting of the functions changed: the keyword of `ip link`, its changed value,
    # and the value that the node sets.
    SWITCHED = {"set spoof check": ("spoofchk", "off", "on"), "set trust": ("trust", "on", "off")}
    VFIO = ("take containers", "write CDI spec", "remove CDI spec", "take no containers", "end holders")
    ALL = (*INTERFACE, *SWITCHED, *NAMESPACE, *VFIO)
    LEFT_OUT = {"freeze": CONTAINER, "kill": CONTAINER, "end containers": CONTAINER}


def check():
    """Exits with the steps that are missing, double, or not in the code."""
    for kind in (Cpu, Gpu, Vf):
        code, ours = sorted(listed(kind.SOURCE)), sorted((*kind.ALL, *kind.LEFT_OUT))
        if code != ours:
            only = [f"{name!r} is in no group" for name in code if name not in ours] + [
                f"{name!r} is no step, or in two groups" for name in ours if name not in code or ours.count(name) > 1]
            sys.exit(f"steps.py: {kind.__name__} and {kind.SOURCE}: {'; '.join(dict.fromkeys(only))}")


check()
