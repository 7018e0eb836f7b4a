"""The preprocessors `debezium` and `connect`: change events of a database, and Connect's JSON, as plain messages."""

from __future__ import annotations

import json
import uuid
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Mapping
from hashlib import md5
from typing import TYPE_CHECKING, Final

from processor.api import Incomplete, Preprocessed, RecordRejected, Value

if TYPE_CHECKING:
    from processor.api import Preprocess

PLACEHOLDER: Final = "__debezium_unavailable_value"
"""Debezium's default for `unavailable.value.placeholder`, which events have in place of values that they lack."""

_WRAPPER: Final = frozenset(("schema", "payload"))
_ENVELOPE: Final = frozenset(("before", "after", "op", "source"))
_INCOMPLETE: Final = ("reject", "store")
_ROW_OPS: Final = ("c", "r", "u")  # create, read by a snapshot, update
_NO_ROW_OPS: Final = {"t": "a truncate event", "m": "a logical decoding message"}


def connect() -> Preprocess:
    """Makes the preprocessor `connect`, which takes a record out of the JsonConverter's `{schema, payload}`.

    A record that was written with `schemas.enable: false` stays as it is. The command is the header's or the topic's
    default, as for any message; a payload of null deletes.
    """

    def preprocess(message: Value) -> Value:
        payload = _payload(message)
        return Preprocessed({}, "sow_delete") if payload is None else payload

    return preprocess


def debezium(placeholder: str | None = PLACEHOLDER, unwrapped: bool = False, incomplete: str = "reject") -> Preprocess:
    """Makes the preprocessor `debezium`, which turns change events into publishes and deletes.

    Args:
        placeholder: the text in place of a value that an event does not have, such as an unchanged TOAST column of
            Postgres; a leading `hex:` as in Debezium's setting. Such an event is a delta without the column. None:
            events always have all values.
        unwrapped: whether the transform `ExtractNewRecordState` has taken the rows out of their events.
        incomplete: the treatment of an event without a value that no record has either, as after a change of the
            primary key: `reject`, or `store` the row without that column. Both are counted.

    Raises:
        ValueError: the placeholder is empty or bad hexadecimal, `unwrapped` is no boolean, or `incomplete` is another.
    """
    if type(unwrapped) is not bool:
        raise ValueError(f"unwrapped is {unwrapped!r}; it is true or false")
    if incomplete not in _INCOMPLETE:
        raise ValueError(f"incomplete is {incomplete!r}; it is reject or store")
    return _ChangeEvents(None if placeholder is None else _Placeholder(placeholder), unwrapped, incomplete == "store")


class _ChangeEvents:
    """The preprocessor `debezium` of one topic."""

    __slots__ = ("_placeholder", "_stores_incomplete", "_take", "needs")

    needs_key: Final = (
        "the event has no Kafka key, so the events of a row are in any partition and order; let the connector write "
        "the columns of the topic's key into it, with message.key.columns"
    )
    """A table without a primary key has such events. They do not say either that a row's key fields have changed."""

    needs: Mapping[str, object]
    """The settings of a topic without which a delta for an unavailable value would not be the row: a column that became
    null must become null, and one of several parts, such as an hstore, must replace the old one."""

    def __init__(self, placeholder: _Placeholder | None, unwrapped: bool, stores_incomplete: bool) -> None:
        self._placeholder, self._stores_incomplete = placeholder, stores_incomplete
        self._take = self._take_row if unwrapped else self._take_event
        self.needs = {} if placeholder is None else {"null_policy": "set", "merge_depth": 1}

    def __call__(self, message: Value) -> Preprocessed:
        """Return the row of a message with its command.

        Raises:
            RecordRejected: `unknown_command` for an event that is of no row, `schema_mismatch` for no event at all.
        """
        payload = _payload(message)
        return Preprocessed({}, "sow_delete") if payload is None else self._take(payload)

    def _take_event(self, event: Value) -> Preprocessed:
        """The row in an event with Debezium's envelope."""
        op = event.get("op")
        if op in _ROW_OPS:
            after = event.get("after")
            if type(after) is not dict:
                raise RecordRejected(
                    "schema_mismatch",
                    f"the event of op {op!r} has no object `after`; for MongoDB let ExtractNewDocumentState take the "
                    "document out, and set unwrapped: true",
                )
            return self._published(after)
        if op == "d":
            before = event.get("before")
            return Preprocessed(before if type(before) is dict else {}, "sow_delete")
        raise _no_row(op)

    def _take_row(self, row: Value) -> Preprocessed:
        """The row that `ExtractNewRecordState` left, without its two fields on deletion."""
        if row.keys() >= _ENVELOPE:
            raise RecordRejected(
                "schema_mismatch",
                "the message is a whole event; set unwrapped: false, or let ExtractNewRecordState take the row out",
            )
        if (kind := _kind_of_no_row(row)) is not None:
            raise RecordRejected(
                "unknown_command", f"{kind} is of no row, and changes no record; let the connector write it elsewhere"
            )
        deleted, op = row.pop("__deleted", None), row.pop("__op", None)
        if type(op) is str and op in _NO_ROW_OPS:
            raise _no_row(op)
        if op == "d" or deleted is True or deleted == "true":
            return Preprocessed(row, "sow_delete")
        return self._published(row)

    def _published(self, row: Value) -> Preprocessed:
        """A publish of a row; a delta where not all of it is there."""
        placeholder = self._placeholder
        if placeholder is None:
            return Preprocessed(row, "publish")
        lacking = tuple([name for name, value in row.items() if placeholder.is_in(value)])
        if not lacking:
            return Preprocessed(row, "publish")
        for name in lacking:
            del row[name]
        return Incomplete.of(row, "delta_publish", lacking, is_stored=self._stores_incomplete)


