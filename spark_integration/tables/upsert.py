"""Keeps a stream of records as a table: each batch inserts, replaces and removes rows by their key."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError
from spark_integration.tables.merge_into import create_sql, merge_sql, require_package
from spark_integration.tables.snapshots import Snapshots

TableFormat: TypeAlias = Literal["parquet", "delta", "iceberg"]
"""The format of the table: snapshots of plain Parquet, or a format with MERGE from a package."""

_NEEDED: Final = ("kind", "version", "partition", "offset")
_GONE: Final = ("delete", "expire")


def upsert_to(
    table: str,
    *,
    key: Sequence[str] = ("sow_key",),
    format: TableFormat = "parquet",  # noqa: A002 - Spark's word
    keep: int = 3,
) -> Callable[[DataFrame, int], None]:
    """Create a function for `writeStream.foreachBatch` that keeps the rows of `stream_sow` as a table.

    The table has the last row of each key in the topic's order; a delete or expiry removes the row. A repeated batch
    changes nothing. The table has all columns of the stream except `kind`.

    Args:
        table: for `parquet` a directory, which `read_snapshot` reads; else a table's name, or for `delta` a path.
        key: the columns that identify a row. A delete has a `sow_key` and no fields of the record.
        format: `parquet` rewrites the complete table for every batch, and needs no package. `delta` and `iceberg`
            write the changes only, and need their package in the session.
        keep: the number of snapshots of `parquet` to keep for running readers.

    Raises:
        ConfigurationError: an argument cannot be used; later, from a batch: a column is missing, a key is null, or the
            session lacks the package.
    """
    if isinstance(key, str) or not key:
        raise ConfigurationError(f"key={key!r}; give a list of column names: key=['sow_key']")
    if format not in ("parquet", "delta", "iceberg"):
        raise ConfigurationError(f"format={format!r}; give 'parquet', 'delta' or 'iceberg'")
    if keep < 1:
        raise ConfigurationError(f"keep={keep}; at least the last snapshot must stay: give 1 or more")
    names = list(key)

    def upsert(batch: DataFrame, batch_id: int) -> None:  # noqa: ARG001 - Spark calls it so
        _refuse_missing(batch, names)
        # Persisted, as each of several uses would read the batch from Kafka again.
        rows = batch.persist()
        try:
            if rows.isEmpty():
                return
            _refuse_null_keys(rows, names)
            if format == "parquet":
                _replace_snapshot(rows, table, names, keep)
            else:
                _merge(rows, table, names, format)
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
    latest = snapshots.latest()
    if latest is None:
        raise ConfigurationError(f"there is no table at {path}: no batch has been written to it yet; check the path")
    return snapshots.rows(latest)


def _replace_snapshot(batch: DataFrame, path: str, key: list[str], keep: int) -> None:
    snapshots = Snapshots(batch.sparkSession, path)
    before = snapshots.latest()
    applied = {} if before is None else before.applied
    ends = {row["partition"]: row["last"] + 1 for row in batch.groupBy("partition").agg(_last_offset()).collect()}
    if all(end <= applied.get(partition, 0) for partition, end in ends.items()):
        return
    fresh = _latest(_not_applied(batch, applied), key)
    stays = fresh.where(~F.col("kind").isin(*_GONE)).drop("kind")
    if before is not None:
        # All rows of other keys than those in the batch.
        others = snapshots.rows(before).join(fresh.select(*map(_named, key)), key, "left_anti")
        stays = others.unionByName(stays, allowMissingColumns=True)
    reached = {p: max(applied.get(p, 0), ends.get(p, 0)) for p in {*applied, *ends}}
    snapshots.switch(snapshots.write(stays, reached))
    snapshots.clean(keep)


def _last_offset() -> Column:
    return F.max("offset").alias("last")


def _merge(batch: DataFrame, table: str, key: list[str], table_format: str) -> None:
    spark = batch.sparkSession
    require_package(table_format, spark.conf.get("spark.sql.extensions", "") or "")
    fields = [field for field in batch.schema.fields if field.name != "kind"]
    view = f"upsert_{uuid.uuid4().hex}"
    _latest(batch, key).createTempView(view)
    try:
        spark.sql(create_sql(table, table_format, fields))
        spark.sql(merge_sql(table, table_format, key, [field.name for field in fields], view))
    finally:
        spark.catalog.dropTempView(view)


def _latest(batch: DataFrame, key: list[str]) -> DataFrame:
    """The last row of every key, by offset, as versions start again after a delete."""
    whole = F.struct(*(_named(name) for name in batch.columns))
    return batch.groupBy(*map(_named, key)).agg(F.max_by(whole, "offset").alias("last")).select("last.*")


def _not_applied(batch: DataFrame, applied: Mapping[int, int]) -> DataFrame:
    """The rows that a snapshot does not have yet, without those of a repeated batch."""
    old = [(F.col("partition") == partition) & (F.col("offset") < end) for partition, end in applied.items()]
    return batch.where(~reduce(or_, old)) if old else batch


def _refuse_missing(batch: DataFrame, key: list[str]) -> None:
    missing = [name for name in (*key, *_NEEDED) if name not in batch.columns]
    if missing:
        raise ConfigurationError(
            f"upsert_to: the stream has no column {missing[0]!r}; give it the rows of stream_sow, with all of {_NEEDED}"
        )


def _refuse_null_keys(batch: DataFrame, key: list[str]) -> None:
    row = (
        batch.where(reduce(or_, [_named(name).isNull() for name in key])).select("kind", "partition", "offset").first()
    )
    if row is not None:
        raise ConfigurationError(
            f"upsert_to: a row has a null in its key {key}: kind {row['kind']}, partition {row['partition']}, offset "
            f"{row['offset']}; a delete carries no fields of the record: use key=['sow_key']"
        )


def _named(name: str) -> Column:
    # Quoted: a dot in a plain name would mean a field inside a struct.
    return F.col(f"`{name.replace('`', '``')}`")
