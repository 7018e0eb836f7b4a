"""What the end of an interval tells on the two topics of a copy, and what the copy's state becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.api import RecordRejected, Stored
from processor.builtin.delta_merge.key_only import key_alone
from processor.merge import KeyFields, conflated_delta
from processor.wire import sow_headers
from processor.wire.heads import (
    EMPTY,
    conflated_headers,
    correlation_id_header,
    delta_base_headers,
    expires_at_header,
    removed_header,
    source_header,
)
from processor.wire.touched import touched_header

if TYPE_CHECKING:
    from processor.api import Codec, Header, Headers, Kind, Outgoing, Record, Value
    from processor.builtin.conflate.pending import Pending
    from processor.builtin.conflate.reader import Read
    from processor.wire.sow_headers import SowHeaders


class Delivery:
    """The deliveries of one call, in order: states to put, records to forward."""

    def __init__(self, codec: Codec, key: KeyFields, source: bytes) -> None:
        """Begin with none.

        Args:
            codec: the message type of the records.
            key: their key fields.
            source: what stands before the offset in the header `source`.
        """
        self._codec = codec
        self._key = key
        self._source = source
        self.states: dict[bytes, Stored | None] = {}
        """What the keys' states become."""
        self.sow: list[Outgoing] = []
        """For the SOW topic."""
        self.delta: list[Outgoing] = []
        """For the delta topic."""

    def add(self, key: bytes, pending: Pending, last: Record, read: Read, old: Stored | None) -> None:
        """One key's.

        Args:
            key: the Kafka record key.
            pending: its interval.
            last: the update at its end.
            read: the record at its end and what was delivered before; not both None.
            old: what was delivered before, as it is stored.

        Raises:
            RecordRejected: it cannot be told, though each of its updates could.
        """
        state = read.state
        said = sow_headers.read_sow_headers(last.headers)
        version = said.version
        headers = self._headers(pending, last, said, is_gone=state is None, is_new=old is None)
        base = 0 if old is None else old.version
        # SowHeaders where it is not the version before: updates were folded.
        delta_headers = headers + delta_base_headers(base, version)
        if state is None:
            assert old is not None
            told, more = key_alone(self._codec, self._key, old)
            stored, data = None, None
        else:
            told, more = self._told(pending, read)
            if old is not None and pending.touched and (touched := self._touched(pending, read)) is not None:
                headers = [*headers, touched]
            data = last.value
            assert data is not None
            stored = Stored(version, data, said.expires_at_ms, last.offset)
            if said.expires_at_ms:
                headers = [*headers, expires_at_header(said.expires_at_ms)]
        self.states[key] = stored
        self.sow.append((key, data, headers))
        self.delta.append((key, told, delta_headers + more))

    def _told(self, pending: Pending, read: Read) -> tuple[bytes, Headers]:
        """What the delta topic is told of a record that is there, and the headers that go with it."""
        codec = self._codec
        state: Value = read.state
        if not codec.can_delta:
            return state, []
        moved, removed = conflated_delta(read.delivered, state, pending.touched)
        delta = self._key.with_delta(state, moved)
        try:
            told, headers = codec.encode_delta(delta) if codec.uses_headers else (codec.encode_decoded(delta), [])
        except TypeError as error:
            raise RecordRejected("schema_mismatch", str(error)) from None
        if removed:
            headers.append(removed_header(removed))
        elif not moved:
            headers.append(EMPTY)
        return told, headers

    def _touched(self, pending: Pending, read: Read) -> Header | None:
        """The header of the SOW record for values that came back; the delta says it by carrying them."""
        return touched_header(read.delivered, read.state, pending.touched) if self._codec.can_delta else None

    def _headers(self, pending: Pending, last: Record, said: SowHeaders, *, is_gone: bool, is_new: bool) -> Headers:
        """What both topics are told of an interval."""
        kind: Kind | None = "insert" if is_new else None
        if is_gone:
            kind = "expire" if last.value is None and said.is_expiry else "delete"
        source = source_header(self._source, last.offset)
        headers = conflated_headers(said.version, kind, pending.count, pending.first_timestamp_ms, source)
        if said.correlation_id:
            headers.append(correlation_id_header(said.correlation_id))
        headers += said.others
        return headers
