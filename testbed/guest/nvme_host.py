#!/usr/bin/python3
"""The client's side of NVMe-oF as Debian's nvme-cli and kernel have it: connecting with the words of a lease or with
others, finding the device, seeing it go; and what both sides' kernels say of it."""
import json
import os
import pathlib
import shlex
import subprocess
import threading
import time

from checks import until

SUBSYSTEMS = pathlib.Path("/sys/class/nvme-subsystem")
CONTROLLERS = pathlib.Path("/sys/class/nvme")
LISTENING, ESTABLISHED = "0A", "01"


def controllers(nqn):
    """Names of this host's controllers of that subsystem."""
    return [place.name for place in CONTROLLERS.iterdir() if text_of(place / "subsysnqn") == nqn] if CONTROLLERS.is_dir() else []


def device(nqn):
    """The block device of the subsystem's namespace, or None."""
    for place in SUBSYSTEMS.glob("nvme-subsys*"):
        if text_of(place / "subsysnqn") != nqn:
            continue
        names = [entry.name for entry in place.glob("nvme*n*") if (pathlib.Path("/sys/block") / entry.name).is_dir()]
        # Without udev devtmpfs makes the node in /dev together with the device.
        if names and os.path.exists(f"/dev/{names[0]}"):
            return f"/dev/{names[0]}"
    return None


def text_of(path):
    """Contents of an attribute, or None where it is not, or not any more."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None


def connect(lease, secs=60):
    """Runs the lease's own line, as it is, and waits for the device."""
    binding = lease["binding"]["nvmeof"]
    line = subprocess.run(["sh", "-c", binding["connect"]], capture_output=True, text=True, timeout=secs, check=False)
    if line.returncode:
        raise RuntimeError(f"the connect line: exit {line.returncode}: {line.stderr.strip()}")
    return until(lambda: device(binding["subnqn"]), secs, "the namespace's device")


def disconnect(nqn):
    """Ends this host's connections to the subsystem."""
    subprocess.run(["nvme", "disconnect", "--nqn", nqn], capture_output=True, check=False, timeout=60)
    until(lambda: not controllers(nqn), 60, "no controller after nvme disconnect")


def gone(nqn, secs=60):
    """Waits until this host has neither a device nor a controller of the subsystem; in how many seconds."""
    start = time.monotonic()
    until(lambda: not controllers(nqn) and device(nqn) is None, secs, f"no device of {nqn}")
    return time.monotonic() - start


def changed(line, **words):
    """The options of a connect line with the values of some changed (`dhchap_secret="…"`), or without them
    (`hostid=None`)."""
    words = {name.replace("_", "-"): value for name, value in words.items()}
    options = {**options_of(line), **words}
    return {name: value for name, value in options.items() if value is not None}


def options_of(line):
    """Names and values of the options of a line such as `nvme connect --nqn X --traddr=Y`."""
    found, words = {}, iter(shlex.split(line)[2:])
    for word in words:
        name, _, value = word.removeprefix("--").partition("=")
        found[name] = value or next(words)
    return found


class KernelLog:
    """The messages of the kernel from now on."""

    def __init__(self):
        self.source = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self.source, 0, os.SEEK_END)

    def news(self):
        """Lines that have come since the last call."""
        lines = []
        while True:
            try:
                lines.append(os.read(self.source, 8192).decode(errors="replace").split(";", 1)[-1].split("\n")[0])
            except BlockingIOError:
                return lines
            except BrokenPipeError:  # Overwritten before it was read.
                continue

    def close(self):
        """Gives the descriptor back."""
        os.close(self.source)


def attempt(options, nqn):
    """Asks this host's kernel for one more connection, without the opinions of nvme-cli: errno (0: connected) and
    all that both kernels said. One that was made is taken away again."""
    log, before, refusal = KernelLog(), set(controllers(nqn)), None
    words = [f"{name.replace('-', '_')}={value}" for name, value in options.items()]
    try:
        with open("/dev/nvme-fabrics", "r+b", buffering=0) as fabrics:
            fabrics.write(",".join([*words, "duplicate_connect"]).encode())
    except OSError as error:
        refusal = error
    said = [line for line in log.news() if "nvme" in line]
    log.close()
    for new in set(controllers(nqn)) - before:
        subprocess.run(["nvme", "disconnect", "--device", new], capture_output=True, check=False, timeout=60)
    return (refusal.errno, " / ".join([refusal.strerror, *said])) if refusal else (0, " / ".join(said))