class _Placeholder:
    """The shapes that Debezium gives the placeholder in columns of different types."""

    __slots__ = ("_collections", "_scalars")

    def __init__(self, setting: str) -> None:
        data = bytes.fromhex(setting[4:]) if setting.startswith("hex:") else setting.encode()
        if not data:
            raise ValueError("placeholder is empty; null says that events always have all values")
        text = data.decode(errors="replace")
        encoded = [b64encode(data).decode(), urlsafe_b64encode(data).decode(), data.hex()]
        # Java's UUID.nameUUIDFromBytes.
        name = str(uuid.UUID(bytes=md5(data, usedforsecurity=False).digest(), version=3))
        signed = [byte - 256 if byte > 127 else byte for byte in data]
        hstore = json.dumps({text: text}, ensure_ascii=False, separators=(",", ":"))
        self._scalars: Final = frozenset((text, data, hstore, *encoded))
        self._collections: Final = ([text], [data], *([item] for item in encoded), [name], signed, {text: text})

    def is_in(self, value: Value) -> bool:
        """True if a column's value is the placeholder: a text, bytes, an array of one or of the bytes, an hstore."""
        kind = type(value)
        if kind is str or kind is bytes:
            return value in self._scalars
        return (kind is list or kind is dict) and value in self._collections


def _payload(message: Value) -> Value:
    """A message without the schema that Connect's JsonConverter writes next to it; None for a null.

    Raises:
        RecordRejected: `not_an_object`: a payload that is neither an object nor null.
    """
    if message.keys() != _WRAPPER:
        return message
    schema, payload = message["schema"], message["payload"]
    if schema is not None and not (type(schema) is dict and "type" in schema):
        return message  # Two fields that happen to have these names.
    if payload is not None and type(payload) is not dict:
        raise RecordRejected("not_an_object", f"the payload is {payload!r:.50}; a record is an object")
    return payload


_NO_ROWS: Final = (
    ("a heartbeat", frozenset(("ts_ms",)), frozenset(("ts_ms", "ts_us", "ts_ns"))),
    ("a transaction boundary", frozenset(("status", "id", "event_count", "data_collections")), None),
    ("a schema change", frozenset(("source", "ddl", "tableChanges")), None),
)
"""Debezium's other messages: the fields that each has, and all that it may have where that is what tells it apart."""


def _kind_of_no_row(message: Value) -> str | None:
    """The kind of a message that ExtractNewRecordState passes on unchanged, as it is of no row; None for a row."""
    names = message.keys()
    return next((kind for kind, has, most in _NO_ROWS if names >= has and (most is None or names <= most)), None)


def _no_row(op: Value) -> RecordRejected:
    """The reason to reject an event that is of no row, or no event."""
    if type(op) is str and op in _NO_ROW_OPS:
        return RecordRejected(
            "unknown_command",
            f"{_NO_ROW_OPS[op]} (op {op!r}) is of no row, and changes no record; let the connector leave it out, with "
            "skipped.operations or message.prefix.exclude.list",
        )
    return RecordRejected(
        "schema_mismatch",
        f"no change event: its op is {op!r:.50}; a row without an envelope needs unwrapped: true",
    )
