"""Checks each row on the executors: it becomes a command, or is rejected."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from processor.builtin.delta_merge.compiled_settings import compile_settings
from processor.codec import load_codec
from processor.codec.contract import CodecOptions
from processor.errors import RecordRejected
from processor.merge import KeyFields
from processor.record import Command, Headers
from processor.values.pointer import child
from processor.wire.columns import REMOVE
from processor.wire.record_headers import command_header
from spark_integration.foundation.arrow_records import HEADERS_DDL, headers_column

if TYPE_CHECKING:
    from processor.record import Value
    from spark_integration.foundation.settings import TopicSettings


NullPolicy: TypeAlias = Literal["ignore", "set", "remove"]
"""The meaning of a null in a row: its field is left out, stored as null, or removed from the record."""

CHECKED_DDL: Final = (
    f"key binary, value binary, headers {HEADERS_DDL}, reason string, detail string, raw binary, "
    "file string, line long, at long, partition int"
)
"""The columns of `RowCheck`: a command, or a reason with the raw row; and the place of the row. Others of the place
follow, as they came.
"""

_ADDED_BYTES: Final = 2 * 1024
"""Room for the headers `client` and `sequence`, and for Kafka's overhead."""
_READ: Final = ("text", "raw", "problem", "detail")
_DETAIL_MAX: Final = 500


class _Checked(NamedTuple):
    """A checked row: a command, or a reason."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = []  # noqa: RUF012 - shared, and never changed
    reason: str | None = None
    detail: str | None = None
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class RowCheck:
    """Converts texts to commands, for `mapInArrow`; pickled for the executors."""

    settings: TopicSettings
    """The settings of the topic to publish to."""
    key: tuple[str, ...]
    """The JSON Pointers of the key fields."""
    command: Command
    """The command of each row."""
    nulls: NullPolicy
    """The meaning of a null."""
    misfit: str
    """The detail for rows that the source could not read."""
    request_bytes_max: int
    """The largest message that Kafka takes, with its key, its headers and Kafka's overhead."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Check the rows of `SourceRows.texts`, in their order."""
        convert = self._converter()
        for batch in batches:
            rows: list[_Checked] = []
            columns = (batch.column(name).to_pylist() for name in _READ)
            for text, raw, problem, detail in zip(*columns, strict=True):
                if problem is not None:
                    rows.append(_Checked(reason=problem, detail=detail or self.misfit, raw=raw))
                else:
                    try:
                        rows.append(_Checked(*convert(text)))
                    except RecordRejected as error:
                        rows.append(_Checked(reason=error.reason, detail=error.detail[:_DETAIL_MAX], raw=raw))
            yield _as_batch(rows, batch)

    def _converter(self) -> Callable[[bytes | None], tuple[bytes, bytes, Headers]]:
        """The function that makes a command of a text: its key, its message, and its headers."""
        topic, codec = self.settings.topic, self.settings.codec()
        json_codec = load_codec("json", CodecOptions(max_depth=topic.max_depth))
        compiled = compile_settings(self.settings.name, topic, codec)
        key_of, is_json = KeyFields(self.key).text, topic.message_type == "json"
        is_delta = self.command == "delta_publish" and codec.can_delta
        only_command: Headers = [command_header(self.command)]
        takes_nulls = self.nulls != topic.null_policy or not is_delta

        def convert(text: bytes | None) -> tuple[bytes, bytes, Headers]:
            if text is None:
                raise RecordRejected("undecodable", "the row has no message")
            body = json_codec.decode(text)
            if type(body) is not dict:
                raise RecordRejected("not_an_object", f"the row is {type(body).__name__}, not an object of fields")
            keyed = body
            if compiled.preprocess is not None:
                keyed = compiled.preprocess(json_codec.decode(text), self.command).body
            key = key_of(keyed)
            if key is None:
                raise RecordRejected("missing_key", f"no {', '.join(self.key)} in the row")
            value, headers = text, only_command
            removed: list[str] = []
            if takes_nulls and self.nulls != "set" and b"null" in text:
                _without_nulls(body, "", removed)
                value = json_codec.encode(body)
                if self.nulls == "remove" and removed and is_delta:
                    headers = [*only_command, (REMOVE, json.dumps(removed).encode())]
            if not is_json:
                try:
                    value, added = codec.encode_command(body, is_delta=is_delta)
                except TypeError as error:
                    raise RecordRejected(
                        "schema_mismatch", f"no message of type {topic.message_type}: {error}"
                    ) from None
                headers = [*headers, *added]
            if len(value) > topic.max_record_bytes:
                raise RecordRejected(
                    "too_large", f"the message has {len(value)} bytes; the topic takes {topic.max_record_bytes}"
                )
            name, sizes = key.encode(), (len(header) + len(text or b"") for header, text in headers)
            if (size := len(name) + len(value) + sum(sizes)) > self.request_bytes_max - _ADDED_BYTES:
                raise RecordRejected(
                    "too_large",
                    f"the message has {size} bytes with its key and headers; Kafka takes {self.request_bytes_max}",
                )
            return name, value, headers

        return convert


def _as_batch(checked: Sequence[_Checked], batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of `CHECKED_DDL`, and those that follow."""
    types = {"key": pa.binary(), "value": pa.binary(), "reason": pa.string(), "detail": pa.string(), "raw": pa.binary()}
    columns = {name: pa.array([getattr(row, name) for row in checked], kind) for name, kind in types.items()}
    columns["headers"] = headers_column([row.headers for row in checked])
    places = [name for name in batch.schema.names if name not in _READ]
    columns |= {name: batch.column(name) for name in places}
    order = ("key", "value", "headers", "reason", "detail", "raw", *places)
    return pa.RecordBatch.from_arrays([columns[name] for name in order], names=list(order))


def _without_nulls(value: Value, pointer: str, removed: list[str]) -> None:
    """Remove the nulls of an object, in place, and collect their JSON Pointers; those in arrays stay."""
    for name in [name for name, item in value.items() if item is None]:
        del value[name]
        removed.append(child(pointer, name))
    for name, item in value.items():
        if type(item) is dict:
            _without_nulls(item, child(pointer, name), removed)
