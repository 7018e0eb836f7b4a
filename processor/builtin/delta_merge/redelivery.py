"""Recognises input records that come again although the SOW topic has them: their worker died before its commit.

A record that is in SOW itself is done. So is one whose key has a later record in SOW: it had its turn before that one,
and was rejected, a duplicate, or a delete of nothing. Whatever had to be told before SOW was told then, deltas and dead
letters; marks and acks may be missing, and are made up for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.api import RecordRejected
from processor.wire.command import is_delete_by_filter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from processor.api import Context, Record
    from processor.builtin.delta_merge.acks import Acks
    from processor.builtin.delta_merge.deduplication import Sequences
    from processor.builtin.placement import Placement
    from processor.wire.command import CommandHeaders, CommandReader


class Redelivery:
    """Passes by what is done, and answers whoever may still wait for it."""

    def __init__(
        self,
        context: Context,
        requests: CommandReader,
        sequences: Sequences,
        acks: Acks,
        placement: Placement,
    ) -> None:
        """Begin with what the context says is applied; `placement` rejects records that cannot be sent to their own."""
        self._context = context
        self._read = requests.read
        self._plain = requests.plain
        self._sequences = sequences
        self._acks = acks
        self._placement = placement
        self._applied: Mapping[int, Sequence[bytes]] = context.applied
        self._latest: dict[bytes, int] = {}
        for offset, keys in self._applied.items():
            for key in keys:
                self._latest[key] = max(offset, self._latest.get(key, -1))
        self.until: Final = max(self._applied, default=-1)
        """Offset of the last record that is in SOW; -1 where nothing comes again."""

    def is_done(self, record: Record) -> bool:
        """Whether a record has had its effect; if so, it is answered.

        Raises:
            RecordRejected: it was rejected before, and is again.
        """
        key, headers, offset = record.key, record.headers, record.offset
        if offset > self.until:
            return False
        request = self._read(headers) if headers else self._plain
        is_applied = key is not None and self._latest.get(key, -1) >= offset
        if key is not None and not is_applied:
            is_duplicate = request.sequence >= 0 and self._sequences.is_duplicate(request)
            if is_duplicate or not self._was_forwarded(key):
                return False
        if key is None and is_delete_by_filter(record):
            return False  # It may have been half done: it leaves alone what came behind it, and finds the rest.
        self._context.count("redelivered")
        if key is None:
            # Sent to its own partition before any record of the time reached SOW, and answered there.
            self._placement.key_of_keyless(record, request)
        elif headers and is_applied:
            self._answer(record, key, request)
        return True

    def _was_forwarded(self, key: bytes) -> bool:
        """Whether a record of a key was sent to the key's own partition: none of its records is in SOW here.

        Raises:
            RecordRejected: it was rejected there and then, and is again.
        """
        if self._context.state.get_many([key])[key] is not None:
            return False
        return self._placement.elsewhere(key) is not None

    def changed_by(self, offset: int) -> int:
        """How many records an input record had changed that comes again."""
        return len(self._applied.get(offset, ()))

    def changed_after(self, offset: int) -> frozenset[bytes]:
        """The keys that later input had changed: what comes again from this offset must leave them alone."""
        return frozenset(key for key, latest in self._latest.items() if latest > offset)

    def _answer(self, record: Record, key: bytes, request: CommandHeaders) -> None:
        """Raise the mark and send the acks that a record may still be owed."""
        is_delete = record.value is None or request.command == "sow_delete"
        if record.offset not in self._applied:
            if request.sequence >= 0 and self._sequences.is_duplicate(request):
                self._acks.succeeded(request, key, "duplicate", records_deleted=0 if is_delete else None)
                return
            if request.expect_version >= 0:
                self._acks.refused(request, key, "conflict")
                return
            if not is_delete or request.sow_key not in (None, key):
                # It hung on what the record was at that time: nobody can find the same words for it.
                raise RecordRejected("schema_mismatch", "rejected before; the first of its dead letters says why")
        if request.sequence >= 0:
            self._sequences.take(request)
        self._acks.succeeded(
            request,
            key,
            "rekeyed" if self._sequences.came_in(request) else None,
            records_deleted=int(record.offset in self._applied) if is_delete else None,
        )
