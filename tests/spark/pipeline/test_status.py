"""The state of jobs: as the monitor keeps it, and as the status shows it."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pytest
import yaml
from rich.console import Console

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from prometheus_client import CollectorRegistry, generate_latest

from processor.kafka.admin.admin import Admin
from processor.topics.family import control_spec
from processor.wire.control import SPARK
from spark_integration.cli import run_command
from spark_integration.cli.live_jobs import _table, narrow_table
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.moves.move import Move
from spark_integration.pipeline import monitor
from spark_integration.pipeline.job import IDENTITY_FILE
from spark_integration.pipeline.monitor import STATES, Monitor
from tests.endtoend.world import World


@pytest.fixture
def world(bootstrap, tmp_path, unique):
    """A family with the control topic."""
    Admin({"bootstrap.servers": bootstrap}).create([control_spec()])
    world = World(bootstrap, tmp_path, unique, partitions=2)
    yield world
    world.close()


def _checkpoint(directory, offsets, **files) -> None:
    """A checkpoint with a committed micro-batch 4 at Kafka offsets, and a planned one behind it."""
    for log, number in (("offsets", 4), ("offsets", 5), ("commits", 4)):
        (directory / log).mkdir(parents=True, exist_ok=True)
        (directory / log / str(number)).write_text(f"v1\n{{}}\n{json.dumps(offsets)}")
    for name, content in files.items():
        (directory / {"identity": IDENTITY_FILE, "progress": monitor.FILE}[name]).write_text(json.dumps(content))


@pytest.mark.spark
@pytest.mark.broker
def test_status_shows_jobs_and_merges_without_asking_them(world, capsys) -> None:
    """Offsets, lag and counts come from the checkpoints and Kafka, also those of a merge that was moved to Spark."""
    home, name = world.directory, world.name
    world.publish([(b"1", {"id": 1}, {}), (b"1", {"id": 1}, {}), (b"1", {"id": 1}, {})])
    ends = Admin(world.config.kafka).end_offsets(f"{name}.publish", range(2))
    begun = {str(number): max(0, end - 1) for number, end in ends.items()}
    jobs = {
        "keep": {"job": "archive", "topics": [name], "to": {"path": "archive"}},
        "feed": {"job": "ingest", "from": {"path": "incoming"}, "topic": name},
    }
    file = home / "pipeline.yaml"
    file.write_text(yaml.safe_dump({"settings": "sowstream.yaml", "jobs": jobs}))
    totals = {"written": 7, "quarantined.undecodable": 2}
    _checkpoint(
        home / "checkpoints" / "keep", {f"{name}.publish": begun},
        identity={"job": "keep", "id": "a", "epoch": 3}, progress={"at": 1.0, "took_s": 0.5, "totals": totals},
    )  # fmt: skip
    _checkpoint(home / "moved", {f"{name}.publish": dict.fromkeys(begun, 0)})
    with Move(topic_settings(name, world.file), world.config.kafka, "takeover") as move:
        move.write(SPARK, checkpoint=str(home / "moved"), number=1)
    assert run_command(["status", "--json", "-c", str(file)]) == 0
    shown = {job["name"]: job for job in json.loads(capsys.readouterr().out)["jobs"]}
    assert set(shown) == {"keep", "feed", f"merge-{name}"}
    keep, merge = shown["keep"], shown[f"merge-{name}"]
    assert (keep["kind"], keep["epoch"], keep["planned"], keep["committed"]) == ("archive", 3, 5, 4)
    assert (keep["lag"], keep["totals"], keep["took_s"]) == (1, totals, 0.5)
    assert (merge["kind"], merge["committed"], merge["lag"]) == ("merge", 4, 3)
    assert (shown["feed"]["committed"], shown["feed"]["lag"]) == (None, None)
    assert run_command(["status", "-c", str(file)]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["feed", "ingest"], ["keep", "archive"], [f"merge-{name}", "merge"],
    ]  # fmt: skip
    assert "keep: 2 rows in the quarantine: undecodable" in err


@pytest.mark.spark
@pytest.mark.broker
def test_a_row_of_status_fits_80_columns() -> None:
    """Numbers and states are whole, each job has one line, and only a long name gives way."""
    long = "a_long_name_of_a_job_" * 3
    rows = [(long, "retrying", "12m 3s ago", "12345678", "1234567890", "1234567"), ("b", "new", "-", "-", "-", "0")]
    console = Console(width=80, file=StringIO())
    console.print(narrow_table(("job", "state", "ended", "lag", "rows", "quarantined"), rows, 80))
    head, first, second = console.file.getvalue().splitlines()
    assert head.split() == ["job", "state", "ended", "lag", "rows", "quarantined"]
    assert first.split()[1:] == ["retrying", "12m", "3s", "ago", "12345678", "1234567890", "1234567"]
    assert first.startswith("a_long_name")
    assert second.split() == ["b", "new", "-", "-", "-", "0"]
    assert len(head) == len(first) == 80


def test_a_job_without_figures_has_none() -> None:
    """A job has seconds and rows a second once a micro-batch had rows, and no noughts before."""
    monitor = Monitor()
    monitor.set_state("depth", "running")
    monitor.add_batch("depth", 0, 0, 0.0, 62.0)
    console = Console(width=80, file=StringIO())
    console.print(_table(monitor, 80))
    assert console.file.getvalue().split()[-7:] == ["depth", "running", "-", "-", "-", "0", "0"]


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
