"""One partition of a pipeline: its processor, its state, and where it stands between two commits."""

from __future__ import annotations

import enum
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from processor.errors import (
    PartitionHeld,
    ProcessorFailed,
    RecordRejected,
    SowstreamError,
    StateDamaged,
    Stop,
    TransactionAborted,
)
from processor.kafka.properties import PRODUCED_BYTES_MAX
from processor.record import Record
from processor.runtime.context import TaskContext
from processor.runtime.note import Ends, Note
from processor.runtime.output_limits import OutputLimits
from processor.runtime.reject_limit import RejectLimit
from processor.runtime.suspects import Suspects
from processor.runtime.waiting_output import WaitingOutput
from processor.state.marks import TransactionalMarks
from processor.topic_problems import remade

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.api import Codec, Processor
    from processor.errors import OutputTooLarge
    from processor.record import Outgoing, RejectReason
    from processor.runtime.output_limits import TooLarge
    from processor.runtime.pipeline import Pipeline
    from processor.runtime.rejection_log import RejectionLog
    from processor.runtime.tail import Tail
    from processor.runtime.timings import Timing
    from processor.state.transactional import TransactionalState
    from processor.topics import Role

log = structlog.stdlib.get_logger("sowstream.task")


class TaskState(enum.Enum):
    """Where a task is in its life.

    ::

        CREATED ──open──▶ RESTORING ──start──▶ RUNNING
           │                │    ▲                │ │
           │                │    └────rewind──────┘ │
           └─────close──────┴──────close────────────┴──▶ CLOSED

    A rewind follows every aborted transaction: the task forgets what was not committed and begins again from what
    Kafka says was. The same way serves an abort, a lost producer and a commit nobody knows the end of.
    """

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    CLOSED = "closed"
    HELD = "held"
    """Shown for a task that waits, created or restoring, until it is asked again."""


_MOVES: Final = {
    "open": ({TaskState.CREATED}, TaskState.RESTORING),
    "start": ({TaskState.RESTORING}, TaskState.RUNNING),
    "rewind": ({TaskState.RUNNING}, TaskState.RESTORING),
    "close": ({TaskState.CREATED, TaskState.RESTORING, TaskState.RUNNING}, TaskState.CLOSED),
}


class Counts(NamedTuple):
    """What a processor counted between two commits."""

    events: dict[str, int]
    """How often each of its events came."""
    rejected: dict[str, int]
    """Records rejected, by reason."""
    observed: dict[str, Timing]
    """How long things took, by name."""


class Prepared(NamedTuple):
    """What a task has in a transaction beside its records."""

    offset: int
    """The input position."""
    note: Note
    """What is committed beside it."""
    counts: Counts
    """What was counted on the way there."""


