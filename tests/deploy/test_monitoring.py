"""Dashboards and alert rules ask for metrics that workers have, and each alert fires in a case of its own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Counter, Gauge, Histogram

from processor.runtime import metrics
from processor.runtime.metrics import Timings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARDS = ["worker", "conflation", "views"]
RULES = sorted((DEPLOY / "prometheus").glob("*.yaml"))
ALERT_TESTS = Path(__file__).with_name("alerts.test.yaml")
QUERIED = re.compile(r"(sowstream_[a-z_]+)(?:\{([^}]*)\})?")
TARGET_LABELS = {"namespace", "instance"}
"""Labels that Prometheus adds to each series."""

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian's package prometheus)"
)


def labels() -> dict[str, set[str]]:
    """The labels of each series of the catalogue, by its name as it is served."""
    known = {}
    for metric in (*vars(metrics).values(), *metrics._OWN_GAUGES.values()):
        if isinstance(metric, Counter):
            known[f"{metric._name}_total"] = set(metric._labelnames)
        elif isinstance(metric, Histogram):
            known[f"{metric._name}_bucket"] = {*metric._labelnames, "le"}
        elif isinstance(metric, Gauge):
            known[metric._name] = set(metric._labelnames)
        elif isinstance(metric, Timings):
            known[f"{metric.name}_bucket"] = {*metric.labels, "le"}
    return known


LABELS = labels()


def panels(name: str) -> list[dict[str, Any]]:
    """The panels of a dashboard."""
    dashboard: dict[str, Any] = json.loads((DEPLOY / "grafana" / f"{name}.json").read_text(encoding="utf-8"))
    return list(dashboard["panels"])


def dashboard_queries() -> list[str]:
    """The queries of all dashboards of workers."""
    return [target["expr"] for name in DASHBOARDS for panel in panels(name) for target in panel["targets"]]


def rules() -> list[dict[str, Any]]:
    """All alert rules."""
    trees = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in RULES]
    return [rule for tree in trees for group in tree["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("query", [*dashboard_queries(), *(rule["expr"] for rule in rules())])
def test_query_names_metrics_and_labels_that_workers_have(query: str) -> None:
    """A misspelt metric or label would be an empty panel, or an alert that never fires."""
    used = QUERIED.findall(query)
    assert used
    for name, conditions in used:
        assert name in LABELS, name
        assert set(re.findall(r"([a-z_]+)=~?\"", conditions)) <= LABELS[name]
    there = set.union(*(LABELS[name] for name, _ in used)) | TARGET_LABELS
    for listed in re.findall(r"(?:by|on) \(([a-z_, ]+)\)", query):
        assert set(listed.split(", ")) <= there


def test_no_query_uses_a_metric_that_goes() -> None:
    """Dashboards and alerts name no metric that the next release removes."""
    page = (ROOT / "processor" / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    going = set(re.findall(r"^\| `(sowstream_\w+)[^|]*\|[^|]*\*\*goes", page, re.MULTILINE))
    going |= {"sowstream_gauge", "sowstream_observed_seconds_bucket"}
    assert len(going) == 3
    queries = [*dashboard_queries(), *(rule["expr"] for rule in rules())]
    assert not going & {name for query in queries for name, _ in QUERIED.findall(query)}


def test_readiness_of_views_has_a_panel_and_an_alert() -> None:
    """`sowstream_view_ready` is drawn, and someone is told when it stays 0."""
    assert any("sowstream_view_ready" in query for query in dashboard_queries())
    [rule] = [rule for rule in rules() if "sowstream_view_ready" in rule["expr"]]
    assert rule["expr"].endswith("== 0")
    assert rule["for"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_fit_the_grid(name: str) -> None:
    """Grafana's grid has 24 columns, and no panel lies over another."""
    boxes = [panel["gridPos"] for panel in panels(name)]
    cells = [
        (x, y) for box in boxes for x in range(box["x"], box["x"] + box["w"])
        for y in range(box["y"], box["y"] + box["h"])
    ]  # fmt: skip
    assert max(x for x, _ in cells) < 24
    assert len(cells) == len(set(cells))


@needs_promtool
@pytest.mark.parametrize(
    "command", [["check", "rules", *map(str, RULES)], ["test", "rules", str(ALERT_TESTS)]], ids=" ".join
)
def test_alert_rules_pass_prometheus_own_tests(command: list[str]) -> None:
    """Prometheus accepts the rules, and each alert fires for the series of its case and for no other."""
    done = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    """The cases of Prometheus' own test name each alert with the texts that the person on call gets."""
    cases = yaml.safe_load(ALERT_TESTS.read_text(encoding="utf-8"))["tests"]
    fired = {check["alertname"] for case in cases for check in case["alert_rule_test"] if check.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in rules()}
