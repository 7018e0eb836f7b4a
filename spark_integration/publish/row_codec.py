"""Encodes messages in the topic's message type: JSON by Spark itself, other types by their codec on the executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, StructType

from processor.codec import load_codec
from processor.codec.contract import CodecOptions
from processor.errors import RecordRejected
from processor.record import Headers
from spark_integration.read.mask import failing

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_integration.settings import TopicSettings

_HEADERS: Final = ArrayType(StructType().add("key", "string").add("value", "binary"))
"""The type of headers for Spark's Kafka sink."""


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
    types = types.add("value", "binary").add("added", _HEADERS).add("problem", "string")
    encoded = texts.mapInArrow(_encode(settings, is_delta=message.is_delta), types)
    value = F.when(F.col("problem").isNotNull(), failing(F.col("problem"))).otherwise(F.col("value"))
    return encoded.select("key", value.alias("value"), F.concat("headers", "added").alias("headers"), "place")


def _encode(
    settings: TopicSettings, *, is_delta: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - optional

        from spark_integration.arrow_records import headers_column  # noqa: PLC0415

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
