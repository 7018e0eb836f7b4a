"""Reconciles a family: the SOW topic, the replay of its deltas, the replay of its archive, and a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from processor.errors import ConfigurationError
from processor.wire import columns as names
from spark_integration.foundation.options import client_properties, with_connection
from spark_integration.foundation.settings import topic_settings
from spark_integration.foundation.sql import aliased, quoted
from spark_integration.merge.batch.history import as_records
from spark_integration.merge.batch.merge_batch import merge_batch
from spark_integration.merge.moves.archived import archived, history_to, offset_of
from spark_integration.merge.moves.delta_replay import (
    DIFFERENT,
    MISSING,
    RESULT_DDL,
    SAME,
    SOW_OFFSET,
    SURPLUS,
    VALUE,
    VERSION,
    DeltaReplay,
)
from spark_integration.merge.moves.differences import (
    DELETE,
    INSERT,
    UPDATE,
    Difference,
    compared,
    consistent_cut,
    counts_by_kind,
    first_rows,
    sow_before,
)
from spark_integration.merge.topic_family import TopicFamily
from spark_integration.read.mask import TO_JSON
from spark_integration.read.metadata_columns import SOW, header_number
from spark_integration.read.misfit import RECORD, with_record
from spark_integration.tables.snapshots import Snapshots

if TYPE_CHECKING:
    from spark_integration.foundation.options import Options
    from spark_integration.foundation.settings import Settings, TopicSettings
    from spark_integration.merge.batch.deduplicate import Keyless

DIFFERENCES_MAX: Final = 20
"""Number of differences in a report, for each check."""
_EXPIRING_MS: Final = 10_000
"""A record that ends this short before the cut may have expired on one side only."""
_COLUMNS: Final = ("key", "value", "headers", "partition", "offset", "timestamp_ms")
"""The columns that `DeltaReplay` reads."""
_OF_REPLAY: Final = {INSERT: MISSING, DELETE: SURPLUS, UPDATE: VALUE}

BEHIND: Final = "behind"
"""The table has not got the last record of the key yet."""

_METADATA: Final = "_sow"
_FLAT: Final = ("sow_key", "version", "timestamp", "expires_at", "source", "headers", "partition", "offset")


def table_rows(
    spark: SparkSession, settings: TopicSettings, family: TopicFamily, options: Options, path: str, table_format: str
) -> DataFrame:
    """Compare the rows of a table with the SOW topic.

    Args:
        spark: a session.
        settings: the settings of the topic.
        family: its topics.
        options: options of Spark's Kafka source.
        path: the path or the name of the table.
        table_format: `parquet` for the snapshots of `upsert_to`, else a format of Spark.

    Returns:
        A row for each key: `kind`, and the fields of `Difference`.

    Raises:
        ConfigurationError: there is no such table, or it has no metadata of records.
    """
    rows, applied = _read(spark, path, table_format)
    is_struct = _METADATA in rows.columns
    if not is_struct and not {"sow_key", "version", "partition", "offset"} <= set(rows.columns):
        raise ConfigurationError(f"{path} has neither the column {_METADATA} nor sow_key, version, partition, offset")

    def metadata(name: str) -> Column:
        return F.col(f"{_METADATA}.{name}" if is_struct else name)

    if applied is None:
        last = rows.groupBy(metadata("partition").alias("at")).agg(F.max(metadata("offset")).alias("last")).collect()
        applied = {row["at"]: row["last"] + 1 for row in last}
    fields = [field for field in rows.schema.fields if field.name not in ((_METADATA,) if is_struct else _FLAT)]
    partitions = settings.topic.partitions
    ends = family.bounds("sow", partitions).ends
    reached = {partition: applied.get(partition, 0) for partition in range(partitions)}
    wanted = rows.select(
        metadata("sow_key").alias("name"),
        metadata("version").alias("wanted_version"),
        F.to_json(F.struct(*(F.col(quoted([field.name])) for field in fields)), TO_JSON).alias("wanted") if fields
        else F.lit("{}").alias("wanted"),
        metadata("partition").alias("wanted_partition"),
    )  # fmt: skip
    there = sow_before(spark, settings, family, ends, options).select(
        F.col("key").cast("string").alias("name"),
        "key",
        "partition",
        F.col("value").alias("there"),
        F.expr(aliased("there_version", header_number(names.VERSION))),
        (F.col("offset") >= offset_of(reached)).alias("is_behind"),
    )
    both = there.join(wanted, "name", "full_outer")
    # Only JSON can be read into the columns of a table here; of other types the versions are compared.
    is_same = F.lit(True)
    if settings.topic.message_type == "json" and fields:
        both = with_record(both, StructType(fields), "CAST(there AS STRING)")
        is_same = F.to_json(F.col(RECORD).dropFields(SOW), TO_JSON).eqNullSafe(F.col("wanted"))
    kind = (
        F.when(F.col("is_behind"), BEHIND)
        .when(F.col("there").isNull() & F.col("wanted").isNull(), SAME)
        .when(F.col("there").isNull(), MISSING)
        .when(F.col("wanted").isNull(), SURPLUS)
        .when(~F.col("there_version").eqNullSafe(F.col("wanted_version")), VERSION)
        .otherwise(F.when(is_same, SAME).otherwise(VALUE))
    )
    return both.select(
        kind.alias("kind"),
        F.coalesce("partition", "wanted_partition").cast("int").alias("partition"),
        F.coalesce("key", F.col("name").cast("binary")).alias("key"),
        "there",
        F.col("wanted").cast("binary").alias("wanted"),
        "there_version",
        F.col("wanted_version").cast("bigint").alias("wanted_version"),
    )


def _read(spark: SparkSession, path: str, table_format: str) -> tuple[DataFrame, Mapping[int, int] | None]:
    """The rows of a table, and the next offset of each partition of the SOW topic, as far as it is known."""
    if table_format == "parquet":
        snapshots = Snapshots(spark, path)
        if (latest := snapshots.latest()) is not None:
            return snapshots.rows(latest), latest.applied
    try:
        return spark.read.format(table_format).load(path), None
    except AnalysisException as error:
        raise ConfigurationError(
            f"{path} cannot be read as {table_format}: {str(error).partition(chr(10))[0]}"
        ) from None


class Check(NamedTuple):
    """One comparison with the SOW topic."""

    name: str
    """`deltas`, `archive` or `table`."""
    counts: Mapping[str, int]
    """The number of keys by verdict: `same`; `partial` and `unseen` where deltas are gone; `behind` where a table has
    not got the record yet; `missing`, `surplus`, `value`, `version`, `gap`: the differences of the SOW topic."""
    differences: list[Difference]
    """The first differences, by partition and key."""

    @property
    def is_equal(self) -> bool:
        """True if there is no difference."""
        return not any(self.counts.get(kind) for kind in DIFFERENT)

    def __str__(self) -> str:
        """The check for people: a line, and one for each difference."""
        numbers = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.counts.items()) if count) or "no records"
        return "\n".join([f"SOW = {self.name}: {'yes' if self.is_equal else 'NO'}: {numbers}",
                          *(f"  {each}" for each in self.differences)])  # fmt: skip


class Reconciliation(NamedTuple):
    """The report of all checks."""

    topic: str
    """The family's name."""
    checks: list[Check]
    """The checks that were made."""

    @property
    def is_equal(self) -> bool:
        """True if no check found a difference."""
        return all(check.is_equal for check in self.checks)

    def __str__(self) -> str:
        """The report for people."""
        return "\n".join([f"{self.topic}:", *map(str, self.checks)])


