"""Recognises input records that come again although the SOW topic has them: their worker died before its commit.

A record that is in SOW itself is done. So is one whose key has a later record in SOW: it had its turn before that one,
and was rejected, a duplicate, or a delete of nothing. Deltas and dead letters were written before SOW, so they are
complete; marks and acks may be missing, and are written now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.api import RecordRejected
from processor.wire.ack import DUPLICATE, MENDED
from processor.wire.command import is_delete_by_filter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from processor.api import Context, Record
    from processor.builtin.delta_merge.acks import Acks
    from processor.builtin.delta_merge.deduplication import Numbers
    from processor.builtin.delta_merge.placement import Placement
    from processor.wire.command import CommandHeaders, CommandReader


class Redelivery:
    """Skips input records that had their effect, and answers publishers that may still wait."""

    def __init__(
        self,
        context: Context,
        requests: CommandReader,
        numbers: Numbers,
        acks: Acks,
        placement: Placement,
    ) -> None:
        """Begin with the applied records of the context; `placement` rejects records that it cannot forward."""
        self._context = context
        self._read = requests.read
        self._plain = requests.plain
        self._numbers = numbers
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
        """Return whether a record has had its effect; if so, it is answered.

        Raises:
            RecordRejected: it was rejected before, and is again.
        """
        key, headers, offset = record.key, record.headers, record.offset
        if offset > self.until:
            return False
        request = self._read(headers) if headers else self._plain
        is_applied = key is not None and self._latest.get(key, -1) >= offset
        if key is not None and not is_applied:
            is_duplicate = request.sequence >= 0 and self._numbers.is_duplicate(record, request)
            if is_duplicate or not self._was_forwarded(key):
                return False
        if key is None and is_delete_by_filter(record):
            return False  # It may have been half done: it finds the remaining records, and leaves later ones alone.
        self._context.count("redelivered")
        if key is None:
            # Sent to its own partition before any record of the time reached SOW, and answered there.
            self._placement.key_of_keyless(record, request)
            self._numbers.pass_on(request)
        elif not is_applied:
            self._numbers.pass_on(request)
        elif headers:
            self._answer(record, key, request)
        return True

    def _was_forwarded(self, key: bytes) -> bool:
        """Return whether a record of a key was sent to the key's own partition: none of its records is in SOW here.

        Raises:
            RecordRejected: it was rejected there and then, and is again.
        """
        if self._context.state.get_many([key])[key] is not None:
            return False
        return self._placement.elsewhere(key) is not None

    def changed_by(self, offset: int) -> int:
        """Number of records that a redelivered input record had changed."""
        return len(self._applied.get(offset, ()))

    def changed_after(self, offset: int) -> frozenset[bytes]:
        """The keys that later input had changed: a command that comes again at this offset leaves them alone."""
        return frozenset(key for key, latest in self._latest.items() if latest > offset)

    def _answer(self, record: Record, key: bytes, request: CommandHeaders) -> None:
        """Raise the mark and send the acks that may be missing for a record."""
        is_delete = record.value is None or request.command == "sow_delete"
        if record.offset not in self._applied:
            if request.sequence >= 0 and self._numbers.is_duplicate(record, request):
                self._acks.succeeded(request, key, DUPLICATE, records_deleted=0 if is_delete else None)
                return
            if request.expect_version >= 0:
                self._numbers.refuse(record)
                self._acks.refused(request, key, self._context.state.get_many([key])[key])
                return
            if not is_delete or request.sow_key not in (None, key):
                # The reason depended on the record of that time and cannot be found again.
                raise RecordRejected("schema_mismatch", "rejected before; the first of its dead letters says why")
        is_late = request.sequence >= 0 and self._numbers.take(request)
        self._acks.succeeded(
            request,
            key,
            "rekeyed" if self._numbers.came_in(request) else MENDED if is_late else None,
            records_deleted=int(record.offset in self._applied) if is_delete else None,
        )
