"""Decodes records on the executors, with the codec of the message type, and lists the paths that a delta carries."""

from __future__ import annotations

import functools
import json
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from processor.codec import Codec
from processor.errors import RecordRejected, Stop
from processor.record import Headers, Value
from processor.wire.subscriber_headers import correlation_id
from spark_integration.foundation.settings import TopicSettings
from spark_integration.read.metadata_columns import HEADERS
from spark_integration.read.misfit import MISFIT, MISFIT_TYPE
from spark_integration.read.values import compile_struct

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


# The function travels to the executors as a whole: they need Python there, but not this package.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

_PATHS = ArrayType(StringType(), containsNull=False)


def changed_paths(text: str | None) -> list[str]:
    """The JSON Pointers (RFC 6901) of the values that a delta sets, in its order, key fields included.

    Objects are descended into; arrays, scalars and empty objects are one value, as in the workers' diff.
    """
    if text is None:
        return []
    return carried_paths(json.loads(text))


def carried_paths(delta: Any) -> list[str]:
    """`changed_paths` of a parsed delta. An object of a special type is one value, as it never merges."""
    return [] if delta == {} else list(_leaves(delta, ""))


def changed(value: Column) -> Column:
    """`changed_paths` of a column of JSON text.

    Paths of deltas without objects inside are listed in the JVM. Spark cannot recurse over JSON, so all others go
    through Python, in Arrow; it runs only in queries that select the column.
    """
    # A brace after the first one begins an object, or is in a text: then Python decides.
    is_flat = F.regexp_like(value, F.lit(r"\A\s*\{[^{]*\z"))
    flat = F.transform(F.json_object_keys(value), lambda name: F.concat(F.lit("/"), _escaped(name)))
    no_json = F.raise_error(F.concat(F.lit("a delta is not JSON: "), F.left(value, F.lit(200)))).cast(_PATHS)
    nested = F.pandas_udf(_in_series(), _PATHS)  # type: ignore[attr-defined]
    return F.when(is_flat, F.coalesce(flat, no_json)).otherwise(nested(F.when(~is_flat, value)))


def _escaped(name: Column) -> Column:
    return F.replace(F.replace(name, F.lit("~"), F.lit("~0")), F.lit("/"), F.lit("~1"))


def _in_series() -> Callable[[pd.Series], pd.Series]:
    """`changed_paths` of a pandas series."""
    import pandas as pd  # noqa: PLC0415 - an executor that only decodes does not need it

    def paths(texts: pd.Series) -> pd.Series:
        # A null comes as None, or as NaN among nulls only.
        return pd.Series([changed_paths(text if isinstance(text, str) else None) for text in texts], dtype=object)

    # PySpark reads the kind of function from its types, which are texts in this file.
    paths.__annotations__ = {"texts": pd.Series, "return": pd.Series}
    return paths


def _leaves(value: Any, path: str) -> Iterator[str]:
    if type(value) is not dict or not value:
        yield path
        return
    # The escapes of `processor.values.pointer`, written out because the executors do not have that module.
    for name, member in value.items():
        yield from _leaves(member, f"{path}/{name.replace('~', '~0').replace('/', '~1')}")


