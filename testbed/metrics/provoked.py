"""Gives the scrapes of a running node to the rules of nodes in docs/metrics/alerts.yaml, with promtool. A directory has, for each alert that
`node/tests/operating/alerts.rs` provokes, the page of the node while it was well, and the page with the alert: each well page must
raise no alert at all, and then the other page its own.

python3 testbed/metrics/provoked.py PROMTOOL DIRECTORY
"""
import json
import pathlib
import re
import subprocess
import sys

from prometheus_client.parser import text_string_to_metric_families

ALERTS = pathlib.Path(__file__).resolve().parents[2] / "docs/metrics/alerts.yaml"
# Minutes of the well page, and of the other one: longer than each `for:` and the window of each rate.
WELL, RAISED = 10, 15


def samples(page):
    """The samples of a page by name and labels, as a collector has them. An empty page: the node did not answer."""
    scraped, _, text = page.partition("\n")
    if not text:
        return {("up", ()): 0}
    # The clock of promtool begins at 1970.
    begun = int(scraped.removeprefix("# scraped ")) - WELL * 60
    found = {("up", ()): 1}
    for family in text_string_to_metric_families(text):
        for it in family.samples:
            since = begun if "_timestamp_" in it.name else 0
            found[it.name, tuple(sorted(it.labels.items()))] = it.value - since
    return found


def values(value, minutes):
    return f"_x{minutes}" if value is None else f"{value!r}x{minutes}"


def series(well, raised):
    for name, labels in sorted(well.keys() | raised.keys()):
        labels_and_target = dict(labels) | {"job": "fabricbios", "instance": "node"}
        written = ", ".join(f"{label}={json.dumps(value)}" for label, value in labels_and_target.items())
        before, after = well.get((name, labels)), raised.get((name, labels))
        yield {"series": f"{name}{{{written}}}", "values": f"{values(before, WELL)} {values(after, RAISED)}"}


def test(directory, alert):
    well, raised = (samples((directory / f"{alert}.{end}").read_text()) for end in ("well", "raised"))
    firing = 'count by (alertname) (count_over_time(ALERTS{alertstate="firing"%s}[%dm]))'
    own = f', alertname="{alert}"'
    return {
        "interval": "1m",
        "input_series": list(series(well, raised)),
        "promql_expr_test": [
            {"expr": firing % ("", WELL), "eval_time": f"{WELL}m", "exp_samples": []},
            {"expr": firing % (own, RAISED), "eval_time": f"{WELL + RAISED}m",
             "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}]},
        ],
    }


def main(promtool, directory):
    directory = pathlib.Path(directory)
    provoked = {it.stem for it in directory.glob("*.raised")}
    of_nodes, _ = ALERTS.read_text().split("- name: fabricbios-fleet\n")
    rules = set(re.findall(r"- alert: (\w+)", of_nodes))
    assert provoked == rules, provoked ^ rules
    tests = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m",
             "tests": [test(directory, alert) for alert in sorted(provoked)]}
    file = directory / "test.yaml"
    # JSON is YAML.
    file.write_text(json.dumps(tests, indent=1))
    subprocess.run([promtool, "test", "rules", str(file)], check=True)
    print(f"{len(provoked)} alerts provoked on a node")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
