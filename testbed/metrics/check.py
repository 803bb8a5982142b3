"""Reads the pages of metrics with the parsers of the Python package prometheus-client, and checks that the two formats say the same,
and that alerts and dashboard ask for metrics that there are."""
import json
import pathlib
import re
import sys

from prometheus_client import parser as text_format
from prometheus_client.openmetrics import parser as openmetrics_format

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = [ROOT / "node/src/monitor/golden", ROOT / "fleet/scheduler/src/watch/golden"]
DOCS = ROOT / "docs/metrics"


def samples(families):
    return {(it.name, tuple(sorted(it.labels.items()))): it.value for family in families for it in family.samples}


def read(golden):
    """The names of the samples of a program's page, which are the same in both formats."""
    text = samples(text_format.text_string_to_metric_families((golden / "metrics.txt").read_text()))
    families = list(openmetrics_format.text_string_to_metric_families((golden / "metrics.openmetrics").read_text()))
    other = samples(families)
    assert text == other, set(text.items()) ^ set(other.items())
    assert len(families) >= 30, len(families)
    print(f"{len(families)} metrics, {len(text)} samples, alike in both formats: {golden.relative_to(ROOT)}")
    return {name for name, _ in text}


def main():
    names = set().union(*map(read, GOLDEN))

    asked = {}
    for panel in json.loads((DOCS / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            asked[f"panel {panel['title']}"] = target["expr"]
    for number, line in enumerate((DOCS / "alerts.yaml").read_text().splitlines(), 1):
        if not re.match(r"\s*(summary|description|- alert|- name):|#", line.strip()):
            asked[f"alerts.yaml:{number}"] = line
    unknown = [(where, name) for where, expression in asked.items()
               for name in re.findall(r"\b(?:fabricbios|process)_[a-z_]+", expression) if name not in names]
    assert not unknown, unknown


if __name__ == "__main__":
    sys.exit(main())
