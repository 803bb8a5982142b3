"""Has Debian's Prometheus scrape a running scheduler and a running node, and asks it what each panel of the dashboards in docs/metrics
asks: it must take every query and have numbers for each, with the labels that the legend names, and the variables must have values.

python3 testbed/metrics/dashboards.py PROMETHEUS DIRECTORY

DIRECTORY has fabricbiosd, fabricbios-scheduler and fabricctl; etcd must be in the path.
"""
import contextlib
import json
import math
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs/metrics"
JOBS = {"dashboard.json": "fabricbios", "dashboard-scheduler.json": "fabricbios-scheduler"}
# Nothing is fenced, no report is refused and no call of etcd fails here: these have no series.
NO_DATA = ["fabricbios_fences_total", "fabricbios_scheduler_reports_not_taken_total",
           "fabricbios_scheduler_etcd_failed_total"]
# On a busy machine. Usual are ten seconds.
PATIENCE = 180


def started(stack, log, *words):
    child = subprocess.Popen([str(it) for it in words], stdout=subprocess.PIPE, stderr=log, text=True)
    stack.callback(child.kill)
    stack.callback(child.wait, PATIENCE)
    stack.callback(child.terminate)
    return child


def ready(child, pattern):
    """The parts of the line READY that a program prints when it serves."""
    line = child.stdout.readline()
    found = re.search(pattern, line)
    assert found, f"{child.args[0]} is not ready: {line!r}"
    return found.groups()


def free_port():
    """Prometheus does not say which port it has got. Below those that the kernel gives to who asks for none."""
    while True:
        with socket.socket() as tried, contextlib.suppress(OSError):
            port = random.randrange(20_000, 32_000)
            tried.bind(("127.0.0.1", port))
            return port


class Prometheus:
    def __init__(self, stack, log, program, place, targets):
        # JSON is YAML.
        jobs = [{"job_name": job, "static_configs": [{"targets": [at]}]} for job, at in targets.items()]
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
        (place / "prometheus.yml").write_text(json.dumps(config))
        address = f"127.0.0.1:{free_port()}"
        self.at = f"http://{address}/api/v1"
        self.child = started(stack, log, program, f"--config.file={place}/prometheus.yml", f"--storage.tsdb.path={place}/tsdb",
                             f"--web.listen-address={address}")

    def ask(self, path, **query):
        """What it answers; None while it starts. A query that it does not take is an error."""
        try:
            with urllib.request.urlopen(f"{self.at}/{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            if refused.code == 503:
                return None
            raise AssertionError(f"{query}: {refused.read().decode()}") from refused
        except (urllib.error.URLError, ConnectionError):
            assert self.child.poll() is None, "Prometheus has ended"
            return None


class Panels:
    """The queries of a dashboard, with the variables set as Grafana sets them for one instance."""

    def __init__(self, file, at):
        dashboard = json.loads((DOCS / file).read_text())
        self.file, self.at = file, at
        self.variable = next(it["query"]["query"] for it in dashboard["templating"]["list"] if it["type"] == "query")
        self.missing = [(panel["title"], it["expr"], re.findall(r"{{(\w+)}}", it.get("legendFormat", "")))
                        for panel in dashboard["panels"] for it in panel["targets"]]
        self.count = len(self.missing)
        self.with_data = sum(not any(name in expr for name in NO_DATA) for _, expr, _ in self.missing)

    def look(self, prometheus):
        """Asks what had nothing to show yet, and returns whether all has now."""
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", self.variable).groups()
        values = prometheus.ask(f"label/{label}/values", **{"match[]": metric})
        if values != [self.at]:
            return False
        self.missing = [it for it in self.missing if not self.shows(prometheus, *it[1:])]
        return not self.missing

    def shows(self, prometheus, asked, legend):
        """Whether there are numbers for a query, with the labels of its legend; of one without data, whether it is taken."""
        expr = asked.replace("$instance", re.escape(self.at).replace("\\", "\\\\")).replace("$__rate_interval", "1m")
        answer = prometheus.ask("query", query=expr)
        if answer and any(name in asked for name in NO_DATA):
            return True
        series = answer["result"] if answer else []
        labels = {name for it in series for name in it["metric"]}
        return set(legend) <= labels and any(math.isfinite(float(it["value"][1])) for it in series)


def main(program, programs):
    programs = pathlib.Path(programs)
    with contextlib.ExitStack() as stack:
        place = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context((place / "log").open("w"))

        def ctl(at, *words):
            """What fabricctl prints: nothing if it is refused, as while no node reports to the scheduler."""
            identity = place / "fabric/admin.identity"
            command = [programs / "fabricctl", "--json", "--node", at, "--identity", identity, "--patience-secs=0", *words]
            return subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, check=False).stdout

        subprocess.run([programs / "fabricctl", "fabric", "init", place / "fabric"], check=True, stdout=log)
        scheduler = started(stack, log, programs / "fabricbios-scheduler", "--identity", place / "fabric/scheduler.identity",
                            "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--etcd=embedded-dev")
        scheduler_at, scheduler_http = ready(scheduler, r"listen=(\S+) .*http=(\S+)")
        def node(name):
            words = ["--listen=127.0.0.1:0", "--fbmu-listen=127.0.0.1:0", "--fbbu-listen=none", "--rdma-device=none", "--mem-bytes=64MiB",
                     "--metrics-listen=127.0.0.1:0", f"--scheduler={scheduler_at}"]
            child = started(stack, log, programs / "fabricbiosd", "control-server", "--state-dir", place / name, "--fabric-dir",
                            place / "fabric", *words)
            return ready(child, r"listen=(\S+) .*metrics=http://([^/\s]+)/")

        node_at, node_http = node("node")
        targets = {"fabricbios": node_http, "fabricbios-scheduler": scheduler_http}
        prometheus = Prometheus(stack, log, program, place, targets)
        dashboards = [Panels(file, targets[job]) for file, job in JOBS.items()]
        begun = time.monotonic()
        while not (data := prometheus.ask("query", query="fabricbios_scheduler_etcd_call_seconds_count")) or not data["result"]:
            assert time.monotonic() - begun < PATIENCE, (place / "log").read_text()[-8000:]
            time.sleep(0.1)
        # Its record is a call of etcd more.
        node("other")
        while not all(it.look(prometheus) for it in dashboards):
            missing = [(it.file, *one) for it in dashboards for one in it.missing]
            assert time.monotonic() - begun < PATIENCE, f"no numbers, or no label of the legend: {missing}\n{(place / 'log').read_text()[-8000:]}"
            # A lease that stays, one that ends by its term, one that is given back, and a refusal of each.
            for secs in (60, 1, 60):
                lease = ctl(scheduler_at, "lease", "alloc", "mem", "--bytes=4096", f"--secs={secs}")
            if lease:
                ctl(node_at, "lease", "free", str(json.loads(lease)["lease_id"]))
            ctl(scheduler_at, "lease", "query", f"{1:032}")
            ctl(node_at, "lease", "alloc", "mem", "--bytes=1GiB", "--secs=60")
        for it in dashboards:
            print(f"{it.file}: Prometheus takes {it.count} queries and has numbers for {it.with_data}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
