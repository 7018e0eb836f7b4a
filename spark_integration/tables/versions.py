"""Keeps the history of a topic as a table with a row for each version of a record (SCD type 2).

Each row is valid from the delta that made it until the next one of its key. A version that no delta has ended is open:
its `valid_to` is null. Rows are identified by the place of their delta, so that a repeated batch changes nothing.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.wire import columns as names
from spark_integration.foundation.arrow_records import HEADERS_DDL
from spark_integration.publish.commands import header
from spark_integration.tables.snapshots import Snapshots
from spark_integration.tables.upsert import create_sql, is_missing, require_package, target
from spark_integration.tables.version_columns import LAST_RECORD, MARKS, MISFIT, PLACE, VersionColumns
from spark_integration.tables.version_fold import REPEATED_MAX, STATE, VERSIONS_DDL, VersionFold

if TYPE_CHECKING:
    from spark_integration.foundation.settings import TopicSettings

_CLOSED_MAX: Final = 16
"""Directories of ended versions of one size, before they become one of the next size."""

OnMisfits: TypeAlias = Callable[[DataFrame], object]
"""Called with the versions that do not fit: columns `reason`, `partition`, `offset`, `key`, `at` and `row`."""


class VersionTable(ABC):
    """A table of versions, in one format."""

    columns: VersionColumns

    @abstractmethod
    def applied(self) -> Mapping[int, int]:
        """The next offset of each partition: all earlier deltas are in the table."""

    @abstractmethod
    def state_rows(self) -> DataFrame | None:
        """The versions that have not ended, and those that a delete has ended lately; None if there is no table yet.

        Lately is within `REPEATED_MAX` offsets.
        """

    @abstractmethod
    def add(self, versions: DataFrame, applied: Mapping[int, int]) -> None:
        """Add the versions of a batch, and the ends of versions that were open, all at once."""


def version_table(
    session: SparkSession, place: str, table_format: str, columns: VersionColumns, keep: int = 3
) -> VersionTable:
    """Open a table of versions, which may be missing.

    Args:
        session: the session.
        place: a directory for `parquet`; for `delta` a directory or a name; for `iceberg` a name.
        table_format: `parquet`, `delta` or `iceberg`.
        columns: the columns.
        keep: the number of earlier states of `parquet` to keep for running readers.

    Raises:
        ConfigurationError: the session lacks the package of the format.
    """
    if table_format == "parquet":
        return _ParquetVersions(session, place, columns, keep)
    require_package(table_format, session.conf.get("spark.sql.extensions", "") or "")
    return _MergedVersions(session, place, table_format, columns)


def add_deltas(
    batch: DataFrame,
    table: VersionTable,
    settings: TopicSettings,
    overlap: Mapping[int, int] | None = None,
    on_misfits: OnMisfits | None = None,
) -> int:
    """Fold a batch of records of the delta topic into a table; returns the number of deltas that were new.

    Args:
        batch: rows of Spark's Kafka source, with headers.
        table: the table.
        settings: the settings of the topic.
        overlap: see `VersionFold`.
        on_misfits: called with the versions that do not fit the columns, if the table shows them.

    Raises:
        Stop: a delta does not follow from the version before it, or cannot be read.
    """
    before = table.applied()
    fresh = batch.where(F.col("key").isNotNull())
    if before:
        fresh = fresh.where(~reduce(or_, [(F.col("partition") == p) & (F.col("offset") < end)
                                          for p, end in before.items()]))  # fmt: skip
    deltas = _as_deltas(fresh, F.col("offset")).persist()
    try:
        ends = {row["partition"]: row["last"] + 1 for row in
                deltas.groupBy("partition").agg(F.max("offset").alias("last")).collect()}  # fmt: skip
        if not ends:
            return 0
        rows = deltas
        states = table.state_rows()
        if states is not None:
            begun = table.columns.as_state(states).join(deltas.select("key").distinct(), "key", "left_semi")
            rows = begun.withColumn("headers", F.array().cast(HEADERS_DDL)).unionByName(deltas)
        versions = _versions(rows, table, VersionFold(settings, dict(overlap or {})))
        reached = {p: max(before.get(p, 0), ends.get(p, 0)) for p in {*before, *ends}}
        _add(versions, table, reached, on_misfits)
        return deltas.count()
    finally:
        deltas.unpersist()


def begin_with_records(
    latest: DataFrame, table: VersionTable, settings: TopicSettings, on_misfits: OnMisfits | None = None
) -> None:
    """Begin an empty table with the `latest_records` of the SOW topic, each as an open version, all at once.

    They are identified by negative numbers, as their deltas are not known.
    """
    rows = _as_deltas(latest, -F.col("offset") - 1, header(names.KIND, F.lit("insert")))
    _add(_versions(rows, table, VersionFold(settings)), table, {}, on_misfits)


def _add(versions: DataFrame, table: VersionTable, applied: Mapping[int, int], on_misfits: OnMisfits | None) -> None:
    """Add the versions, and show those that do not fit before: a repeated batch shows them again."""
    misfits = table.columns.misfits(versions)
    if misfits is None or on_misfits is None:
        table.add(versions, applied)
        return
    versions.persist()
    try:
        on_misfits(misfits)
        table.add(versions, applied)
    finally:
        versions.unpersist()


def _as_deltas(records: DataFrame, offset: Column, *headers: Column) -> DataFrame:
    """Convert rows of Spark's Kafka source to deltas that a fold adds to the states of their keys.

    Args:
        records: the rows.
        offset: the number that identifies each delta in its partition.
        headers: headers to add.
    """
    added = F.array(*headers).cast(HEADERS_DDL)
    return records.select(
        F.col("key").cast("string").alias("key"),
        F.lit(True).alias("is_delta"),
        "partition",
        offset.alias("offset"),
        F.unix_micros("timestamp").alias("at_us"),
        "value",
        F.concat(F.coalesce("headers", F.array().cast(HEADERS_DDL)), added).alias("headers"),
        # Only the states of keys have these.
        *(F.lit(None).cast("long").alias(name) for name in ("version", *STATE)),
    )


def _versions(rows: DataFrame, table: VersionTable, fold: VersionFold) -> DataFrame:
    """Fold rows to those of the table."""
    # A key is in one task, with its state first.
    in_order = rows.repartition("key").sortWithinPartitions("key", "is_delta", "offset")
    return table.columns.of(in_order.mapInArrow(fold, VERSIONS_DDL))


def read_versions(spark: SparkSession, path: str) -> DataFrame:
    """Read a table of versions that a job `table` of `kind: scd2` keeps as Parquet.

    Returns:
        One row for each version: the record's columns (or `value`, its JSON text), `sow_key`, `version`, `valid_from`
        and `valid_to` (null: it is the present one).

    Raises:
        ConfigurationError: the table does not exist yet.
    """
    snapshots = Snapshots(spark, path)
    latest = snapshots.present()
    # The others are states of keys whose record is gone, and are among the ended versions too.
    parts = [snapshots.rows(latest).where(F.col(LAST_RECORD).isNotNull()), *snapshots.closed_rows(latest)]
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    return rows.drop(LAST_RECORD, *PLACE)


def _is_late(applied: Mapping[int, int]) -> Column:
    """Return whether the delete that ended a version is one of the last of its partition."""
    number, gone = F.col("_topic_partition"), F.col("_gone.offset")
    bounds = [(number == partition) & (gone >= end - REPEATED_MAX) for partition, end in applied.items()]
    return reduce(or_, bounds) if bounds else F.lit(False)


class _ParquetVersions(VersionTable):
    """Snapshots of the states, and directories of ended versions that the snapshots share."""

    def __init__(self, session: SparkSession, path: str, columns: VersionColumns, keep: int) -> None:
        self.columns = columns
        self._session, self._keep = session, keep
        self._snapshots = Snapshots(session, path)

    def applied(self) -> Mapping[int, int]:
        latest = self._snapshots.latest()
        return {} if latest is None else latest.applied

    def state_rows(self) -> DataFrame | None:
        latest = self._snapshots.latest()
        return None if latest is None else self._snapshots.rows(latest)

    def add(self, versions: DataFrame, applied: Mapping[int, int]) -> None:
        snapshots, key, valid_to = self._snapshots, self.columns.added[0], self.columns.added[3]
        rows = versions.persist()
        try:
            before = snapshots.latest()
            closed = [] if before is None else list(before.closed)
            closed.append(snapshots.write_rows(rows.where(F.col(valid_to).isNotNull()).drop(*MARKS, MISFIT), "c0"))
            stays = rows.where("is_state").drop(*MARKS, MISFIT)
            if before is not None:
                others = snapshots.rows(before).join(rows.select(key).distinct(), key, "left_anti")
                lasting = others.where(F.col(valid_to).isNull() | _is_late(applied))
                stays = lasting.unionByName(stays, allowMissingColumns=True)
            snapshots.switch(snapshots.write(stays, applied, self._compacted(closed)))
            snapshots.clean(self._keep)
        finally:
            rows.unpersist()

    def _compacted(self, closed: list[str]) -> list[str]:
        """Join directories of one size into one of the next, so that each row is written again a few times only."""
        size = 0
        while len(same := [name for name in closed if name.startswith(f"c{size}-")]) >= _CLOSED_MAX:
            frames = [self._session.read.parquet(f"{self._snapshots.path}/data/{name}") for name in same]
            joined = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
            directory = self._snapshots.write_rows(joined.coalesce(size + 1), f"c{size + 1}")
            closed = [*(name for name in closed if name not in same), directory]
            size += 1
        return closed


class _MergedVersions(VersionTable):
    """A table of Delta or Iceberg, changed by one MERGE for each batch."""

    def __init__(self, session: SparkSession, place: str, table_format: str, columns: VersionColumns) -> None:
        self.columns = columns
        self._session, self._place, self._format = session, place, table_format
        self._applied: Mapping[int, int] | None = None

    def applied(self) -> Mapping[int, int]:
        # Only the first batch of a run can be a repeated one: the table is scanned once.
        if self._applied is None:
            rows = self._rows()
            reached = F.max(F.greatest("_offset", "_end_offset")).alias("last")
            ends = [] if rows is None else rows.groupBy("_topic_partition").agg(reached).collect()
            self._applied = {row["_topic_partition"]: row["last"] + 1 for row in ends}
        return self._applied

    def state_rows(self) -> DataFrame | None:
        rows = self._rows()
        if rows is None:
            return None
        # Of an ended version that no delete has ended, `_gone` is the end of the life before.
        is_gone = (F.col("_gone.offset") == F.col("_end_offset")) & _is_late(self.applied())
        return rows.where(F.col(f"`{self.columns.added[3]}`").isNull() | is_gone)

    def add(self, versions: DataFrame, applied: Mapping[int, int]) -> None:
        own = [name for name in versions.columns if name not in (*MARKS, MISFIT)]
        table, valid_to = target(self._place, self._format), self.columns.added[3]
        view = f"versions_{uuid.uuid4().hex}"
        session = versions.sparkSession
        fields = [field for field in versions.schema.fields if field.name not in (*MARKS, MISFIT)]
        session.sql(create_sql(self._place, self._format, fields))
        rows = versions.persist()
        rows.createTempView(view)
        try:
            ended = ", ".join(f"t.`{name}` = s.`{name}`" for name in (valid_to, "_end_offset", "_gone", LAST_RECORD))
            columns = ", ".join(f"`{name}`" for name in own)
            values = ", ".join(f"s.`{name}`" for name in own)
            session.sql(
                f"MERGE INTO {table} AS t USING `{view}` AS s\n"  # noqa: S608 - names are quoted
                "ON s.was_open AND t.`_topic_partition` = s.`_topic_partition` AND t.`_offset` = s.`_offset`\n"
                f"WHEN MATCHED THEN UPDATE SET {ended}\n"
                f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"
            )
        finally:
            session.catalog.dropTempView(view)
            rows.unpersist()
        self._applied = dict(applied)

    def _rows(self) -> DataFrame | None:
        exists = self._is_delta_path() if "/" in self._place else self._session.catalog.tableExists(self._place)
        return self._session.sql(f"SELECT * FROM {target(self._place, self._format)}") if exists else None  # noqa: S608

    def _is_delta_path(self) -> bool:
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - rarely needed

        try:
            return bool(self._session.read.format("delta").load(self._place).columns)
        except AnalysisException as error:
            if is_missing(error):
                return False
            raise
