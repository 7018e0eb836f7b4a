"""Calls a partition's processor with records in slices, and confines each of its errors to one record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal

import structlog

from processor.errors import PartitionHeld, ProcessorFailed, RecordRejected, SowstreamError, StateDamaged, Stop
from processor.hosting.output_limits import WaitingOutput
from processor.kafka.properties import PRODUCED_BYTES_MAX
from processor.record import Record
from processor.runtime.rejections import RejectLimit, Suspects
from processor.wire.forwarding import moved_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.api import Processor
    from processor.errors import OutputTooLarge
    from processor.hosting.context import TaskContext
    from processor.hosting.output_limits import OutputLimits, TooLarge
    from processor.hosting.pipeline import Pipeline
    from processor.runtime.rejections import RejectionLog

log = structlog.stdlib.get_logger("sowstream.task")


_ALONE_RECORDS: Final = 10_000
"""Records behind a stuck one that are processed one at a time, so that the next death names the record."""


_TURNS_LEFT_MAX: Final = 4
"""A task whose waiting records need more turns than this reads no more input meanwhile."""


class HostedProcessor:
    """The processor of one partition, a new instance after each rewind: the part of a task that knows no state.

    A record on which the processor raises, or whose output Kafka refuses, is found by processing its batch one record
    at a time, and rejected. The knowledge of suspected records survives rewinds.
    """

    def __init__(
        self, pipeline: Pipeline, partition: int, limits: OutputLimits, rejections: RejectionLog | None
    ) -> None:
        """Create the host; `begin` creates the processor.

        Args:
            pipeline: the pipeline of the processor.
            partition: the partition number.
            limits: the size limits of outputs, and of the bytes that may wait.
            rejections: logs rejected records; None: they are not logged.
        """
        self.waiting = WaitingOutput(limits.batch_bytes_max)
        """Counts the outputs that wait to be sent."""
        self.left: Sequence[Record] = ()
        """Records that the processor has not taken yet, because enough of its output waits."""
        self.next_offset = -1
        """Input offset after the last record that the processor has taken."""
        self.processor: Processor
        """The processor's current instance."""
        self.pipeline = pipeline
        self.partition = partition
        self.committed_offset = -1
        """The input offset that the group has committed."""
        self.is_backlogged = False
        """True if reading is paused until the waiting records are processed."""
        self._limits = limits
        self._rejections = rejections
        self._context: TaskContext
        self._suspects = Suspects()
        self._limit = RejectLimit(pipeline, partition)
        self._began_s = 0.0
        self._skip_until = -1  # The last input offset that an operator has ordered to skip.
        self._skips_unread = False  # Whether the records to skip cannot be read.
        self._may_move = bool(pipeline.derived_from) and pipeline.processor_type.input.role in ("sow", "delta")
        self._moved_to = ""  # The topic that has taken the place of the one that is read.

    def begin(self, context: TaskContext, offset: int) -> None:
        """Create a new instance, which begins at an input offset."""
        self._context = context
        self._limit.rewound()
        self.next_offset = self.committed_offset = offset
        self._moved_to = ""
        self.processor = self.pipeline.begin(context)
        self._began_s = time.monotonic()
        if self._skips_unread and self._skip_until >= offset:
            self._pass_unread()

    @property
    def running_s(self) -> float:
        """Seconds since `begin`."""
        return time.monotonic() - self._began_s

    def skip(self, until: int, *, is_readable: bool) -> None:
        """Skip the records up to an offset: they become dead letters.

        Args:
            until: the last offset to skip.
            is_readable: whether the records can be read; if not, one dead letter without a value stands for all.
        """
        self._skip_until, self._skips_unread = until, not is_readable
        self._limit.let_pass()

    def let_pass(self) -> None:
        """Accept the records rejected until now, so that the partition is not held for them."""
        self._limit.let_pass()

    def hold_at(self, offset: int, error: PartitionHeld) -> None:
        """Hold the partition when it comes to a record: a former call with it did not return."""
        self._suspects.stop_at(offset, error)

    def process_alone(self, offset: int) -> None:
        """Process records one at a time, from the one at which the processor did not return."""
        self._suspects.give_alone(offset + _ALONE_RECORDS)

    def process(self, records: Sequence[Record]) -> None:
        """Call the processor with its next records until enough output waits: `left` has the other records.

        Raises:
            ProcessorFailed: the processor raised; the task is to be rewound.
            PartitionHeld: too many records in a row were rejected, or the processor asked for it.
        """
        self._suspects.check()
        if records[0].offset <= self._skip_until:
            records = self._skipped(records)
        self.waiting.begin_turn()
        front = self._front(records)
        left, behind = records[:front], records[front:]
        while left:
            left = self._process_slice(left)
            if self.is_paused or self.waiting.is_enough():
                break
        if behind and not left and not self.is_paused:
            self._context.pause(behind[0].offset)  # For ever: `punctuate` holds it, once all before it is committed.
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
        first = records[0]
        self._suspects.check(first.offset)
        batch = records[:1] if self.is_careful(first.offset) else records[: self.waiting.begin_slice(len(records))]
        verdict = self._suspects.verdict(first.offset) if len(batch) == 1 else None
        if verdict is not None:
            self._reject(first, verdict)
        elif len(batch) == 1 and self._suspects.is_measured:
            self._call_measured(first)
        else:
            self._call(batch)
        self.waiting.end_slice()
        if taken := self._taken(batch):
            self._limit.took(taken)
        place = len(taken)
        self.next_offset = batch[place].offset if place < len(batch) else batch[-1].offset + 1
        return records[place:]

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

    def is_careful(self, offset: int) -> bool:
        """Return whether a record belongs to a failed batch, and is processed alone now."""
        return self._suspects.is_given_alone(offset)

    def careful_share(self, records: Sequence[Record], records_max: int) -> int:
        """The number of these records that fit into one transaction, if the first of them is processed alone."""
        return self._suspects.share(records, records_max)

    def refused(self, role: str | None, error: OutputTooLarge, *, is_learnt: bool) -> None:
        """Suspect the last records of an output that Kafka refused for its size; a rewind follows.

        Args:
            role: the role of the output, if it is known.
            error: the refusal.
            is_learnt: whether the limit of that output was not known before.
        """
        if role not in {"mark", "dlq"}:
            self._suspects.refused(self.next_offset, f"an output of this record: {error}")
        elif not is_learnt:
            topic = self.pipeline.output(role)
            self._suspects.hold(PartitionHeld("plugin_failed", f"{topic} does not take a record of ours: {error}"))

    def punctuate(self) -> bool:
        """Call the processor's `punctuate`; returns whether it has more work to do at once.

        Raises:
            PartitionHeld: it raised, forwarded a record that its topic does not take, or reads a topic that has moved.
        """
        self._suspects.check()
        if self._moved_to and self.is_paused and self.committed_offset >= self.next_offset:
            raise PartitionHeld(
                "fenced",
                f"{self.pipeline.source} partition {self.partition} has moved, and gets no more records: "
                f"{self._moved_to!r} has taken its place. Make another {self.pipeline.name} of that one",
            )
        counts = self._context.output_counts() if self._suspects.is_measured else None
        try:
            has_more = bool(self.processor.punctuate(self._context.now_ms))
        except SowstreamError:
            raise
        except Exception as error:
            # No record is at fault, so none can be rejected: a repetition would fail again.
            log.warning("processor failed by the clock", partition=self.partition, exc_info=True)
            where = f"{self.pipeline.name} partition {self.partition}"
            raise PartitionHeld("plugin_failed", f"{where}: punctuate raised {error!r}") from error
        if counts is not None and (large := self._limits.largest(self._context.outputs_after(counts))) is not None:
            raise self._held_by(large)
        return has_more

    def flush(self) -> None:
        """Have the processor forward its results before a commit.

        Raises:
            PartitionHeld: it raised.
        """
        try:
            self.processor.flush()
        except SowstreamError:
            raise
        except Exception as error:
            log.warning("processor failed before a commit", partition=self.partition, exc_info=True)
            where = f"{self.pipeline.name} partition {self.partition}"
            raise PartitionHeld("plugin_failed", f"{where}: flush raised {error!r}") from error

    def rejected(self, record: Record, reason: str, detail: str) -> None:
        """Count and log a record that the processor rejected."""
        self._limit.rejected(record, reason, detail)
        if self._rejections is not None:
            self._rejections.add(self.partition, record.offset, reason, detail)

    def commit_input(self, offset: int) -> None:
        """Note that the input before this offset is committed."""
        self.committed_offset = offset
        self._limit.committed(offset)
        self._suspects.committed(offset)

    def rewind(self) -> None:
        """Close the instance and drop its waiting output."""
        self.left, self.is_backlogged = (), False
        self.waiting.rewound()
        self.close_processor()

    def _pass_unread(self) -> None:
        """Send one dead letter for all unreadable records, and continue behind them."""
        first, last = self.next_offset, self._skip_until
        detail = f"offsets {first} to {last} could not be read and were skipped by order (sowstream resume --skip)"
        self._context.reject(Record(None, None, None, first, 0), "skipped", detail)
        self.next_offset, self._skips_unread = last + 1, False

    def _skipped(self, records: Sequence[Record]) -> Sequence[Record]:
        """Reject the records that an operator ordered to skip; returns the others."""
        skipped = [record for record in records if record.offset <= self._skip_until]
        for record in skipped:
            self._reject(record, RecordRejected("skipped", "skipped by order (sowstream resume --skip)"))
        self.next_offset = skipped[-1].offset + 1
        return records[len(skipped) :]

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
        context, before_ms = self._context, self._context.stream_time_ms
        context.stopped_offset = None
        # Never a future time: the input until then is not known.
        context.stream_time_ms = max(0, min(records[-1].timestamp_ms, context.now_ms))
        try:
            self.processor.process(records)
        except (Stop, StateDamaged, ProcessorFailed, PartitionHeld):
            raise
        except Exception as error:
            first, last = records[0].offset, records[-1].offset
            self._suspects.give_alone(last)
            if first == last:
                name = self.pipeline.processor_type.__name__
                detail = f"{name} raised {type(error).__name__}: {error}"
                self._suspects.reject(first, RecordRejected("plugin_failed", detail))
            log.warning("processor failed", partition=self.partition, first=first, last=last, exc_info=True)
            where = f"{self.pipeline.name} partition {self.partition}, offsets {first} to {last}"
            raise ProcessorFailed(f"{where}: the processor raised {error!r}") from error
        if self.is_paused or context.stopped_offset is not None:
            taken = self._taken(records)
            context.stream_time_ms = max(0, min(taken[-1].timestamp_ms, context.now_ms)) if taken else before_ms

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
        if large is None or self._suspects.is_isolated(offset):
            return
        if held_offset is not None:
            raise self._held_by(large)
        detail = f"an output of {large.size_bytes} bytes for {self.pipeline.output(large.role)}"
        if large.size_bytes > PRODUCED_BYTES_MAX:
            why = f"{detail}; a producer takes {PRODUCED_BYTES_MAX}"
            self._suspects.reject(offset, RecordRejected("too_large", why))
        else:
            self._suspects.isolate(offset)
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
        """Close the instance."""
        try:
            self.processor.close()
        except Stop:
            raise
        except Exception:
            # An error in a plug-in's clean-up must not keep the partition from its next owner.
            log.warning("processor failed to close", partition=self.partition, exc_info=True)
