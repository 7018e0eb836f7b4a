"""A plug-in as its partition sees it: given records in slices, watched, and never at fault for more than a record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from processor.errors import PartitionHeld, ProcessorFailed, RecordRejected, SowstreamError, StateDamaged, Stop
from processor.hosting.waiting_output import WaitingOutput
from processor.kafka.properties import PRODUCED_BYTES_MAX
from processor.record import Record
from processor.runtime.holding.reject_limit import RejectLimit
from processor.runtime.holding.suspects import Suspects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.api import Processor
    from processor.errors import OutputTooLarge
    from processor.hosting.context import TaskContext
    from processor.hosting.output_limits import OutputLimits, TooLarge
    from processor.hosting.pipeline import Pipeline
    from processor.runtime.holding.rejection_log import RejectionLog

log = structlog.stdlib.get_logger("sowstream.task")


class HostedProcessor:
    """The processor of one partition, a new instance after each rewind. One thread only.

    A record on which the processor raises, or whose output Kafka does not take, is found by giving the records of its
    batch one at a time, and put aside. What of it is known outlasts the rewinds.
    """

    def __init__(
        self, pipeline: Pipeline, partition: int, limits: OutputLimits, rejections: RejectionLog | None
    ) -> None:
        """Begin nothing.

        Args:
            pipeline: whose processor.
            partition: its partition.
            limits: how large outputs may be, and how many bytes of them may wait.
            rejections: logs rejected records; None: they are not logged.
        """
        self.waiting = WaitingOutput(limits.batch_bytes_max)
        """Counts the outputs that wait to be sent."""
        self.left: Sequence[Record] = ()
        """Records that came, and that the processor has not been given: enough of its outputs wait."""
        self.next_offset = -1
        """The input offset after the last record given to it."""
        self.processor: Processor
        """The instance."""
        self._pipeline = pipeline
        self._partition = partition
        self._limits = limits
        self._rejections = rejections
        self._context: TaskContext
        self._suspects = Suspects()
        self._limit = RejectLimit(pipeline, partition)
        self._began_s = 0.0
        self._skip_until = -1  # The last input offset that an operator has ordered to be skipped.
        self._skips_unread = False  # None of them can be read.

    def begin(self, context: TaskContext, offset: int) -> None:
        """Make a new instance, which begins at an input offset."""
        self._context = context
        self._limit.rewound()
        self.next_offset = offset
        self.processor = self._pipeline.begin(context)
        self._began_s = time.monotonic()
        if self._skips_unread and self._skip_until >= offset:
            self._pass_unread()

    @property
    def running_s(self) -> float:
        """Seconds since `start`."""
        return time.monotonic() - self._began_s

    def skip(self, until: int, *, is_readable: bool) -> None:
        """Give the processor no record up to and including this offset: they go to the dead letters.

        Args:
            until: the last of them.
            is_readable: whether they can be read; if not, one dead letter stands for all of them, without a value.
        """
        self._skip_until, self._skips_unread = until, not is_readable
        self._limit.let_pass()

    def let_pass(self) -> None:
        """Hold the partition no more for the records that were rejected until now."""
        self._limit.let_pass()

    def process(self, records: Sequence[Record]) -> None:
        """Give the processor its next records, until enough of its outputs wait: `left` has the others.

        Raises:
            ProcessorFailed: it raised; the task is to be rewound.
            PartitionHeld: too many records in a row were rejected, or it cannot go on for now.
        """
        self._suspects.check()
        if records[0].offset <= self._skip_until:
            records = self._skipped(records)
        self.waiting.begin_turn()
        left = records
        while left:
            left = self._process_slice(left)
            if self.is_paused or self.waiting.is_enough():
                break
        self.left = () if self.is_paused else left

    def _process_slice(self, records: Sequence[Record]) -> Sequence[Record]:
        """Give the processor as many of these records as it may have at once; returns those behind them."""
        first = records[0]
        given = records[:1] if self.is_careful(first.offset) else records[: self.waiting.begin_slice(len(records))]
        verdict = self._suspects.verdict(first.offset) if len(given) == 1 else None
        if verdict is not None:
            self._put_aside(first, verdict)
        elif len(given) == 1 and self._suspects.is_measured:
            self._call_measured(first)
        else:
            self._call(given)
        self.waiting.end_slice()
        if taken := self._taken(given):
            self._limit.took(taken)
        place = len(taken)
        self.next_offset = given[place].offset if place < len(given) else given[-1].offset + 1
        return records[place:]

    @property
    def is_paused(self) -> bool:
        """Whether the processor takes no records until it has done something else; the next one comes again then."""
        return self._context.paused_offset is not None

    def is_careful(self, offset: int) -> bool:
        """Whether a record is in a batch that failed, and given alone now."""
        return self._suspects.is_given_alone(offset)

    def careful_share(self, records: Sequence[Record], records_max: int) -> int:
        """How many of these records, the first of which is given alone, one transaction takes."""
        return self._suspects.share(records, records_max)

    def refused(self, role: str | None, error: OutputTooLarge, *, is_learnt: bool) -> None:
        """Kafka refused an output for its size; a rewind follows.

        Args:
            role: which output it was, if that is known.
            error: what Kafka said.
            is_learnt: whether the limit of that output was not known before.
        """
        if role not in {"mark", "dlq"}:
            self._suspects.refused(self.next_offset, f"an output of this record: {error}")
        elif not is_learnt:
            topic = self._pipeline.output(role)
            self._suspects.hold(PartitionHeld("plugin_failed", f"{topic} does not take a record of ours: {error}"))

    def punctuate(self, now_ms: int) -> bool:
        """Let the processor do what is due by the clock; whether there is more.

        Raises:
            PartitionHeld: it raised, or made a record that its topic does not take.
        """
        self._suspects.check()
        counts = self._context.output_counts() if self._suspects.is_measured else None
        try:
            has_more = bool(self.processor.punctuate(now_ms))
        except SowstreamError:
            raise
        except Exception as error:
            # No record is at fault, so none can be put aside: to go on would be to do it again.
            log.warning("processor failed by the clock", partition=self._partition, exc_info=True)
            where = f"{self._pipeline.name} partition {self._partition}"
            raise PartitionHeld("plugin_failed", f"{where}: punctuate raised {error!r}") from error
        if counts is not None and (large := self._limits.largest(self._context.outputs_after(counts))) is not None:
            raise self._held_by(large)
        return has_more

    def rejected(self, record: Record, reason: str, detail: str) -> None:
        """Count and log a record that the processor rejected."""
        self._limit.rejected(record, reason, detail)
        if self._rejections is not None:
            self._rejections.add(self._partition, record.offset, reason, detail)

    def committed(self, offset: int) -> None:
        """The input before this offset is committed."""
        self._limit.committed(offset)
        self._suspects.committed(offset)

    def rewind(self) -> None:
        """Close the instance; nothing of what it forwarded waits any more."""
        self.left = ()
        self.waiting.rewound()
        self.close()

    def _pass_unread(self) -> None:
        """Let one dead letter stand for the input records that cannot be read, and go on behind them."""
        first, last = self.next_offset, self._skip_until
        detail = f"offsets {first} to {last} could not be read and were skipped by order (sowstream resume --skip)"
        self._context.reject(Record(None, None, None, first, 0), "skipped", detail)
        self.next_offset, self._skips_unread = last + 1, False

    def _skipped(self, records: Sequence[Record]) -> Sequence[Record]:
        """Put records aside that an operator ordered to be skipped; the others."""
        skipped = [record for record in records if record.offset <= self._skip_until]
        for record in skipped:
            self._put_aside(record, RecordRejected("skipped", "skipped by order (sowstream resume --skip)"))
        self.next_offset = skipped[-1].offset + 1
        return records[len(skipped) :]

    def _put_aside(self, record: Record, error: RecordRejected) -> None:
        """Reject a record that the processor does not get, or raises on."""
        self._context.reject(record, error.reason, error.detail)
        try:
            self.processor.rejected(record, error)
        except Stop:
            raise
        except Exception:
            # The record is accounted for; to raise would be to meet it again, for ever.
            log.warning("processor failed to hear of a rejection", partition=self._partition, exc_info=True)

    def _call(self, records: Sequence[Record]) -> None:
        context, before_ms = self._context, self._context.stream_time_ms
        context.stopped_offset = None
        # No future time either: the input between now and then is not known.
        context.stream_time_ms = max(0, min(records[-1].timestamp_ms, context.now_ms))
        try:
            self.processor.process(records)
        except (Stop, StateDamaged, ProcessorFailed, PartitionHeld):
            raise
        except Exception as error:
            first, last = records[0].offset, records[-1].offset
            self._suspects.give_alone(last)
            if first == last:
                name = self._pipeline.processor_type.__name__
                detail = f"{name} raised {type(error).__name__}: {error}"
                self._suspects.reject(first, RecordRejected("plugin_failed", detail))
            log.warning("processor failed", partition=self._partition, first=first, last=last, exc_info=True)
            where = f"{self._pipeline.name} partition {self._partition}, offsets {first} to {last}"
            raise ProcessorFailed(f"{where}: the processor raised {error!r}") from error
        if self.is_paused or context.stopped_offset is not None:
            taken = self._taken(records)
            context.stream_time_ms = max(0, min(taken[-1].timestamp_ms, context.now_ms)) if taken else before_ms

    def _call_measured(self, record: Record) -> None:
        """Give the processor one record, and look how large its outputs are.

        Raises:
            ProcessorFailed: one is larger than its topic takes: after the rewind the record is alone in a transaction,
                or rejected where a producer does not take it either.
            PartitionHeld: the same, of a processor that delivers what earlier records brought.
        """
        offset, held_offset = record.offset, self._context.held_offset
        counts = self._context.output_counts()
        self._call([record])
        large = self._limits.largest(self._context.outputs_after(counts))
        if large is None or self._suspects.is_isolated(offset):
            return
        if held_offset is not None:
            raise self._held_by(large)
        detail = f"an output of {large.size_bytes} bytes for {self._pipeline.output(large.role)}"
        if large.size_bytes > PRODUCED_BYTES_MAX:
            why = f"{detail}; a producer takes {PRODUCED_BYTES_MAX}"
            self._suspects.reject(offset, RecordRejected("too_large", why))
        else:
            self._suspects.isolate(offset)
        raise ProcessorFailed(f"{self._pipeline.source} partition {self._partition}, offset {offset}: {detail}")

    def _held_by(self, large: TooLarge) -> PartitionHeld:
        """What holds the partition: an output of no record."""
        self._limits.forget(large.role)  # When it is asked again, its topic may take more.
        topic = self._pipeline.output(large.role)
        return PartitionHeld(
            "plugin_failed",
            f"{topic} partition {self._partition}: {self._pipeline.name} made a record of {large.size_bytes} bytes, "
            f"and the topic takes {large.limit_bytes}; raise its max.message.bytes (`sowstream topics check` tells)",
        )

    def _taken(self, records: Sequence[Record]) -> Sequence[Record]:
        """Those before the one at which the processor paused or stopped; all of them if it did neither."""
        ends = [offset for offset in (self._context.paused_offset, self._context.stopped_offset) if offset is not None]
        return records if not ends else [record for record in records if record.offset < min(ends)]

    def close(self) -> None:
        """Close the instance."""
        try:
            self.processor.close()
        except Stop:
            raise
        except Exception:
            # A third party's clean-up must not keep the partition from its next owner.
            log.warning("processor failed to close", partition=self._partition, exc_info=True)
