from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from prometheus_client import CollectorRegistry, generate_latest

from spark_integration.pipeline.monitor import STATES, Monitor

DASHBOARD = Path(__file__).parents[3] / "deploy/grafana/spark-pipeline.json"


def test_the_figures_of_a_job_are_metrics_and_a_view() -> None:
    """Batches and counts add up by job, a rejected row by its reason, and one state is 1."""
    registry = CollectorRegistry()
    monitor = Monitor(registry)
    monitor.set_state("feed", "starting")
    monitor.set_state("feed", "running")
    monitor.add_batch("feed", 7, 10, 5.0, 2.0)
    monitor.add_batch("feed", 8, 0, 0.0, 0.1)
    monitor.add_counts("feed", {"published": 8, "quarantined.undecodable": 2})
    monitor.add_counts("feed", {"published": 1})
    value = registry.get_sample_value
    assert value("sowstream_spark_rows_total", {"job": "feed"}) == 10
    assert value("sowstream_spark_published_rows_total", {"job": "feed"}) == 9
    assert value("sowstream_spark_quarantined_rows_total", {"job": "feed", "reason": "undecodable"}) == 2
    assert value("sowstream_spark_batch_seconds_count", {"job": "feed"}) == 1
    assert {state for state in STATES if value("sowstream_spark_job_state", {"job": "feed", "state": state})} == {
        "running"
    }
    view = monitor.views()["feed"]
    assert (view.batch, view.rows, view.quarantined, view.counts["published"]) == (7, 10, 2, 9)


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    """Each query of the dashboard names a metric and labels that the jobs have."""
    registry = CollectorRegistry()
    Monitor(registry)
    known = {line.split()[2] for line in generate_latest(registry).decode().splitlines() if line.startswith("# TYPE")}
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = {name for query in queries for name in re.findall(r"sowstream_spark_[a-z_]+", query)}
    assert used, "the dashboard has queries"
    assert {name.removesuffix("_bucket") for name in used} <= known
    assert {name for name in known if not name.endswith("_created")} == {name.removesuffix("_bucket") for name in used}
    boxes = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(box["x"] + box["w"] <= 24 for box in boxes)
