"""The input of a streaming merge: bundles of up to a thousand records, their slots, and the initial state.

Spark passes pandas data frames to a stateful processor, where a row and an array of headers for each record would cost
more than its merge. The initial state has the records and marks that workers have written to their topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import Stop
from processor.store.marks import FENCE_NAME, POSITION_NAME
from processor.topics.family import Role
from processor.wire.record_headers import stored_from
from spark_integration.foundation.arrow_records import in_chunks
from spark_integration.foundation.options import table_options
from spark_integration.read.table_part import latest_records

if TYPE_CHECKING:
    from processor.record import Record
    from spark_integration.foundation.settings import TopicSettings
    from spark_integration.merge.streaming.state import SparkState


_MASK: Final = 0xFFFFFFFF
_SEED: Final = 42  # Of Spark's own partitioner, as are the constants below: Spark's Murmur3_x86_32.
_C1: Final = 0xCC9E2D51
_C2: Final = 0x1B873593
_M: Final = 5
_N: Final = 0xE6546B64
_F1: Final = 0x85EBCA6B
_F2: Final = 0xC2B2AE35
_INT_BYTES: Final = 4


def slot_of(partition: int) -> int:
    """The integer that Spark hashes to `partition`: its state partition is `partition` modulo their number.

    With the partition numbers as keys, two of four Kafka partitions would share a state partition, and one be idle.
    """
    h = partition
    h ^= h >> 16
    h = h * _inverse(_F2) & _MASK
    h ^= h >> 13 ^ h >> 26
    h = h * _inverse(_F1) & _MASK
    h ^= h >> 16
    h ^= _INT_BYTES
    k = _rotated((h - _N) * _inverse(_M) & _MASK, 32 - 13) ^ _SEED
    k = _rotated(k * _inverse(_C2) & _MASK, 32 - 15) * _inverse(_C1) & _MASK
    return k - (1 << 32) if k >> 31 else k


def partition_of(slot: int) -> int:
    """The partition of a slot: Spark's hash of the integer."""
    k = _rotated((slot & _MASK) * _C1 & _MASK, 15) * _C2 & _MASK
    h = _rotated(_SEED ^ k, 13) * _M + _N & _MASK
    h ^= _INT_BYTES
    h ^= h >> 16
    h = h * _F1 & _MASK
    h ^= h >> 13
    h = h * _F2 & _MASK
    return h ^ h >> 16


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK


def _inverse(factor: int) -> int:
    return pow(factor, -1, 1 << 32)


RECORD_COLUMNS: Final = (
    "key",
    "value",
    # Spark writes a null list to Arrow in a time that grows with the square of the rows of a batch.
    "coalesce(headers, array()) AS headers",
    "partition",
    "offset",
    "unix_millis(timestamp) AS timestamp_ms",
)
"""SQL expressions that select the input of `bundled` from the rows of Spark's Kafka source."""

CHUNKS_DDL: Final = "slot int, first_offset bigint, chunk binary"
"""The columns of `bundled`: the slot of the partition, the offset of the first record, and the records."""

OUTPUT_DDL: Final = "chunk binary, name string, count bigint"
"""The columns of the merge's output: a bundle of records, or a counter."""

RECORDS: Final = "records"
"""Name of the counter of input records."""

RECORDS_MAX: Final = 1_000
"""Highest number of records in a bundle."""


def bundled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Bundle the records of each partition, in their order.

    Args:
        batches: records with the columns `RECORDS_DDL`.
    """
    for batch in batches:
        for partition in pc.unique(batch.column("partition")).to_pylist():
            own = batch.filter(pc.equal(batch.column("partition"), partition))
            for chunk in in_chunks(iter([own]), RECORDS_MAX):
                first = chunk.column("offset")[0].as_py()
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array([slot_of(partition)], pa.int32()),
                        pa.array([first], pa.int64()),
                        pa.array([pack(chunk)], pa.binary()),
                    ],
                    names=["slot", "first_offset", "chunk"],
                )


def taken_apart(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Unbundle the records of the merge's output (`OUTPUT_DDL`), in their order."""
    for batch in batches:
        for chunk in batch.column("chunk").drop_null():
            yield unpack(chunk.as_buffer())


def pack(batch: pa.RecordBatch) -> bytes:
    """Encode a batch as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(chunk: bytes | pa.Buffer) -> pa.RecordBatch:
    """Decode a batch from `pack`."""
    with pa.ipc.open_stream(chunk) as reader:
        return reader.read_next_batch()


SOW: Final = "sow"
"""Kind of a row with records of the SOW topic."""
MARK: Final = "mark"
"""Kind of a row with marks."""
_BEGINNING: Final = "beginning"


def initial_state(spark: SparkSession, settings: TopicSettings, options: Mapping[str, str]) -> DataFrame:
    """Read the last record of every key and the last value of every mark, by slot, and add a row for each partition.

    Without that row, a partition with empty topics could not recognise its first micro-batch.
    """
    beginnings = [(slot_of(partition), -1, None, _BEGINNING) for partition in range(settings.topic.partitions)]
    state = spark.createDataFrame(beginnings, f"{CHUNKS_DDL}, kind string")
    roles: tuple[Role, ...] = (SOW, MARK)
    for role in roles:
        latest = _latest(spark, settings, role, options).mapInArrow(bundled, CHUNKS_DDL)
        state = state.union(latest.withColumn("kind", F.lit(role)))
    return state


def load(state: SparkState, records: Sequence[Record]) -> None:
    """Store records of the SOW topic in the state.

    Raises:
        Stop: a record was not written by a worker.
    """
    for record in records:
        try:
            state.put_many({record.key or b"": stored_from(record)})
        except ValueError as error:
            place = f"the record with the key {record.key!r:.100} at offset {record.offset} of its partition"
            raise Stop(f"the SOW topic cannot be begun with: {place} is not what a worker writes: {error}") from error


def _latest(spark: SparkSession, settings: TopicSettings, role: Role, options: Mapping[str, str]) -> DataFrame:
    """The last record of each key, without tombstones, in the columns for `bundled`."""
    kafka_options = table_options(settings.family, role, options, settings.names)
    records = spark.read.format("kafka").options(**kafka_options).load()
    is_mark = F.col("key").isin(POSITION_NAME, FENCE_NAME)
    return latest_records(records).where(~is_mark).selectExpr(*RECORD_COLUMNS)
