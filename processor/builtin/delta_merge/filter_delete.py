"""Deletes by filter: the record that asks for one changes every record of the partition that matches.

The publisher sends one to each partition. It is carried out at its place in the log: records that were merged before it
count, later ones do not. A partition may have millions of records, and a transaction has little time, so the records
are looked at in pieces, each in a turn of its own and committed with the others of that turn. Until the last piece is
done the input waits at the command (`Context.pause`), which keeps its place exact: a successor begins at the command
again and finds the records that are left. The note that is committed with the position keeps the number of deleted
records.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from processor.api import Record, RecordRejected
from processor.builtin.rejection import rejection
from processor.errors import ConfigurationError, PartitionHeld, Stop
from processor.wire.command import filter_text, has_filter, without_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from processor.api import Context, Stored
    from processor.builtin.delta_merge.acks import Acks
    from processor.builtin.delta_merge.deduplication import Deduplicator
    from processor.builtin.delta_merge.redelivery import Redelivery
    from processor.filter import Filter
    from processor.wire.command import CommandHeaders

PIECE_RECORDS: Final = 5_000
"""Records looked at in one turn: some 30 ms, and 100 ms where all of them are deleted."""

_UNKNOWN: Final = {
    "LAST_UPDATED": "when it last changed",
    "CORRELATION_ID": "its correlation id",
}
"""Functions whose answer the state does not have."""

_NOTE: Final = re.compile(r"sow_delete ([0-9]{1,19}) deleted ([0-9]{1,19})")


class ByFilter(Exception):
    """Raised through a batch at a record that asks for a delete by filter: the batch ends in front of it."""

    def __init__(self, record: Record, request: CommandHeaders) -> None:
        super().__init__()
        self.record = record
        self.request = request


def refuse_key(record: Record) -> None:
    """Refuse a delete by key that has a filter too.

    Raises:
        RecordRejected: `bad_header`.
    """
    if has_filter(record):
        raise RecordRejected(
            "bad_header",
            "header filter: a delete by filter has no key; send it without one to every partition",
        )


@dataclass(slots=True)
class _Deletion:
    """A delete by filter on its way."""

    record: Record
    request: CommandHeaders
    filter: Filter
    until_ms: int
    """A record that expires until then was over before the command."""
    passed: frozenset[bytes]
    """Keys that later input has changed already, of a command that comes again."""
    deleted: int
    """Records that it has deleted so far."""
    after: bytes | None = None
    """The last key that was looked at."""
    is_done: bool = False
    error: RecordRejected | None = None
    """The error with which the filter failed."""


class FilterDelete:
    """Carries out one delete by filter at a time, of one partition."""

    def __init__(
        self,
        context: Context,
        deduplicator: Deduplicator,
        acks: Acks,
        redelivery: Redelivery,
        delete: Callable[[Record, CommandHeaders, list[tuple[bytes, Stored]]], None],
    ) -> None:
        """Create it for a partition; `delete` removes records with their keys, on behalf of a command."""
        self._context = context
        self._deduplicator = deduplicator
        self._acks = acks
        self._redelivery = redelivery
        self._delete = delete
        self._current: _Deletion | None = None

    @property
    def is_running(self) -> bool:
        """True if the input waits for it."""
        return self._current is not None and not self._current.is_done

    def take(self, command: ByFilter, records: Sequence[Record]) -> Sequence[Record]:
        """Carry out a command, or begin with it; the records of its batch to go on with, none while the input waits."""
        record, request = command.record, command.request
        try:
            if self._current is None or self._current.record.offset != record.offset:
                self._begin(record, request)
            if self.is_running:
                self._context.pause(record.offset)
                return ()
            self._finish()
        except RecordRejected as error:
            self._context.reject(record, error.reason, error.detail)
            self._acks.failed(record, error)
        return [later for later in records if later.offset > record.offset]

    def go_on(self) -> bool:
        """Look at the next piece, while the input waits; whether there is more."""
        assert self._current is not None
        self._go_on(self._current)
        if self._current.is_done:
            self._context.resume()
        return not self._current.is_done

    def _begin(self, record: Record, request: CommandHeaders) -> None:
        """Understand a command, and look at the first piece; a repeat is answered.

        Raises:
            RecordRejected: `bad_header`: it cannot be meant.
        """
        self._current = None
        if request.sequence >= 0 and self._deduplicator.is_duplicate(request):
            self._context.count("duplicate")
            self._acks.succeeded(request, None, "duplicate", records_deleted=0)
            return
        context, offset = self._context, record.offset
        selected = _compiled(record, request)
        noted = _NOTE.fullmatch(context.noted)
        before = int(noted[2]) if noted is not None and int(noted[1]) == offset else 0
        self._current = _Deletion(
            record,
            request._replace(passed=without_filter(request.passed)),
            selected,
            until_ms=min(record.timestamp_ms, context.now_ms),
            passed=self._redelivery.changed_after(offset),
            deleted=before + self._redelivery.changed_by(offset),
        )
        self._go_on(self._current)

    def _go_on(self, deletion: _Deletion) -> None:
        """Look at the next piece."""
        rows = self._context.state.scan(deletion.after, PIECE_RECORDS)
        deletion.is_done = len(rows) < PIECE_RECORDS
        try:
            matching = list(self._matching(deletion, rows))
        except (PartitionHeld, Stop):
            raise
        except Exception as error:  # noqa: BLE001 - a third party's function may raise anything, also by the clock
            deletion.error, deletion.is_done = rejection(error), True
            return
        if matching:
            self._delete(deletion.record, deletion.request, matching)
            self._context.count("deleted_by_filter", len(matching))
            deletion.deleted += len(matching)
        if not deletion.is_done or deletion.after is not None:
            self._context.hold(None, f"sow_delete {deletion.record.offset} deleted {deletion.deleted}")
        if rows:
            deletion.after = rows[-1][0]

    def _matching(self, deletion: _Deletion, rows: list[tuple[bytes, Stored]]) -> Iterator[tuple[bytes, Stored]]:
        """The records of a piece that are to be deleted."""
        from processor.filter import RecordMetadata  # noqa: PLC0415 - as in `_compiled`

        selected, context = deletion.filter, self._context
        decode, matches, name = context.codec.decode_own, selected.matches, context.name
        facts = RecordMetadata(topic=name, now_ms=deletion.record.timestamp_ms)
        for key, stored in rows:
            if 0 < stored[2] <= deletion.until_ms or key in deletion.passed:
                continue
            try:
                value = decode(stored[1])
            except RecordRejected:
                continue  # What its message type cannot read any more has no fields that could match.
            if selected.uses_metadata:
                facts = facts._replace(message_bytes=len(stored[1]), sow_key=key.decode(errors="replace"))
            if matches(value, facts):
                yield key, stored

    def _finish(self) -> None:
        """Answer a command all of whose pieces are done.

        Raises:
            RecordRejected: the filter has failed.
        """
        deletion, self._current = self._current, None
        if deletion is None:
            return
        self._context.hold(None)
        if deletion.error is not None:
            detail = f"{deletion.error.detail}; {deletion.deleted} records had been deleted before, and stay so"
            raise RecordRejected(deletion.error.reason, detail)
        request = deletion.request
        if request.sequence >= 0:
            self._deduplicator.take(request)
        self._acks.succeeded(request, None, records_deleted=deletion.deleted)


def _compiled(record: Record, request: CommandHeaders) -> Filter:
    """The filter of a command."""
    from processor.filter import compile_filter  # noqa: PLC0415 - rare, and costly to import on Spark

    if record.value is not None or request.sow_key is not None:
        what = "header sow_key" if record.value is None else "a message"
        raise RecordRejected("bad_header", f"header filter and {what}: delete by filter, or by key or message")
    if request.expect_version >= 0:
        raise RecordRejected("bad_header", "header expect_version: a delete by filter is of many records")
    try:
        selected = compile_filter(filter_text(record))
    except ConfigurationError as error:
        raise RecordRejected("bad_header", f"header filter: {error}") from None
    if unknown := sorted(selected.functions & _UNKNOWN.keys()):
        raise RecordRejected(
            "bad_header",
            f"header filter: {unknown[0]}(): a worker's state does not have {_UNKNOWN[unknown[0]]} of each "
            "record; delete by a field of the record, or by the keys that a query finds",
        )
    return selected
