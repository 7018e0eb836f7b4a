"""The result of a batch merge: the records of every key, the deltas, the rejected records and the counters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from processor.errors import ConfigurationError
from processor.wire import columns as names
from spark_integration.foundation.arrow_records import HEADERS_DDL, OUTGOING_DDL
from spark_integration.foundation.settings import TopicSettings, topic_settings
from spark_integration.foundation.sql import refuse_variables
from spark_integration.merge.topic_family import Bounds
from spark_integration.read.metadata_columns import SOW, Metadata, check_layout, header_number, laid_out, refuse_clash
from spark_integration.read.misfit import RECORD, fitting, with_record
from spark_integration.read.schemas.schema import given_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrameWriter

    from spark_integration.foundation.settings import Settings

_NUMBER: Final = "number"
"""The column that keeps the order of a key's deltas in a saved result."""
_MARK: Final = "mark"
"""Value of column `topic` in a saved row with a mark: its name, its text, and the offset as its number."""
_MERGE: Final = "merge"
"""Value of column `topic` in the last saved row: its value is JSON of everything else."""
_SAVED_DDL: Final = f"{OUTGOING_DDL}, {_NUMBER} bigint"


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of `merge_batch`, persisted on the executors' disks; as a context manager, it unpersists it."""

    settings: TopicSettings
    """The settings of the topic."""
    rows: DataFrame
    """All output rows: `topic` (a role), `partition`, `key`, `value`, `headers`."""
    marks: DataFrame | None
    """The marks of the clients: partition, name, mark (`processor.wire.publisher_mark`), and the offset of the record
    that set it; None without sequences."""
    counts: Counter[str]
    """Counters: `records`, of them `merged`, `duplicate`, `rejected`, `keyless`, `foreign`; and the workers' events."""
    rejected_for: Counter[str]
    """The number of rejected records for each reason."""
    bounds: Bounds | None
    """The offsets of the input topic that were read; None for a history from elsewhere."""
    as_of_ms: int
    """Records due at this time have expired, milliseconds since the epoch."""
    has_deltas: bool
    """True if deltas were output."""
    has_base: bool
    """True if the merge had a base."""
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
        rows = self.rows.where(F.col("topic") == role).drop("topic")
        if _NUMBER not in rows.columns:
            return rows
        # Spark reads the parts of a file in any order, and the deltas of a key have one.
        return rows.repartition("partition", "key").sortWithinPartitions(_NUMBER).drop(_NUMBER)

    def table(self, schema: StructType | str, *, metadata: Metadata = "struct") -> DataFrame:
        """Return the records of a topic of JSON as a table: the fields of the schema, then `_sow`.

        Args:
            schema: the fields to select: a `StructType`, or DDL such as `id LONG, name STRING`. A record that does not
                fit fails the query; its missing fields are null.
            metadata: `struct`: a column `_sow` with `sow_key` and `version`; `flat`: these two as columns; `none`: the
                fields alone.

        Raises:
            ConfigurationError: the schema cannot be used, or a field has the name of a metadata column.
        """
        check_layout(metadata)
        struct = given_schema(schema)
        described = {"sow_key": "CAST(key AS STRING)", "version": header_number(names.VERSION)}
        refuse_clash(struct.names, described, metadata)
        refuse_variables(struct)
        place = [("partition", "partition"), ("sow_key", described["sow_key"])]
        rows = fitting(with_record(self.records, struct), struct, self.settings.kafka_topic("sow"), place)
        return rows.select(F.expr(f"{RECORD}.* EXCEPT ({SOW})"), *laid_out(described, metadata))

    def save(
        self,
        target: str,
        *,
        format: str = "parquet",  # noqa: A002 - as Spark's writers call it
        mode: Literal["error", "overwrite"] = "error",
    ) -> Merged:
        """Write the result to files or a table, where it outlives the executors and the session.

        Args:
            target: a path, which has a `/`, on any file system that Spark knows; else the name of a table.
            format: `parquet`, or a format whose package the session has: `delta`, `iceberg`.
            mode: whether a target that exists is an error, or replaced.

        Returns:
            The result as `load_merged` reads it; this one may be unpersisted.
        """
        number = F.monotonically_increasing_id().alias(_NUMBER)
        rows = self.rows if _NUMBER in self.rows.columns else self.rows.select("*", number)
        if self.marks is not None:
            rows = rows.unionByName(
                self.marks.select(
                    F.lit(_MARK).alias("topic"),
                    "partition",
                    F.col("name").alias("key"),
                    F.col("mark").alias("value"),
                    F.array().cast(HEADERS_DDL).alias("headers"),
                    F.col("offset").alias(_NUMBER),
                )
            )
        _write(rows.write.mode(mode), target, format)
        spark = self.rows.sparkSession
        last: list[tuple[object, ...]] = [(_MERGE, 0, None, json.dumps(self._facts()).encode(), [], 0)]
        # By itself and last: a target without it is not complete.
        _write(spark.createDataFrame(last, _SAVED_DDL).write.mode("append"), target, format)
        return _load(spark, target, self.settings, format)

    def _facts(self) -> dict[str, Any]:
        """Everything but the rows, as JSON has it."""
        bounds = None if self.bounds is None else [list(offsets.items()) for offsets in self.bounds]
        return {
            "name": self.settings.name,
            "counts": self.counts,
            "rejected_for": self.rejected_for,
            "bounds": bounds,
            "as_of_ms": self.as_of_ms,
            "has_deltas": self.has_deltas,
            "has_base": self.has_base,
            "has_marks": self.marks is not None,
        }

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


def load_merged(
    spark: SparkSession,
    target: str,
    topic: str,
    *,
    config: Settings = None,
    format: str = "parquet",  # noqa: A002
) -> Merged:
    """Read a result that `Merged.save` wrote, such as to hand it over in another session.

    Args:
        spark: a session.
        target: the path or the name of the table.
        topic: the family's name.
        config: its settings, those of the merge; see `topic_settings`.
        format: the format of the files; a table has its own.

    Raises:
        ConfigurationError: the target is not complete, or of another topic.
    """
    return _load(spark, target, topic_settings(topic, config), format)


def _load(spark: SparkSession, target: str, settings: TopicSettings, format_: str) -> Merged:
    rows = spark.read.format(format_).load(target) if "/" in target else spark.table(target)
    last = rows.where(F.col("topic") == _MERGE).select("value").collect()
    if not last:
        raise ConfigurationError(f"{target} has no complete result of a merge: save it again with mode='overwrite'")
    facts = json.loads(bytes(last[0].value))
    if facts["name"] != settings.name:
        raise ConfigurationError(f"{target} has the merge of {facts['name']}, not of {settings.name}")
    marks = rows.where(F.col("topic") == _MARK).select(
        "partition",
        F.col("key").alias("name"),
        F.col("value").alias("mark"),
        F.col(_NUMBER).alias("offset"),
    )
    return Merged(
        settings=settings,
        rows=rows.where(~F.col("topic").isin(_MARK, _MERGE)),
        marks=marks if facts["has_marks"] else None,
        counts=Counter(facts["counts"]),
        rejected_for=Counter(facts["rejected_for"]),
        bounds=None if facts["bounds"] is None else Bounds(*map(dict, facts["bounds"])),
        as_of_ms=facts["as_of_ms"],
        has_deltas=facts["has_deltas"],
        has_base=facts["has_base"],
    )


def _write(writer: DataFrameWriter, target: str, format_: str) -> None:
    parted = writer.format(format_).partitionBy("topic")
    if "/" in target:
        parted.save(target)
    else:
        parted.saveAsTable(target)
