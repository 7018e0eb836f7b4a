"""Undocumented names of PySpark stand in one file, small files are read by Hadoop, and executors import little."""

from __future__ import annotations

import ast
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from processor.errors import ConfigurationError

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import spark_integration
from processor.config import TopicConfig
from spark_integration.foundation import pyspark_private as private
from spark_integration.foundation.pyspark_private import hadoop_files, replace_file
from spark_integration.foundation.settings import TopicSettings, TopicValues, topic_settings
from spark_integration.foundation.small_files import HadoopFiles, LocalFiles
from spark_integration.merge.batch.fold import Fold
from spark_integration.merge.streaming.processor import MergeProcessor

FOLDER = Path(spark_integration.__file__).parent
ELSEWHERE = {
    # A missing name there means one request at a time, which tests of both ways cover.
    "merge/streaming/buckets.py",
}


def _private_names(file: Path) -> set[str]:
    """The attributes of other objects that begin with one underscore, and Java's own."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    own = {"self", "cls"}
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith(("_j", "_sc", "_plan", "_ensure", "_instantiated", "_gateway"))
        and not (isinstance(node.value, ast.Name) and node.value.id in own)
    }


def test_one_file_has_the_private_names() -> None:
    """No other file uses a private attribute of PySpark: the JVM, its sessions, contexts, frames and plans."""
    files = [file for file in FOLDER.rglob("*.py") if file.relative_to(FOLDER).as_posix() not in ELSEWHERE]
    users = {file.name for file in files if _private_names(file)}
    assert users == {"pyspark_private.py"}


def test_the_start_of_the_jvm_has_its_names() -> None:
    """PySpark starts its JVM by the method, with the arguments, and remembers it in the attribute used here."""
    assert "conf" in inspect.signature(SparkContext._ensure_initialized).parameters
    assert hasattr(SparkContext, "_jvm")
    assert SparkConf(loadDefaults=False).getAll() == []


def test_spark_connect_has_its_names() -> None:
    """The message that infers the columns of JSON on Spark Connect, and the classes that carry it, exist."""
    pytest.importorskip("grpc", reason="gRPC is not installed: pip install 'sowstream[spark-connect]'")
    from pyspark.sql.connect.dataframe import DataFrame as RemoteFrame
    from pyspark.sql.connect.plan import LogicalPlan
    from pyspark.sql.connect.proto import Parse

    assert list(inspect.signature(RemoteFrame.__init__).parameters) == ["self", "plan", "session"]
    assert {"plan", "_create_proto_relation"} <= set(dir(LogicalPlan))
    assert {"input", "format", "options"} <= set(Parse.DESCRIPTOR.fields_by_name)
    assert Parse.ParseFormat.PARSE_FORMAT_JSON


def test_the_marker_of_a_remote_batch_exists() -> None:
    """Spark Connect's worker for `foreachBatch` is known by the variable that its own code reads."""
    grpc = pytest.importorskip("grpc", reason="gRPC is not installed: pip install 'sowstream[spark-connect]'")
    assert grpc
    from pyspark.sql.connect.streaming.worker import foreach_batch_worker

    assert "SPARK_CONNECT_LOCAL_URL" in inspect.getsource(foreach_batch_worker)


@pytest.mark.spark
def test_a_session_has_its_names(spark, tmp_path: Path) -> None:
    """Sessions, contexts and frames have the attributes, and Java the methods, that are used here."""
    assert isinstance(spark, SparkSession)
    assert isinstance(spark.range(1), DataFrame)
    paths, files = private.hadoop_files(spark, str(tmp_path), "a test")
    assert files.exists(paths(str(tmp_path)))
    texts = spark.createDataFrame([('{"a": 1}',), ('{"b": [true]}',)], "value string")
    assert private.infer_json(spark, texts).simpleString() == "struct<a:bigint,b:array<boolean>>"
    assert not private.is_remote(spark)
    assert private.micro_batch(spark) is None
    assert private.start_jvm({})["spark.master"] == spark.sparkContext.master, "the JVM runs already"


@pytest.mark.spark
def test_the_analyzer_without_a_session_has_its_names(spark) -> None:
    """Java has the classes, constructors and methods by which `check` finds names in SQL; it would leave others out."""
    assert spark
    analyzer = private.SqlAnalyzer(private.running_jvm(), {})
    views = {"t": "SELECT CAST(NULL AS STRING) AS a, 1 AS b"}
    assert analyzer.columns("SELECT a, sum(b) AS n FROM t GROUP BY a", views) == ["a", "n"]
    assert {"sum", "explode", "range"} <= {*analyzer.functions()}
    wrong = {
        "c FROM t": "UNRESOLVED_COLUMN.",
        "a FROM u": "TABLE_OR_VIEW_NOT_FOUND",
        "f(b) FROM t": "UNRESOLVED_ROUTINE",
    }
    for rest, condition in wrong.items():
        with pytest.raises(AnalysisException) as error:
            analyzer.columns(f"SELECT {rest}", views)
        assert str(error.value.getCondition()).startswith(condition)


@pytest.mark.spark
def test_kafkas_classes_are_found_where_they_are(spark, monkeypatch) -> None:
    """Kafka's package is the plain one here, and the moved one where its admin client exists there."""
    jvm = private.running_jvm()
    assert private.has_class(jvm, "org.apache.kafka.clients.admin.AdminClient")
    assert not private.is_kafka_shaded()
    monkeypatch.setattr(private, "has_class", lambda _, name: name.startswith("kafkashaded."))
    assert private.is_kafka_shaded()


def test_a_session_of_spark_connect_is_refused_by_name() -> None:
    """A function that needs the JVM refuses a session without one; the error begins with the function's purpose."""
    with pytest.raises(ConfigurationError, match="the purpose: this session has no JVM in this process"):
        private.jvm_of(object(), "the purpose")


@pytest.fixture(params=["local", "hadoop"])
def files(request, tmp_path: Path):
    """Files below a directory that is missing, by either way."""
    place = tmp_path / "checkpoint"
    return LocalFiles(place) if request.param == "local" else HadoopFiles(request.getfixturevalue("spark"), str(place))


@pytest.mark.spark
def test_a_file_is_read_as_it_was_written_last(files) -> None:
    """A file is None before it is written, and has the last text after that; nothing else is left in its directory."""
    assert files.read("a/b.json") is None
    assert files.names("a") == []
    for text in ("one", "two é"):
        files.write("a/b.json", text)
        assert files.read("a/b.json") == text
    assert [name for name in files.names("a") if not name.endswith(".crc")] == ["b.json"]


@pytest.mark.spark
def test_a_file_is_replaced_in_one_step(spark, tmp_path: Path) -> None:
    """A replacement that cannot end leaves the old file in its place."""
    (tmp_path / "old").write_text("old")
    path, _ = hadoop_files(spark, str(tmp_path), "a test")
    with pytest.raises(Py4JJavaError):
        replace_file(spark, path(str(tmp_path / "missing")), path(str(tmp_path / "old")))
    assert (tmp_path / "old").read_text() == "old"


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
