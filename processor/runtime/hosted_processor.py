"""Calls a partition's processor with records in slices, and confines each of its errors to one record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal

import structlog

from processor.api import Processor
from processor.errors import PartitionHeld, ProcessorFailed, RecordRejected, StateDamaged, Stop
from processor.hosting.forwarded import is_ours
from processor.hosting.output_limits import WaitingOutput
from processor.kafka.properties import PRODUCED_BYTES_MAX
from processor.record import Record, is_reject_reason
from processor.runtime.rejections import Counting, OwnCall, RejectLimit, Suspects
from processor.wire.forwarding import moved_to

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from processor.hosting.context import TaskContext
    from processor.hosting.output_limits import OutputLimits, TooLarge
    from processor.hosting.pipeline import Pipeline
    from processor.runtime.rejections import RejectionLog

log = structlog.stdlib.get_logger("sowstream.task")


_UNKNOWN_MS: Final = 60_000
"""Time that a task has for finding its input's end again after the clock was set back, before it counts as late."""
_TURNS_LEFT_MAX: Final = 4
"""A task whose waiting records need more turns than this reads no more input meanwhile."""


class HostedProcessor:
    """The processor of one partition, a new instance after each rewind: the part of a task that knows no state.

    A record on which the processor raises, or whose output Kafka refuses, is found by processing its batch one record
    at a time, and rejected. The knowledge of suspected records survives rewinds.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        partition: int,
        limits: OutputLimits,
        rejections: RejectionLog | None,
        clock_ms: Callable[[], int] | None,
    ) -> None:
        """Create the host; `begin` creates the processor.

        Args:
            pipeline: the pipeline of the processor.
            partition: the partition number.
            limits: the size limits of outputs, and of the bytes that may wait.
            rejections: logs rejected records; None: they are not logged.
            clock_ms: the wall clock, milliseconds since the epoch; None: the system's.
        """
        self.waiting = WaitingOutput(limits.batch_bytes_max)
        """Counts the outputs that wait to be sent."""
        self.seen_ms = 0
        """A time before which the partition had no record that the processor has not received; 0: unknown."""
        self.compare_after_ms = 0.0
        """The time before which it is not restored again for reading its input late; it survives rewinds."""
        self.left: Sequence[Record] = ()
        """Records that the processor has not taken yet, because enough of its output waits."""
        self.next_offset = -1
        """Input offset after the last record that the processor has taken."""
        self.processor: Processor
        """The processor's current instance."""
        self.flushes = False
        """True if the processor has results to forward before a commit; if not, `flush` does nothing."""
        self.pipeline = pipeline
        self.partition = partition
        self.committed_offset = -1
        """The input offset that the group has committed."""
        self.is_backlogged = False
        """True if reading is paused until the waiting records are processed."""
        self._clock_ms = clock_ms or (lambda: int(time.time() * 1000))
        self._limits = limits
        self._rejections = rejections
        self._context: TaskContext
        self._is_open = False  # Whether `processor` was made and is not closed.
        self.suspects = Suspects()
        """The suspected records, each of which is processed alone."""
        self.limit = RejectLimit(pipeline, partition)
        """Counts the rejected records."""
        self.began_s = 0.0
        """The time of `begin`, on the monotonic clock."""
        self._record_ms = 0  # The timestamp of the last record that the processor has taken, if that is a former time.
        self._complete_batches: list[tuple[int, int]] = []  # As in `Counts.taken`.
        self._skip_until = -1  # The last input offset that an operator has ordered to skip.
        self._skips_unread = False  # Whether the records to skip cannot be read.
        self._may_move = bool(pipeline.derived_from) and pipeline.processor_type.input.role in ("sow", "delta")
        self._moved_to = ""  # The topic that has taken the place of the one that is read.

    def begin(self, context: TaskContext, offset: int) -> None:
        """Create a new instance, which begins at an input offset.

        Raises:
            PartitionHeld: it raised.
        """
        self._context = context
        self.limit.rewound()
        self.next_offset = self.committed_offset = context.lives.next_offset = offset
        self._moved_to, self.seen_ms, self._record_ms = "", 0, 0
        context.now_ms = self._clock_ms()
        try:
            with OwnCall(context, "init"):
                self.processor = self.pipeline.processor_type()
                self._is_open = True
                self.pipeline.begin(self.processor, context)
        except BaseException:
            self.close_processor()  # It may have opened connections, and is made again at each attempt.
            raise
        self.flushes = type(self.processor).flush is not Processor.flush
        self.began_s = time.monotonic()

    def process(self, records: Sequence[Record]) -> None:
        """Call the processor with its next records until enough output waits: `left` has the other records.

        Raises:
            ProcessorFailed: the processor raised; the task is to be rewound.
            PartitionHeld: too many records in a row were rejected, or the processor asked for it.
        """
        context, first = self._context, records[0]
        self._look_at_clock()
        context.lives.next_offset = max(first.offset, self.next_offset)  # Missed deletes have earlier offsets.
        context.is_at_end = False
        with Counting(context):
            self._process(records)
        context.lives.settle(self.next_offset)
        if context.held_offset is None and first.timestamp_ms > 0:
            self._complete_batches.append((first.timestamp_ms, len(records) - len(self.left)))

    def _process(self, records: Sequence[Record]) -> None:
        """Call the processor with slices of these records."""
        if records[0].offset <= self._skip_until:
            records = self._skipped(records)
        self.waiting.begin_turn()
        front = self._front(records)
        left, behind = records[:front], records[front:]
        while left:
            left = self._process_slice(left)
            if not left or self.is_paused or self.waiting.is_enough():
                break
        if behind and not left and not self.is_paused:
            self._context.pause(behind[0].offset)  # For ever: `punctuate` holds it, once all before it is committed.
            self.reached_end()
        self.left = () if self.is_paused else [*left, *behind] if behind else left

    def _front(self, records: Sequence[Record]) -> int:
        """The number of records in front of the mark of a topic that has moved, which ends it; all without one."""
        if self._may_move:
            for place, record in enumerate(records):
                if record[1] is None and (name := moved_to(record[0], record[2])) is not None:
                    self._moved_to = name
                    return place
        return len(records)

    def _process_slice(self, records: Sequence[Record]) -> Sequence[Record]:
        """Call the processor with as many of these records as it may get at once; returns the records behind them."""
        first, suspects = records[0], self.suspects
        if suspects.may_stop:
            suspects.check(first.offset)
        if first.offset <= suspects.until:
            batch = records[:1]
            self._process_suspect(first)
        else:
            batch = records[: self.waiting.begin_slice(len(records))]
            if len(batch) == 1 and suspects.is_measured:
                self._call_measured(first)
            else:
                self._call(batch)
        self.waiting.end_slice()
        if taken := self._taken(batch):
            self.limit.took(taken)
        place = len(taken)
        next_offset = batch[place].offset if place < len(batch) else batch[-1].offset + 1
        self.next_offset = max(self.next_offset, next_offset)
        return records[place:]

    def _process_suspect(self, record: Record) -> None:
        """Process a record of a failed batch alone, or reject it if it was found to be at fault."""
        if (verdict := self.suspects.verdict(record.offset)) is not None:
            self._reject(record, verdict)
        elif self.suspects.is_measured:
            self._call_measured(record)
        else:
            self._call([record])

    def reached_end(self) -> None:
        """Note that the processor has all records of the partition for now."""
        self._context.is_at_end = True

    @property
    def has_held_work(self) -> bool:
        """True if the committed position waits for work that a built-in processor does by the clock, as a copy does.

        A third party's processor may wait for more input.
        """
        return self._context.held_offset is not None and is_ours(self.pipeline.processor_type)

    @property
    def is_paused(self) -> bool:
        """True if the processor has paused its input; after the pause the next record is read again."""
        return self._context.paused_offset is not None

    def flow(self, taken: int, *, is_alone: bool) -> Literal["pause", "begin"] | None:
        """Decide whether to pause reading, or to begin again at `next_offset`; None: as before.

        Args:
            taken: the number of records that the processor has just taken.
            is_alone: whether this is the only task of the thread.
        """
        left = len(self.left)
        if self.is_paused:
            self.is_backlogged = False
            return "pause"
        if left and not self.is_backlogged:
            # Further records would delay other tasks; they are read again once these are processed.
            self.is_backlogged = not is_alone and left > _TURNS_LEFT_MAX * taken
            return "pause" if self.is_backlogged else None
        if self.is_backlogged and not left:
            self.is_backlogged = False
            return "begin"
        return None

    def punctuate(self) -> bool:
        """Call the processor's `punctuate`, which may move `next_offset`; returns whether it has more to do at once.

        Raises:
            PartitionHeld: it raised, forwarded a record that its topic does not take, or reads a topic that has moved.
        """
        context, suspects = self._context, self.suspects
        if suspects.may_stop:
            suspects.check()
        if self._moved_to and self.is_paused and self.committed_offset >= self.next_offset:
            raise PartitionHeld(
                "fenced",
                f"{self.pipeline.source} partition {self.partition} has moved, and gets no more records: "
                f"{self._moved_to!r} has taken its place. Make another {self.pipeline.name} of that one",
            )
        now_ms = self._look_at_clock()
        context.stream_time_ms = self._known_ms
        counts = context.output_counts() if suspects.is_measured else None
        with OwnCall(context, "punctuate"):
            has_more = bool(self.processor.punctuate(now_ms))
        if counts is not None and (large := self._limits.largest(context.outputs_after(counts))) is not None:
            raise self._held_by(large)
        if self.waiting.records:  # A life that begins or ends is an output.
            context.lives.settle(self.next_offset)
        if context.skipped_offset > self.next_offset:
            self.left, self.is_backlogged = (), False
            self.next_offset = context.lives.next_offset = context.skipped_offset
        return has_more

    def flush(self) -> None:
        """Have the processor forward its results before a commit.

        Raises:
            PartitionHeld: it raised.
        """
        if not self.flushes:
            return
        with OwnCall(self._context, "flush"):
            self.processor.flush()
        if self.waiting.records:
            self._context.lives.settle(self.next_offset)

    def rejected(self, record: Record, reason: str, detail: str) -> None:
        """Count and log a record that the processor rejected."""
        self.limit.rejected(record, reason, detail)
        if self._rejections is not None:
            self._rejections.add(self.partition, record.offset, reason, detail)

    def end_processor(self) -> None:
        """Close the instance and drop its waiting output."""
        self.left, self.is_backlogged, self._complete_batches = (), False, []
        self.waiting.rewound()
        self.close_processor()

    def _skipped(self, records: Sequence[Record]) -> Sequence[Record]:
        """Reject the records that an operator ordered to skip; returns the others."""
        order = range(self.committed_offset, self._skip_until + 1)  # Not the missed deletes before it.
        if skipped := [record for record in records if record.offset in order]:
            for record in skipped:
                self._reject(record, RecordRejected("skipped", "skipped by order (sowstream resume --skip)"))
            self.next_offset = skipped[-1].offset + 1
        return [record for record in records if record.offset not in order]

    def _reject(self, record: Record, error: RecordRejected) -> None:
        """Reject a record that is skipped, or on which the processor raises."""
        self._context.reject(record, error.reason, error.detail)
        try:
            self.processor.rejected(record, error)
        except Stop:
            raise
        except Exception:
            # The record has a dead letter; raising would repeat it for ever.
            log.warning("processor failed to hear of a rejection", partition=self.partition, exc_info=True)

    def _call(self, records: Sequence[Record]) -> None:
        """Call the processor; after an error process the batch one record at a time."""
        context, before_ms = self._context, self._record_ms
        context.stopped_offset = None
        self._note_time(records[-1].timestamp_ms)
        try:
            self.processor.process(records)
        except (Stop, StateDamaged, ProcessorFailed, PartitionHeld):
            raise
        except Exception as error:
            first, last = records[0].offset, records[-1].offset
            self.suspects.give_alone(last)
            if first == last:
                self.suspects.reject(first, self._rejection(error))
            log.warning("processor failed", partition=self.partition, first=first, last=last, exc_info=True)
            where = f"{self.pipeline.name} partition {self.partition}, offsets {first} to {last}"
            raise ProcessorFailed(f"{where}: the processor raised {error!r}") from error
        if self.is_paused or context.stopped_offset is not None:
            taken = self._taken(records)
            self._note_time(taken[-1].timestamp_ms if taken else before_ms)

    def _rejection(self, error: Exception) -> RecordRejected:
        """Turn an error of the processor into the rejection of the only record that it had."""
        if isinstance(error, RecordRejected) and is_reject_reason(error.reason):
            return RecordRejected(error.reason, str(error.detail))
        name = self.pipeline.processor_type.__name__
        return RecordRejected("plugin_failed", f"{name} raised {type(error).__name__}: {error}")

    def _look_at_clock(self) -> int:
        """Set the context's clock; times of a clock that has been set back since prove nothing, and are dropped."""
        now_ms = self._context.now_ms = self._clock_ms()
        if max(self.seen_ms, self._record_ms) > now_ms:
            self.seen_ms = self._record_ms = self._context.complete_until_ms = 0
            self.compare_after_ms = max(self.compare_after_ms, now_ms + _UNKNOWN_MS)
        return now_ms

    def _note_time(self, timestamp_ms: int) -> None:
        """Set the stream time after a record of this timestamp; never a future one: the input until then is unknown."""
        self._record_ms = min(timestamp_ms, self._context.now_ms)
        self._context.stream_time_ms = self._known_ms

    @property
    def _known_ms(self) -> int:
        """The time up to which the processor knows the input."""
        return max(self._record_ms, self.seen_ms)

    def _call_measured(self, record: Record) -> None:
        """Call the processor with one record, and measure its outputs.

        Raises:
            ProcessorFailed: an output is larger than its topic takes: after the rewind the record gets a transaction of
                its own, or is rejected if the output is too large for a producer, too.
            PartitionHeld: the same, for a processor whose output stems from earlier records.
        """
        offset, held_offset = record.offset, self._context.held_offset
        counts = self._context.output_counts()
        self._call([record])
        large = self._limits.largest(self._context.outputs_after(counts))
        if large is None or self.suspects.is_isolated(offset):
            return
        if held_offset is not None:
            raise self._held_by(large)
        detail = f"an output of {large.size_bytes} bytes for {self.pipeline.output(large.role)}"
        if large.size_bytes > PRODUCED_BYTES_MAX:
            why = f"{detail}; a producer takes {PRODUCED_BYTES_MAX}"
            self.suspects.reject(offset, RecordRejected("too_large", why))
        else:
            self.suspects.isolate(offset)
        raise ProcessorFailed(f"{self.pipeline.source} partition {self.partition}, offset {offset}: {detail}")

    def _held_by(self, large: TooLarge) -> PartitionHeld:
        """Create the reason to hold the partition for an output that stems from no single record."""
        self._limits.forget(large.role)  # By the next retry its topic may take more.
        topic = self.pipeline.output(large.role)
        return PartitionHeld(
            "plugin_failed",
            f"{topic} partition {self.partition}: {self.pipeline.name} made a record of {large.size_bytes} bytes, "
            f"and the topic takes {large.limit_bytes}; raise its max.message.bytes (`sowstream topics check` tells)",
        )

    def _taken(self, records: Sequence[Record]) -> Sequence[Record]:
        """Select the records before the one at which the processor paused or stopped; all if it did neither."""
        ends = [offset for offset in (self._context.paused_offset, self._context.stopped_offset) if offset is not None]
        return records if not ends else [record for record in records if record.offset < min(ends)]

    def close_processor(self) -> None:
        """Close the instance, unless it is closed."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            self.processor.close()
        except Stop:
            raise
        except Exception:
            # An error in a plug-in's clean-up must not keep the partition from its next owner.
            log.warning("processor failed to close", partition=self.partition, exc_info=True)
