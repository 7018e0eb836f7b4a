"""Merges publishes and deltas into the record of their key: from `publish` to `sow` and `delta` (spec merge.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

from processor.api import (
    Change,
    Context,
    Header,
    Headers,
    Input,
    Name,
    Outgoing,
    Output,
    Processor,
    Record,
    RecordRejected,
    Stored,
    Value,
)
from processor.config import TopicConfig
from processor.merge import KeyFields, MergePolicy, compile_merge, diff, insert, remove_paths
from processor.record import COMMANDS, OUR_HEADERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

_VERSIONS_MAX = 4096  # Header lists kept for versions below this; a key updated more often pays for its own.
_INSERT: Header = (Name.KIND, b"insert")
_DELETE: Header = (Name.KIND, b"delete")
_EMPTY: Header = (Name.EMPTY, b"true")

# Stored(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__


class DeltaMerge(Processor):
    """Holds the state of the world of one partition."""

    settings_type = TopicConfig
    input: ClassVar[Input] = Input("publish", from_underlying=False)
    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"), Output("delta"), Output("publish", repartition=True))

    def init(self, context: Context, settings: BaseModel) -> None:
        """Compile what the settings say once."""
        assert isinstance(settings, TopicConfig)
        self._context = context
        self._decode, self._decode_own, self._encode = (
            context.codec.decode,
            context.codec.decode_own,
            context.codec.encode,
        )
        self._default_command = settings.default_command
        self._max_bytes = settings.max_record_bytes
        self._key = KeyFields(settings.key_fields)
        self._nulls_missing = settings.null_policy == "ignore"
        self._policy = MergePolicy(settings.null_policy, settings.merge_depth)
        self._merge = compile_merge(self._policy)
        # Most records carry their version and nothing else: those lists are made once and never changed.
        self._version_headers: list[Headers] = [[(Name.VERSION, b"%d" % version)] for version in range(_VERSIONS_MAX)]
        self._stored: dict[bytes, Stored | None] = {}
        self._changed: set[bytes] = set()
        self._sow: list[Outgoing] = []
        self._delta: list[Outgoing] = []

    def process(self, records: Sequence[Record]) -> None:
        """Merge the records in order: one read of all their keys, then one write of all that changed."""
        context = self._context
        stored = self._stored = context.state.get_many([record.key for record in records if record.key is not None])
        self._changed, self._sow, self._delta = set(), [], []
        for record in records:
            try:
                self._take(record)
            except RecordRejected as error:
                context.reject(record, error.reason, error.detail)
        context.state.put_many({key: stored[key] for key in self._changed})
        context.forward_many("sow", self._sow)
        context.forward_many("delta", self._delta)

    def _take(self, record: Record) -> None:
        """Do what one record asks for."""
        key, value, headers, _, _ = record
        command: str = self._default_command
        remove: Value = None
        passed: Headers = []
        if headers:
            command, remove, passed = self._read_headers(headers)
        if value is not None and len(value) > self._max_bytes:
            raise RecordRejected("too_large", f"{len(value)} bytes; max_record_bytes is {self._max_bytes}")
        if key is None:
            self._rekey(record)
        elif value is None or command == "sow_delete":
            self._delete(key, passed)
        else:
            body = self._decode(value)
            if type(body) is not dict:
                raise RecordRejected("not_an_object", f"the message is {_kind_of(body)}; a record is an object")
            self._key.check(key, body, nulls_missing=self._nulls_missing and command == "delta_publish")
            self._update(key, command, body, remove, passed)

    def _update(self, key: bytes, command: str, body: Value, remove: Value, passed: Headers) -> None:
        """Replace or merge a record, and tell both outputs."""
        old = self._stored[key]
        change = self._change(old, command, body, remove)
        data = self._encode(change.record)
        if len(data) > self._max_bytes:
            raise RecordRejected("too_large", f"merged: {len(data)} bytes; max_record_bytes is {self._max_bytes}")
        version = 1 if old is None else old.version + 1
        headers: Headers
        headers = self._version_headers[version] if version < _VERSIONS_MAX else [(Name.VERSION, b"%d" % version)]
        if old is None:
            headers = [*headers, _INSERT]
        if passed:
            headers = headers + passed
        delta_headers = headers
        if change.removed:
            delta_headers = [*headers, (Name.REMOVED, json.dumps(change.removed).encode())]
        elif not change.delta:
            delta_headers = [*headers, _EMPTY]
        self._sow.append((key, data, headers))
        self._delta.append((key, self._encode(self._key.with_delta(change.record, change.delta)), delta_headers))
        self._stored[key] = _new(Stored, (version, data, 0, -1, b""))
        self._changed.add(key)

    def _change(self, old: Stored | None, command: str, body: Value, remove: Value) -> Change:
        """What a command does to the record."""
        if command == "publish":
            change = diff(None if old is None else self._decode_own(old.value), body)
        elif old is None:
            change = insert(body, self._policy)
        else:
            record = self._decode_own(old.value)
            self._key.protect(record, body)
            change = self._merge(record, body)
        if remove is None:
            return change
        # The removal comes after the merge and may undo parts of it: what changed in all is the difference.
        remove_paths(change.record, remove, self._key.pointers)
        return diff(None if old is None else self._decode_own(old.value), change.record)

    def _delete(self, key: bytes, passed: Headers) -> None:
        """Remove a record: a tombstone, and its key fields on the delta topic."""
        old = self._stored[key]
        if old is None:
            self._context.count("delete_of_nothing")
            return
        headers: Headers = [(Name.VERSION, b"%d" % (old.version + 1)), _DELETE, *passed]
        self._sow.append((key, None, headers))
        self._delta.append((key, self._encode(self._key.only(self._decode_own(old.value))), headers))
        self._stored[key] = None
        self._changed.add(key)

    def _rekey(self, record: Record) -> None:
        """Send a record without a Kafka key to the input again, keyed: here would be the wrong partition."""
        body = None if record.value is None else self._decode(record.value)
        text = self._key.text(body) if type(body) is dict else None
        if text is None:
            raise RecordRejected("missing_key", f"no Kafka key, and no {', '.join(self._key.pointers)} in the message")
        self._context.forward("publish", text.encode(), record.value, record.headers or [])
        self._context.count("rekeyed")

    def _read_headers(self, headers: Headers) -> tuple[str, Value, Headers]:
        """The command, the parsed header `remove` if there is one, and the headers that travel on."""
        command: str = self._default_command
        remove: Value = None
        passed: Headers = []
        for header in headers:
            name, value = header
            if name == Name.COMMAND:
                command = _text(name, value)
                if command not in COMMANDS:
                    raise RecordRejected("unknown_command", f"{command!r}; known: {', '.join(sorted(COMMANDS))}")
            elif name == Name.REMOVE:
                remove = _array(name, value)
            elif name not in OUR_HEADERS:
                passed.append(header)
        return command, remove, passed


def _text(name: str, value: bytes | None) -> str:
    try:
        return (value or b"").decode()
    except UnicodeDecodeError as error:
        raise RecordRejected(
            "bad_header", f"header {name} is not UTF-8: {error.reason} at byte {error.start}"
        ) from None


def _array(name: str, value: bytes | None) -> list[Value]:
    try:
        parsed = json.loads(_text(name, value))
    except (ValueError, RecursionError) as error:
        raise RecordRejected("bad_header", f"header {name} is not a JSON array: {error}") from None
    if type(parsed) is not list:
        raise RecordRejected("bad_header", f"header {name} is not a JSON array: it is {_kind_of(parsed)}")
    return parsed


def _kind_of(body: Value) -> str:
    """A JSON value's kind as a person says it."""
    words = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return words.get(type(body), "a number")
