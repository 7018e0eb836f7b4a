"""The dashboards and alert rules of workers ask for metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Gauge
from prometheus_client.metrics import MetricWrapperBase

from processor.runtime.process import metrics

DEPLOY = Path(__file__).parents[2] / "deploy"
LABELS: dict[str, set[str]] = {
    metric._name + ("" if isinstance(metric, Gauge) else "_total"): set(metric._labelnames)
    for metric in vars(metrics).values()
    if isinstance(metric, MetricWrapperBase)
}
QUERIED = re.compile(r"(sowstream_[a-z_]+)(?:\{([^}]*)\})?")


def dashboard_queries() -> list[str]:
    """The queries of the dashboard of views."""
    dashboard: dict[str, Any] = json.loads((DEPLOY / "grafana/views.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def rules() -> list[dict[str, Any]]:
    """The alert rules of views."""
    tree = yaml.safe_load((DEPLOY / "prometheus/views.rules.yaml").read_text())
    return [rule for group in tree["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("query", [*dashboard_queries(), *(rule["expr"] for rule in rules())])
def test_query_names_metrics_and_labels_that_workers_have(query: str) -> None:
    """A misspelt metric or label would be an empty panel, or an alert that never fires."""
    used = QUERIED.findall(query)
    assert used
    for name, conditions in used:
        assert name in LABELS, name
        assert set(re.findall(r"([a-z_]+)=~?\"", conditions)) <= LABELS[name]
    for labels in re.findall(r"by \(([a-z_, ]+)\)", query):
        assert set(labels.split(", ")) <= LABELS[used[0][0]]


def test_readiness_of_views_has_a_panel_and_an_alert() -> None:
    """`sowstream_view_ready` is drawn, and someone is told when it stays 0."""
    assert any("sowstream_view_ready" in query for query in dashboard_queries())
    [rule] = [rule for rule in rules() if "sowstream_view_ready" in rule["expr"]]
    assert rule["expr"].endswith("== 0")
    assert rule["for"]


def test_panels_fit_the_grid() -> None:
    """Grafana's grid has 24 columns, and no panel lies over another."""
    boxes = [panel["gridPos"] for panel in json.loads((DEPLOY / "grafana/views.json").read_text())["panels"]]
    cells = [
        (x, y) for box in boxes for x in range(box["x"], box["x"] + box["w"])
        for y in range(box["y"], box["y"] + box["h"])
    ]  # fmt: skip
    assert max(x for x, _ in cells) < 24
    assert len(cells) == len(set(cells))
