"""The records that the end of an interval writes to the two topics of a copy, and the new state of the copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.api import RecordRejected, Stored
from processor.builtin.delta_merge.key_only import key_alone
from processor.merge import KeyFields, conflated_delta
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
    from processor.api import Codec, Header, Headers, Kind, Outgoing, Record, Value
    from processor.builtin.conflate.pending import Pending
    from processor.builtin.conflate.reader import Read
    from processor.wire.record_headers import SowHeaders


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
