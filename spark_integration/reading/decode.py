"""Decodes what is not JSON on the executors, by the message type's own codec: each record by the schema it names."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from processor.codec import Codec
from processor.errors import RecordRejected, Stop
from processor.record import Headers, Name, Value, header_text
from spark_integration.reading.changed import carried_paths
from spark_integration.reading.values import compile_struct
from spark_integration.settings import TopicSettings

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Decoding:
    """What an executor must know; it pickles."""

    settings: TopicSettings
    topic: str
    """The Kafka topic, for errors."""
    struct: StructType | None
    """The columns of the record; None where none are made."""
    is_delta: bool
    """Whether they are deltas; then column `changed` says which paths each carries."""
    matching: str | None
    """A filter, of which the records are to be true."""


def decoded(rows: DataFrame, decoding: Decoding) -> DataFrame:
    """Rows with a column `record` (and `changed`, of deltas) in front, in place of `value`.

    Args:
        rows: `value`, and beside it at least `sow_key`, `timestamp`, `headers`, `partition` and `offset`.
        decoding: how.

    Raises:
        ConfigurationError: a column has a type that no message type has values of.
    """
    assert decoding.struct is not None, "columns are made of something"
    compile_struct(decoding.struct)
    made = [StructField("record", decoding.struct)]
    if decoding.is_delta:
        made.append(StructField("changed", ArrayType(StringType(), containsNull=False), nullable=False))
    kept = [field for field in rows.schema.fields if field.name != "value"]
    return rows.mapInArrow(functools.partial(_decode, decoding), StructType([*made, *kept]))


def matched(rows: DataFrame, decoding: Decoding) -> DataFrame:
    """The rows of which the filter is true: for what it asks besides the record's values, which a Column has not.

    Args:
        rows: as `decoded`.
        decoding: how; no column is made.
    """
    return rows.mapInArrow(functools.partial(_match, decoding), rows.schema)


def _match(decoding: Decoding, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    batch_decoder = _BatchDecoder(decoding)
    for batch in batches:
        yield batch_decoder.match(batch)


def _decode(decoding: Decoding, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    batch_decoder = _BatchDecoder(decoding)
    for batch in batches:
        yield batch_decoder.decode(batch)


@functools.lru_cache(maxsize=16)
def _codec(settings: bytes) -> Codec:
    """One for all tasks of this process: what a registry was asked is not asked for again."""
    loaded: TopicSettings = pickle.loads(settings)  # noqa: S301 - Spark brought it just so
    return loaded.codec(reads_only=True)


class _BatchDecoder:
    """Decodes the batches of one task."""

    def __init__(self, decoding: Decoding) -> None:
        from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415 - needed here, on an executor

        self._decoding = decoding
        self._codec = _codec(pickle.dumps(decoding.settings))
        struct = decoding.struct or StructType([])
        self._convert = compile_struct(struct)
        self._type: Any = to_arrow_type(struct)
        self._matches = None if decoding.matching is None else _filter(decoding.matching, decoding.settings.family)

    def match(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that match."""
        return self._matching(batch, self._values(batch))[0]

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that match, with the columns that are made."""
        import pyarrow as pa  # noqa: PLC0415 - as above

        batch, values = self._matching(batch, self._values(batch))
        rows = [None if value is None else self._row(batch, index, value) for index, value in enumerate(values)]
        made = {"record": self._array(batch, rows)}
        if self._decoding.is_delta:
            paths = [[] if value is None else carried_paths(value) for value in values]
            made["changed"] = pa.array(paths, pa.list_(pa.string()))
        made |= {name: batch.column(name) for name in batch.schema.names if name != "value"}
        return pa.RecordBatch.from_arrays(list(made.values()), list(made))

    def _values(self, batch: pa.RecordBatch) -> list[Value]:
        """What stands in column `value`, decoded; None where there is nothing."""
        values: list[Value] = []
        decode, is_delta = self._codec.decode_command, self._decoding.is_delta
        for index, (data, headers) in enumerate(zip(batch.column("value").to_pylist(), _headers(batch), strict=True)):
            try:
                values.append(None if data is None else decode(data, headers or [], is_delta=is_delta))
            except RecordRejected as error:
                raise self._undecodable(batch, index, str(error)) from None
        return values

    def _matching(self, batch: pa.RecordBatch, values: list[Value]) -> tuple[pa.RecordBatch, list[Value]]:
        """The rows that match, and their values: what does not need not fit the columns."""
        if self._matches is None:
            return batch, values
        import pyarrow as pa  # noqa: PLC0415 - as above

        known = zip(
            values,
            batch.column("value").to_pylist(),
            batch.column("sow_key").to_pylist(),
            _headers(batch),
            batch.column("timestamp").cast(pa.int64()).to_pylist(),
            strict=True,
        )
        verdicts = []
        for index, (value, data, key, headers, time_us) in enumerate(known):
            try:
                verdicts.append(value is not None and self._matches(value, data, key, headers, time_us // 1000))
            except RecordRejected as error:
                raise self._undecodable(batch, index, str(error)) from None
        return batch.filter(pa.array(verdicts, pa.bool_())), list(compress(values, verdicts))

    def _row(self, batch: pa.RecordBatch, index: int, record: Value) -> Value:
        try:
            return self._convert(record)
        except TypeError as error:
            raise self._undecodable(batch, index, str(error)) from None

    def _array(self, batch: pa.RecordBatch, records: Sequence[Value]) -> pa.Array:
        import pyarrow as pa  # noqa: PLC0415 - as above

        try:
            return pa.array(records, self._type)
        except (pa.ArrowException, OverflowError):
            for index, record in enumerate(records):
                try:
                    pa.array([record], self._type)
                except (pa.ArrowException, OverflowError) as error:
                    raise self._undecodable(batch, index, f"a value has no room in its column: {error}") from None
            raise

    def _undecodable(self, batch: pa.RecordBatch, index: int, problem: str) -> Stop:
        where = {name: batch.column(name)[index].as_py() for name in ("partition", "offset", "sow_key")}
        return Stop(
            f"{self._decoding.topic}, partition {where['partition']}, offset {where['offset']}, key "
            f"{where['sow_key']!r:.200}: {problem}; publish the record again, or give a schema that it fits"
        )


def _headers(batch: pa.RecordBatch) -> Sequence[Headers | None]:
    from spark_integration.merge.rows import headers_of  # noqa: PLC0415 - needed here, on an executor

    return headers_of(batch.column("headers"))


def _filter(text: str, topic: str) -> Callable[[Value, bytes, str, Headers | None, int], bool]:
    """The verdict of a filter on a record, its bytes, key, headers and time."""
    from processor.filter import RecordMetadata, compile_filter  # noqa: PLC0415 - needed here, on an executor

    compiled = compile_filter(text)

    def matches(record: Value, value: bytes, key: str, headers: Headers | None, time_ms: int) -> bool:
        if not compiled.uses_metadata:
            return compiled.matches(record)
        correlation = header_text(headers, Name.CORRELATION_ID) or ""
        return compiled.matches(record, RecordMetadata(len(value), key, topic, correlation, time_ms))

    return matches
