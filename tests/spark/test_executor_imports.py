"""The modules that a Python process of Spark imports for a merge: it may be started for each task."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")
pytest.importorskip("pandas", reason="pandas is not installed: pip install 'sowstream[spark]'")

from processor.config import TopicConfig
from spark_integration.foundation.settings import TopicSettings, TopicValues, topic_settings
from spark_integration.merge.batch.fold import Fold
from spark_integration.merge.streaming.processor import MergeProcessor

ROOT = Path(__file__).parents[2]

UNUSED = ["pydantic", "pydantic_settings", "structlog", "yaml", "rich", "prometheus_client", "lark", "re2", "dotenv"]
"""Packages that a merge does not need; some take longer to import than a small micro-batch takes to merge."""

STREAM = """
from processor.record import Record
from tests.spark.micro_batches import MicroBatches
import random

query = MicroBatches(lambda: merge, random.Random(1))
records = [Record(b"1", b'{"id":1}', [("client", b"c"), ("sequence", b"1")], 0, 1), Record(b"1", b"{", None, 1, 1)]
told = {topic for topic, _, _ in query.run({0: records}, 2)}
assert told == {"orders.sow", "orders.delta", "orders.dlq", "orders.mark"}, told
"""

BATCH = """
import pyarrow as pa
from spark_integration.foundation.arrow_records import headers_column

columns = {
    "key": pa.array([b"1", b"1"]), "value": pa.array([b'{"id":1}', b"{"]), "headers": headers_column([[], []]),
    "partition": pa.array([0, 0], pa.int32()), "offset": pa.array([0, 1]), "timestamp_ms": pa.array([1, 1]),
}
rows = [row for batch in merge([pa.RecordBatch.from_pydict(columns)]) for row in batch.to_pylist()]
assert {row["topic"] for row in rows} == {"sow", "delta", "dlq", "count"}
"""


def _imported(merge: object, run: str, directory: Path) -> set[str]:
    """The top-level packages of a new interpreter that unpickles a merge and runs it."""
    file = directory / "merge.pickle"
    file.write_bytes(pickle.dumps(merge))
    program = f"import pickle, sys\nmerge = pickle.load(open({str(file)!r}, 'rb'))\n{run}\nprint(*sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert answer.returncode == 0, answer.stderr
    return {name.partition(".")[0] for name in answer.stdout.split()}


@pytest.mark.parametrize(
    ("merge", "run"),
    [(MergeProcessor, STREAM), (lambda settings: Fold(settings, 0, deltas=True), BATCH)],
    ids=["merge_stream", "merge_batch"],
)
def test_a_merge_on_an_executor_imports_no_settings_model_and_no_logger(merge, run, tmp_path) -> None:
    """A fresh interpreter that unpickles a merge and runs it, rejections included, imports none of these packages."""
    imported = _imported(merge(topic_settings("orders", {"foreign_partition": "accept"})), run, tmp_path)
    assert "processor" in imported
    assert not imported.intersection(UNUSED)


def test_settings_are_pickled_as_plain_values() -> None:
    """Settings that are pickled keep their attributes, and their topic is no model; pickled again, they are equal."""
    config = {
        "schema": {"text": '"string"'},
        "preprocess": ["a"],
        "enrich": [{"use": "b", "settings": {"x": 1}}],
        "sequence_groups": [{"by": "/ts", "fields": ["/a", "/b"]}],
        "expiration": "5s",
        "key": ["/id", "/n"],
        "merge_rules": {"/n": "sum"},
        "kafka_topics": {"publish": "their.orders"},
        "allow_one_replica": True,
    }
    settings = topic_settings("orders", config)
    plain: TopicSettings = pickle.loads(pickle.dumps(settings))
    assert type(plain.topic) is TopicValues
    for name in vars(plain.topic):
        theirs, ours = getattr(settings.topic, name), getattr(plain.topic, name)
        if name in ("preprocess", "enrich", "sequence_groups"):
            assert [step.model_dump() for step in theirs] == [vars(step) for step in ours]
        elif name == "message_schema":
            assert theirs.content() == ours.content() == b'"string"'
            values = {name: getattr(ours, name) for name in ours.__slots__}
            assert {**theirs.model_dump(), "place": theirs.place} == values
        else:
            assert theirs == ours, name
    assert set(TopicConfig.model_fields) | {"allows", "has_fields", "key_fields"} <= set(vars(plain.topic))
    assert pickle.loads(pickle.dumps(plain)) == plain
