#!/usr/bin/python3
"""The client's side of NVMe-oF with Debian's nvme-cli and kernel: connecting with the options of a lease or with
changed ones, finding the device, noticing its loss, and the messages of both kernels."""
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
        # Without udev, devtmpfs makes the node in /dev together with the device.
        if names and os.path.exists(f"/dev/{names[0]}"):
            return f"/dev/{names[0]}"
    return None


def text_of(path):
    """Contents of an attribute, or None if it does not exist (any more)."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None


def connect(lease, secs=60):
    """Runs the lease's own connect line unchanged, and waits for the device."""
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
    """Waits until this host has neither a device nor a controller of the subsystem; returns the seconds that this
    took."""
    start = time.monotonic()
    until(lambda: not controllers(nqn) and device(nqn) is None, secs, f"no device of {nqn}")
    return time.monotonic() - start


def changed(line, **words):
    """The options of a connect line with some values changed (`dhchap_secret="…"`) or left out (`hostid=None`)."""
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
        """Closes the descriptor."""
        os.close(self.source)


def attempt(options, nqn):
    """Asks this host's kernel for one more connection, without the checks of nvme-cli; returns errno (0: connected) and
    the messages of both kernels. A connection that was made is removed again."""
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
    """Makes another secret in the right form."""
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
    """Notices when this host loses its connection to a subsystem: the controller's state is no longer `live`."""

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
        """Wall clock of the loss in milliseconds; None if there was none in time."""
        self.join(secs)
        return self.lost_at_ms


# Longer than any test.
ENDLESS_SECS = 600


class Fio:
    """A fio job in the background. `report` waits for its end and returns its numbers. The I/Os per second are limited,
    each way: at full speed fio would occupy one of the machine's CPUs."""

    def __init__(self, path, rw="randwrite", secs=ENDLESS_SECS, size="2M", verify=True, block="4k", rate=40, **more):
        self.path = path
        # fio leaves state files for verification in its working directory.
        options = {"name": "job", "filename": path, "rw": rw, "bs": block, "size": size, "direct": 1, "ioengine": "libaio",
                   "iodepth": 4, "output-format": "json", "exitall_on_error": 1, "verify_state_save": 0, **more}
        options.update({"time_based": 1, "runtime": secs} if secs else {})
        options.update({"rate_iops": rate} if rate else {})
        options.update({"verify": "crc32c", "verify_fatal": 1, "do_verify": 1, "verify_backlog": 16} if verify else {})
        words = ["fio", *(f"--{name}={value}" for name, value in options.items())]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.path = path

    def started(self, secs=60):
        """Waits until any program has written to the device; returns the job."""
        before = self.done()
        until(lambda: self.done() > before or self.process.poll() is not None, secs, f"I/O on {self.path}")
        return self

    def done(self):
        """Number of writes that the device has done, of all programs."""
        words = (text_of(pathlib.Path("/sys/block") / os.path.basename(self.path) / "stat") or "").split()
        return int(words[4]) if len(words) > 4 else 0

    def running(self):
        """Whether the job still runs."""
        return self.process.poll() is None

    def stop(self):
        """Ends the job in an orderly way and returns the report."""
        if self.running():
            self.process.terminate()
        return self.report()

    def report(self, secs=90):
        """The report: fio's error number (0: none), writes, reads, exit status and messages."""
        out, err = self.process.communicate(timeout=secs)
        jobs = _json_of(out).get("jobs", [])
        total = lambda way: sum(job[way]["total_ios"] for job in jobs)
        return {"path": self.path, "status": self.process.returncode, "error": max((job["error"] for job in jobs), default=None),
                "secs": max((job["job_runtime"] for job in jobs), default=0) / 1000,
                "writes": total("write"), "reads": total("read"), "said": err.strip()[-300:]}


def failed(report):
    """Whether a job without an end of its own could not go on. Once, on a slow host, fio ended like that without having
    counted an error: then the report is shown, and the device must not be readable any more."""
    if report["error"] or report["status"]:
        return True
    print(f"   fio ended without an error: {report}", flush=True)
    return report["secs"] < ENDLESS_SECS / 2 and not readable(report["path"])


def readable(path):
    """Whether there is a device whose first block can be read, not from a cache."""
    words = ["dd", f"if={path}", "of=/dev/null", "bs=4096", "count=1", "iflag=direct"]
    return subprocess.run(words, capture_output=True, check=False, timeout=60).returncode == 0


def _json_of(text):
    """The JSON in fio's output; on an error fio prints lines before it."""
    try:
        return json.loads(text[text.index("{"):])
    except ValueError:
        return {}


def verified(path, **more):
    """Writes and verifies the whole device once; returns the report."""
    return Fio(path, secs=0, rate=None, **more).report()
