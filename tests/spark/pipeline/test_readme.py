from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from prometheus_client import CollectorRegistry, generate_latest

from spark_integration.pipeline.job import JobSettings, find_job
from spark_integration.pipeline.monitor import Monitor
from spark_integration.pipeline.pipeline_settings import PipelineFile

README = (Path(__file__).parents[3] / "spark_integration/pipeline/README.md").read_text()


def _documented(head: str) -> list[str]:
    table = README.split(f"| {head} |", 1)[1].split("\n\n", 1)[0]
    return re.findall(r"^\| `([a-z_.]+)` \|", table, re.MULTILINE)


def _keys(model) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def test_every_setting_is_documented() -> None:
    """The tables of the README have the settings of the file and of each built-in job, and no others."""
    assert {*_documented("setting")} == _keys(PipelineFile)
    shared = {*_documented("setting of every job")}
    assert shared == _keys(JobSettings)
    for kind in ("ingest", "archive", "table", "features"):
        named = {name.partition(".")[0] for name in _documented(f"setting of `{kind}`")}
        assert named == _keys(find_job(kind).settings_type) - shared, kind


def test_every_metric_is_documented() -> None:
    """The table of metrics has each metric of a job with its labels."""
    registry = CollectorRegistry()
    Monitor(registry)
    text = generate_latest(registry).decode()
    known = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    documented = set(re.findall(r"^\| `(sowstream_spark_\w+)\{", README, re.MULTILINE))
    assert documented == {name for name in known if not name.endswith("_created")}
