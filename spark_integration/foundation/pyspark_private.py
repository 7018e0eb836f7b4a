"""The one file with names that PySpark does not document, so that a new version of PySpark has one place to break.

`tests/spark/test_pyspark_private.py` checks that each of them exists. Functions that need Spark's JVM in this process
raise `ConfigurationError` in a session of Spark Connect, which has none here.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final, NamedTuple

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from processor.errors import ConfigurationError
from spark_integration.foundation.kafka_security import SHADED

STOPPED: Final = "py4j.protocol.Py4JJavaError: An error occurred while calling stop: java.lang.InterruptedException"
"""Spark takes an error of Python with this text for the end of a query that is being stopped, and logs no failure.

`org.apache.spark.sql.execution.streaming.StreamExecution.isInterruptionException` looks for it, as the function of a
`foreachBatch` is a call of Java into Python, and its calls back are interrupted by a stop.
"""
_END_TIMEOUT_S: Final = 10.0
_KAFKAS_ADMIN: Final = "org.apache.kafka.clients.admin.AdminClient"


def running_jvm() -> Any | None:
    """The gateway to Spark's JVM in this process; None before its start, in Spark Connect and on an executor."""
    return SparkContext._jvm


def has_jvm_ended(error: BaseException) -> bool:
    """Return whether the JVM that this process has started is gone, so that a call of it has failed."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None or not isinstance(error, OSError | Py4JError):
        return False
    # Its connections end a moment before it does.
    try:
        process.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def start_jvm(conf: Mapping[str, str]) -> dict[str, str]:
    """Start Spark's JVM, unless it runs, and read all settings that Spark has then.

    They come from these settings, `spark-submit` with its arguments, `PYSPARK_SUBMIT_ARGS`, the environment, and
    `spark-defaults.conf`; Spark itself knows their order.

    Args:
        conf: settings for the start, without effect where the JVM runs.
    """
    settings = SparkConf(loadDefaults=False)
    settings.setAll(list(conf.items()))
    SparkContext._ensure_initialized(conf=settings)
    return dict(SparkConf().getAll())


def make_active(spark: SparkSession) -> None:
    """Make a session the active one of this thread, as `getActiveSession` finds it; another thread has started it."""
    if (jvm := find_jvm(spark)) is not None:
        SparkSession._get_j_spark_session_class(jvm).setActiveSession(spark._jsparkSession)


def jvm_of(spark: SparkSession, purpose: str) -> Any:
    """The JVM of a classic session.

    Args:
        spark: the session.
        purpose: the beginning of the error message.

    Raises:
        ConfigurationError: the session is one of Spark Connect.
    """
    if (jvm := find_jvm(spark)) is None:
        raise ConfigurationError(
            f"{purpose}: this session has no JVM in this process, as those of Spark Connect have none; use a classic "
            "session"
        )
    return jvm


def find_jvm(spark: SparkSession) -> Any | None:
    """The JVM of a session; None for one of Spark Connect."""
    # In Spark Connect, the attribute raises an error of PySpark's own that is also an AttributeError.
    return getattr(spark, "_jvm", None)


def hadoop_files(spark: SparkSession, path: str, purpose: str) -> tuple[Any, Any]:
    """Hadoop's class of paths, and the file system of one.

    Args:
        spark: the session.
        path: a path in any file system that Hadoop knows.
        purpose: the beginning of the error message.

    Raises:
        ConfigurationError: the session is one of Spark Connect.
    """
    paths = jvm_of(spark, purpose).org.apache.hadoop.fs.Path
    return paths, paths(path).getFileSystem(spark._jsc.hadoopConfiguration())


def move_aside(spark: SparkSession, place: str, root: str, aside: str) -> str:
    """Move a directory below another one, with its path within that.

    Args:
        spark: a classic session.
        place: the address of the directory, as `input_file_name` has it: parts of it may be percent-encoded.
        root: the path of the directory above.
        aside: the directory below `root` to move it to.

    Returns:
        The new path.
    """
    purpose = f"moving a directory of {root}"
    paths, files = hadoop_files(spark, root, purpose)
    source = paths(jvm_of(spark, purpose).java.net.URI(place))
    above = str(files.makeQualified(paths(root)).toUri().getPath())
    within = str(source.toUri().getPath()).removeprefix(above).lstrip("/")
    target = paths(f"{root}/{aside}/{within}")
    files.mkdirs(target.getParent())
    if not files.rename(source, target):
        raise OSError(f"{place} cannot be moved to {target.toString()}")
    return str(target.toString())


def replace_file(spark: SparkSession, aside: Any, final: Any) -> None:
    """Rename a file in place of another one at once, as Spark does with those of its checkpoints.

    Args:
        spark: a classic session.
        aside: Hadoop's path of the file.
        final: the path of the file to replace, which may be missing.
    """
    hadoop, conf = jvm_of(spark, "replacing a file").org.apache.hadoop.fs, spark._jsc.hadoopConfiguration()
    files = aside.getFileSystem(conf)
    try:
        context = hadoop.FileContext.getFileContext(files.getUri(), conf)
    except Py4JJavaError:  # A file system of the older interface alone: the file is missing for a moment.
        files.delete(final, False)
        files.rename(aside, final)
        return
    kind = getattr(hadoop, "Options$Rename")
    gateway: Any = spark.sparkContext._gateway
    options = gateway.new_array(kind, 1)
    options[0] = kind.OVERWRITE
    context.rename(aside, final, options)


def sql_problem(jvm: Any, text: str, *, is_query: bool) -> str | None:
    """The problem of a text of SQL by Spark's own parser, which needs no session; None: it can be parsed.

    Args:
        jvm: Spark's JVM.
        text: the text.
        is_query: True for a query, False for an expression.
    """
    parser = jvm.org.apache.spark.sql.execution.SparkSqlParser()
    try:
        parser.parsePlan(text) if is_query else parser.parseExpression(text)
    except (Py4JJavaError, PySparkException) as error:
        java = getattr(error, "java_exception", None)
        message = str(error) if java is None else str(java.getMessage())
        return message.partition("JVM stacktrace:")[0].strip()
    return None


class SqlAnalyzer:
    """Spark's analyzer over a catalog without tables, which needs no session."""

    def __init__(self, jvm: Any, settings: Mapping[str, str]) -> None:
        """Create it with the settings of a session.

        Args:
            jvm: a JVM with Spark's classes.
            settings: Spark's settings; those that do not begin with `spark.sql.` are left out.

        Raises:
            Py4JError: Spark's classes are others, or their methods are.
            TypeError: the same; py4j takes a class that is missing for a package.
        """
        self._jvm = jvm
        spark = jvm.org.apache.spark
        conf = spark.sql.internal.SQLConf.get()
        for name, value in settings.items():
            if name.startswith("spark.sql."):
                with suppress(Py4JJavaError):  # A setting that Spark refuses is found by the run.
                    conf.setConfString(name, value)
        self._parser = spark.sql.execution.SparkSqlParser()
        catalyst = spark.sql.catalyst
        tables = catalyst.catalog.InMemoryCatalog(
            spark.SparkConf(False), jvm.org.apache.hadoop.conf.Configuration(False)
        )
        of = "org.apache.spark.sql.catalyst.analysis.{}FunctionRegistry$"
        classes = [jvm.java.lang.Class.forName(of.format(kind)) for kind in ("", "Table")]
        self._functions = [each.getField("MODULE$").get(None).builtin() for each in classes]
        catalog = catalyst.catalog.SessionCatalog(tables, *self._functions)
        session = spark.sql.execution.datasources.v2.V2SessionCatalog(catalog)
        self._analyzer = catalyst.analysis.Analyzer(spark.sql.connector.catalog.CatalogManager(session, catalog))

    def columns(self, query: str, views: Mapping[str, str]) -> list[str]:
        """The names of the columns of a query's result.

        Args:
            query: a query that the parser can read.
            views: the tables that it can use, by name in quotes, each as a query.

        Raises:
            Py4JJavaError: the query does not fit; its `java_exception` is an `AnalysisException`.
            Py4JError: a plan has other methods.
        """
        tables = ", ".join(f"{name} AS ({view})" for name, view in views.items())
        around = self._parser.parsePlan(f"WITH {tables} SELECT 1")
        plans = self._jvm.java.util.Collections.singletonList(self._parser.parsePlan(query))
        plan = around.withNewChildren(self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(plans).toSeq())
        analyzed = self._analyzer.execute(plan)
        self._analyzer.checkAnalysis(analyzed)
        return list(analyzed.schema().fieldNames())

    def functions(self) -> list[str]:
        """The names of Spark's own functions."""
        return [name for known in self._functions for name in str(known.listFunction().mkString(" ")).split()]


