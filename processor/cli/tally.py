"""Counts the outcomes of the lines of `sowstream publish`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from processor.cli.output import inform

if TYPE_CHECKING:
    from concurrent.futures import Future

    from processor.client import Ack

Show: TypeAlias = Callable[[int, int], None]
"""Shows progress: the bytes sent since the last call, and the number of acknowledged lines in all."""

_COMPLAINTS_MAX = 20  # Failed lines that are reported one by one; the summary has the number of all.
_SHOWN_EVERY = 1000


class Tally:
    """Counts the lines, and reports the first failures. Acks arrive on the client's thread."""

    def __init__(self, show: Show, *, wants_acks: bool) -> None:
        self.sent = 0
        """Lines that were sent to the client."""
        self.acknowledged = 0
        """Lines whose last ack arrived."""
        self._refused = self._rejected = self._conflicts = self._duplicates = 0
        self._show = show
        self._wants_acks = wants_acks
        self._lock = threading.Lock()

    @property
    def is_bad(self) -> bool:
        """True if any line failed."""
        return bool(self._refused or self._rejected or self._conflicts)

    def refuse(self, number: int, error: Exception) -> None:
        """Count a line that was not sent."""
        with self._lock:
            self._refused += 1
            self._complain(f"line {number}: not sent: {error}")

    def settle(self, number: int, done: Future[Ack]) -> None:
        """Count a line that was acknowledged, was rejected, or did not reach Kafka."""
        from processor.errors import AcksMissing, PublishRejected, VersionConflict  # noqa: PLC0415

        error = done.exception()
        with self._lock:
            if error is None:
                self.acknowledged += 1
                self._duplicates += done.result().is_duplicate
                if self.acknowledged % _SHOWN_EVERY == 0:
                    self._show(0, self.acknowledged)
            elif isinstance(error, VersionConflict):
                self._conflicts += 1
                self._complain(f"line {number}: not applied: {error}")
            elif not isinstance(error, AcksMissing):  # Those are reported together, by the caller that waits for them.
                self._rejected += 1
                outcome = "rejected" if isinstance(error, PublishRejected) else "not delivered"
                self._complain(f"line {number}: {outcome}: {error}")

    def summary(self, topic: str) -> str:
        """The counts in one sentence."""
        with self._lock:
            acknowledged = f", {self.acknowledged} acknowledged" if self._wants_acks else ""
            if self._duplicates:
                acknowledged += f" ({self._duplicates} as duplicates)"
            rejected = f", {self._rejected} rejected" if self._rejected else ""
            if self._conflicts:
                rejected += f", {self._conflicts} not applied to another version"
            lines, records = ("line" if self._refused == 1 else "lines"), ("record" if self.sent == 1 else "records")
            refused = f", {self._refused} {lines} refused" if self._refused else ""
            return f"{self.sent} {records} sent to {topic}{acknowledged}{rejected}{refused}."

    def _complain(self, line: str) -> None:
        if self._refused + self._rejected + self._conflicts <= _COMPLAINTS_MAX:
            inform(line)
