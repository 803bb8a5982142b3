"""Reads the pages of metrics with the parsers of the Python package prometheus-client, and checks that the two formats say the same,
that alerts and dashboards ask for metrics that there are, and that a dashboard is what Grafana imports."""
import json
import pathlib
import re
import sys

from prometheus_client import parser as text_format
from prometheus_client.openmetrics import parser as openmetrics_format

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = [ROOT / "node/src/monitor/golden", ROOT / "fleet/scheduler/src/watch/golden"]
DOCS = ROOT / "docs/metrics"
# Those of Grafana's units that the dashboards use: `id` in packages/grafana-data/src/valueFormats/categories.ts.
UNITS = {"none", "short", "percentunit", "s", "bytes", "Bps", "dateTimeFromNow"}


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


def queries(file):
    """What each panel of a dashboard asks for. Panels must not overlap on Grafana's grid of 24 columns, and each needs a number of its own."""
    dashboard = json.loads(file.read_text())
    cells, found = set(), {}
    for panel in dashboard["panels"]:
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not own & cells, f"{file.name}: {panel['title']} overlaps"
        cells |= own
        for target in panel["targets"]:
            found[f"{file.name}: panel {panel['id']}{target['refId']}"] = target["expr"]
    assert len(found) == sum(len(panel["targets"]) for panel in dashboard["panels"]), f"{file.name}: an id is there twice"
    variables = {f"${it['name']}" for it in dashboard["templating"]["list"]} | {"$__rate_interval"}
    used = {name for text in found.values() for name in re.findall(r"\$\w+", text)}
    assert used <= variables, used - variables
    return found


def main():
    names = set().union(*map(read, GOLDEN))

    asked = {}
    for file in sorted(DOCS.glob("dashboard*.json")):
        asked |= queries(file)
    for number, line in enumerate((DOCS / "alerts.yaml").read_text().splitlines(), 1):
        if not re.match(r"\s*(summary|description|- alert|- name):|#", line.strip()):
            asked[f"alerts.yaml:{number}"] = line
    unknown = [(where, name) for where, expression in asked.items()
               for name in re.findall(r"\b(?:fabricbios|process)_[a-z_]+", expression) if name not in names]
    assert not unknown, unknown


if __name__ == "__main__":
    sys.exit(main())
