"""Builds the SQL that merges a batch into a table of a format with MERGE, such as Delta and Iceberg."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pyspark.sql.types import StructField

from processor.errors import ConfigurationError
from spark_integration.read.metadata_columns import quoted

KIND: Final = "__kind"
"""The column with the kind of the update, which the table does not have."""

_GONE: Final = f"s.`{KIND}` IN ('delete', 'expire')"
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
    columns = ", ".join(f"{quoted([field.name])} {field.dataType.simpleString()}" for field in fields)
    return f"CREATE TABLE IF NOT EXISTS {target(table, table_format)} ({columns}) USING {table_format}"


class MergedPaths(NamedTuple):
    """The paths of the columns that a merge compares, each a name, or the name of a struct and one inside it."""

    key: Sequence[tuple[str, ...]]
    """The columns that identify a row of the table."""
    partition: tuple[str, ...]
    """The partition of the topic."""
    offset: tuple[str, ...]
    """The offset of the record."""


def merge_sql(table: str, table_format: str, paths: MergedPaths, columns: Sequence[str], view: str) -> str:
    """Build the SQL that merges the rows of a view into a table with one row per key: the latest of the topic.

    Args:
        table: a name, or for Delta a path.
        table_format: `delta` or `iceberg`.
        paths: the columns to compare.
        columns: all columns of the table.
        view: the rows, with an additional column `KIND`.
    """
    same = " AND ".join(f"t.{quoted(path)} <=> s.{quoted(path)}" for path in paths.key)
    partition, offset = quoted(paths.partition), quoted(paths.offset)
    # A repeated batch finds its own offsets in the table. Offsets of different partitions have no order.
    newer = f"(s.{partition} <> t.{partition} OR s.{offset} > t.{offset})"
    changes = ", ".join(f"t.{quoted([name])} = s.{quoted([name])}" for name in columns)
    names = ", ".join(quoted([name]) for name in columns)
    values = ", ".join(f"s.{quoted([name])}" for name in columns)
    return (
        f"MERGE INTO {target(table, table_format)} AS t USING {quoted([view])} AS s ON {same}\n"  # noqa: S608 - quoted
        f"WHEN MATCHED AND {_GONE} AND {newer} THEN DELETE\n"
        f"WHEN MATCHED AND NOT ({_GONE}) AND {newer} THEN UPDATE SET {changes}\n"
        f"WHEN NOT MATCHED AND NOT ({_GONE}) THEN INSERT ({names}) VALUES ({values})"
    )


def target(table: str, table_format: str) -> str:
    """The name of a table in SQL; a path of Delta gets its format as a prefix."""
    return f"delta.{quoted([table])}" if table_format == "delta" and "/" in table else table
