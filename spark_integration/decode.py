"""Decodes what is not JSON on the executors, by the message type's own codec: each record by the schema it names."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from processor.codec import Codec
from processor.errors import RecordRejected, Stop
from processor.record import Headers, Name, Value, header_text
from spark_integration.changed import carried_paths
from spark_integration.settings import TopicSettings
from spark_integration.values import compile_struct

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Decoding:
    """What an executor must know; it pickles."""

    settings: TopicSettings
    topic: str
    """The Kafka topic, for errors."""
    struct: StructType
    """The columns of the record."""
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
    compile_struct(decoding.struct)
    made = [StructField("record", decoding.struct)]
    if decoding.is_delta:
        made.append(StructField("changed", ArrayType(StringType(), containsNull=False), nullable=False))
    kept = [field for field in rows.schema.fields if field.name != "value"]
    return rows.mapInArrow(functools.partial(_decode, decoding), StructType([*made, *kept]))


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
        self._convert = compile_struct(decoding.struct)
        self._type: Any = to_arrow_type(decoding.struct)
        self._matches = None if decoding.matching is None else _filter(decoding.matching, decoding.settings.name)

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One batch."""
        import pyarrow as pa  # noqa: PLC0415 - as above

        from spark_integration.merge.rows import headers_of  # noqa: PLC0415 - as above

        headers = headers_of(batch.column("headers"))
        keys, times_us = batch.column("sow_key").to_pylist(), batch.column("timestamp").cast(pa.int64()).to_pylist()
        records: list[Value] = []
        paths: list[list[str]] = []
        matching: list[bool] = []
        for index, value in enumerate(batch.column("value").to_pylist()):
            record = None
            if value is not None:
                record = self._value(batch, index, value, headers[index] or [])
                if self._decoding.is_delta:
                    paths.append(carried_paths(record))
                if self._matches is not None:
                    is_match = self._matches(record, value, keys[index], headers[index], times_us[index] // 1000)
                    matching.append(is_match)
                record = self._row(batch, index, record)
            else:
                paths.append([])
                matching.append(False)
            records.append(record)
        made = [self._array(batch, records)]
        if self._decoding.is_delta:
            made.append(pa.array(paths, pa.list_(pa.string())))
        kept = [name for name in batch.schema.names if name != "value"]
        names = ["record", *(["changed"] if self._decoding.is_delta else []), *kept]
        whole = pa.RecordBatch.from_arrays([*made, *map(batch.column, kept)], names)
        return whole if self._matches is None else whole.filter(pa.array(matching, pa.bool_()))

    def _value(self, batch: pa.RecordBatch, index: int, value: bytes, headers: Headers) -> Value:
        try:
            return self._codec.decode_command(value, headers, is_delta=self._decoding.is_delta)
        except RecordRejected as error:
            raise self._undecodable(batch, index, str(error)) from None

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


def _filter(text: str, topic: str) -> Callable[[Value, bytes, str, Headers | None, int], bool]:
    """The verdict of a filter on a record, its bytes, key, headers and time."""
    from processor.filter import Facts, compile_filter  # noqa: PLC0415 - needed here, on an executor

    compiled = compile_filter(text)

    def matches(record: Value, value: bytes, key: str, headers: Headers | None, time_ms: int) -> bool:
        if not compiled.uses_facts:
            return compiled.matches(record)
        correlation = header_text(headers, Name.CORRELATION_ID) or ""
        return compiled.matches(record, Facts(len(value), key, topic, correlation, time_ms))

    return matches
