"""Converts between Kafka records and Arrow batches, without a row object for each record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from processor.record import Record

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from processor.record import Headers, Outgoing

HEADERS_DDL: Final = "array<struct<key: string, value: binary>>"
"""The type of column `headers` of Spark's Kafka source and sink."""

RECORDS_DDL: Final = (
    f"key binary, value binary, headers {HEADERS_DDL}, partition int, offset bigint, timestamp_ms bigint"
)
"""The columns that `records` reads, in any order; other columns are ignored."""

OUTGOING_DDL: Final = f"topic string, partition int, key binary, value binary, headers {HEADERS_DDL}"
"""The columns that `outgoing` writes, for Spark's Kafka sink."""

HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
OUTGOING: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(HEADER)),
    ]
)


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type of a Spark type, with instants in UTC."""
    from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415 - a merge does without

    return to_arrow_type(kind, **_utc(to_arrow_type))


@cache
def _utc(to_arrow_type: Callable[..., pa.DataType]) -> dict[str, Any]:
    """The argument for instants in UTC; before Spark 4.2 they are so without being asked."""
    return {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}


def records(batch: pa.RecordBatch) -> list[Record]:
    """The records of a batch, in its order."""
    column = batch.column
    return list(
        map(
            Record,
            column("key").to_pylist(),
            column("value").to_pylist(),
            headers_of(column("headers")),
            column("offset").to_pylist(),
            column("timestamp_ms").to_pylist(),
        )
    )


def headers_of(column: pa.ListArray) -> Sequence[Headers | None]:
    """The headers of each record; None where a record has none."""
    flat = column.flatten()
    if not len(flat):
        return [None] * len(column)
    names = flat.field("key").to_pylist()
    if "\0" in "".join(names):  # A name ends there for librdkafka, and so for workers.
        names = [name.partition("\0")[0] for name in names]
    pairs = list(zip(names, flat.field("value").to_pylist(), strict=True))
    ends = accumulate(length or 0 for length in column.value_lengths().to_pylist())
    return [pairs[begin:end] or None for begin, end in pairwise(chain((0,), ends))]


def outgoing(topic: str, partition: int, sent: Sequence[Outgoing]) -> pa.RecordBatch:
    """Convert the records for one topic to a batch.

    Args:
        topic: the value of column `topic`, such as the name of the Kafka topic.
        partition: the value of column `partition`.
        sent: key, value and headers of each record.
    """
    rows = len(sent)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([topic] * rows, pa.string()),
            pa.array([partition] * rows, pa.int32()),
            pa.array([key for key, _, _ in sent], pa.binary()),
            pa.array([value for _, value, _ in sent], pa.binary()),
            headers_column([headers for _, _, headers in sent]),
        ],
        schema=OUTGOING,
    )


def headers_column(rows: Iterable[Headers | None]) -> pa.ListArray:
    """Convert the headers of records to a column."""
    begins: list[int | None] = [0]
    names, values = [], []
    for headers in rows:
        if headers is None:
            begins[-1] = None  # Arrow's offset of a null list.
        for name, value in headers or ():
            names.append(name)
            values.append(value)
        begins.append(len(names))
    pairs = pa.StructArray.from_arrays([pa.array(names, pa.string()), pa.array(values, pa.binary())], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(begins, pa.int32()), pairs)


def in_chunks(batches: Iterator[pa.RecordBatch], rows_max: int) -> Iterator[pa.RecordBatch]:
    """Split batches into batches of 1 to `rows_max` rows."""
    for batch in batches:
        for begin in range(0, batch.num_rows, rows_max):
            yield batch.slice(begin, rows_max)
