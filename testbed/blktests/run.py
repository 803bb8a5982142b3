#!/usr/bin/python3
"""Runs blktests' NVMe group against a node in this guest and prints a table: run.py CHECKOUT [TEST…]. The exit status is
0 when the group ran, whatever its tests found."""
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "guest"))

import block  # noqa: E402

STATUS = re.compile(r"^(?P<test>nvme/\d+)\s+(?P<about>.*?)\s*\[(?P<status>passed|failed|not run)\]")
WORDS = {"passed": "pass", "failed": "fail", "not run": "skip"}
IMAGE = "64m"


def rows(output):
    """Test, status and the first line that says why, of what `check` prints."""
    found = []
    for line in output.splitlines():
        if match := STATUS.match(line):
            found.append([match["test"], match["about"], WORDS[match["status"]], []])
        elif found and line.startswith("    ") and found[-1][2] != "pass":
            found[-1][3].append(line.strip())
    return [(test, about, status, _reason(status, said)) for test, about, status, said in found]


def _reason(status, said):
    """A skip says why; of a failure, what it printed beyond what was expected, or what it did not print."""
    if status == "fail":
        diff = [line for line in said if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        more = [line[1:] for line in diff if line[0] == "+"]
        said = more or [f"not printed: {line[1:]}" for line in diff] or said
    return "; ".join(list(dict.fromkeys(said))[:3]).replace("|", "/")


def run(checkout, tests, trtype, node):
    """One transport."""
    environment = {**os.environ, "NVME_TARGET_CONTROL": str(HERE / "nvme_target_control"), "BLKTESTS_TRTYPE": trtype,
                   "FABRICBIOS_NODE": node.address, "FABRICBIOS_IDENTITY": str(node.tenant("blktests").identity),
                   "NVME_IMG_SIZE": IMAGE, "NVME_NUM_ITER": "10", "TIMEOUT": "30", "USE_RXE": "1"}
    done = subprocess.run(["./check", *(tests or ["nvme"])], cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    found = rows(done.stdout)
    if not found:
        sys.exit(f"blktests ran nothing: {done.stdout[-800:]}{done.stderr[-800:]}")
    print(f"\n| test | over {trtype} | | why |\n|---|---|---|---|")
    for row in found:
        print("| " + " | ".join(row) + " |", flush=True)
    counts = {word: sum(row[2] == word for row in found) for word in WORDS.values()}
    print(f"\nover {trtype}: " + ", ".join(f"{count} {word}" for word, count in counts.items()), flush=True)


def kernel_config():
    """Where blktests looks for it. A kernel that was fetched before the lab kept it has none."""
    release = os.uname().release
    kept, wanted = pathlib.Path(f"/lib/modules/{release}/config"), pathlib.Path(f"/boot/config-{release}")
    if kept.exists() and not wanted.exists():
        wanted.parent.mkdir(exist_ok=True)
        wanted.symlink_to(kept)


def main():
    """Over TCP and over RDMA."""
    block.ready()
    kernel_config()
    checkout, tests = sys.argv[1], sys.argv[2:]
    with block.BlockNode(block.loop_device(512), ports=(block.TCP, block.RDMA), fbbu=False) as node:
        for trtype in ("tcp", "rdma"):
            run(checkout, tests, trtype, node)


if __name__ == "__main__":
    main()
