"""Converts between Kafka records and Arrow batches, without a row object for each record."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from processor.record import Record

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from processor.record import Headers, Outgoing, Value

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


def column_at_once(values: Sequence[Value], kind: pa.DataType) -> pa.Array | None:
    """Convert values to a column, column by column in structs, without a call of Python for each of them.

    Returns:
        The column; None unless every value is None or of the one Python type that is stored as it is: then each has to
        be looked at.
    """
    kinds = set(map(type, values))
    has_nulls = type(None) in kinds
    kinds.discard(type(None))
    if pa.types.is_struct(kind) and kind.num_fields and kinds <= {dict}:
        present = [one or {} for one in values] if has_nulls else values
        members = [column_at_once([one.get(part.name) for one in present], part.type) for part in kind]
        nulls = pa.array([one is None for one in values]) if has_nulls else None
        is_made = all(member is not None for member in members)
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=nulls) if is_made else None
    if pa.types.is_list(kind) and kinds <= {list}:
        items = column_at_once(list(chain.from_iterable(one or () for one in values)), kind.value_type)
        ends = accumulate((len(one or ()) for one in values), initial=0)
        begins = [None if one is None else begin for one, begin in zip(values, ends, strict=False)]
        offsets = pa.array([*begins, sum(len(one or ()) for one in values)], pa.int32())
        return None if items is None else pa.ListArray.from_arrays(offsets, items, type=kind)
    if not any(is_kind(kind) and kinds <= own for is_kind, own in _STORED_AS_THEY_ARE):
        return None
    if float in kinds and not all(map(math.isfinite, filter(None, values))):
        return None
    try:
        return pa.array(values, kind)
    except NO_ROOM:
        return None


NO_ROOM: Final = (pa.ArrowException, OverflowError, UnicodeEncodeError)
"""Errors of Arrow for a value without room in its column; the last one is of half a surrogate pair."""

# What is beyond the range of the column is an error of Arrow, also a whole number that a double would round.
_STORED_AS_THEY_ARE: Final[Sequence[tuple[Callable[[pa.DataType], bool], set[type]]]] = (
    (pa.types.is_signed_integer, {int}),
    (pa.types.is_string, {str}),
    (pa.types.is_boolean, {bool}),
    (pa.types.is_float64, {float, int}),
)


def in_chunks(batches: Iterator[pa.RecordBatch], rows_max: int) -> Iterator[pa.RecordBatch]:
    """Split batches into batches of 1 to `rows_max` rows."""
    for batch in batches:
        for begin in range(0, batch.num_rows, rows_max):
            yield batch.slice(begin, rows_max)
