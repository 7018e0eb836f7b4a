"""Stops a worker that would shovel a whole topic into the dead letters: then a setting is wrong, not the records.

The input of a partition is counted in windows of a fixed number of records, wherever batches and commits lie. A record
counts the first time it is through, however often a rollback brings it again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from processor.config import TopicConfig
from processor.errors import Stop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.record import Record, RejectReason
    from processor.runtime.pipeline import Pipeline

_EXAMPLE_CHARACTERS_MAX: Final = 300
_BY_OFFSET = attrgetter("offset")


class RejectLimit:
    """The windows of one partition. One thread only."""

    def __init__(self, pipeline: Pipeline, partition: int) -> None:
        self._pipeline = pipeline
        self._partition = partition
        self._window_records = pipeline.topic.dlq_window_records
        self._rejected_max = pipeline.topic.dlq_max_ratio * self._window_records
        self._counted = -1  # The last input offset that was counted.
        self._seen = 0  # Records of the window, and the rejected ones among them.
        self._rejected: Counter[str] = Counter()
        self._examples: dict[str, tuple[int, str]] = {}
        self._pending: list[tuple[int, str, str]] = []

    def rejected(self, record: Record, reason: RejectReason, detail: str) -> None:
        """A record was rejected; it counts once the records it came with are through."""
        self._pending.append((record.offset, reason, detail[:_EXAMPLE_CHARACTERS_MAX]))

    def took(self, records: Sequence[Record]) -> None:
        """The next records are through: merged, or rejected before this call.

        Raises:
            Stop: a window is full, and too many of it were rejected.
        """
        counted, last = self._counted, records[-1].offset
        pending, self._pending = self._pending, []
        if last <= counted:
            return
        begin = 0 if records[0].offset > counted else bisect_left(records, counted + 1, key=_BY_OFFSET)
        self._counted = last
        for offset, reason, detail in sorted(pending):
            if offset <= counted:
                continue
            index = bisect_left(records, offset, key=_BY_OFFSET)
            self._advance(index - begin)
            begin = index
            self._rejected[reason] += 1
            self._examples.setdefault(reason, (offset, detail))
        self._advance(len(records) - begin)

    def rewound(self) -> None:
        """What was given and is not through will be given again."""
        self._pending.clear()

    def _advance(self, count: int) -> None:
        """So many records more; each window that they fill is judged."""
        self._seen += count
        if self._seen >= self._window_records:
            self._judge()
            self._seen %= self._window_records
            self._rejected.clear()
            self._examples.clear()

    def _judge(self) -> None:
        rejected = self._rejected.total()
        if rejected <= self._rejected_max:
            return
        pipeline = self._pipeline
        ((reason, count),) = self._rejected.most_common(1)
        offset, example = self._examples[reason]
        is_topic = isinstance(pipeline.settings, TopicConfig)
        setting = f"topics.{pipeline.name}.dlq_max_ratio" if is_topic else "the topic's dlq_max_ratio"
        raise Stop(
            f"{pipeline.source} partition {self._partition}: {rejected} of {self._window_records} records in a row "
            f"were rejected, {count} as {reason}, such as offset {offset}: {example}. What is not committed yet is "
            "read again by the next start. If the topic's settings are wrong (message_type, schema, key), mend them. "
            "If the publisher is, mend it, and let these records pass: "
            f"raise {setting} (now {pipeline.topic.dlq_max_ratio:g}; 1 never stops). "
            f"`sowstream dlq list {pipeline.name}` shows what was rejected before"
        )
