"""The names that PySpark does not document exist, in the version that is installed."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from processor.errors import ConfigurationError

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession

import spark_integration
from spark_integration.foundation import pyspark_private as private

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
@pytest.mark.slow
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
@pytest.mark.slow
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
