"""Writes a record of a processor: its state, its SOW record, its version and its delta in one step."""

from __future__ import annotations

import copy
import json
import os
from typing import TYPE_CHECKING, NamedTuple, cast

from processor.errors import RecordRejected, UndeclaredOutput
from processor.hosting.forwarded import checked_records
from processor.merge import KeyFields, diff
from processor.record import Stored
from processor.topics.family import KEY_BYTES_MAX
from processor.wire.forwarding import refuse_reserved
from processor.wire.record_headers import (
    EMPTY,
    NO_BASE,
    SOW_ONLY,
    WRITTEN_BY_PUT,
    headers_of_version,
    insert_headers,
    removal_headers,
    removed_header,
    stored_of,
)

try:
    from processor.merge.plain_delta import PlainDelta

    has_compiled = not os.environ.get("SOWSTREAM_NO_EXTENSIONS")
except ImportError:  # There was no compiler where this was installed.
    has_compiled = False

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from processor.api import Codec
    from processor.api.builtin import BuiltinContext
    from processor.hosting.pipeline import Pipeline
    from processor.record import Headers, Outgoing, Value


class _Written(NamedTuple):
    """The outputs of one record."""

    sow: Outgoing
    """The SOW record."""
    delta: Outgoing | None
    """The delta record; None where the processor has no such output."""


