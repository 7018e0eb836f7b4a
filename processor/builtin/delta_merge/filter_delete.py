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
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from processor.api import Record, RecordRejected
from processor.errors import ConfigurationError, PartitionHeld, Stop, rejection
from processor.wire.ack import DUPLICATE, MENDED
from processor.wire.command import filter_text, has_filter, without_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from processor.api import Context, Stored
    from processor.builtin.delta_merge.acks import Acks
    from processor.builtin.delta_merge.deduplication import Numbers
    from processor.builtin.delta_merge.redelivery import Redelivery
    from processor.filter import Filter
    from processor.wire.command import CommandHeaders

PIECE_RECORDS: Final = 5_000
"""Most records looked at in one turn, where each one that is deleted counts twice: some 30 to 50 ms."""

_STRETCH_RECORDS: Final = 200
"""Records looked at before the clock is: a costly filter may take a millisecond for each."""

_PIECE_S: Final = 0.05
"""Processor time after which a turn ends."""

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


def refuse_other_means(record: Record, request: CommandHeaders) -> None:
    """Refuse a delete by key that has a filter or names fields too: the publisher may have meant less than the record.

    Raises:
        RecordRejected: `bad_header`.
    """
    refuse_fields(request)
    if has_filter(record):
        raise RecordRejected(
            "bad_header",
            "header filter: a delete by filter has no key; send it without one to every partition",
        )


def refuse_fields(request: CommandHeaders) -> None:
    """Refuse a delete that names fields: it would remove the full record.

    Raises:
        RecordRejected: `bad_header`.
    """
    if request.remove:
        raise RecordRejected(
            "bad_header",
            "header remove: it names fields, and the command deletes the full record; send a delta_publish, such as {} "
            "with this header",
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
        numbers: Numbers,
        acks: Acks,
        redelivery: Redelivery,
        delete: Callable[[Record, CommandHeaders, list[tuple[bytes, Stored]]], None],
    ) -> None:
        """Create it for a partition; `delete` removes records with their keys, on behalf of a command."""
        self._context = context
        self._numbers = numbers
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
            self._numbers.refuse(record)
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
        if request.sequence >= 0 and self._numbers.is_duplicate(record, request):
            self._context.count("duplicate")
            self._acks.succeeded(request, None, DUPLICATE, records_deleted=0)
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
        """Look at the next piece: until it has many records, or the time of a turn is over."""
        end_s, is_first = time.thread_time() + _PIECE_S, deletion.after is None
        matching: list[tuple[bytes, Stored]] = []
        seen = 0
        try:
            while not deletion.is_done and seen + len(matching) < PIECE_RECORDS and time.thread_time() < end_s:
                seen += self._look(deletion, matching, end_s)
        except (PartitionHeld, Stop):
            raise
        except Exception as error:  # noqa: BLE001 - a third party's function may raise anything, also by the clock
            deletion.error, deletion.is_done = rejection(error), True
            return
        if matching:
            self._delete(deletion.record, deletion.request, matching)
            self._context.count("deleted_by_filter", len(matching))
            deletion.deleted += len(matching)
        if not deletion.is_done or not is_first:
            self._context.hold(None, f"sow_delete {deletion.record.offset} deleted {deletion.deleted}")

    def _look(self, deletion: _Deletion, matching: list[tuple[bytes, Stored]], end_s: float) -> int:
        """Add the records of the next stretch that are to be deleted; return how many were looked at."""
        count = min(_STRETCH_RECORDS, PIECE_RECORDS)
        rows = self._context.state.scan(deletion.after, count)
        is_last = len(rows) < count
        for number, row in enumerate(self._matching(deletion, rows)):
            if row is not None:
                matching.append(row)
            deletion.after = rows[number][0]
            if time.thread_time() > end_s:
                is_last &= number == len(rows) - 1
                break
        deletion.is_done = is_last
        return len(rows)

    def _matching(self, deletion: _Deletion, rows: list[tuple[bytes, Stored]]) -> Iterator[tuple[bytes, Stored] | None]:
        """Each record of a stretch if it is to be deleted, else None.

        Raises:
            RecordRejected: `bad_header`: the filter is over its budget on a record.
        """
        from processor.filter import RecordMetadata  # noqa: PLC0415 - as in `_compiled`
        from processor.filter.evaluation import over_budget  # noqa: PLC0415 - likewise

        selected, context = deletion.filter, self._context
        decode, matches, name = context.codec.decode_own, selected.matches, context.name
        facts = RecordMetadata(topic=name, now_ms=deletion.record.timestamp_ms)
        for key, stored in rows:
            if 0 < stored[2] <= deletion.until_ms or key in deletion.passed:
                yield None
                continue
            try:
                value = decode(stored[1])
            except RecordRejected:
                yield None  # What its message type cannot read any more has no fields that could match.
                continue
            if selected.uses_metadata:
                facts = facts._replace(message_bytes=len(stored[1]), sow_key=key.decode(errors="replace"))
            before = over_budget.evaluations
            is_matching = matches(value, facts)
            if over_budget.evaluations != before:
                raise RecordRejected(
                    "bad_header",
                    f"header filter: it takes more work than it may for the record {facts.sow_key or key!r} of "
                    f"{len(stored[1])} bytes; delete with a simpler filter, or by keys",
                )
            yield (key, stored) if is_matching else None

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
        is_late = request.sequence >= 0 and self._numbers.take(request)
        self._acks.succeeded(request, None, MENDED if is_late else None, records_deleted=deletion.deleted)


def _compiled(record: Record, request: CommandHeaders) -> Filter:
    """The filter of a command."""
    from processor.filter import compile_filter  # noqa: PLC0415 - rare, and costly to import on Spark

    if record.value is not None or request.sow_key is not None:
        what = "header sow_key" if record.value is None else "a message"
        raise RecordRejected("bad_header", f"header filter and {what}: delete by filter, or by key or message")
    refuse_fields(request)
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
