#!/usr/bin/python3
# lab: one-vm alone smp=4 full
# covers: node/src/kinds docs/host-preparation.md
"""A bare machine is prepared by the commands of docs/host-preparation.md alone, as far as a guest has what they name; then
`fabricbiosd check` finds nothing missing, and a node leases memory in huge pages, blocks over NVMe/TCP, a core and a
macvlan interface."""
import pathlib
import re

from block import loop_device, run, sh
from checks import Suite, programs, skip
from fabric import Node, program

PAGE = pathlib.Path(__file__).parents[2] / "docs/host-preparation.md"
ADDRESS = "192.0.2.10"
KINDS = ["--block-pool", "/srv/leases", "--nvmet", f"tcp:{ADDRESS}:4420", "--fbbu-listen", "none", "--cpus", "all",
         "--macvlan-parent", "eth0=1000", "--net-vlan", "blue=0", "--net-vlan", "admin=0"]
SECTIONS = ("Memory", "RDMA over Ethernet (RoCE v2)", "Block storage and NVMe-oF", "CPU cores and cgroups", "Macvlan interfaces")
# What a guest has not: a boot loader, packages to install, a second NUMA node, hardware to set, hardware threads.
NOT_HERE = re.compile(r"grub|^apt |node1/|^dcb |^ethtool |smt/control")


def commands(section):
    """The commands of the section's first block, for a guest with 128 MiB of huge pages in place of 64 GiB."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = text.split("```sh\n")[1].split("```")[0].splitlines()
    return [line.replace("32768", "64") for line in lines if not NOT_HERE.search(line)]


def settings():
    """Flags of the node, without its state directory and its address."""
    return ["--mem-bytes", "64MiB", "--rdma-device", "rxe0", *KINDS]


def check():
    """Exit status and output of `fabricbiosd check`."""
    done = run(program("fabricbiosd"), "check", "--state-dir", "/tmp/none", "--listen", f"{ADDRESS}:5701", *settings())
    return done.returncode, done.stdout


def prepared(suite):
    """The machine of the page's commands: one interface and one disk, with nothing on them."""
    # A guest of the test command has soft-RoCE already.
    sh("if rdma link show | grep -q rxe0; then rdma link delete rxe0; fi")
    sh("ip link add eth0 type veth peer name far && ip link set far up")
    sh(f"ln -sf {loop_device(256)} /dev/nvme1n1")
    status, said = check()
    suite.check("a bare machine lacks much", status == 1 and said.count("lacks:") + said.count("refused:") > 3, "more than 3 findings", said)
    for section in SECTIONS:
        for line in commands(section):
            done = run("sh", "-c", line)
            suite.equal(f"{section}: {line.split('#')[0].strip()}", 0, done.returncode)
        if section.startswith("RDMA"):
            sh("modprobe rdma_rxe && ip link set eth0 up && rdma link add rxe0 type rxe netdev eth0")
    status, said = check()
    suite.check("the prepared one lacks nothing", status == 0 and "lacks:" not in said, "exit 0", said)


def leases(suite):
    """A node on the prepared machine, and a lease of each kind."""
    with Node(*KINDS, device="rxe0", mem_bytes="64MiB", address=ADDRESS) as node:
        free = re.search(r"HugePages_Free:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text(encoding="utf-8"))[1]
        suite.equal("its memory is in half of the huge pages", "32", free)
        blue = node.tenant("blue")
        for words in (("mem", "--bytes", "1MiB", "--transport", "udp"), ("block", "--bytes", "4MiB", "--transport", "nvme-tcp"),
                      ("cpu", "--cores", "1"), ("net", "--mbps", "10")):
            lease = blue.ask("lease", "alloc", *words, "--secs", "60")
            suite.equal(f"a lease of {words[0]}", "active", lease["state"])
            blue.free(lease)


def main():
    """Prepares, then leases."""
    programs()
    if run("modprobe", "loop").returncode or pathlib.Path("/sys/class/net/eth0").exists():
        skip("the module loop, or a guest without eth0")
    with Suite("a machine prepared by its page") as suite:
        suite.section(prepared, suite)
        suite.section(leases, suite)


if __name__ == "__main__":
    main()
