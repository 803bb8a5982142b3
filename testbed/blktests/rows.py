#!/usr/bin/python3
"""Parses the output of blktests for a test, and the text of the test. Runs no program, so test_rows.py can check all of
it on any machine."""
import pathlib
import re

STATUS = re.compile(r"^(?P<test>nvme/\d+)(?: => \S+)?\s+(?:\((?:tr|bd)=[^)]*\)\s+)?(?P<about>.*?)\s*\[(?P<status>passed|failed|not run)\]")
WORDS = {"passed": "pass", "failed": "fail", "not run": "skip"}
FUNCTION = re.compile(r"^(?:function )?(\w+)\(\)\s*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
TOO_SMALL = re.compile(r"NVME_IMG_SIZE must be at least (\d+)m")
# The variable that gives blktests an external target; a function that asks for it leaves the target alone.
HOOK = "nvme_target_control"


def rows(output):
    """Rows from the output of `check`: test, subject, status, and the lines with the reason. A test has a row for each
    device."""
    found = []
    for line in output.splitlines():
        if match := STATUS.match(line):
            about = match["about"].removeprefix("(").removesuffix(")")
            found.append([match["test"], about, WORDS[match["status"]], []])
        elif found and line.startswith("    ") and found[-1][2] != "pass":
            found[-1][3].append(line.strip())
    return [(test, about, status, reason(status, said)) for test, about, status, said in found]


def reason(status, said):
    """The reason of a row: a skip has its own; for a failure, the unexpected or the missing output."""
    said = [line for line in said if not line.startswith("runtime")]
    if status == "fail":
        diff = [line for line in said if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        more = [line[1:] for line in diff if line[0] == "+"]
        said = more or [f"not printed: {line[1:]}" for line in diff] or said
    return "; ".join(list(dict.fromkeys(said))[:3])


def image_needed(why):
    """MiB of the image that a skipped test needs, or None."""
    match = TOO_SMALL.search(why)
    return int(match[1]) if match else None


def functions(text):
    """Bodies of the functions of a shell script, by name."""
    return dict(FUNCTION.findall(text))


def sources(checkout, test):
    """The functions that a test can call, and then its own, which replace functions of the same name."""
    place = pathlib.Path(checkout)
    own = functions((place / "tests" / test).read_text(encoding="utf-8"))
    paths = [*sorted((place / "common").iterdir()), place / "tests" / pathlib.Path(test).parent / "rc"]
    shared = [functions(path.read_text(encoding="utf-8")) for path in paths if path.is_file()]
    return own, {name: body for known in [*shared, own] for name, body in known.items()}


def wires(own, known):
    """The function by which a test itself makes or removes objects in configfs, although it was given a target; or
    None."""
    pending, seen = [name for name in own if not name.endswith("requires")], set()
    while pending:
        name = pending.pop(0)
        body = known[name]
        if name in seen or HOOK in body:
            continue
        seen.add(name)
        if "NVMET_CFS" in body and re.search(r"\b(mkdir|rmdir|ln -s)\b", body):
            return name
        pending += [word for word in dict.fromkeys(re.findall(r"\w+", body)) if word in known]
    return None


def about(checkout, test):
    """The test's own description."""
    text = (pathlib.Path(checkout) / "tests" / test).read_text(encoding="utf-8")
    match = re.search(r"^DESCRIPTION=(['\"])(.*)\1", text, re.MULTILINE)
    return match[2] if match else ""


def wants_device(own):
    """Whether the test needs devices of the operator."""
    return "test_device" in own or "test_device_array" in own
