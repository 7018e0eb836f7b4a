"""Keeps a stream of records as a table: each batch inserts, replaces and removes rows; Delta and Iceberg by MERGE."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Final, Literal, NamedTuple, TypeAlias

import structlog
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType

from processor.errors import ConfigurationError
from spark_integration.foundation.small_files import small_files
from spark_integration.foundation.sql import literal, quoted
from spark_integration.read.metadata_columns import SOW, MetadataColumns
from spark_integration.read.schemas.json_columns import ddl
from spark_integration.tables.snapshots import Snapshots

log = structlog.stdlib.get_logger("sowstream.spark")

TableFormat: TypeAlias = Literal["parquet", "delta", "iceberg"]
"""The format of the table: snapshots of plain Parquet, or a format with MERGE from a package."""

_NEEDED: Final = ("kind", "version", "partition", "offset")
_GONE: Final = ("delete", "expire")

_TOPIC: Final = "sowstream.topic"
"""The property of a table, and the file of one of Parquet, with the Kafka topic that it follows and the topic's id."""

_MISSING: Final = (
    "TABLE_OR_VIEW_NOT_FOUND",
    "SCHEMA_NOT_FOUND",
    "PATH_NOT_FOUND",
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_TABLE_NOT_FOUND",
)
"""The conditions of Spark and of Delta Lake for a table that does not exist."""

KIND: Final = "__kind"
"""The column with the kind of the update, which the table does not have."""

_IS_REMOVAL: Final = f"s.`{KIND}` IN ('delete', 'expire')"
"""The SQL condition that a row of the batch removes its key."""

_PACKAGES: Final = {
    "delta": ("io.delta", "io.delta:delta-spark_2.13:4.0.0"),
    "iceberg": ("org.apache.iceberg", "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0"),
}
"""By format: the extension in the session's `spark.sql.extensions` that provides MERGE, and its package."""


def upsert_to(
    table: str,
    *,
    key: Sequence[str] = ("_sow.sow_key",),
    format: TableFormat = "parquet",  # noqa: A002 - Spark's word
    keep: int = 3,
) -> Callable[[DataFrame, int], None]:
    """Create a function for `writeStream.foreachBatch` that keeps the rows of `stream_sow` as a table.

    The table has the last row of each key in the topic's order; a delete or expiry removes the row. A repeated batch
    changes nothing. The table has all columns of the stream; its `_sow` has no `kind`.

    Args:
        table: for `parquet` a directory, which `read_snapshot` reads; else a table's name, or for `delta` a path.
        key: the columns that identify a row. A delete has a `sow_key` and no fields of the record. In a stream with
            `metadata="flat"`, `_sow.sow_key` is its column `sow_key`.
        format: `parquet` rewrites the complete table for every batch, and needs no package. `delta` and `iceberg`
            write the changes only, and need their package in the session.
        keep: the number of snapshots of `parquet` to keep for running readers.

    Raises:
        ConfigurationError: an argument cannot be used; later, from a batch: a column is missing, a key is null, or the
            session lacks the package.
    """
    if isinstance(key, str) or not key:
        raise ConfigurationError(f"key={key!r}; give a list of column names: key=['_sow.sow_key']")
    if format not in ("parquet", "delta", "iceberg"):
        raise ConfigurationError(f"format={format!r}; give 'parquet', 'delta' or 'iceberg'")
    if keep < 1:
        raise ConfigurationError(f"keep={keep}; at least the last snapshot must stay: give 1 or more")
    names = list(key)

    def upsert(batch: DataFrame, batch_id: int) -> None:  # noqa: ARG001 - Spark calls it so
        updates = _Updates.of(batch, names)
        # Persisted, as each of several uses would read the batch from Kafka again.
        rows = batch.persist()
        try:
            if rows.isEmpty():
                return
            _refuse_null_keys(updates)
            if format == "parquet":
                _replace_snapshot(updates, table, keep)
            else:
                _merge(updates, table, format)
        finally:
            rows.unpersist()

    return upsert


def read_snapshot(spark: SparkSession, path: str) -> DataFrame:
    """Read the table that `upsert_to(path)` keeps, in the state after its last batch.

    The DataFrame keeps that state until `keep` more batches have been written.

    Raises:
        ConfigurationError: the table does not exist yet.
    """
    snapshots = Snapshots(spark, path)
    return snapshots.rows(snapshots.present())