def reconcile(
    spark: SparkSession,
    topic: str,
    *,
    config: Settings,
    options: Options | None = None,
    archive: str | None = None,
    data_format: str = "parquet",
    table: str | None = None,
    table_format: str = "parquet",
    keyless: Keyless = "skip",
) -> Reconciliation:
    """Compare the SOW topic with the replay of its deltas, and with an archive and a table if they are given.

    Workers may run: each comparison has a cut at which both sides must agree. While Spark merges, records and deltas
    are not written together: then compare when it is idle.

    Args:
        spark: a session with Spark's Kafka connector.
        topic: the family's name.
        config: the topic's settings, the same as the workers'.
        options: options of Spark's Kafka source.
        archive: the directory of an archive of the publish topic, which is merged again; deltas in it are replayed too.
        data_format: its format, as Spark's readers call it.
        table: a table of the pipeline with one row for each key.
        table_format: its format.
        keyless: the treatment of records that a worker forwards: see `merge_batch`.

    Raises:
        ConfigurationError: settings, archive or table cannot be used, or records between archive and topic are gone.
        Stop: Kafka does not answer, or workers commit so often that no moment between two commits was met.
    """
    settings = topic_settings(topic, config, options=options)
    own = with_connection(options, settings.kafka)
    with TopicFamily(settings, client_properties(settings.kafka, options)) as family:
        run = _Run(spark, settings, own, family, archive, data_format)
        checks: list[Callable[[], tuple[str, DataFrame]]] = [run.deltas]
        if archive is not None:
            checks.append(lambda: run.replay(config, keyless))
        if table is not None:
            checks.append(lambda: ("table", table_rows(spark, settings, family, own, table, table_format)))
        return Reconciliation(topic, [_check(*check()) for check in checks])


