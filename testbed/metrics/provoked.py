"""Gives the scrapes of running nodes and schedulers to the rules in docs/metrics/alerts.yaml, with promtool. A directory has, for each alert
that `node/tests/operating/alerts.rs` and `fleet/scheduler/tests/with_etcd/alerts.rs` provoke, the page of the program while it was
well, and the pages with the alert, of one minute after the other: each well page must raise no alert at all, and then the others their own.

python3 testbed/metrics/provoked.py PROMTOOL DIRECTORY
"""
import json
import pathlib
import re
import subprocess
import sys

from prometheus_client.parser import text_string_to_metric_families

ALERTS = pathlib.Path(__file__).resolve().parents[2] / "docs/metrics/alerts.yaml"
# A node would have to be silent for 70 s. alerts_test.yaml has made-up series.
NOT_PROVOKED = {"FabricbiosNodesLate"}
# Minutes of the well page, and of the others, of which the last is repeated: longer than each `for:` and the window of each rate.
WELL, RAISED = 10, 15


def samples(page):
    """The samples of a page by name and labels, as a collector has them. An empty page: the program did not answer."""
    scraped, _, text = page.partition("\n")
    if not text:
        return {("up", ()): 0}
    # The clock of promtool begins at 1970.
    begun = int(scraped) - WELL * 60
    found = {("up", ()): 1}
    for family in text_string_to_metric_families(text):
        for it in family.samples:
            since = begun if "_timestamp_" in it.name else 0
            found[it.name, tuple(sorted(it.labels.items()))] = it.value - since
    return found


def scrapes(file):
    return [samples(page) for page in file.read_text().split("# scraped ")[1:]]


def series(job, minutes):
    for name, labels in sorted(set().union(*minutes)):
        labels_and_target = dict(labels) | {"job": job, "instance": "it"}
        written = ", ".join(f"{label}={json.dumps(value)}" for label, value in labels_and_target.items())
        values = " ".join("_" if value is None else repr(value) for value in (it.get((name, labels)) for it in minutes))
        yield {"series": f"{name}{{{written}}}", "values": values}


def test(directory, alert, job):
    [well], raised = (scrapes(directory / f"{alert}.{end}") for end in ("well", "raised"))
    minutes = [well] * (WELL + 1) + raised + raised[-1:] * (RAISED - len(raised))
    firing = 'count by (alertname) (count_over_time(ALERTS{alertstate="firing"%s}[%dm]))'
    own = f', alertname="{alert}"'
    return {
        "interval": "1m",
        "input_series": list(series(job, minutes)),
        "promql_expr_test": [
            {"expr": firing % ("", WELL), "eval_time": f"{WELL}m", "exp_samples": []},
            {"expr": firing % (own, RAISED), "eval_time": f"{WELL + RAISED}m",
             "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}]},
        ],
    }


def main(promtool, directory):
    directory = pathlib.Path(directory)
    provoked = {it.stem for it in directory.glob("*.raised")}
    groups = zip(("fabricbios", "fabricbios-scheduler"), ALERTS.read_text().split("- name: fabricbios-fleet\n"), strict=True)
    jobs = {alert: job for job, rules in groups for alert in re.findall(r"- alert: (\w+)", rules)}
    assert provoked == jobs.keys() - NOT_PROVOKED, provoked ^ jobs.keys()
    tests = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m",
             "tests": [test(directory, alert, jobs[alert]) for alert in sorted(provoked)]}
    file = directory / "test.yaml"
    # JSON is YAML.
    file.write_text(json.dumps(tests, indent=1))
    subprocess.run([promtool, "test", "rules", str(file)], check=True)
    print(f"{len(provoked)} alerts provoked by scrapes; not {', '.join(sorted(NOT_PROVOKED))}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