@dataclass(frozen=True, slots=True)
class _Updates:
    """The rows of a batch, and the paths of the columns that an upsert uses."""

    rows: DataFrame
    names: list[str]
    """The key columns, as the caller names them."""
    paths: MergedPaths
    kind: Column

    @classmethod
    def of(cls, batch: DataFrame, key: list[str]) -> _Updates:
        """Find the columns of a batch.

        Raises:
            ConfigurationError: a column is missing.
        """
        columns = MetadataColumns(batch.schema)
        for name in (*key, *(f"{SOW}.{name}" for name in _NEEDED)):
            if columns.path(name) is None:
                raise ConfigurationError(
                    f"upsert_to: the stream has no column {name.split('.')[-1]!r}; give it the rows of stream_sow, "
                    f"with all of {_NEEDED} in {SOW}"
                )
        partition, offset, *keys = (columns.path(name) or () for name in (f"{SOW}.partition", f"{SOW}.offset", *key))
        return cls(batch, key, MergedPaths(keys, partition, offset), columns.column(f"{SOW}.kind"))

    @property
    def key(self) -> list[Column]:
        """The key columns."""
        return [_at(path) for path in self.paths.key]

    @property
    def partition(self) -> Column:
        """The partition of each update."""
        return _at(self.paths.partition)

    @property
    def offset(self) -> Column:
        """The offset of each update."""
        return _at(self.paths.offset)

    def ends(self) -> dict[int, int]:
        """The offset after the last update of each partition."""
        last = self.rows.groupBy(self.partition.alias("number")).agg(F.max(self.offset).alias("last"))
        return {row["number"]: row["last"] + 1 for row in last.collect()}

    def latest(self, rows: DataFrame) -> DataFrame:
        """The last row of every key, by offset, as versions of former releases start again; with column `KIND`."""
        kept = [_without_kind(name) for name in rows.columns if name != "kind" or SOW in rows.columns]
        whole = F.struct(self.kind.alias(KIND), *kept)
        keys = (column.alias(f"__key{number}") for number, column in enumerate(self.key))
        return rows.groupBy(*keys).agg(F.max_by(whole, self.offset).alias("last")).select("last.*")


def _without_kind(name: str) -> Column:
    return _at((SOW,)).dropFields("kind").alias(SOW) if name == SOW else _at((name,))


def _at(path: Sequence[str]) -> Column:
    return F.col(quoted(path))


def _replace_snapshot(updates: _Updates, path: str, keep: int) -> None:
    snapshots = Snapshots(updates.rows.sparkSession, path)
    before = snapshots.latest()
    applied = {} if before is None else before.applied
    ends = updates.ends()
    if all(end <= applied.get(partition, 0) for partition, end in ends.items()):
        return
    fresh = updates.latest(_not_applied(updates, applied))
    stays = fresh.where(~F.col(KIND).isin(*_GONE)).drop(KIND)
    if before is not None:
        old = snapshots.rows(before)
        _refuse_other_layout(path, old, fresh)
        # All rows of other keys than those in the batch.
        keys = fresh.select(*(column.alias(f"__key{number}") for number, column in enumerate(updates.key)))
        same = [column.eqNullSafe(F.col(f"__key{number}")) for number, column in enumerate(updates.key)]
        stays = old.join(keys, reduce(and_, same), "left_anti").unionByName(stays, allowMissingColumns=True)
    reached = {p: max(applied.get(p, 0), ends.get(p, 0)) for p in {*applied, *ends}}
    snapshots.switch(snapshots.write(stays, reached))
    snapshots.clean(keep)


def _refuse_other_layout(path: str, old: DataFrame, fresh: DataFrame) -> None:
    if (SOW in old.columns) != (SOW in fresh.columns):
        layout = "struct" if SOW in old.columns else "flat"
        raise ConfigurationError(
            f"{path} was written from a stream with metadata={layout!r}, and this stream has the other one; read the "
            f"stream with metadata={layout!r}, or write another table"
        )


def _merge(updates: _Updates, table: str, table_format: str) -> None:
    spark = updates.rows.sparkSession
    require_package(table_format, spark.conf.get("spark.sql.extensions", "") or "")
    rows = updates.latest(updates.rows)
    fields = [field for field in rows.schema.fields if field.name != KIND]
    view = f"upsert_{uuid.uuid4().hex}"
    rows.createTempView(view)
    try:
        spark.sql(create_sql(table, table_format, fields))
        spark.sql(merge_sql(table, table_format, updates.paths, [field.name for field in fields], view))
    finally:
        spark.catalog.dropTempView(view)


