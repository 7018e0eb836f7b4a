"""The delivery of the updates of a key that have waited: they are read, and the records for both topics written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from processor.api import RecordRejected, Stored
from processor.builtin.delta_merge.record_change import key_alone
from processor.errors import PartitionHeld, Stop, rejection
from processor.merge import KeyFields, conflated_delta, touch
from processor.wire import record_headers
from processor.wire.record_headers import (
    EMPTY,
    conflated_headers,
    correlation_id_header,
    delta_base_headers,
    expires_at_header,
    removed_header,
    source_header,
)
from processor.wire.subscriber_headers import touched_header

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from processor.api import Codec, Header, Headers, Kind, Outgoing, Record, Value
    from processor.builtin.conflate.pending import Pending
    from processor.wire.record_headers import SowHeaders


_TOGETHER_BYTES_MAX: Final = 256 * 1024
"""Updates of a key that are parsed together: parsed they take ten times as much memory."""

_OBJECTS: Final = frozenset((dict,))


class _TooLarge(Exception):
    """Updates are too large to be parsed together."""


class Read(NamedTuple):
    """The result of reading the updates of a key."""

    state: Value | None
    """The record at the end, parsed if its parts matter; None if it is gone, or does not belong to the copy."""
    delivered: Value | None
    """The record delivered before, parsed; None if there was none, or if its parts do not matter."""


class Reader:
    """Reads the pending updates of one partition."""

    def __init__(
        self,
        codec: Codec,
        matches: Callable[[Value, Record], bool] | None,
        rejected: Callable[[Record, RecordRejected], None],
    ) -> None:
        """Create a reader.

        Args:
            codec: the message type of the records.
            matches: whether a record belongs to the copy; None: every one does.
            rejected: called with each update that is no record of a SOW topic.
        """
        self._decode: Final = codec.decode_own
        self._decode_many: Final = codec.decode_own_many
        self._can_delta: Final = codec.can_delta
        self._matches: Final = matches
        self._rejected: Final = rejected

    def read(self, pending: Pending, old: Stored | None) -> Read:
        """Read the unread updates of a key.

        Args:
            pending: the key's updates; afterwards none of them is unread, and `last` is None if none was good.
            old: the record delivered before.
        """
        try:
            delivered = self._decode(old.value) if old is not None and self._can_delta else None
        except (PartitionHeld, Stop):
            raise
        except Exception as error:  # noqa: BLE001 - a message type may fail in any way
            for place in range(len(pending.values)):
                self._refuse(pending.unread(place), error)
            pending.forget_unread(pending.last)
            return Read(None, None)
        if not pending.values:
            return Read(None if pending.last is None else self._state(pending.last), delivered)
        try:
            states = self._states(pending)
        except (PartitionHeld, Stop):
            raise
        except Exception:  # noqa: BLE001 - one by one each bad one says what is wrong with it
            return self._read_singly(pending, delivered)
        if delivered is not None:
            touch(pending.touched, delivered, states)
        if not pending.count:
            pending.first_timestamp_ms = pending.unread_timestamp_ms
        pending.count += len(states)
        pending.forget_unread(pending.unread(len(states) - 1))
        return Read(states[-1], delivered)

    def _states(self, pending: Pending) -> list[Value | None]:
        """Parse all unread updates together, at a fraction of the cost of single ones.

        Raises:
            Exception: one of them is bad, or they are too large together.
        """
        if pending.headers is not None:
            for headers in pending.headers.values():
                record_headers.read_sow_headers(headers)
        if not self._can_delta:
            return list(pending.values)
        if pending.value_bytes > _TOGETHER_BYTES_MAX:
            raise _TooLarge
        states = self._decoded(pending.values)
        if (matches := self._matches) is None:
            return states
        return [
            state if state is not None and matches(state, pending.unread(place)) else None
            for place, state in enumerate(states)
        ]

    def _decoded(self, values: Sequence[bytes | None]) -> list[Value | None]:
        """Records parsed together; None for a tombstone."""
        messages = [value for value in values if value is not None]
        states = self._decode_many(messages)
        if not _OBJECTS.issuperset(map(type, states)):
            raise _no_object()
        if len(messages) == len(values):
            return states
        decoded = iter(states)
        return [None if value is None else next(decoded) for value in values]

    def _read_singly(self, pending: Pending, delivered: Value | None) -> Read:
        """Read the unread updates one by one, and reject the bad ones."""
        last, state = pending.last, None
        for place in range(len(pending.values)):
            record = pending.unread(place)
            try:
                record_headers.read_sow_headers(record.headers)
                state = self._state(record)
            except (PartitionHeld, Stop):
                raise
            except Exception as error:  # noqa: BLE001 - so may a filter
                self._refuse(record, error)
                continue
            if delivered is not None:
                touch(pending.touched, delivered, [state])
            if not pending.count:
                pending.first_timestamp_ms = record.timestamp_ms
            pending.count += 1
            last = record
        was = pending.last
        pending.forget_unread(last)
        if last is was:
            state = None if last is None else self._state(last)
        return Read(state, delivered)

    def _refuse(self, record: Record, error: Exception) -> None:
        """Reject an update for an error."""
        self._rejected(record, rejection(error))

    def _state(self, record: Record) -> Value | None:
        value = record.value
        if value is None:
            return None
        if not self._can_delta:
            return value
        state = self._decode(value)
        if type(state) is not dict:
            raise _no_object()
        if self._matches is not None and not self._matches(state, record):
            return None
        return state


def _no_object() -> RecordRejected:
    return RecordRejected("not_an_object", "a SOW record is an object")


class Delivery:
    """The deliveries of one call, in order: states to put, records to forward."""

    def __init__(self, codec: Codec, key: KeyFields, source: bytes) -> None:
        """Create an empty delivery.

        Args:
            codec: the message type of the records.
            key: their key fields.
            source: the text before the offset in the header `source`.
        """
        self._codec = codec
        self._key = key
        self._source = source
        self.states: dict[bytes, Stored | None] = {}
        """The new states of the keys."""
        self.sow: list[Outgoing] = []
        """The records for the SOW topic."""
        self.delta: list[Outgoing] = []
        """The records for the delta topic."""

    def add(self, key: bytes, pending: Pending, last: Record, read: Read, old: Stored | None) -> None:
        """Add the delivery of one key.

        Args:
            key: the Kafka record key.
            pending: its interval.
            last: the update at its end.
            read: the record at its end and the one delivered before; not both None.
            old: the record delivered before, as it is stored.

        Raises:
            RecordRejected: the delta cannot be encoded, though each of the updates could be decoded.
        """
        state = read.state
        update = record_headers.read_sow_headers(last.headers)
        version = update.version
        headers = self._headers(pending, last, update, is_gone=state is None, is_new=old is None)
        base = 0 if old is None else old.version
        # SowHeaders where it is not the version before: updates were folded.
        delta_headers = headers + delta_base_headers(base, version)
        if state is None:
            assert old is not None
            delta, more = key_alone(self._codec, self._key, old)
            stored, data = None, None
        else:
            delta, more = self._encode_delta(pending, read)
            if old is not None and pending.touched and (touched := self._touched(pending, read)) is not None:
                headers = [*headers, touched]
            data = last.value
            assert data is not None
            stored = Stored(version, data, update.expires_at_ms, last.offset)
            if update.expires_at_ms:
                headers = [*headers, expires_at_header(update.expires_at_ms)]
        self.states[key] = stored
        self.sow.append((key, data, headers))
        self.delta.append((key, delta, delta_headers + more))

    def _encode_delta(self, pending: Pending, read: Read) -> tuple[bytes, Headers]:
        """Encode the delta of a record that exists, with the headers that belong to it."""
        codec = self._codec
        state: Value = read.state
        if not codec.can_delta:
            return state, []
        moved, removed = conflated_delta(read.delivered, state, pending.touched)
        fields = self._key.with_delta(state, moved)
        try:
            delta, headers = codec.encode_delta(fields) if codec.uses_headers else (codec.encode_decoded(fields), [])
        except TypeError as error:
            raise RecordRejected("schema_mismatch", str(error)) from None
        if removed:
            headers.append(removed_header(removed))
        elif not moved:
            headers.append(EMPTY)
        return delta, headers

    def _touched(self, pending: Pending, read: Read) -> Header | None:
        """Return the header of the SOW record for values that came back; the delta carries these values."""
        return touched_header(read.delivered, read.state, pending.touched) if self._codec.can_delta else None

    def _headers(self, pending: Pending, last: Record, update: SowHeaders, *, is_gone: bool, is_new: bool) -> Headers:
        """Return the headers of the records on both topics."""
        kind: Kind | None = "insert" if is_new else None
        if is_gone:
            kind = "expire" if last.value is None and update.is_expiry else "delete"
        source = source_header(self._source, last.offset)
        headers = conflated_headers(update.version, kind, pending.count, pending.first_timestamp_ms, source)
        if update.correlation_id:
            headers.append(correlation_id_header(update.correlation_id))
        headers += update.others
        return headers
