"""Checks the SQL of jobs: Spark's own parser reads it, and its analyzer finds the names in it, without a session.

The analyzer knows no data. A view of a query is a common table of one row of nulls, with the columns that the settings
name; so wrong names of tables and columns are found, and types, but no wrong names of functions. Where only its records
show the columns of a view, names of tables alone are. A table with a qualified name, such as `lake.db.t`, is one that
only a session knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

from processor.errors import unknown_name
from spark_integration.foundation.pyspark_private import sql_problem
from spark_integration.foundation.sql import quoted
from spark_integration.session import spark_defaults

if TYPE_CHECKING:
    from spark_integration.pipeline.job import SqlScope
    from spark_integration.pipeline.offline_check import SettingPlace
    from spark_integration.pipeline.pipeline_settings import PipelineJob, PipelineSettings

_ANALYSIS: Final = "org.apache.spark.sql.catalyst.analysis"
_NO_TABLE: Final = "TABLE_OR_VIEW_NOT_FOUND"
_NAME: Final = re.compile(r"[^`]*`((?:[^`]|``)*)`(?!\.)")
"""The beginning of that error, up to a name of one part."""
_POSITION: Final = re.compile(r"; line \d+ pos \d+\s*$")
_OTHER_NAMES: Final = ("spark.sql.catalog", "spark.sql.defaultcatalog", "spark.sql.extensions")
"""Beginnings of settings by which a session knows other tables and functions."""


class SqlText(NamedTuple):
    """A text of SQL in the settings of a job."""

    job: str
    place: SettingPlace
    is_query: bool
    """False for an expression."""
    text: str
    scope: SqlScope | None
    """The names that it can use; None: the job knows others."""


def sql_of(jobs: Sequence[PipelineJob]) -> list[SqlText]:
    """The SQL of jobs."""
    return [
        SqlText(job.name, place, kind == "query", text, job.kind.sql_scope(job.settings))
        for job in jobs
        for place, (kind, text) in job.kind.sql(job.settings).items()
    ]


def sql_problems(pipeline: PipelineSettings, texts: Sequence[SqlText], jvm: Any) -> Iterator[str]:
    """The problems of SQL, each with its place.

    Args:
        pipeline: the settings.
        texts: the SQL.
        jvm: a JVM with Spark's classes.
    """
    settings = {**spark_defaults(), **pipeline.spark}
    analyzer = None
    if not any(name.lower().startswith(_OTHER_NAMES) for name in settings):
        # A Spark that builds it in another way is left to the run: py4j takes a class that is missing for a package.
        with suppress(Py4JError, TypeError):
            analyzer = _Analyzer(jvm, settings)
    for one in texts:
        problem = sql_problem(jvm, one.text, is_query=one.is_query)
        if problem is None and analyzer is not None and one.scope is not None:
            # It was parsed alone, so that it ends before the bracket.
            query = one.text if one.is_query else f"SELECT (\n{one.text}\n) FROM source"  # noqa: S608
            problem = analyzer.problem(query, one.scope)
        if problem is not None:
            yield f"{pipeline.place(one.job, *one.place)}: {problem}"


class _Analyzer:
    """Spark's analyzer over a catalog without tables."""

    def __init__(self, jvm: Any, settings: Mapping[str, str]) -> None:
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
        functions = (self._object(name).builtin() for name in ("FunctionRegistry", "TableFunctionRegistry"))
        catalog = catalyst.catalog.SessionCatalog(tables, *functions)
        manager = spark.sql.connector.catalog.CatalogManager(self._object("FakeV2SessionCatalog"), catalog)
        self._analyzer = catalyst.analysis.Analyzer(manager)

    def problem(self, query: str, scope: SqlScope) -> str | None:
        """The problem of a query that the parser can read; None where none is found."""
        try:
            columns = self._columns(query, scope)
        except Py4JJavaError as error:
            java = error.java_exception
            if not str(java.getClass().getName()).endswith("AnalysisException"):
                return None
            message = str(java.getMessage())
            if java.getCondition() == _NO_TABLE:
                name = _NAME.match(message)
                return None if name is None else unknown_name("table", name[1].replace("``", "`"), list(scope.views))
            if None in scope.views.values():
                return None
            return _POSITION.sub("", message.partition(";\n")[0].partition("\n")[0])
        except (Py4JError, TypeError):  # Of a Spark whose plans have other methods.
            return None
        missing = [name for name in scope.key if name not in columns]
        if missing and None not in scope.views.values():
            return f"the result has no key column {missing[0]!r}; it has: {', '.join(columns)}"
        return None

    def _columns(self, query: str, scope: SqlScope) -> list[str]:
        """The names of the columns of a result."""
        views = ", ".join(f"{quoted([name])} AS ({_view(columns)})" for name, columns in scope.views.items())
        around = self._parser.parsePlan(f"WITH {views} SELECT 1")
        plans = self._jvm.java.util.Collections.singletonList(self._parser.parsePlan(query))
        plan = around.withNewChildren(self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(plans).toSeq())
        analyzed = self._analyzer.execute(plan)
        self._analyzer.checkAnalysis(analyzed)
        return list(analyzed.schema().fieldNames())

    def _object(self, name: str) -> Any:
        """An object of Scala."""
        return self._jvm.java.lang.Class.forName(f"{_ANALYSIS}.{name}$").getField("MODULE$").get(None)


def _view(columns: str | None) -> str:
    """A query with columns, of nulls; None: some columns."""
    if columns is None:
        return "SELECT 1"
    return f"SELECT s.* FROM (SELECT CAST(NULL AS STRUCT<{columns}>) AS s)"  # noqa: S608 - nothing is run
