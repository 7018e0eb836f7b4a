"""What a subscriber is told of each update: whole records, deltas as the worker wrote them, or deltas computed here.

Each takes the Kafka records of one topic in order and says what message, if any, they make. `load` takes the records
of the snapshot, `update` everything after.
"""

from __future__ import annotations

import json
from typing import Protocol

from processor.client.envelope import Envelope, gone_reason
from processor.subscribe.message import Message, MessageCommand
from processor.client.options import Options
from processor.merge import KeyFields, diff
from processor.record import Name, Record, header_text
from processor.topics import Role


class Updates(Protocol):
    """One way to tell of updates."""

    role: Role
    """The topic of the family it reads."""

    def load(self, record: Record) -> Message | None:
        """Take a record of the snapshot: the last of its key, not a tombstone."""

    def update(self, record: Record) -> Message | None:
        """Take the next record after the snapshot; None: the subscriber is told nothing."""


class WholeRecords:
    """The whole merged record on each update, from the SOW topic.

    With `oof` it remembers the last record of every key it delivered.
    """

    role: Role = "sow"

    def __init__(self, envelope: Envelope, options: Options) -> None:
        self._envelope = envelope
        self._view: dict[bytes, bytes] | None = {} if options.oof else None

    def load(self, record: Record) -> Message | None:
        """The record as it is in the snapshot."""
        return self._whole("sow", record)

    def update(self, record: Record) -> Message | None:
        """The record as it is now, or that it is gone."""
        if record.value is not None:
            return self._whole("publish", record)
        if self._view is None or (last := self._view.pop(record.key or b"", None)) is None:
            return None
        return self._envelope.message("oof", record, self._envelope.decode(last), reason=gone_reason(record))

    def _whole(self, command: MessageCommand, record: Record) -> Message:
        assert record.value is not None
        if self._view is not None:
            self._view[record.key or b""] = record.value
        return self._envelope.message(command, record, self._envelope.decode(record.value))


class WrittenDeltas:
    """The deltas that the worker wrote, from the delta topic: nothing is kept here."""

    role: Role = "delta"

    def __init__(self, envelope: Envelope, options: Options) -> None:
        self._envelope = envelope
        self._no_empties = options.no_empties

    def load(self, record: Record) -> Message | None:  # noqa: ARG002
        """A delta topic has no snapshot: nothing."""
        return None

    def update(self, record: Record) -> Message | None:
        """The delta; a deletion is told by `oof` only, which needs the last record and so another way."""
        kind = header_text(record.headers, Name.KIND)
        if kind in ("delete", "expire") or record.value is None:
            return None
        if self._no_empties and header_text(record.headers, Name.EMPTY) == "true":
            return None
        pointers = header_text(record.headers, Name.REMOVED)
        return self._envelope.message(
            "publish",
            record,
            self._envelope.decode_delta(record),
            delta=kind != "insert" and self._envelope.can_delta,
            removed=() if pointers is None else tuple(json.loads(pointers)),
        )


class ComputedDeltas:
    """Deltas against a view of all records, from the SOW topic: snapshot and deltas are one cut of one topic.

    A record that comes new is delivered whole. The view holds every record of the topic.
    """

    role: Role = "sow"

    def __init__(self, envelope: Envelope, options: Options, key_fields: KeyFields, *, tells_snapshot: bool) -> None:
        self._envelope = envelope
        self._options = options
        self._key_fields = key_fields
        # Encoded: parsed records take many times the room.
        self._view: dict[bytes, bytes] = {}
        self._tells_snapshot = tells_snapshot
        self._unseen: set[bytes] = set()

    def load(self, record: Record) -> Message | None:
        """The record as it is in the snapshot, whole, if the subscriber wants the snapshot."""
        key, value = record.key or b"", record.value
        assert value is not None
        self._view[key] = value
        if not self._tells_snapshot:
            self._unseen.add(key)
            return None
        return self._envelope.message("sow", record, self._envelope.decode(value))

    def update(self, record: Record) -> Message | None:
        """What changed since the last record of this key."""
        key, value = record.key or b"", record.value
        if value is None:
            return self._gone(record)
        last = self._view.get(key)
        self._view[key] = value
        new = self._envelope.decode(value)
        if last is None:
            return self._envelope.message("publish", record, new)
        change = diff(self._envelope.decode(last), new)
        if self._options.no_empties and not change.delta and not change.removed:
            return None
        self._unseen.discard(key)
        if not self._envelope.can_delta:
            return self._envelope.message("publish", record, new)
        data = self._key_fields.with_delta(new, change.delta)
        return self._envelope.message("publish", record, data, delta=True, removed=tuple(change.removed))

    def _gone(self, record: Record) -> Message | None:
        key = record.key or b""
        last = self._view.pop(key, None)
        unseen = key in self._unseen
        self._unseen.discard(key)
        if last is None or unseen or not self._options.oof:
            return None
        return self._envelope.message("oof", record, self._envelope.decode(last), reason=gone_reason(record))