def gen_key(host_nqn=None):
    """Another secret, in the right form."""
    words = ["nvme", "gen-dhchap-key"] + (["--nqn", host_nqn] if host_nqn else [])
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def sockets(port, state=ESTABLISHED):
    """The number of TCP sockets with this local port and state, IPv4 and IPv6."""
    count = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in pathlib.Path(table).read_text(encoding="ascii").splitlines()[1:]:
            words = row.split()
            count += int(words[1].rsplit(":", 1)[1], 16) == port and words[3] == state
    return count


class Watch(threading.Thread):
    """Sees when this host's connection to a subsystem is lost: the controller's state is no longer `live`."""

    def __init__(self, nqn):
        super().__init__(daemon=True)
        self.states = [CONTROLLERS / name / "state" for name in controllers(nqn)]
        self.lost_at_ms = None
        self.start()

    def run(self):
        while all(text_of(state) == "live" for state in self.states):
            time.sleep(0.01)
        self.lost_at_ms = time.time() * 1000

    def report(self, secs=60):
        """Wall clock of the loss, milliseconds; None if there was none in time."""
        self.join(secs)
        return self.lost_at_ms


# Longer than any test.
ENDLESS_SECS = 600


class Fio:
    """A fio job in the background. `report` waits for its end and has its numbers. At most so many I/Os a second,
    each way: full speed would take one of the machine's CPUs from whatever else goes on in it."""

    def __init__(self, path, rw="randwrite", secs=ENDLESS_SECS, size="2M", verify=True, block="4k", rate=100, **more):
        self.path = path
        # fio leaves state files for verification in its working directory.
        options = {"name": "job", "filename": path, "rw": rw, "bs": block, "size": size, "direct": 1, "ioengine": "libaio",
                   "iodepth": 4, "output-format": "json", "exitall_on_error": 1, "verify_state_save": 0, **more}
        options.update({"time_based": 1, "runtime": secs} if secs else {})
        options.update({"rate_iops": rate} if rate else {})
        options.update({"verify": "crc32c", "verify_fatal": 1, "do_verify": 1, "verify_backlog": 64} if verify else {})
        words = ["fio", *(f"--{name}={value}" for name, value in options.items())]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.path = path

    def started(self, secs=30):
        """Waits until the device has been written to by somebody; gives the job back."""
        before = self.done()
        until(lambda: self.done() > before or self.process.poll() is not None, secs, f"I/O on {self.path}")
        return self

    def done(self):
        """Writes that the device has done, whosever."""
        words = (text_of(pathlib.Path("/sys/block") / os.path.basename(self.path) / "stat") or "").split()
        return int(words[4]) if len(words) > 4 else 0

    def running(self):
        """Whether it still does."""
        return self.process.poll() is None

    def stop(self):
        """Ends it in good order and gives the report."""
        if self.running():
            self.process.terminate()
        return self.report()

    def report(self, secs=90):
        """`errors` that fio met (0: none), how much it wrote and read, its exit status and complaints."""
        out, err = self.process.communicate(timeout=secs)
        jobs = _json_of(out).get("jobs", [])
        total = lambda way: sum(job[way]["total_ios"] for job in jobs)
        return {"path": self.path, "status": self.process.returncode, "error": max((job["error"] for job in jobs), default=None),
                "secs": max((job["job_runtime"] for job in jobs), default=0) / 1000,
                "writes": total("write"), "reads": total("read"), "said": err.strip()[-300:]}


def failed(report):
    """Whether a job without an end of its own could not go on. Once, on a slow host, fio ended like that without having
    counted an error: the report is shown then, and the device must not be readable any more."""
    if report["error"] or report["status"]:
        return True
    print(f"   fio ended without an error: {report}", flush=True)
    return report["secs"] < ENDLESS_SECS / 2 and not readable(report["path"])


def readable(path):
    """Whether there is a device that gives its first block, not from a cache."""
    words = ["dd", f"if={path}", "of=/dev/null", "bs=4096", "count=1", "iflag=direct"]
    return subprocess.run(words, capture_output=True, check=False, timeout=60).returncode == 0


def _json_of(text):
    """fio writes lines before its JSON when something fails."""
    try:
        return json.loads(text[text.index("{"):])
    except ValueError:
        return {}


def verified(path, **more):
    """Writes and verifies once over; the report."""
    return Fio(path, secs=0, rate=None, **more).report()
