"""What a merge came to: the records of every key, the deltas on the way there, and what was left out."""

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
    """The result of `merge_batch`, kept on the executors' disks; a context manager, which lets go of it."""

    settings: TopicSettings
    """The topic's."""
    rows: DataFrame
    """All that came out: `topic` (a role), `partition`, `key`, `value`, `headers`."""
    marks: DataFrame | None
    """The highest sequence of each client: partition, name, sequence, offset; None where there are none."""
    counts: Counter[str]
    """`records`, and of them `merged`, `duplicate`, `rejected`, `keyless` and `foreign`; the workers' own events."""
    rejected_for: Counter[str]
    """How many records were rejected for each reason."""
    bounds: Bounds | None
    """From where to where the input topic was read; None where the history came from elsewhere."""
    as_of_ms: int
    """What was due then has expired, milliseconds since the epoch."""
    has_deltas: bool
    """Whether the deltas were kept."""
    has_base: bool
    """Whether keys began with records that there were before."""
    kept: list[DataFrame] = field(default_factory=list)
    """What is let go of in the end."""

    @property
    def cut(self) -> Mapping[int, int] | None:
        """The offset after the last record of each partition; None where the history came from elsewhere."""
        return None if self.bounds is None else self.bounds.ends

    @property
    def records(self) -> DataFrame:
        """The last SOW record of every key that has one: `partition`, `key`, `value`, `headers`, as a worker has it."""
        return self.of("sow").where("value IS NOT NULL")

    @property
    def tombstones(self) -> DataFrame:
        """The same of the keys whose record was deleted, or expired."""
        return self.of("sow").where("value IS NULL")

    @property
    def deltas(self) -> DataFrame:
        """Every delta, where they were asked for; of a key's the `version` tells the order."""
        return self.of("delta")

    @property
    def rejected(self) -> DataFrame:
        """What was rejected, as the dead-letter topic has it."""
        return self.of("dlq")

    def of(self, role: str) -> DataFrame:
        """What goes to one topic."""
        return self.rows.where(F.col("topic") == role).drop("topic")

    def table(self, schema: StructType | str) -> DataFrame:
        """The records of a topic of JSON as a table: the fields of the schema, then `sow_key` and `version`.

        Args:
            schema: the fields wanted: a `StructType`, or DDL such as `id LONG, name STRING`. A record that does not fit
                fails the query; fields that it lacks are null.
        """
        record = F.from_json(F.col("value").cast("string"), schema, {"mode": "FAILFAST"})
        described = [
            F.col("key").cast("string").alias("sow_key"),
            header_number(names.VERSION).alias("version"),
        ]
        return self.records.select(record.alias("record"), *described).select("record.*", "sow_key", "version")

    def unpersist(self) -> None:
        """Let go of it; what is read of it later is merged again."""
        for frame in self.kept:
            frame.unpersist()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unpersist()
