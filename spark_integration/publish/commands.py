"""Builds commands from rows: the key, the message and the headers of one record a row.

The message is JSON, which Spark writes itself; other types are encoded by their codec on the executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from processor.codec import load_codec
from processor.codec.contract import CodecOptions
from processor.errors import RecordRejected
from processor.record import Command, Headers
from processor.wire import columns as names
from spark_integration.publish.columns import Body, key_text
from spark_integration.read.mask import ColumnPath, failing, masked_text, pointers, text_of
from spark_integration.read.metadata_columns import HEADERS

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_integration.foundation.settings import TopicSettings


MASK: Final = "__mask"
"""The column with the mask of a row as JSON Pointers: computed once for all fields."""


def with_mask(df: DataFrame, body: Body) -> DataFrame:
    """Add column `MASK` to rows with a mask."""
    return df if body.mask is None else df.withColumn(MASK, pointers(body.mask))


def key_of(places: Sequence[ColumnPath]) -> Column:
    """The record key as text; a row without a key fails the query."""
    columns = [place.value for place in places]
    text = key_text(columns)
    nullable = [place.value.isNull() for place in places if place.field.nullable]
    if not nullable:
        return text
    shown = text_of([place.value.alias(place.field.name) for place in places], skip_nulls=False)
    keyless = failing(
        F.lit("a row has no key, "),
        shown,
        F.lit(": nothing was written; drop such rows first, for example with df.dropna(subset=key)"),
    )
    return F.when(reduce(or_, nullable), keyless).otherwise(text)


def text_of_body(key: Sequence[ColumnPath], body: Body) -> Column:
    """The message as JSON: the key fields, then the body."""
    if body.mask is not None:
        return masked_text(key, body.fields, F.col(MASK))
    members = [place.value.alias(place.field.name) for place in (*key, *body.fields)]
    return text_of(members, skip_nulls=body.skip_nulls)


def headers_of(command: Command, deleted: Column | None = None, removed: Column | None = None) -> Column:
    """The headers of each row.

    Args:
        command: the command of the record. The header is always written, as topics may have another default.
        deleted: true where a row deletes its record instead.
        removed: names or JSON Pointers of the fields to remove.
    """
    row_command = F.lit(command) if deleted is None else F.when(deleted, "sow_delete").otherwise(command)
    of_command = header(names.COMMAND, row_command)
    if removed is None:
        # The same for all rows, unless some are deletes: a constant, which Spark does not shuffle with them.
        return F.array(of_command)
    gone = pointers(removed)
    stays = F.size(gone) == 0 if deleted is None else (F.size(gone) == 0) | F.coalesce(deleted, F.lit(False))
    # A null list removes nothing: its size is below 0, or null.
    empty = F.coalesce(stays | gone.isNull(), F.lit(True))
    removal = F.when(~empty, header(names.REMOVE, F.to_json(gone)))
    return F.filter(F.array(of_command, removal), lambda one: one.isNotNull())


def header(name: str, value: Column) -> Column:
    """Build a header."""
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


class RowMessage(NamedTuple):
    """The message columns of rows."""

    text: Column
    """The body as JSON; null in a delete."""
    headers: Column
    """The headers of the command."""
    is_delta: bool = False
    """True if the body is a delta."""


def messages(
    df: DataFrame, key: Column, place: Column, message: RowMessage, settings: TopicSettings | None
) -> DataFrame:
    """Encode rows as records: columns `key` and `value` (binary), `headers` and `place`.

    A value that the topic's message type cannot encode fails the query.

    Args:
        df: the rows.
        key: the record key, text.
        place: the column that orders the rows of a key, with that name.
        message: the message columns.
        settings: the topic's settings; None for a topic of JSON.
    """
    keyed = key.cast("binary").alias("key")
    if settings is None or settings.topic.message_type == "json":
        return df.select(keyed, message.text.cast("binary").alias("value"), message.headers.alias("headers"), place)
    texts = df.select(keyed, message.text.alias("text"), message.headers.alias("headers"), place)
    types = StructType([field for field in texts.schema.fields if field.name != "text"])
    types = types.add("value", "binary").add("added", HEADERS).add("problem", "string")
    encoded = texts.mapInArrow(_encode(settings, is_delta=message.is_delta), types)
    value = F.when(F.col("problem").isNotNull(), failing(F.col("problem"))).otherwise(F.col("value"))
    return encoded.select("key", value.alias("value"), F.concat("headers", "added").alias("headers"), "place")


def _encode(
    settings: TopicSettings, *, is_delta: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - optional

        from spark_integration.foundation.arrow_records import headers_column  # noqa: PLC0415

        writer = _Writer(settings, is_delta=is_delta)
        for batch in batches:
            written = [writer.write(text) for text in batch.column("text").to_pylist()]
            names = [name for name in batch.schema.names if name != "text"]
            columns = [
                pa.array([value for value, _, _ in written], pa.binary()),
                headers_column([headers for _, headers, _ in written]),
                pa.array([problem for _, _, problem in written], pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(
                [*map(batch.column, names), *columns], names=[*names, "value", "added", "problem"]
            )

    return encode


class _Writer:
    """Converts Spark's JSON to the topic's message type."""

    def __init__(self, settings: TopicSettings, *, is_delta: bool) -> None:
        self._message_type = settings.topic.message_type
        self._codec, self._json = settings.codec(), load_codec("json", CodecOptions())
        self._is_delta = is_delta

    def write(self, text: str | None) -> tuple[bytes | None, Headers, str | None]:
        """The message, its headers, and the problem if it cannot be encoded."""
        if text is None:
            return None, [], None
        try:
            body = self._json.decode(text.encode())
            message, headers = self._codec.encode_command(body, is_delta=self._is_delta)
        except (TypeError, RecordRejected) as error:
            return None, [], f"a row is no message of type {self._message_type}: {error}; nothing was written"
        return message, headers, None