_VALUE: Final = ("value", "value_headers")
"""The columns that a record is decoded from."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """The parameters of decoding; pickled for the executors."""

    settings: TopicSettings
    topic: str
    """The Kafka topic, for error messages."""
    struct: StructType | None
    """The columns of the record; None to filter only."""
    is_delta: bool
    """True if the records are deltas; then column `changed` lists the paths of each."""
    matching: str | None
    """A filter for the records; None: all records."""
    shows_misfits: bool = False
    """True if a record that does not fit the columns is a row with column `misfit`, instead of failing the query."""


def decoded(rows: DataFrame, decoding: Decoding) -> DataFrame:
    """Replace `value` by a column `record` in front, for deltas also `changed`, and if it is asked for `misfit`.

    Args:
        rows: at least `value`, `sow_key`, `timestamp`, `headers`, `partition` and `offset`; a column `value_headers`
            has the headers of the value, where they are others.
        decoding: the parameters.

    Raises:
        ConfigurationError: a column has a type without values in any message type.
    """
    assert decoding.struct is not None, "columns are made of something"
    compile_struct(decoding.struct)
    added = [StructField("record", decoding.struct)]
    if decoding.is_delta:
        added.append(StructField("changed", ArrayType(StringType(), containsNull=False), nullable=False))
    if decoding.shows_misfits:
        added.append(StructField(MISFIT, MISFIT_TYPE))
    kept = [field for field in rows.schema.fields if field.name not in _VALUE]
    result = _in_arrow(rows, functools.partial(_decode, decoding), StructType([*added, *kept]))
    return _with_null_headers(result)


def matched(rows: DataFrame, decoding: Decoding) -> DataFrame:
    """Select the rows that match a filter on metadata of the record, which a Column cannot evaluate.

    Args:
        rows: as for `decoded`.
        decoding: the parameters; no column is added.
    """
    result = _in_arrow(rows, functools.partial(_match, decoding), rows.schema)
    return _with_null_headers(result)


def _in_arrow(rows: DataFrame, function: Callable[..., Iterator[pa.RecordBatch]], schema: StructType) -> DataFrame:
    """Apply a function to the rows. Spark is slow to convert null lists, so that no headers are an empty list there."""
    names: list[str] = [name for name in ("headers", "value_headers") if name in rows.columns]
    some = {name: F.expr(f"coalesce({name}, CAST(array() AS {HEADERS.simpleString()}))") for name in names}
    return rows.withColumns(some).mapInArrow(function, schema)


def _with_null_headers(rows: DataFrame) -> DataFrame:
    return rows.withColumn("headers", F.expr("IF(size(headers) > 0, headers, NULL)"))


def _match(decoding: Decoding, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    batch_decoder = BatchDecoder(decoding)
    for batch in batches:
        yield batch_decoder.match(batch)


def _decode(decoding: Decoding, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    batch_decoder = BatchDecoder(decoding)
    for batch in batches:
        yield batch_decoder.decode(batch)


class _Misfit(NamedTuple):
    """In place of a value: the record does not fit the columns."""

    reason: str


@functools.lru_cache(maxsize=16)
def _codec(settings: bytes) -> Codec:
    """Create a codec, cached for all tasks of this process, with its answers from a registry."""
    loaded: TopicSettings = pickle.loads(settings)  # noqa: S301 - pickled by `BatchDecoder`
    return loaded.codec(reads_only=True)


class BatchDecoder:
    """Decodes the batches of one task, from Spark's Kafka source or from librdkafka."""

    def __init__(self, decoding: Decoding) -> None:
        """Create the codec, and compile the filter and the conversion to columns."""
        from spark_integration.foundation.arrow_records import arrow_type  # noqa: PLC0415 - needed here, on an executor

        self._decoding = decoding
        self._codec = _codec(pickle.dumps(decoding.settings))
        struct = decoding.struct or StructType([])
        self._convert = compile_struct(struct, of_json=decoding.settings.topic.message_type == "json")
        self._type: Any = arrow_type(struct)
        self._matches = None if decoding.matching is None else _filter(decoding.matching, decoding.settings.family)

    def match(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The matching rows of a batch."""
        return self._matching(batch, self._values(batch))[0]

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The matching rows of a batch, with the added columns."""
        import pyarrow as pa  # noqa: PLC0415 - as above

        batch, values = self._matching(batch, self._values(batch))
        from spark_integration.foundation.arrow_records import column_at_once  # noqa: PLC0415 - as above

        rows = values
        if (record := column_at_once(values, self._type)) is None:
            rows = [self._row(batch, index, value) for index, value in enumerate(values)]
            record = self._array(batch, rows)
        columns = {"record": record}
        if self._decoding.is_delta:
            paths = [[] if value is None or isinstance(value, _Misfit) else carried_paths(value) for value in values]
            columns["changed"] = pa.array(paths, pa.list_(pa.string()))
        if self._decoding.shows_misfits:
            columns[MISFIT] = self._misfits(batch, rows)
        columns |= {name: batch.column(name) for name in batch.schema.names if name not in _VALUE}
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def _values(self, batch: pa.RecordBatch) -> list[Value]:
        """The decoded values of column `value`; None for a null, a `_Misfit` for one that cannot be decoded."""
        values: list[Value] = []
        decode, is_delta = self._codec.decode_command, self._decoding.is_delta
        for index, (data, headers) in enumerate(zip(batch.column("value").to_pylist(), _headers(batch), strict=True)):
            try:
                values.append(None if data is None else decode(data, headers or [], is_delta=is_delta))
            except RecordRejected as error:
                values.append(self._misfit(batch, index, str(error)))
        return values

    def _matching(self, batch: pa.RecordBatch, values: list[Value]) -> tuple[pa.RecordBatch, list[Value]]:
        """The matching rows and their values; other rows need not fit the columns."""
        if self._matches is None:
            return batch, values
        import pyarrow as pa  # noqa: PLC0415 - as above

        rows = zip(
            values,
            batch.column("value").to_pylist(),
            batch.column("sow_key").to_pylist(),
            _headers(batch),
            batch.column("timestamp").cast(pa.int64()).to_pylist(),
            strict=True,
        )
        verdicts = []
        for index, (value, data, key, headers, time_us) in enumerate(rows):
            try:
                verdicts.append(
                    isinstance(value, _Misfit)
                    or (value is not None and self._matches(value, data, key, headers, time_us // 1000))
                )
            except RecordRejected as error:
                raise self._undecodable(batch, index, str(error)) from None
        return batch.filter(pa.array(verdicts, pa.bool_())), list(compress(values, verdicts))

    def _row(self, batch: pa.RecordBatch, index: int, record: Value) -> Value:
        if record is None or isinstance(record, _Misfit):
            return record
        try:
            return self._convert(record)
        except TypeError as error:
            return self._misfit(batch, index, str(error))
        except (ValueError, ArithmeticError) as error:
            return self._misfit(batch, index, f"a value has no room in its column: {error}")

    def _array(self, batch: pa.RecordBatch, records: list[Value]) -> pa.Array:
        """The column of the records; a record without room in it becomes a `_Misfit` in the list."""
        import pyarrow as pa  # noqa: PLC0415 - as above

        from spark_integration.foundation.arrow_records import NO_ROOM  # noqa: PLC0415 - as above

        def column() -> pa.Array:
            return pa.array([None if isinstance(one, _Misfit) else one for one in records], self._type)

        try:
            return column()
        except NO_ROOM:
            for index, record in enumerate(records):
                try:
                    pa.array([None if isinstance(record, _Misfit) else record], self._type)
                except NO_ROOM as error:
                    records[index] = self._misfit(batch, index, f"a value has no room in its column: {error}")
            return column()

    def _misfits(self, batch: pa.RecordBatch, records: Sequence[Value]) -> pa.Array:
        import pyarrow as pa  # noqa: PLC0415 - as above

        from spark_integration.foundation.arrow_records import arrow_type  # noqa: PLC0415 - as above

        values = batch.column("value")
        rows = [
            {"reason": one.reason, "topic": self._decoding.topic, "value": values[index].as_py()}
            if isinstance(one, _Misfit)
            else None
            for index, one in enumerate(records)
        ]
        return pa.array(rows, arrow_type(MISFIT_TYPE))

    def _misfit(self, batch: pa.RecordBatch, index: int, problem: str) -> _Misfit:
        """The mark of a record that does not fit.

        Raises:
            Stop: misfits fail the query; with the place of the record.
        """
        if not self._decoding.shows_misfits:
            raise self._undecodable(batch, index, problem) from None
        return _Misfit(problem)

    def _undecodable(self, batch: pa.RecordBatch, index: int, problem: str) -> Stop:
        where = {name: batch.column(name)[index].as_py() for name in ("partition", "offset", "sow_key")}
        return Stop(
            f"{self._decoding.topic}, partition {where['partition']}, offset {where['offset']}, key "
            f"{where['sow_key']!r:.200}: {problem}; publish the record again, or give a schema that it fits"
        )


def _headers(batch: pa.RecordBatch) -> Sequence[Headers | None]:
    from spark_integration.foundation.arrow_records import headers_of  # noqa: PLC0415 - needed here, on an executor

    names = batch.schema.names
    return headers_of(batch.column("value_headers" if "value_headers" in names else "headers"))


def _filter(text: str, topic: str) -> Callable[[Value, bytes, str, Headers | None, int], bool]:
    """Compile a filter to a function of a record and its bytes, key, headers and time."""
    from processor.filter import RecordMetadata, compile_filter  # noqa: PLC0415 - needed here, on an executor

    compiled = compile_filter(text)

    def matches(record: Value, value: bytes, key: str, headers: Headers | None, time_ms: int) -> bool:
        if not compiled.uses_metadata:
            return compiled.matches(record)
        correlation = correlation_id(headers) or ""
        return compiled.matches(record, RecordMetadata(len(value), key, topic, correlation, time_ms))

    return matches