class RecordWriter:
    """The implementation of `Context.put` and `Context.delete` for one partition.

    All that can fail is done before the first write, so that a rejected record leaves nothing half written.
    """

    def __init__(self, context: BuiltinContext, pipeline: Pipeline) -> None:
        """Create it for the context of a partition of this pipeline."""
        self._context = context
        self._codec: Codec = context.codec
        self._key = KeyFields(pipeline.topic.key_fields)
        self._bytes_max = pipeline.topic.max_record_bytes
        declared = {output.role for output in pipeline.processor_type.outputs}
        self._has_sow, self._has_delta = "sow" in declared, "delta" in declared
        self._plain_delta = _plain_delta(self._codec, self._key)

    def put(self, key: bytes, record: Value, headers: Headers | None) -> None:
        """Write the record of a key; None deletes it."""
        if record is None:
            self.delete(key, headers)
            return
        more = self._checked(key, headers)
        old = self._context.state.get_many([key])[key]
        self._write([self._written(key, self._encoded(record), old, more)])

    def put_changed(self, records: Mapping[bytes, Value], headers: Headers | None) -> dict[bytes, RecordRejected]:
        """Write the records that differ from those that are there; return the errors of those that cannot be written.

        The states are read at once, and each record is encoded once; bytes are a record that is encoded.
        """
        more = self._checked(b"", headers)
        states = self._context.state.get_many(list(records))
        written, refused = [], {}
        encoded: dict[bytes, bytes | None] = {}
        for key, record in records.items():
            try:
                _check_length(key)
                if record is None:
                    encoded[key] = None
                else:
                    encoded[key] = self._checked_size(record) if type(record) is bytes else self._encoded(record)
            except RecordRejected as error:
                refused[key] = error
        changes: dict[bytes, Stored | None] = {}
        sow: list[Outgoing] = []
        deltas: list[Outgoing] = []
        if self._plain_delta is not None and self._has_delta and not more:
            encoded = self._plain_delta.updates(encoded, states, changes, sow, deltas)
        for key, data in encoded.items():
            old = states[key]
            try:
                if data is None:
                    if old is not None:
                        written.append(self._removed(key, old, more))
                elif old is None or data != old.value:
                    written.append(self._written(key, data, old, more))
            except RecordRejected as error:
                refused[key] = error
        is_mixed = bool(changes) and bool(written)
        place = {key: number for number, key in enumerate(records)} if is_mixed else {}
        for outputs, others in zip((sow, deltas), self._outputs(written, changes), strict=True):
            outputs.extend(others)
            if is_mixed:  # The order of the records, by whichever way they were made.
                outputs.sort(key=lambda output: place[cast("bytes", output[0])])
        self._send(changes, sow, deltas)
        return refused

    def delete(self, key: bytes, headers: Headers | None) -> bool:
        """Delete the record of a key; return whether there was one."""
        more = self._checked(key, headers)
        old = self._context.state.get_many([key])[key]
        if old is None:
            return False
        self._write([self._removed(key, old, more)])
        return True

    def _written(self, key: bytes, data: bytes, old: Stored | None, more: Headers) -> _Written:
        """Make the outputs of a record that is encoded."""
        if old is None:
            lives = self._context.lives
            shared: Headers = [*insert_headers(lives.first_version(key, lives.next_offset)), *more]
        else:
            shared = [*headers_of_version(old.version + 1), *more]
        delta = None
        if self._has_delta:
            delta_headers = [header for header in shared if header[0] not in SOW_ONLY] if more else shared
            delta = self._delta(key, old, data, delta_headers)
        return _Written((key, data, shared), delta)

    def _removed(self, key: bytes, old: Stored, more: Headers) -> _Written:
        """Make the outputs of a delete."""
        version = old.version + 1
        shared: Headers = [*removal_headers(version, "delete"), *more]
        self._context.lives.end(key, version)
        return _Written((key, None, shared), self._deleted(key, old, shared) if self._has_delta else None)

    def _write(self, written: Sequence[_Written]) -> None:
        """Write the outputs of records with different keys, and their states."""
        changes: dict[bytes, Stored | None] = {}
        self._send(changes, *self._outputs(written, changes))

    def _outputs(
        self, written: Sequence[_Written], states: dict[bytes, Stored | None]
    ) -> tuple[list[Outgoing], list[Outgoing]]:
        """Return the SOW and delta records of what was written, and add the states.

        By the same reader as a restore: the state is what it makes of the SOW record and its headers.
        """
        for (key, data, headers), _ in written:
            states[cast("bytes", key)] = None if data is None else stored_of(headers, data)
        return [sow for sow, _ in written], [delta for _, delta in written if delta is not None]

    def _send(self, states: dict[bytes, Stored | None], sow: list[Outgoing], deltas: list[Outgoing]) -> None:
        """Write states and their outputs."""
        if not states:
            return
        self._context.state.put_many(states)
        self._context.forward_many("sow", sow)
        if self._has_delta:
            self._context.forward_many("delta", deltas)

    def _encoded(self, record: Value) -> bytes:
        """Encode the full record as the topic's message type writes it."""
        codec = self._codec
        if codec.can_delta and not isinstance(record, dict):
            raise RecordRejected("not_an_object", f"{self._context.name} puts {record!r:.100}; a record is an object")
        if codec.completes:
            record = copy.deepcopy(record)
            codec.complete(record)
        return self._checked_size(codec.encode(record))

    def _checked_size(self, data: bytes) -> bytes:
        """Return an encoded record, unless it is too large."""
        if len(data) > self._bytes_max:
            raise RecordRejected("too_large", f"{len(data)} bytes; max_record_bytes is {self._bytes_max}")
        return data

    def _delta(self, key: bytes, old: Stored | None, data: bytes, shared: Headers) -> Outgoing:
        """Make the delta record from the old record to the encoded new one."""
        if self._plain_delta is not None:
            plain = self._plain_delta(b"{}" if old is None else old.value, data)
            if plain is not None:
                return key, plain, shared
        codec = self._codec
        new = codec.decode_own(data)  # Not the processor's object: a tuple, say, is a list to every reader.
        if not codec.can_delta:
            return key, data, shared
        headers = list(shared)
        before = None if old is None else self._readable(old)
        change = diff(before, new)
        if old is not None and before is None:
            headers.append(NO_BASE)
        body, needed = codec.encode_delta(self._key.with_delta(new, change.delta))
        headers += needed
        if change.removed:
            headers.append(removed_header(change.removed))
        elif not change.delta:
            headers.append(EMPTY)
        return key, body, headers

    def _readable(self, old: Stored) -> Value | None:
        """Decode the old record; None if its message type cannot read it any more, as after a change of its schema."""
        try:
            return self._codec.decode_own(old.value)
        except RecordRejected:
            return None

    def _deleted(self, key: bytes, old: Stored, shared: Headers) -> Outgoing:
        """Make the delta record of a delete: the key fields alone, as far as the message type can write them."""
        codec = self._codec
        if not (codec.can_delta or self._key.pointers):
            return key, b"", shared
        try:
            body, needed = codec.encode_delta(self._key.only(self._readable(old) or {}))
        except TypeError:  # Such as a type with fields that are required.
            return key, b"", shared
        return key, body, [*shared, *needed]

    def _checked(self, key: bytes, headers: Headers | None) -> Headers:
        """Return the headers that a processor adds, if all of the call can be written.

        Raises:
            UndeclaredOutput: the processor has no state.
            TypeError: the key or a header has the wrong type.
            ValueError: a header is one that is written here.
            RecordRejected: the key is too long.
        """
        name = self._context.name
        if not self._has_sow:
            raise UndeclaredOutput(f"{name} puts a record, and its `outputs` declare no output of role 'sow'")
        [(_, _, more)] = checked_records(name, "sow", [(key, None, headers or [])])
        _check_length(key)
        for header, _ in more:
            if header in WRITTEN_BY_PUT:
                raise ValueError(f"{name} puts key {key!r:.100} with the header {header!r}, which `put` writes itself")
        return more


def _plain_delta(codec: Codec, key: KeyFields) -> PlainDelta | None:
    """Return the compiled difference of two records; None where there is none, or not all key fields are at the top."""
    if not has_compiled or codec.json_text is None or len(key.top_names) < len(key.pointers):
        return None
    return PlainDelta([json.dumps(name).encode() for name in key.top_names], Stored, headers_of_version)


def _check_length(key: bytes) -> None:
    if len(key) > KEY_BYTES_MAX:
        raise RecordRejected("too_large", f"its key has {len(key)} bytes; at most {KEY_BYTES_MAX}")
    refuse_reserved(key)
