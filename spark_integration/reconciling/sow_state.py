"""Reads the SOW topic up to a cut, and finds a cut that belongs to input offsets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import Stop
from spark_integration.merge.batch.history import read_topic
from spark_integration.merge.topic_family import Bounds

if TYPE_CHECKING:
    from spark_integration.merge.topic_family import TopicFamily
    from spark_integration.options import Options
    from spark_integration.settings import TopicSettings

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
    return records.groupBy("partition", "key").agg(last).select("partition", "key", "last.*")


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
