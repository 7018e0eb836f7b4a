"""Bundles records: one Arrow binary for up to a thousand of them.

Spark passes pandas data frames to a stateful processor. With one row and an array of headers for each record, they cost
more than merging. So records are bundled before the processor and its output is unbundled after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_integration.merge.arrow_records import in_chunks
from spark_integration.merge.streaming.slot import slot_of

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
