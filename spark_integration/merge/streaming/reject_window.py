"""Stops a partition of which too many records are rejected: probably a setting is wrong, not the records.

As for workers (`dlq_max_ratio`, `dlq_window_records`), with one difference: a window begins with its first rejected
record, so that a partition without any keeps nothing.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from processor.errors import Stop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.record import Record
    from spark_integration.settings import TopicSettings

_WINDOW: Final = struct.Struct("<QQ")  # Records seen, and records rejected.
_EXAMPLE_CHARACTERS_MAX: Final = 300
_BY_OFFSET: Final = attrgetter("offset")


class RejectWindow:
    """The last records of one partition's input."""

    def __init__(self, settings: TopicSettings, partition: int, kept: bytes | None) -> None:
        """Continue the window that the previous micro-batch has kept; None begins a new one."""
        self._settings, self._partition = settings, partition
        self._records = settings.topic.dlq_window_records
        self._rejected_max = settings.topic.dlq_max_ratio * self._records
        self._kept = kept
        self._seen, self._rejected = (0, 0) if kept is None else _WINDOW.unpack(kept)
        self._pending: dict[int, tuple[str, str]] = {}

    def rejected(self, record: Record, reason: str, detail: str) -> None:
        """Note a rejected record, which counts with the next `took`; one that is noted twice counts once."""
        if reason != "skipped":
            self._pending[record.offset] = reason, detail[:_EXAMPLE_CHARACTERS_MAX]

    def took(self, records: Sequence[Record]) -> None:
        """Count records that were merged or rejected.

        Raises:
            Stop: too many of a window were rejected.
        """
        pending, self._pending = self._pending, {}
        begin = 0
        for offset in sorted(pending):
            place = bisect_left(records, offset, key=_BY_OFFSET)
            self._pass(place - begin)
            begin = place + 1
            self._rejected += 1
            self._seen += 1
            if self._rejected > self._rejected_max:
                self._stop(pending, offset)
            self._pass(0)
        self._pass(len(records) - begin)

    @property
    def changed(self) -> bool:
        """True if there is another window to keep."""
        return self.value != self._kept

    @property
    def value(self) -> bytes | None:
        """The window for the next micro-batch; None where it has no rejected record."""
        return _WINDOW.pack(self._seen, self._rejected) if self._rejected else None

    def _pass(self, count: int) -> None:
        """Count records that were not rejected, and end the window where it is full."""
        if self._rejected:
            self._seen += count
        if self._seen >= self._records:
            self._seen = self._rejected = 0

    def _stop(self, pending: dict[int, tuple[str, str]], offset: int) -> None:
        topic, settings = self._settings.topic, self._settings
        reason, detail = pending[offset]
        count = Counter(reason for reason, _ in pending.values())[reason]
        raise Stop(
            f"{settings.kafka_topic('publish')} partition {self._partition}: {self._rejected} of {self._seen} records "
            f"in a row were rejected, at least {count} as {reason}, such as offset {offset}: {detail}. Nothing of this "
            "micro-batch is kept. If the topic's settings are wrong (message_type, schema, key), mend them and start "
            "the query again with its checkpoint. If the publisher is, mend it, and let these records pass with a "
            f"higher topics.{settings.name}.dlq_max_ratio (now {topic.dlq_max_ratio:g}; 1 stops nothing)"
        )
