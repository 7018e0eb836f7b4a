"""Checks the SQL of jobs: Spark's own parser reads it, and its analyzer finds the names in it, without a session.

The analyzer knows no data. A view of a query is a common table of one row of nulls, with the columns that the settings
name; so wrong names of tables, functions and columns are found, and types. Where only its records show the columns of a
view, names of tables and functions alone are. A table with a qualified name, such as `lake.db.t`, is one that
only a session knows.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

from processor.errors import unknown_name
from spark_integration.foundation.pyspark_private import SqlAnalyzer, sql_problem
from spark_integration.foundation.sql import quoted
from spark_integration.session import parser_jvm, spark_defaults

if TYPE_CHECKING:
    from spark_integration.pipeline.job import SqlScope
    from spark_integration.pipeline.offline_check import SettingPlace
    from spark_integration.pipeline.pipeline_settings import PipelineJob, PipelineSettings

_NO_TABLE: Final = "TABLE_OR_VIEW_NOT_FOUND"
_NO_FUNCTION: Final = ("UNRESOLVED_ROUTINE", "ROUTINE_NOT_FOUND", "UNRESOLVABLE_TABLE_VALUED_FUNCTION")
_OF_A_CATALOG: Final = "REQUIRES_SINGLE_PART_NAMESPACE"
"""The condition of a name in a catalog that only a session may know."""
_NAME: Final = re.compile(r"[^`]*(?:`default`\.)?`((?:[^`]|``)*)`(?!\.)")
"""The beginning of these errors, up to a name of one part; that of a table's function has a database."""
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


@contextmanager
def starting_jvm(*, keeps_classes: bool = False) -> Iterator[Callable[[], Any]]:
    """Start a JVM for `sql_problems`, which loads the classes of the analyzer while the block does other work.

    Args:
        keeps_classes: keep them for later starts, see `parser_jvm`.

    Yields:
        A function that waits for the JVM and returns it; it raises `Stop` where the JVM did not start.
    """
    with ExitStack() as stack:
        stack.callback(logging.disable, logging.NOTSET)
        thread = stack.enter_context(ThreadPoolExecutor(1))
        prepared = thread.submit(_prepared, stack.enter_context(parser_jvm(keeps_classes=keeps_classes)))
        # The end of the JVM may break a call in that thread, which py4j would log.
        stack.callback(logging.disable)
        yield prepared.result


def _prepared(wait: Callable[[], Any]) -> Any:
    jvm = wait()
    with suppress(Py4JError, TypeError):
        SqlAnalyzer(jvm, {}).columns("SELECT a, sum(b) AS b FROM t GROUP BY a", {"t": "SELECT 'x' AS a, 1 AS b"})
    return jvm


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
            analyzer = SqlAnalyzer(jvm, settings)
    for one in texts:
        problem = sql_problem(jvm, one.text, is_query=one.is_query)
        if problem is None and analyzer is not None and one.scope is not None:
            # It was parsed alone, so that it ends before the bracket.
            query = one.text if one.is_query else f"SELECT (\n{one.text}\n) FROM source"  # noqa: S608
            problem = _name_problem(analyzer, query, one.scope)
        if problem is not None:
            yield f"{pipeline.place(one.job, *one.place)}: {problem}"


def _name_problem(analyzer: SqlAnalyzer, query: str, scope: SqlScope) -> str | None:
    """The problem of a query that the parser can read, with a name in it; None where none is found."""
    views = {quoted([name]): _view(columns) for name, columns in scope.views.items()}
    try:
        columns = analyzer.columns(query, views)
    except Py4JJavaError as error:
        java = error.java_exception
        if not str(java.getClass().getName()).endswith("AnalysisException"):
            return None
        message, condition = str(java.getMessage()), java.getCondition()
        if condition == _OF_A_CATALOG:
            return None
        if condition == _NO_TABLE or condition in _NO_FUNCTION:
            if (found := _NAME.match(message)) is None:
                return None
            name = found[1].replace("``", "`")
            if condition == _NO_TABLE:
                return unknown_name("table", name, list(scope.views))
            close = difflib.get_close_matches(name.lower(), analyzer.functions(), n=1)
            return f"there is no function {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")
        if None in scope.views.values():
            return None
        return _POSITION.sub("", message.partition(";\n")[0].partition("\n")[0])
    except (Py4JError, TypeError):  # Of a Spark whose plans have other methods.
        return None
    missing = [name for name in scope.key if name not in columns]
    if missing and None not in scope.views.values():
        return f"the result has no key column {missing[0]!r}; it has: {', '.join(columns)}"
    return None


def _view(columns: str | None) -> str:
    """A query with columns, of nulls; None: some columns."""
    if columns is None:
        return "SELECT 1"
    return f"SELECT s.* FROM (SELECT CAST(NULL AS STRUCT<{columns}>) AS s)"  # noqa: S608 - nothing is run