def _check(name: str, rows: DataFrame) -> Check:
    rows = rows.persist(StorageLevel.DISK_ONLY)
    try:
        counts = counts_by_kind(rows)
        differences = first_rows(rows.where(F.col("kind").isin(*DIFFERENT)), DIFFERENCES_MAX)
    finally:
        rows.unpersist()
    return Check(name, counts, differences)


class _Run(NamedTuple):
    """The arguments of a reconciliation."""

    spark: SparkSession
    settings: TopicSettings
    options: Options
    family: TopicFamily
    archive: str | None
    data_format: str

    def deltas(self) -> tuple[str, DataFrame]:
        """Replay the deltas; see `delta_replay`."""
        settings, partitions = self.settings, self.settings.topic.partitions
        first_ends = self.family.bounds("delta", partitions).ends
        there = sow_before(self.spark, settings, self.family, self.family.bounds("sow", partitions).ends, self.options)
        ends = self.family.bounds("delta", partitions).ends
        older = None
        if self.archive is not None:
            older = archived(self.spark, self.archive, settings, "delta", self.data_format)
            older = None if older.isEmpty() else older
        history = history_to(older, settings, self.family, "delta", ends, self.options, self.spark)
        is_complete = {partition: history.begins.get(partition, 0) == 0 for partition in range(partitions)}
        rows = as_records(history.rows).unionByName(
            there.select(
                "key",
                "value",
                "headers",
                "partition",
                F.lit(SOW_OFFSET).cast("bigint").alias("offset"),
                F.lit(0).cast("bigint").alias("timestamp_ms"),
            )
        )
        by_key = rows.repartition("partition", "key").sortWithinPartitions("partition", "key", "offset")
        replay = DeltaReplay(settings, dict(first_ends), is_complete)
        return "deltas", by_key.select(*_COLUMNS).mapInArrow(replay, RESULT_DDL)

    def replay(self, config: Settings, keyless: Keyless) -> tuple[str, DataFrame]:
        """Merge the archive and the rest of the publish topic, up to the input that the SOW topic has."""
        assert self.archive is not None
        settings = self.settings
        cut = consistent_cut(self.family, settings)
        as_of_ms = int(time.time() * 1000)
        rows = archived(self.spark, self.archive, settings, "publish", self.data_format)
        history = history_to(rows, settings, self.family, "publish", cut.input, self.options, self.spark)
        if begun := {partition: begin for partition, begin in history.begins.items() if begin > 0}:
            partition = min(begun)
            raise ConfigurationError(
                f"the archive of {settings.kafka_topic('publish')} begins at offset {begun[partition]} in partition "
                f"{partition}: a replay from there is not the SOW topic"
            )
        there = sow_before(self.spark, settings, self.family, cut.sow, self.options)
        as_of = datetime.fromtimestamp(as_of_ms / 1000, UTC)
        merged = merge_batch(
            self.spark, settings.name, config=config, history=history.rows, as_of=as_of, keyless=keyless
        )
        rows = compared(_lasting(there, as_of_ms), _lasting(merged.records, as_of_ms))
        kind = F.coalesce(*(F.when(F.col("kind") == old, new) for old, new in _OF_REPLAY.items()), "kind")
        return "archive", rows.withColumn("kind", kind)


def _lasting(rows: DataFrame, as_of_ms: int) -> DataFrame:
    """The records that neither side may have expired by now."""
    end = F.expr(header_number(names.EXPIRES_AT))
    return rows.where(end.isNull() | (end == 0) | (end > as_of_ms + _EXPIRING_MS))
