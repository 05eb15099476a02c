"""The page and the dashboard of metrics know the metrics that there are."""

import json
import re
from pathlib import Path

from lockgate.presenter.figures import METRICS as PRESENTER_METRICS
from lockgate.runtime.metrics.figures import METRICS as JOB_METRICS

DOCS = Path(__file__).parents[2] / "docs"
METRICS = (*JOB_METRICS, *PRESENTER_METRICS)
NAMES = {metric.name for metric in METRICS}


def test_the_page_tells_of_every_metric_and_its_labels() -> None:
    rows = dict(re.findall(r"^\| `(lockgate_\w+)` \|([^|]*)\|", (DOCS / "METRICS.md").read_text(), re.MULTILINE))
    assert rows.keys() == NAMES
    for metric in METRICS:
        assert re.findall(r"`(\w+)`", rows[metric.name]) == list(metric.labels), metric.name


def test_alerts_on_the_page_use_metrics_that_there_are() -> None:
    used = set(re.findall(r"lockgate_[a-z_]+", (DOCS / "METRICS.md").read_text()))
    assert used - {"lockgate_job"} == NAMES


def test_the_dashboard_is_whole() -> None:
    dashboard = json.loads((DOCS / "grafana" / "lockgate.json").read_text())
    assert {one["name"] for one in dashboard["templating"]["list"]} == {"datasource", "job"}
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    asked: set[str] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["type"] in ("timeseries", "stat")
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert target["expr"].count('lockgate_job=~"$job"') == len(re.findall(r"lockgate_\w+\{", target["expr"]))
            asked |= set(re.findall(r"lockgate_[a-z_]+", target["expr"]))
    assert asked - {"lockgate_job"} == NAMES
