"""Holds a partition of which too many records are rejected: probably a setting is wrong, not the records.

The input of a partition is counted in windows of a fixed number of records, independent of batches and commits. A
record counts once, even if a rollback repeats it, and in the window of its offset, even if it is rejected later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from processor.config import TopicConfig
from processor.errors import PartitionHeld

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.hosting.pipeline import Pipeline
    from processor.record import Record

_EXAMPLE_CHARACTERS_MAX: Final = 300
_BY_OFFSET = attrgetter("offset")
_BY_LAST = attrgetter("last")


class _Window:
    """A fixed number of consecutive input records."""

    __slots__ = ("examples", "last", "reasons")

    def __init__(self) -> None:
        self.last = -1
        """Offset of its last record, once it is full."""
        self.reasons: dict[int, str] = {}
        """Reasons of its rejected records, by offset."""
        self.examples: dict[str, tuple[int, str]] = {}
        """Offset and detail of one record for each reason."""


class RejectLimit:
    """The windows of one partition's input. One thread only."""

    def __init__(self, pipeline: Pipeline, partition: int) -> None:
        self._pipeline = pipeline
        self._partition = partition
        self._window_records = pipeline.topic.dlq_window_records
        self._rejected_max = pipeline.topic.dlq_max_ratio * self._window_records
        self._counted = -1  # The last input offset that was counted.
        self._committed = 0
        self._open = _Window()
        self._seen = 0  # Records of the open window.
        self._full: list[_Window] = []  # Windows of which records may still be rejected.
        self._pending: list[tuple[int, str, str]] = []
        self._passed = -1  # An operator accepts all rejected records up to this offset.

    def rejected(self, record: Record, reason: str, detail: str) -> None:
        """Note a rejected record, which counts with the next `took`."""
        if record.offset > self._passed and reason != "skipped":
            self._pending.append((record.offset, reason, detail[:_EXAMPLE_CHARACTERS_MAX]))

    def took(self, records: Sequence[Record]) -> None:
        """Count the records that the processor has taken: merged, rejected before this call, or waiting.

        Raises:
            PartitionHeld: too many records of a window were rejected.
        """
        if records[-1].offset > self._counted:
            self._count(records)
        pending, self._pending = self._pending, []
        for offset, reason, detail in sorted(pending):
            index = bisect_left(self._full, offset, key=_BY_LAST)
            window = self._full[index] if index < len(self._full) else self._open
            window.reasons[offset] = reason
            window.examples.setdefault(reason, (offset, detail))
        for window in self._full:
            self._check(window)
        self._full = [window for window in self._full if window.last >= self._committed]

    def committed(self, offset: int) -> None:
        """Close the windows before this input offset, of which no record will be rejected any more."""
        self._committed = offset

    def let_pass(self) -> None:
        """Accept the rejected records counted until now, and count from zero."""
        self._passed = self._counted
        self._open, self._seen, self._full = _Window(), 0, []
        self._pending.clear()

    def rewound(self) -> None:
        """Forget rejected records that were not counted, as they will be processed again."""
        self._pending.clear()

    def _count(self, records: Sequence[Record]) -> None:
        """Count the new ones among these records into windows."""
        begin = 0 if records[0].offset > self._counted else bisect_left(records, self._counted + 1, key=_BY_OFFSET)
        self._counted = records[-1].offset
        while (end := begin + self._window_records - self._seen) <= len(records):
            self._open.last = records[end - 1].offset
            self._full.append(self._open)
            self._open, self._seen, begin = _Window(), 0, end
        self._seen += len(records) - begin

    def _check(self, window: _Window) -> None:
        """Refuse a window with too many rejected records."""
        rejected = len(window.reasons)
        if rejected <= self._rejected_max:
            return
        pipeline = self._pipeline
        ((reason, count),) = Counter(window.reasons.values()).most_common(1)
        offset, example = window.examples[reason]
        is_topic = isinstance(pipeline.settings, TopicConfig)
        setting = f"topics.{pipeline.name}.dlq_max_ratio" if is_topic else "the topic's dlq_max_ratio"
        raise PartitionHeld(
            "rejects",
            f"{pipeline.source} partition {self._partition}: {rejected} of {self._window_records} records in a row "
            f"were rejected, {count} as {reason}, such as offset {offset}: {example}. "
            "If the topic's settings are wrong (message_type, schema, key), mend them and start the workers again. "
            "If the publisher is, mend it, and let these records pass: "
            f"`sowstream resume {pipeline.name} --partition {self._partition}`, or raise {setting} (now "
            f"{pipeline.topic.dlq_max_ratio:g}; 1 holds nothing). "
            f"`sowstream dlq list {pipeline.name}` shows what was rejected before",
        )
