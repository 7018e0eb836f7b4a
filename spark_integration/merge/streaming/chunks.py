"""Records in bundles: one binary of Arrow for up to a thousand of them.

Between Spark and a stateful processor there are pandas data frames, which cost more than merging where each record is a
row with an array of headers. So records are bundled before, and what comes out is taken apart behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_integration.merge.arrow_records import in_chunks
from spark_integration.merge.streaming.slot import slot_of

CHUNKS_DDL: Final = "slot int, first_offset bigint, chunk binary"
"""The columns that `bundled` makes: whose records, the offset of the first, and the records."""

CHUNK_DDL: Final = "chunk binary"
"""What `taken_apart` reads."""

RECORDS_MAX: Final = 1_000
"""Records of a bundle."""


def bundled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Bundle records, those of each partition by themselves, in the order they come.

    Args:
        batches: columns as `RECORDS_DDL` has them.
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
    """The batches that were bundled, in their order."""
    for batch in batches:
        for chunk in batch.column("chunk"):
            yield unpack(chunk.as_buffer())


def pack(batch: pa.RecordBatch) -> bytes:
    """A batch as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(chunk: bytes | pa.Buffer) -> pa.RecordBatch:
    """The batch that was packed."""
    with pa.ipc.open_stream(chunk) as reader:
        return reader.read_next_batch()
