"""Publishes many records: in parts, of which each is confirmed before the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from processor.errors import RecordRejected, SowstreamError

if TYPE_CHECKING:
    from processor.record import Value
    from processor.wire.ack import Ack

PART_MAX: Final = 10_000
"""Records that are sent before their confirmation is waited for: a tenth of those that may wait for acks."""

Send: TypeAlias = "Callable[[Value], Future[Ack] | None]"
"""Sends one record."""
OnProgress: TypeAlias = Callable[[int], object]
"""Called with the number of records that are confirmed so far."""
OnReject: TypeAlias = "Callable[[int, Value, SowstreamError], object]"
"""Called with the number of a record, from 0, with the record, and the reason for which it was refused."""


class ManyRecords:
    """The records of one `publish_many`."""

    def __init__(
        self, send: Send, flush: Callable[[], None], on_progress: OnProgress | None, on_reject: OnReject | None
    ) -> None:
        """Begin.

        Args:
            send: sends one record.
            flush: waits until all that was sent is confirmed.
            on_progress: called after each part.
            on_reject: called with each record that is refused; None: the first one is raised.
        """
        self._send = send
        self._flush = flush
        self._on_progress = on_progress
        self._on_reject = on_reject
        self._refused: list[tuple[int, Value, SowstreamError]] = []  # Of the part at hand.

    def publish(self, records: Iterable[Value]) -> int:
        """Send all records; returns the number of those that were not refused.

        Raises:
            RecordRejected: a record was refused, and `on_reject` is None; its number is a note of the error. Those of
                its part, and of the parts before, were sent.
            SowstreamError: as `Client.flush`.
        """
        numbered, sent, accepted = enumerate(records), 0, 0
        while part := list(islice(numbered, PART_MAX)):
            futures = [self._send_one(number, record) for number, record in part]
            self._flush()
            for (number, record), future in zip(part, futures, strict=True):
                if future is not None and isinstance(error := future.exception(), SowstreamError):
                    self._refused.append((number, record, error))
            sent += len(part)
            accepted += len(part) - len(self._refused)
            self._report_refused()
            if self._on_progress is not None:
                self._on_progress(sent)
        return accepted

    def _send_one(self, number: int, record: Value) -> Future[Ack] | None:
        try:
            return self._send(record)
        except RecordRejected as error:
            self._refused.append((number, record, error))
            return None

    def _report_refused(self) -> None:
        """Call back with the refused records of a part, in their order, or raise the first.

        Raises:
            RecordRejected: there is no callback.
        """
        refused, self._refused = sorted(self._refused, key=lambda one: one[0]), []
        for number, record, error in refused:
            if self._on_reject is None:
                error.add_note(
                    f"record {number} of publish_many, counted from 0; {len(refused)} of its part of {PART_MAX:,} "
                    "records were refused, and the others were sent"
                )
                raise error
            self._on_reject(number, record, error)
