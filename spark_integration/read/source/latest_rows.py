"""Converts the latest records of a partition to Arrow batches: the columns of the record, then its metadata."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql.types import (
    DataType,
    StructField,
    StructType,
)

from processor.errors import ConfigurationError
from processor.record import Headers
from processor.wire.headers import read_text
from processor.wire.record_headers import expires_at_ms_of, input_place, version_of
from spark_integration.read.decode import BatchDecoder, Decoding
from spark_integration.read.metadata_columns import METADATA, SOW, Metadata
from spark_integration.read.misfit import MISFIT, MISFIT_TYPE, OnMisfit

if TYPE_CHECKING:
    import pyarrow as pa

_MISFIT: Final = StructField(MISFIT, MISFIT_TYPE)

VALUE: Final = "value"
"""The column for a record as JSON text."""

_BATCH_ROWS: Final = 4096
_YEAR_9999_MS: Final = 253_402_300_799_999


class Latest(NamedTuple):
    """The last record of a key."""

    key: bytes | None
    value: bytes
    headers: Headers | None
    offset: int
    timestamp_ms: int


class LatestRows:
    """Converts the records of one partition to rows, by the decoder that `read_sow` has on its executors."""

    def __init__(self, decoding: Decoding, schema: StructType, metadata: Sequence[StructField]) -> None:
        """Compile the filter and the conversion to columns.

        Args:
            decoding: the parameters; without columns, the record is one column with its text.
            schema: the columns, in order.
            metadata: the metadata columns among them.

        Raises:
            ConfigurationError: a column has a type without values in any message type.
        """
        import pyarrow as pa  # noqa: PLC0415 - needed here, on an executor

        from spark_integration.foundation.arrow_records import arrow_type  # noqa: PLC0415 - as above

        self._decoding, self._decoder = decoding, BatchDecoder(decoding)
        self._schema = pa.schema(list(arrow_type(schema)))
        self._misfit_type = arrow_type(MISFIT_TYPE)
        self._metadata = frozenset(field.name for field in metadata)
        shown = [field for field in schema.fields if field.name in self._metadata]
        self._shown = frozenset(name for field in shown for name in _names(field))

    def batches(self, latest: Sequence[Latest], partition: int) -> Iterator[pa.RecordBatch]:
        """The rows of the records that match.

        Raises:
            Stop: a record cannot be decoded, or does not fit its columns, and misfits are no rows.
        """
        for begin in range(0, len(latest), _BATCH_ROWS):
            yield self._rows(_records(latest[begin : begin + _BATCH_ROWS], partition, self._shown))

    def _rows(self, records: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415 - as above

        struct = self._decoding.struct
        if struct is not None:
            records = self._decoder.decode(records)
            fields = dict(zip(struct.names, records.column("record").flatten(), strict=True))
        else:
            if self._decoding.matching is not None:
                records = self._decoder.match(records)
            # A text is shown as it is.
            texts = [value.decode(errors="replace") for value in records.column("value").to_pylist()]
            fields = {VALUE: pa.array(texts, pa.string())}
            records = records.append_column(MISFIT, pa.nulls(len(records), self._misfit_type))
        arrays = [
            _column(records, field) if field.name in self._metadata else fields[field.name].cast(field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _column(records: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """A metadata column, or the struct of them."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    if field.name != SOW:
        return records.column(field.name).cast(field.type)
    parts = [_column(records, part) for part in field.type]
    return pa.StructArray.from_arrays(parts, fields=list(field.type))


def _names(field: StructField) -> list[str]:
    """The metadata that a metadata column has."""
    return field.dataType.names if isinstance(field.dataType, StructType) else [field.name]


def _records(latest: Sequence[Latest], partition: int, shown: Collection[str]) -> pa.RecordBatch:
    """Records in the columns of Spark's Kafka source, with the metadata of `METADATA` that is shown."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    from spark_integration.foundation.arrow_records import arrow_type, headers_column  # noqa: PLC0415 - as above

    headers = [one.headers for one in latest]
    columns: dict[str, Sequence[object]] = {
        "sow_key": [None if one.key is None else one.key.decode(errors="replace") for one in latest],
        "timestamp": [one.timestamp_ms * 1000 for one in latest],
        "partition": [partition] * len(latest),
        "offset": [one.offset for one in latest],
    }
    columns |= {name: list(map(read, headers)) for name, read in _OF_HEADERS.items() if name in shown}
    arrays = {name: pa.array(values, arrow_type(METADATA[name].dataType)) for name, values in columns.items()}
    arrays["value"] = pa.array([one.value for one in latest], pa.binary())
    arrays["headers"] = headers_column(headers)
    return pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))


def _expires_at_us(headers: Headers | None) -> int | None:
    time_ms = expires_at_ms(headers)
    return None if time_ms is None else time_ms * 1000


def _source(headers: Headers | None) -> str | None:
    return read_text(input_place(headers))


_OF_HEADERS: Final[Mapping[str, Callable[[Headers | None], object]]] = {
    "version": version_of,
    "expires_at": _expires_at_us,
    "source": _source,
}


def expires_at_ms(headers: Headers | None) -> int | None:
    """Time of a record's expiry, milliseconds since the epoch; None: never."""
    time_ms = expires_at_ms_of(headers)
    return time_ms if time_ms and time_ms <= _YEAR_9999_MS else None


def metadata_columns(on_misfit: OnMisfit, metadata: Metadata) -> list[StructField]:
    """The metadata columns of a table."""
    fields = METADATA.fields if on_misfit == "fail" else [*METADATA.fields, _MISFIT]
    match metadata:
        case "struct":
            return [StructField(SOW, StructType(fields))]
        case "flat":
            return fields
        case "none":
            return []


def record_fields(schema: StructType, metadata: Sequence[StructField]) -> list[StructField]:
    """The columns of a table that are fields of the record."""
    taken = [field.name for field in metadata]
    return [field for field in schema.fields if field.name not in taken]


def refuse_metadata(schema: StructType, metadata: Sequence[StructField]) -> None:
    """Make sure that the metadata columns have their types and occur once.

    Raises:
        ConfigurationError: a column has another type, or occurs twice.
    """
    columns = {field.name: field for field in metadata}
    for field in schema.fields:
        same = [name for name in schema.names if name.lower() == field.name.lower()]
        meta = columns.get(field.name.lower())
        if meta is None:
            continue
        if len(same) > 1 or field.name != meta.name or not _is_part(field.dataType, meta.dataType):
            remedy = (
                "leave it out of the schema, or read without one and decode column `value` with from_json"
                if meta.name == SOW
                else "leave option 'metadata' out: the metadata is in the struct _sow then"
            )
            raise ConfigurationError(
                f"field {field.name!r} of the schema has the name of a metadata column, which is "
                f"{meta.dataType.simpleString():.200}; {remedy}"
            )


def _is_part(kind: DataType, of: DataType) -> bool:
    """Return whether a column has the type of the metadata, or a struct has some of its fields."""
    if not isinstance(kind, StructType) or not isinstance(of, StructType):
        return kind == of
    types = {field.name: field.dataType for field in of.fields}
    return all(types.get(field.name) == field.dataType for field in kind.fields)
