"""Errors of a processor: the record at fault is found, the log is kept short, and too many hold the partition."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import structlog

from processor.config import TopicConfig
from processor.errors import PartitionHeld, RecordRejected, SowstreamError
from processor.filter.evaluation import over_budget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from processor.hosting.context import TaskContext
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


log = structlog.stdlib.get_logger("sowstream.rejections")
_task_log = structlog.stdlib.get_logger("sowstream.task")

PERIOD_S: Final = 60.0
"""Time for which records of one reason are counted after the one that was logged (producers.md, rule 8)."""


@dataclass(slots=True)
class _Period:
    """The rejections of one reason since one of them was logged."""

    began_s: float
    """Time of that log line, on the monotonic clock."""
    more: int = 0
    """Number of rejections since."""


class RejectionLog:
    """The log lines about the rejected records of one input topic. One thread only.

    A record that is read again after a rollback is counted again.
    """

    def __init__(self, topic: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Create a log without periods.

        Args:
            topic: the input topic.
            clock_s: a clock that does not jump, in seconds.
        """
        self._topic = topic
        self._clock_s = clock_s
        self._periods: dict[str, _Period] = {}

    def add(self, partition: int, offset: int, reason: str, detail: str) -> None:
        """Log a rejected record, or count it if another of this reason was logged less than a minute ago."""
        self.flush()
        period = self._periods.get(reason)
        if period is not None:
            period.more += 1
            return
        self._periods[reason] = _Period(self._clock_s())
        log.warning(
            "record rejected",
            topic=self._topic,
            partition=partition,
            offset=offset,
            reason=reason,
            detail=detail,
        )

    def flush(self) -> None:
        """Log the number of further rejections of each minute that is over. Called about once a second."""
        now_s = self._clock_s()
        for reason, period in [*self._periods.items()]:
            if now_s - period.began_s < PERIOD_S:
                continue
            del self._periods[reason]
            if period.more:
                log.warning(
                    "more records rejected", topic=self._topic, reason=reason, count=period.more, seconds=PERIOD_S
                )


class Suspects:
    """The suspected records of one partition; each is processed alone."""

    def __init__(self) -> None:
        """Begin without suspects."""
        self.until = -1
        """The offset of the last one; -1: there is none."""
        self.may_stop = False
        """True if `check` may hold the partition."""
        self.is_measured = False
        """True if outputs are measured, because Kafka refused one for its size."""
        self._alone = -1  # Offset of the record with a transaction of its own.
        self._verdicts: dict[int, RecordRejected] = {}
        self._held: PartitionHeld | None = None
        self._stop_at: tuple[int, PartitionHeld] | None = None

    def give_alone(self, until: int) -> None:
        """Process records one at a time, up to this offset."""
        self.until = max(self.until, until)

    def reject(self, offset: int, error: RecordRejected) -> None:
        """Reject a record when it is read again."""
        self.give_alone(offset)
        self._verdicts[offset] = error

    def verdict(self, offset: int) -> RecordRejected | None:
        """The reason to reject a record; None: it is not rejected."""
        return self._verdicts.get(offset)

    def isolate(self, offset: int) -> None:
        """Process a record in a transaction of its own."""
        self.give_alone(offset)
        self._alone = offset

    def is_isolated(self, offset: int) -> bool:
        """Return whether a record has a transaction of its own."""
        return offset == self._alone

    def share(self, records: Sequence[Record], records_max: int) -> int:
        """The number of these records that fit into one transaction, if the first of them is processed alone."""
        if self.is_isolated(records[0].offset):
            return 1
        for place, record in enumerate(records[:records_max]):
            if self.is_isolated(record.offset):
                return place
        return records_max

    def refused(self, next_offset: int, detail: str) -> None:
        """Suspect the records before this offset: Kafka refused an output of theirs for its size."""
        self.is_measured = True
        if self._alone >= 0 and next_offset == self._alone + 1:
            self.reject(self._alone, RecordRejected("too_large", detail))
        self.give_alone(next_offset - 1)

    def hold(self, error: PartitionHeld) -> None:
        """Hold the partition at the next `check`: no record is at fault."""
        self._held, self.may_stop = error, True

    def stop_at(self, offset: int, error: PartitionHeld) -> None:
        """Hold the partition at a record, once those before it are committed."""
        self._stop_at, self.may_stop = (offset, error), True
        self.isolate(offset)

    def check(self, offset: int = -1) -> None:
        """Refuse to process records, from an offset on, if the partition is to be held.

        Raises:
            PartitionHeld: Kafka refused an output that comes from no record, or the processor did not return from the
                record at this offset before.
        """
        if self._stop_at is not None and offset >= self._stop_at[0]:
            (_, error), self._stop_at = self._stop_at, None
        elif self._held is not None:
            error, self._held = self._held, None
        else:
            return
        self.may_stop = self._stop_at is not None or self._held is not None
        raise error

    def committed(self, offset: int) -> None:
        """Forget the records before this offset, which are committed."""
        if self._alone < offset:
            self._alone = -1
        if self.until < offset:
            self.until = -1
        for passed in [number for number in self._verdicts if number < offset]:
            del self._verdicts[passed]


class Counting:
    """Counts the evaluations over their budget in a call of a processor; other tasks of the thread have such, too.

    A class, as entering a generator takes five times as long.
    """

    __slots__ = ("_before", "_context")

    def __init__(self, context: TaskContext) -> None:
        self._context = context

    def __enter__(self) -> None:
        """Begin the call."""
        self._before = over_budget.evaluations

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it; the evaluations count also if it failed."""
        if more := over_budget.evaluations - self._before:
            self._context.count("filter_over_budget", more)


class OwnCall(Counting):
    """The same for a call without records: an error of the processor holds the partition.

    No record is at fault, so none can be rejected, and a repetition would fail again.
    """

    __slots__ = ("_name",)

    def __init__(self, context: TaskContext, name: str) -> None:
        super().__init__(context)
        self._name = name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it.

        Raises:
            PartitionHeld: it failed with an error that is not the runtime's.
        """
        super().__exit__(kind, error, trace)
        is_runtimes = isinstance(error, SowstreamError) and not isinstance(error, RecordRejected)
        if isinstance(error, Exception) and not is_runtimes:
            context = self._context
            _task_log.warning("processor failed", partition=context.partition, call=self._name, exc_info=error)
            where = f"{context.name} partition {context.partition}"
            raise PartitionHeld("plugin_failed", f"{where}: {self._name} raised {error!r}") from error