def _not_applied(updates: _Updates, applied: Mapping[int, int]) -> DataFrame:
    """The rows that a snapshot does not have yet, without those of a repeated batch."""
    old = [(updates.partition == partition) & (updates.offset < end) for partition, end in applied.items()]
    return updates.rows.where(~reduce(or_, old)) if old else updates.rows


def _refuse_null_keys(updates: _Updates) -> None:
    nulls = updates.rows.where(reduce(or_, [column.isNull() for column in updates.key]))
    row = nulls.select(
        updates.kind.alias("kind"), updates.partition.alias("number"), updates.offset.alias("at")
    ).first()
    if row is not None:
        raise ConfigurationError(
            f"upsert_to: a row has a null in its key {updates.names}: kind {row['kind']}, partition {row['number']}, "
            f"offset {row['at']}; a delete carries no fields of the record: use key=['_sow.sow_key']"
        )


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


def follow_topic(session: SparkSession, place: str, table_format: str, topic: str, topic_id: str) -> bool:
    """Record the Kafka topic whose offsets a table has; a table without one takes this one.

    Where properties cannot be read or set, as without the right to change a table whose rows may be written, the log
    has the reason and the statement.

    Args:
        session: the session.
        place: the directory or the name of the table.
        table_format: its format.
        topic: the name of the Kafka topic.
        topic_id: the id that Kafka gave it.

    Returns:
        False if there is no table yet.

    Raises:
        ConfigurationError: the table has offsets of another topic.
    """
    files = small_files(f"{place}/_sowstream", session) if table_format == "parquet" else None
    name = target(place, table_format)
    if files is not None:
        if Snapshots(session, place).latest() is None:
            return False
        present = files.read(_TOPIC)
    else:
        statement = f"SHOW TBLPROPERTIES {name}"
        try:
            properties = session.sql(statement).collect()
        except (PySparkException, Py4JJavaError) as error:
            if is_missing(error):
                return False
            log.warning("the topic of the table is not checked", statement=statement, error=reason_of(error))
            return True
        present = next((row["value"] for row in properties if row["key"] == _TOPIC), None)
    wanted = f"{topic} {topic_id}"
    if present == wanted:
        return True
    if present is not None:
        raise ConfigurationError(
            f"{place} has the offsets of the topic {present}, and this one is {wanted}: its records would count as "
            "old. Give another table and checkpoint, or remove these"
        )
    if files is not None:
        files.write(_TOPIC, wanted)
        return True
    statement = f"ALTER TABLE {name} SET TBLPROPERTIES ({literal(_TOPIC)} = {literal(wanted)})"
    try:
        session.sql(statement)
    except (PySparkException, Py4JJavaError) as error:
        said = "the topic is not recorded in the table: let an administrator run the statement"
        log.warning(said, statement=statement, error=reason_of(error))
    return True


def table_schema(session: SparkSession, place: str, table_format: str) -> StructType:
    """The columns of a table that exists.

    Args:
        session: the session.
        place: the directory or the name of the table.
        table_format: its format.
    """
    if table_format == "parquet":
        snapshots = Snapshots(session, place)
        return snapshots.rows(snapshots.present()).schema
    return session.sql(f"SELECT * FROM {target(place, table_format)}").schema  # noqa: S608 - the name is quoted


def is_missing(error: Exception) -> bool:
    """Return whether an error of Spark says that a table does not exist, and not that it cannot be read."""
    return isinstance(error, AnalysisException) and error.getCondition() in _MISSING


def reason_of(error: Exception) -> str:
    """Return the first line of an error of Spark or of Java."""
    return str(getattr(error, "java_exception", error)).partition("\n")[0]


def create_sql(table: str, table_format: str, fields: Sequence[StructField]) -> str:
    """Build the SQL that creates the table if it does not exist."""
    columns = ", ".join(f"{quoted([field.name])} {ddl(field.dataType)}" for field in fields)
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
        f"WHEN MATCHED AND {_IS_REMOVAL} AND {newer} THEN DELETE\n"
        f"WHEN MATCHED AND NOT ({_IS_REMOVAL}) AND {newer} THEN UPDATE SET {changes}\n"
        f"WHEN NOT MATCHED AND NOT ({_IS_REMOVAL}) THEN INSERT ({names}) VALUES ({values})"
    )


def target(table: str, table_format: str) -> str:
    """The name of a table in SQL; a path of Delta gets its format as a prefix."""
    return f"delta.{quoted([table])}" if table_format == "delta" and "/" in table else table