def is_repeatable(rows: DataFrame) -> bool:
    """Return whether a query gives the same rows of the same input at any time: nothing is random or the clock's.

    Args:
        rows: the rows of a query, which is analyzed and not run.
    """
    jvm = jvm_of(rows.sparkSession, "the check of an expression")
    plan: Any = rows._jdf.queryExecution().analyzed()
    clock = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    return bool(plan.deterministic()) and not plan.containsPattern(clock)


def default_file_system(spark: SparkSession, purpose: str) -> str:
    """The address of the file system of paths without a scheme; arguments and errors as in `hadoop_files`."""
    jvm_of(spark, purpose)
    return str(spark._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///"))


def rows_of_plan(records: DataFrame) -> DataFrame:
    """The rows of a DataFrame as its physical plan gives them; all queries of the result share its shuffle files.

    Args:
        records: rows; those of Spark Connect are returned as they are.
    """
    java = getattr(records, "_jdf", None)
    if java is None:
        return records
    session: Any = records.sparkSession
    kept = session._jsparkSession.internalCreateDataFrame(java.queryExecution().toRdd(), java.schema(), False)
    return type(records)(kept, session)


def infer_json(spark: SparkSession, texts: DataFrame) -> StructType:
    """Infer the columns of JSON objects, in Spark itself: PySpark's own method sends every text to Python and back.

    Args:
        spark: the session, also one of Spark Connect.
        texts: one column of texts; a text that is no object raises Spark's error for a malformed record.
    """
    if (jvm := find_jvm(spark)) is None:
        return _infer_json_remotely(spark, texts)
    as_texts = getattr(texts._jdf, "as")(jvm.org.apache.spark.sql.Encoders.STRING())
    frame = spark._jsparkSession.read().option("mode", "FAILFAST").json(as_texts)
    return StructType.fromJson(json.loads(frame.schema().json()))


def _infer_json_remotely(spark: Any, texts: Any) -> StructType:
    # Scala's client of Spark Connect has this as a method, Python's only the message.
    from pyspark.sql.connect.dataframe import DataFrame as RemoteFrame  # noqa: PLC0415 - optional
    from pyspark.sql.connect.plan import LogicalPlan  # noqa: PLC0415
    from pyspark.sql.connect.proto import Parse  # noqa: PLC0415

    class Texts(LogicalPlan):
        def plan(self, session: Any) -> Any:
            relation = self._create_proto_relation()
            assert self._child is not None, "made with one"
            relation.parse.input.CopyFrom(self._child.plan(session))
            relation.parse.format = Parse.ParseFormat.PARSE_FORMAT_JSON
            relation.parse.options["mode"] = "FAILFAST"
            return relation

    return RemoteFrame(Texts(texts._plan), spark).schema


class MicroBatch(NamedTuple):
    """The micro-batch of a streaming query that runs in this thread."""

    query_id: str
    """The id of the query, which its checkpoint keeps."""
    number: int
    """The number of the batch, from 0."""
    run: int
    """A number that this run of the query alone has."""
    checkpoint: str
    """The path of the checkpoint."""
    plans: Any
    """The log of planned batches in the checkpoint."""

    def planned_ms(self, number: int | None = None) -> int | None:
        """The time when a batch was planned, in Unix milliseconds, which a repeated batch has again.

        It is read from the checkpoint; None where that has no such batch.

        Args:
            number: the number of the batch; None: this batch.
        """
        plan = self.plans.get(self.number if number is None else number)
        if not plan.isDefined():
            return None
        try:
            metadata = plan.get().metadataOpt()
        except Py4JError:  # Its name before Spark 4.2.
            metadata = plan.get().metadata()
        return int(metadata.get().batchTimestampMs())


def micro_batch(spark: SparkSession) -> MicroBatch | None:
    """The micro-batch that runs in this thread of the driver; None outside of a streaming query.

    Args:
        spark: the session of the batch; one of Spark Connect does not know its batch.
    """
    if (jvm := find_jvm(spark)) is None:
        return None
    context = spark.sparkContext
    query_id = context.getLocalProperty("sql.streaming.queryId")
    number = context.getLocalProperty("streaming.sql.batchId")
    if query_id is None or number is None:
        return None
    queries = spark._jsparkSession.sharedState().activeStreamingQueries()
    query = queries.get(jvm.java.util.UUID.fromString(query_id))
    # Each run of a query has one thread, and Java never reuses a thread's number.
    run = jvm.java.lang.Thread.currentThread().getId()
    return MicroBatch(query_id, int(number), int(run), str(query.resolvedCheckpointRoot()), query.offsetLog())


def is_remote_batch() -> bool:
    """Return whether this process runs the function of a `foreachBatch` for Spark Connect."""
    return "SPARK_CONNECT_LOCAL_URL" in os.environ


def is_kafka_shaded() -> bool:
    """Return whether the names of Kafka's classes begin with `SHADED`, as on Databricks.

    Spark's JVM in this process decides; where there is none, the environment.
    """
    jvm = running_jvm()
    return "DATABRICKS_RUNTIME_VERSION" in os.environ if jvm is None else has_class(jvm, SHADED + _KAFKAS_ADMIN)


def is_remote(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect, without Spark's JVM in this process."""
    return find_jvm(spark) is None


def refuse_without_state(spark: SparkSession, purpose: str) -> None:
    """Refuse a session whose streams cannot keep state by Python code of ours, as on Spark Connect before 4.1.

    Args:
        spark: the session.
        purpose: the beginning of the error message.

    Raises:
        ConfigurationError: it is such a session.
    """
    if not is_remote(spark):
        return
    from pyspark.sql.connect.group import GroupedData  # noqa: PLC0415 - needs optional packages

    if not hasattr(GroupedData, "transformWithStateInPandas"):
        raise ConfigurationError(
            f"{purpose}: PySpark {pyspark.__version__} has no transformWithStateInPandas on Spark Connect; use a "
            "classic session"
        )


@cache
def has_class(jvm: Any, name: str) -> bool:
    """Return whether a class is on the class path, packages included; asked once, as an error is 80 calls of Java."""
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(name, False, loader)
    except Py4JJavaError:
        return False
    return True
