"""Reads the SOW topic up to a cut, and compares its records with those that should be there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import Stop
from processor.wire import columns as names
from spark_integration.foundation.sql import aliased
from spark_integration.merge.batch.history import read_topic
from spark_integration.merge.topic_family import Bounds
from spark_integration.read.metadata_columns import header_number

if TYPE_CHECKING:
    from spark_integration.foundation.options import Options
    from spark_integration.foundation.settings import TopicSettings
    from spark_integration.merge.topic_family import TopicFamily


_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.02


class Cut(NamedTuple):
    """A moment at which the SOW topic has the merge of all input before certain offsets."""

    input: Mapping[int, int]
    """The next input offset of each partition."""
    sow: Mapping[int, int]
    """The end of each partition of the SOW topic."""


def sow_before(
    spark: SparkSession, settings: TopicSettings, family: TopicFamily, ends: Mapping[int, int], options: Options
) -> DataFrame:
    """Read the last record of every key before an end of each partition, tombstones included.

    Returns:
        `partition`, `key`, `value`, `headers`, `offset`.
    """
    begins = family.bounds("sow", len(ends)).begins
    records = read_topic(spark, settings, "sow", Bounds(begins, dict(ends)), options)
    last = F.max_by(F.struct("value", "headers", "offset"), "offset").alias("last")
    return records.groupBy("key", "partition").agg(last).select("partition", "key", "last.*")


def consistent_cut(family: TopicFamily, settings: TopicSettings) -> Cut:
    """Find, for each partition, a moment between two commits of its worker.

    A commit shows its offsets and its records one after the other. So a moment counts if the offset is the same before
    and after the end of the SOW topic is read, and no transaction is open there.

    Raises:
        Stop: there was no such moment for a long time, or a partition was never merged.
    """
    partitions, deadline_s = settings.topic.partitions, time.monotonic() + _PATIENCE_S
    cut_input: dict[int, int] = {}
    cut_sow: dict[int, int] = {}
    topic = settings.kafka_topic("sow")
    while len(cut_input) < partitions:
        before = family.committed(partitions)
        stable = family.bounds("sow", partitions).ends
        true_ends = family.admin.end_offsets(topic, range(partitions))
        after = family.committed(partitions)
        oldest = family.bounds("publish", partitions).begins
        for partition in set(range(partitions)) - cut_input.keys():
            is_settled = stable[partition] == true_ends[partition]
            if is_settled and before.get(partition) == after.get(partition):
                cut_input[partition] = before.get(partition, oldest[partition])
                cut_sow[partition] = stable[partition]
        if time.monotonic() > deadline_s:
            raise Stop(
                f"{settings.name}: in {_PATIENCE_S:g} s there was no moment between two commits in partition "
                f"{min(set(range(partitions)) - cut_input.keys())}: let publishers pause, and try again"
            )
        time.sleep(_PAUSE_S)
    return Cut(cut_input, cut_sow)


INSERT: Final = "insert"
UPDATE: Final = "update"
DELETE: Final = "delete"
SAME: Final = "same"


class Difference(NamedTuple):
    """A record that differs between two states of the world."""

    kind: str
    """The kind of the difference, from a closed list of the check that reports it."""
    partition: int
    """The partition of the key."""
    key: bytes
    """The key."""
    there: bytes | None
    """The value on the SOW topic; None: there is no record."""
    wanted: bytes | None
    """The value that it is compared with; None: there is no record."""
    there_version: int | None = None
    """The version on the SOW topic."""
    wanted_version: int | None = None
    """The version that it is compared with."""

    def __str__(self) -> str:
        """One line, with values of at most 200 characters."""
        key = self.key.decode(errors="replace")
        there, wanted = (_shown(*each) for each in (
            (self.there, self.there_version), (self.wanted, self.wanted_version)))  # fmt: skip
        return f"{self.kind}: key {key!r:.100} (partition {self.partition}): {there} -> {wanted}"


def _shown(value: bytes | None, version: int | None) -> str:
    number = "" if version is None else f"version {version} "
    return number + ("no record" if value is None else value.decode(errors="replace")[:200])


def compared(there: DataFrame, wanted: DataFrame) -> DataFrame:
    """Compare records by value and end of life; versions are not compared.

    Args:
        there: the last record of each key of the SOW topic: `partition`, `key`, `value`, `headers`.
        wanted: the records that should be there, in the same columns; rows without a value count as no record.

    Returns:
        A row for each key: `kind` (`insert`, `update`, `delete`, `same`), and the fields of `Difference`.
    """
    sides = [_side(rows.where("value IS NOT NULL"), name) for rows, name in ((there, "there"), (wanted, "wanted"))]
    both = sides[0].join(sides[1], ["partition", "key"], "full_outer")
    is_same = F.col("there").eqNullSafe(F.col("wanted")) & F.col("there_end").eqNullSafe(F.col("wanted_end"))
    kind = (
        F.when(F.col("there").isNull(), INSERT)
        .when(F.col("wanted").isNull(), DELETE)
        .otherwise(F.when(is_same, SAME).otherwise(UPDATE))
    )
    return both.select(kind.alias("kind"), "partition", "key", "there", "wanted", "there_version", "wanted_version")


def _side(rows: DataFrame, name: str) -> DataFrame:
    return rows.select(
        "partition",
        "key",
        F.col("value").alias(name),
        _or_zero(F.expr(header_number(names.EXPIRES_AT))).alias(f"{name}_end"),
        F.expr(aliased(f"{name}_version", header_number(names.VERSION))),
    )


def _or_zero(number: Column) -> Column:
    return F.coalesce(number, F.lit(0))


def counts_by_kind(rows: DataFrame) -> dict[str, int]:
    """The number of rows of each kind."""
    return {row["kind"]: row["count"] for row in rows.groupBy("kind").count().collect()}


def first_rows(rows: DataFrame, limit: int) -> list[Difference]:
    """The first differences, by partition and key."""
    return [
        Difference(
            row["kind"],
            row["partition"],
            bytes(row["key"]),
            None if row["there"] is None else bytes(row["there"]),
            None if row["wanted"] is None else bytes(row["wanted"]),
            row["there_version"],
            row["wanted_version"],
        )
        for row in rows.orderBy("partition", "key").limit(limit).collect()
    ]
