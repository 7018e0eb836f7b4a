"""The result of a batch merge: the records of every key, the deltas, the rejected records and the counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from processor.wire import columns as names
from spark_integration.merge.topic_family import Bounds
from spark_integration.reading.metadata_columns import header_number
from spark_integration.settings import TopicSettings


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of `merge_batch`, persisted on the executors' disks; as a context manager, it unpersists it."""

    settings: TopicSettings
    """The settings of the topic."""
    rows: DataFrame
    """All output rows: `topic` (a role), `partition`, `key`, `value`, `headers`."""
    marks: DataFrame | None
    """The highest sequence of each client: partition, name, sequence, offset; None without sequences."""
    counts: Counter[str]
    """Counters: `records`, of them `merged`, `duplicate`, `rejected`, `keyless`, `foreign`; and the workers' events."""
    rejected_for: Counter[str]
    """The number of rejected records for each reason."""
    bounds: Bounds | None
    """The offsets of the input topic that were read; None for a history from elsewhere."""
    as_of_ms: int
    """Records due at this time have expired, milliseconds since the epoch."""
    has_deltas: bool
    """Whether deltas were output."""
    has_base: bool
    """Whether the merge had a base."""
    kept: list[DataFrame] = field(default_factory=list)
    """The DataFrames to unpersist."""

    @property
    def cut(self) -> Mapping[int, int] | None:
        """The offset after the last record of each partition; None for a history from elsewhere."""
        return None if self.bounds is None else self.bounds.ends

    @property
    def records(self) -> DataFrame:
        """The last SOW record of every live key: `partition`, `key`, `value`, `headers`, as a worker writes it."""
        return self.of("sow").where("value IS NOT NULL")

    @property
    def tombstones(self) -> DataFrame:
        """The tombstones of keys whose record was deleted or expired, in the columns of `records`."""
        return self.of("sow").where("value IS NULL")

    @property
    def deltas(self) -> DataFrame:
        """Every delta, if `merge_batch` had `deltas=True`; the `version` orders those of a key."""
        return self.of("delta")

    @property
    def rejected(self) -> DataFrame:
        """The rejected records, in the form of the dead-letter topic."""
        return self.of("dlq")

    def of(self, role: str) -> DataFrame:
        """The rows of one topic."""
        return self.rows.where(F.col("topic") == role).drop("topic")

    def table(self, schema: StructType | str) -> DataFrame:
        """Return the records of a topic of JSON as a table: the fields of the schema, then `sow_key` and `version`.

        Args:
            schema: the fields to select: a `StructType`, or DDL such as `id LONG, name STRING`. A record that does not
                fit fails the query; its missing fields are null.
        """
        record = F.from_json(F.col("value").cast("string"), schema, {"mode": "FAILFAST"})
        described = [
            F.col("key").cast("string").alias("sow_key"),
            header_number(names.VERSION).alias("version"),
        ]
        return self.records.select(record.alias("record"), *described).select("record.*", "sow_key", "version")

    def unpersist(self) -> None:
        """Unpersist the result; a later read merges again."""
        for frame in self.kept:
            frame.unpersist()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unpersist()