class Task:
    """One partition. One thread only."""

    def __init__(
        self,
        pipeline: Pipeline,
        partition: int,
        codec: Codec,
        clock_ms: Callable[[], int] | None = None,
        *,
        partitions: int | None = None,
        rejections: RejectionLog | None = None,
        limits: OutputLimits | None = None,
    ) -> None:
        """Create a task that has no state yet.

        Args:
            pipeline: the pipeline it belongs to.
            partition: its partition number.
            codec: the message type of the records.
            clock_ms: the wall clock, milliseconds since the epoch; None: the system's.
            partitions: the number of partitions that keys are hashed over; None: the topic's.
            rejections: logs rejected records; None: they are not logged.
            limits: how large outputs may be, and how many bytes of them may wait; None: nothing is known of them.
        """
        self.pipeline = pipeline
        self.partition = partition
        self.task_state = TaskState.CREATED
        self.state: TransactionalState
        self.marks = TransactionalMarks() if pipeline.keeps_position else None
        """What lasts besides the records, the input position among it; None without a mark topic."""
        self.next_offset = -1
        """The input offset after the last record given to the processor."""
        self.committed_offset = -1
        """The input position that Kafka has for us."""
        self.lacks_offset = False
        """Whether Kafka has no input position for us, though we know one: it is committed soon, input or not."""
        self.tail: Tail | None = None
        """What the restore found in SOW of input that comes again."""
        self.noted = ""
        """What the processor noted with the last commit."""
        self.left: Sequence[Record] = ()
        """Records that came, and that the processor has not been given: enough of its outputs wait."""
        self.is_backlogged = False
        """Whether no more is read before these records are done."""
        self._limits = limits or OutputLimits(pipeline)
        self._waiting = WaitingOutput(self._limits.batch_bytes_max)
        self._again_until = -1
        self._prepared: Prepared | None = None
        self._delivered: dict[Role, int | None] = {}  # In the open transaction; None: no report has come yet.
        self._is_at_end = False  # Whether the processor was given every record that Kafka told of.
        self._codec = codec
        self._clock_ms = clock_ms or _wall_clock_ms
        self._processor: Processor
        self._context: TaskContext
        self._suspects = Suspects()
        self._limit = RejectLimit(pipeline, partition)
        self._partitions = pipeline.topic.partitions if partitions is None else partitions
        self._rejections = rejections
        self._began_s = 0.0
        self._skip_until = -1  # The last input offset that an operator has ordered to be skipped.
        self._skips_unread = False  # None of them can be read.

    def open(self, state: TransactionalState) -> None:
        """Take the partition's state, as it was left; it may lack the newest records."""
        self._move("open")
        self.state = state

    def start(self, offset: int) -> None:
        """The state is complete: begin processing at an input offset."""
        self._move("start")
        self.next_offset = self.committed_offset = offset
        self._is_at_end = False
        self._again_until = -1 if self.tail is None else self.tail.until
        self._limit.rewound()
        self._context = TaskContext(
            self.pipeline,
            self.partition,
            self._codec,
            self.state,
            self.marks if self.pipeline.has_marks else None,
            self._rejected,
            None if self.tail is None else self.tail.applied,
            self.noted,
            self._partitions,
            self._waiting,
            self._limits,
        )
        self._context.now_ms = self._clock_ms()
        self._processor = self.pipeline.processor_type()
        self._processor.init(self._context, self.pipeline.settings)
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
        self._context.now_ms = self._clock_ms()
        self._is_at_end = False
        if records[0].offset <= self._skip_until:
            records = self._skipped(records)
        self._waiting.begin_turn()
        left = records
        while left:
            left = self._process_slice(left)
            if self.is_paused or self._waiting.is_enough():
                break
        self.left = () if self.is_paused else left

    def _process_slice(self, records: Sequence[Record]) -> Sequence[Record]:
        """Give the processor as many of these records as it may have at once; returns those behind them."""
        first = records[0]
        given = records[:1] if self.is_careful(first.offset) else records[: self._waiting.begin_slice(len(records))]
        verdict = self._suspects.verdict(first.offset) if len(given) == 1 else None
        if verdict is not None:
            self._put_aside(first, verdict)
        elif len(given) == 1 and self._suspects.is_measured:
            self._call_measured(first)
        else:
            self._call(given)
        self._waiting.end_slice()
        if taken := self._taken(given):
            self._limit.took(taken)
        place = len(taken)
        self.next_offset = given[place].offset if place < len(given) else given[-1].offset + 1
        return records[place:]

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the outputs that wait to be sent."""
        return self._waiting.size_bytes

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

    def refused(self, role: Role | None, error: OutputTooLarge, *, is_learnt: bool) -> None:
        """Kafka refused an output for its size; a rewind follows.

        Args:
            role: which output it was, if that is known.
            error: what Kafka said.
            is_learnt: whether the limit of that output was not known before.
        """
        if role not in {"mark", "dlq"}:
            self._suspects.refused(self.next_offset, f"an output of this record: {error}")
        elif not is_learnt:
            topic = self.pipeline.output(role)
            self._suspects.hold(PartitionHeld("plugin_failed", f"{topic} does not take a record of ours: {error}"))

    def punctuate(self) -> bool:
        """Let the processor do what is due by the clock; whether there is more."""
        now_ms = self._context.now_ms = self._clock_ms()
        if self._is_at_end:
            self._context.stream_time_ms = now_ms
        else:
            # A record from the future, by the clock of who wrote it, must not look like the end.
            self._context.stream_time_ms = min(self._context.stream_time_ms, now_ms - 1)
        self._suspects.check()
        counts = self._context.output_counts() if self._suspects.is_measured else None
        try:
            has_more = bool(self._processor.punctuate(now_ms))
        except SowstreamError:
            raise
        except Exception as error:
            # No record is at fault, so none can be put aside: to go on would be to do it again.
            log.warning("processor failed by the clock", partition=self.partition, exc_info=True)
            where = f"{self.pipeline.name} partition {self.partition}"
            raise PartitionHeld("plugin_failed", f"{where}: punctuate raised {error!r}") from error
        if counts is not None and (large := self._limits.largest(self._context.outputs_after(counts))) is not None:
            raise self._held_by(large)
        return has_more

    def reached_end(self) -> None:
        """The input has no more records for now than those given."""
        self._is_at_end = True
        self._context.stream_time_ms = self._context.now_ms

    def take_outputs(self) -> dict[Role, list[Outgoing]]:
        """What the processor forwarded since the last time."""
        return self._context.take_outputs()

    def await_delivery(self, role: Role) -> Callable[[int], None]:
        """A record of a topic that is read back was sent; what is to be called with its offset."""
        self._delivered[role] = None
        return partial(self._delivered.__setitem__, role)

    @property
    def has_uncommitted(self) -> bool:
        """Whether a transaction is needed, even if nothing was forwarded."""
        is_marked = self.marks is not None and self.marks.has_staged
        return is_marked or self.lacks_offset or self.committable_offset > self.committed_offset

    @property
    def is_behind(self) -> bool:
        """Whether the next record comes again, and is in SOW already."""
        return self.next_offset <= self._again_until

    @property
    def committable_offset(self) -> int:
        """The input position that may be committed: not one among those that come again, which are in SOW already."""
        if self.is_behind:
            return self.committed_offset
        held = self._context.held_offset
        return self.next_offset if held is None else min(held, self.next_offset)

    @property
    def note(self) -> Note:
        """What a transaction commits beside the committable offset."""
        # Below what is in SOW already the offset stays where it was committed, and so does what was noted beside it.
        return Note(None, self.noted if self.is_behind else self._context.note)

    @property
    def note_with_ends(self) -> Note:
        """The same for a commit without a transaction, which says how far the outputs follow from the offset."""
        if self.tail is not None and self.is_behind:
            ends = Ends(self.tail.position, self.tail.mark_position)
        else:
            sow, mark = self._delivered.get("sow"), self._delivered.get("mark")
            ends = Ends(
                self.state.position if sow is None else sow + 1,
                mark + 1 if mark is not None else 0 if self.marks is None else self.marks.position,
            )
        return self.note._replace(ends=ends)

    def prepare(self) -> Prepared:
        """What was processed so far, and sent, is to be committed; what comes from here on is not part of it.

        `committed` or `rewind` comes before the next one.
        """
        assert self._prepared is None
        self._prepared = Prepared(max(self.committable_offset, self.committed_offset), self.note, self._take_counts())
        self.state.prepare()
        if self.marks is not None:
            self.marks.prepare()
        return self._prepared

    def committed(self) -> None:
        """Kafka has committed what was prepared; only now the state may follow.

        Raises:
            TransactionAborted: nobody said where the records went; the state must ask.
            Stop: they went to another SOW topic than the one that the state comes from.
        """
        prepared, self._prepared = self._prepared, None
        assert prepared is not None
        after = {role: None if sent is None else sent + 1 for role, sent in self._delivered.items()}
        if None in after.values():
            raise TransactionAborted(f"partition {self.partition}: committed without a delivery report")
        if (sow := after.get("sow")) is not None and sow <= self.state.position:
            problem = remade(self.pipeline.names, self.pipeline.name, "sow")
            raise Stop(
                f"{problem.topic} partition {self.partition} took a record at offset {sow - 1}, but the state knows it "
                f"up to {self.state.position}: it has lost records, or:\n  {problem}"
            )
        self.state.commit(after.get("sow"))
        if self.marks is not None:
            self.marks.commit(after.get("mark"))
        self.committed_offset, self.noted = prepared.offset, prepared.note.noted
        self.lacks_offset = False
        self._limit.committed(prepared.offset)
        self._delivered = {}
        self._suspects.committed(prepared.offset)

    @property
    def stream_time_ms(self) -> int:
        """Timestamp of the last record given to the processor, or the clock where it has seen all; 0: none yet."""
        return self._context.stream_time_ms

    @property
    def gauges(self) -> Mapping[str, float]:
        """What the processor says of itself now."""
        return self._context.gauges

    def rewind(self) -> None:
        """Forget what is not committed; a new processor will begin from there."""
        self._move("rewind")
        self.state.rollback()
        if self.marks is not None:
            self.marks.rollback()
        self._delivered, self._prepared, self.left, self.is_backlogged = {}, None, (), False
        self._waiting.rewound()
        self._close_processor()

    def close(self) -> None:
        """End the task; what is committed reaches the store, what is not is dropped."""
        was = self.task_state
        self._move("close")
        try:
            if was is TaskState.RUNNING:
                self._close_processor()
        finally:
            if was is not TaskState.CREATED:
                # One that is still being restored does not know what lies behind what it has.
                self.state.close(self._clock_ms() if was is TaskState.RUNNING else 0)

    def _take_counts(self) -> Counts:
        context = self._context
        counts = Counts(dict(context.events), dict(context.rejected), dict(context.observed))
        context.events.clear()
        context.rejected.clear()
        context.observed.clear()
        return counts

    def _rejected(self, record: Record, reason: RejectReason, detail: str) -> None:
        """Count and log a record that the processor rejected."""
        self._limit.rejected(record, reason, detail)
        if self._rejections is not None:
            self._rejections.add(self.partition, record.offset, reason, detail)

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
            self._processor.rejected(record, error)
        except Stop:
            raise
        except Exception:
            # The record is accounted for; to raise would be to meet it again, for ever.
            log.warning("processor failed to hear of a rejection", partition=self.partition, exc_info=True)

    def _call(self, records: Sequence[Record]) -> None:
        context, before_ms = self._context, self._context.stream_time_ms
        context.stopped_offset = None
        # No future time either: the input between now and then is not known.
        context.stream_time_ms = max(0, min(records[-1].timestamp_ms, context.now_ms))
        try:
            self._processor.process(records)
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
        detail = f"an output of {large.size_bytes} bytes for {self.pipeline.output(large.role)}"
        if large.size_bytes > PRODUCED_BYTES_MAX:
            why = f"{detail}; a producer takes {PRODUCED_BYTES_MAX}"
            self._suspects.reject(offset, RecordRejected("too_large", why))
        else:
            self._suspects.isolate(offset)
        raise ProcessorFailed(f"{self.pipeline.source} partition {self.partition}, offset {offset}: {detail}")

    def _held_by(self, large: TooLarge) -> PartitionHeld:
        """What holds the partition: an output of no record."""
        self._limits.forget(large.role)  # When it is asked again, its topic may take more.
        topic = self.pipeline.output(large.role)
        return PartitionHeld(
            "plugin_failed",
            f"{topic} partition {self.partition}: {self.pipeline.name} made a record of {large.size_bytes} bytes, and "
            f"the topic takes {large.limit_bytes}; raise its max.message.bytes (`sowstream topics check` tells)",
        )

    def _taken(self, records: Sequence[Record]) -> Sequence[Record]:
        """Those before the one at which the processor paused or stopped; all of them if it did neither."""
        ends = [offset for offset in (self._context.paused_offset, self._context.stopped_offset) if offset is not None]
        return records if not ends else [record for record in records if record.offset < min(ends)]

    def _close_processor(self) -> None:
        try:
            self._processor.close()
        except Stop:
            raise
        except Exception:
            # A third party's clean-up must not keep the partition from its next owner.
            log.warning("processor failed to close", partition=self.partition, exc_info=True)

    def _move(self, move: str) -> None:
        legal, to = _MOVES[move]
        assert self.task_state in legal, f"{move} is no move of a task that is {self.task_state.value}"
        self.task_state = to


def _wall_clock_ms() -> int:
    return int(time.time() * 1000)
