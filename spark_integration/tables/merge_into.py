"""Builds the SQL that merges a batch into a table of a format with MERGE, such as Delta and Iceberg."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql.types import StructField

from processor.errors import ConfigurationError

GONE: Final = "s.`kind` IN ('delete', 'expire')"
"""The SQL condition that a row of the batch removes its key."""

_PACKAGES: Final = {
    "delta": ("io.delta", "io.delta:delta-spark_2.13:4.0.0"),
    "iceberg": ("org.apache.iceberg", "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0"),
}
"""By format: the extension in the session's `spark.sql.extensions` that provides MERGE, and its package."""


def require_package(table_format: str, extensions: str) -> None:
    """Make sure that a session supports MERGE for a format.

    Args:
        table_format: `delta` or `iceberg`.
        extensions: the session's setting `spark.sql.extensions`.

    Raises:
        ConfigurationError: it does not; the message names the settings.
    """
    prefix, package = _PACKAGES[table_format]
    if prefix not in extensions:
        raise ConfigurationError(
            f"format={table_format!r}: this session does not know MERGE INTO for such tables; start it with "
            f"spark.jars.packages={package} (or the version for this Spark) and spark.sql.extensions of {prefix}"
        )


def create_sql(table: str, table_format: str, fields: Sequence[StructField]) -> str:
    """Build the SQL that creates the table if it does not exist."""
    columns = ", ".join(f"{_quoted(field.name)} {field.dataType.simpleString()}" for field in fields)
    return f"CREATE TABLE IF NOT EXISTS {target(table, table_format)} ({columns}) USING {table_format}"


def merge_sql(table: str, table_format: str, key: Sequence[str], columns: Sequence[str], view: str) -> str:
    """Build the SQL that merges the rows of a view into a table with one row per key: the latest of the topic.

    Args:
        table: a name, or for Delta a path.
        table_format: `delta` or `iceberg`.
        key: the columns that identify a row of the table.
        columns: all columns of the table, including `partition` and `offset`.
        view: the rows, with an additional column `kind`.
    """
    same = " AND ".join(f"t.{_quoted(name)} <=> s.{_quoted(name)}" for name in key)
    # A repeated batch finds its own offsets in the table. Offsets of different partitions have no order.
    newer = "(s.`partition` <> t.`partition` OR s.`offset` > t.`offset`)"
    changes = ", ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in columns)
    names = ", ".join(map(_quoted, columns))
    values = ", ".join(f"s.{_quoted(name)}" for name in columns)
    return (
        f"MERGE INTO {target(table, table_format)} AS t USING {_quoted(view)} AS s ON {same}\n"  # noqa: S608 - quoted
        f"WHEN MATCHED AND {GONE} AND {newer} THEN DELETE\n"
        f"WHEN MATCHED AND NOT ({GONE}) AND {newer} THEN UPDATE SET {changes}\n"
        f"WHEN NOT MATCHED AND NOT ({GONE}) THEN INSERT ({names}) VALUES ({values})"
    )


def target(table: str, table_format: str) -> str:
    """The name of a table in SQL; a path of Delta gets its format as a prefix."""
    return f"delta.{_quoted(table)}" if table_format == "delta" and "/" in table else table


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
