"""One partition of a pipeline: its processor, its state, and where it stands between two commits."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import structlog

from processor.errors import DiskUnusable, StateDamaged, Stop, TransactionAborted
from processor.hosting.commit_metadata import Ends, Note
from processor.hosting.context import TaskContext
from processor.hosting.output_limits import OutputLimits
from processor.runtime.hosted_processor import HostedProcessor
from processor.runtime.task_state import MOVES, TaskState
from processor.store.marks import TransactionalMarks
from processor.topics import recreated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.api import Codec
    from processor.hosting.pipeline import Pipeline
    from processor.hosting.timings import Timing
    from processor.record import Outgoing, Record
    from processor.runtime.holding.rejection_log import RejectionLog
    from processor.runtime.recovery.redelivered import Tail
    from processor.store.layered_state import LayeredState
    from processor.topics.family import Role

log = structlog.stdlib.get_logger("sowstream.task")

_TURNS_LEFT_MAX: Final = 4
"""A task that needs more turns than these for what it was given reads nothing meanwhile."""


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
        self.state: LayeredState
        self.marks = TransactionalMarks() if pipeline.keeps_position else None
        """What lasts besides the records, the input position among it; None without a mark topic."""
        self.committed_offset = -1
        """The input position that Kafka has for us."""
        self.lacks_offset = False
        """Whether Kafka has no input position for us, though we know one: it is committed soon, input or not."""
        self.tail: Tail | None = None
        """What the restore found in SOW of input that comes again."""
        self.noted = ""
        """What the processor noted with the last commit."""
        self.is_backlogged = False
        """Whether no more is read before these records are done."""
        self._limits = limits or OutputLimits(pipeline)
        self.host = HostedProcessor(pipeline, partition, self._limits, rejections)
        """Gives the processor its records."""
        self._again_until = -1
        self._prepared: Prepared | None = None
        self._delivered: dict[Role, int | None] = {}  # In the open transaction; None: no report has come yet.
        self._is_at_end = False  # Whether the processor was given every record that Kafka told of.
        self._codec = codec
        self._clock_ms = clock_ms or _wall_clock_ms
        self._context: TaskContext
        self._partitions = pipeline.topic.partitions if partitions is None else partitions

    def open(self, state: LayeredState) -> None:
        """Take the partition's state, as it was left; it may lack the newest records."""
        self._move("open")
        self.state = state

    def start(self, offset: int) -> None:
        """The state is complete: begin processing at an input offset."""
        self._move("start")
        self.committed_offset = offset
        self._is_at_end = False
        self._again_until = -1 if self.tail is None else self.tail.until
        self._context = TaskContext(
            self.pipeline,
            self.partition,
            self._codec,
            self.state,
            self.marks if self.pipeline.has_marks else None,
            self.host.rejected,
            None if self.tail is None else self.tail.applied,
            self.noted,
            self._partitions,
            self.host.waiting,
            self._limits,
        )
        self._context.now_ms = self._clock_ms()
        self.host.begin(self._context, offset)

    def process(self, records: Sequence[Record]) -> None:
        """Give the processor its next records, until enough of its outputs wait: `host.left` has the others.

        Raises:
            ProcessorFailed: it raised; the task is to be rewound.
            PartitionHeld: too many records in a row were rejected, or it cannot go on for now.
        """
        self._context.now_ms = self._clock_ms()
        self._is_at_end = False
        self.host.process(records)

    @property
    def next_offset(self) -> int:
        """The input offset after the last record given to the processor."""
        return self.host.next_offset

    @property
    def is_paused(self) -> bool:
        """Whether the processor takes no records until it has done something else; the next one comes again then."""
        return self.host.is_paused

    def flow(self, taken: int, *, is_alone: bool) -> Literal["pause", "begin"] | None:
        """Whether to read no more of its input for now, or to read it again from `next_offset`; None: as before.

        Args:
            taken: how many records its processor has just been given.
            is_alone: whether no other task would wait for it.
        """
        left = len(self.host.left)
        if self.is_paused:
            self.is_backlogged = False
            return "pause"
        if left and not self.is_backlogged:
            # What comes after it would keep the others' records waiting; it is read again when this is done.
            self.is_backlogged = not is_alone and left > _TURNS_LEFT_MAX * taken
            return "pause" if self.is_backlogged else None
        if self.is_backlogged and not left:
            self.is_backlogged = False
            return "begin"
        return None

    def punctuate(self) -> bool:
        """Let the processor do what is due by the clock; whether there is more.

        Raises:
            PartitionHeld: it raised, or made a record that its topic does not take.
        """
        now_ms = self._context.now_ms = self._clock_ms()
        if self._is_at_end:
            self._context.stream_time_ms = now_ms
        else:
            # A record from the future, by the clock of who wrote it, must not look like the end.
            self._context.stream_time_ms = min(self._context.stream_time_ms, now_ms - 1)
        return self.host.punctuate(now_ms)

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
            problem = recreated(self.pipeline.names, self.pipeline.name, "sow")
            raise Stop(
                f"{problem.topic} partition {self.partition} took a record at offset {sow - 1}, but the state knows it "
                f"up to {self.state.position}: it has lost records, or:\n  {problem}"
            )
        self.state.commit(after.get("sow"))
        if self.marks is not None:
            self.marks.commit(after.get("mark"))
        self.committed_offset, self.noted = prepared.offset, prepared.note.noted
        self.lacks_offset = False
        self._delivered = {}
        self.host.committed(prepared.offset)

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
        self._delivered, self._prepared, self.is_backlogged = {}, None, False
        self.host.rewind()

    def close(self) -> None:
        """End the task; what is committed reaches the store, what is not is dropped."""
        was = self.task_state
        self._move("close")
        try:
            if was is TaskState.RUNNING:
                self.host.close()
        finally:
            if was is not TaskState.CREATED:
                # One that is still being restored does not know what lies behind what it has.
                self.state.close(self._clock_ms() if was is TaskState.RUNNING else 0)

    def let_go(self) -> None:
        """`close` for the next owner: it finds the damage, or what reached the disk, and restores the rest."""
        try:
            self.close()
        except (StateDamaged, DiskUnusable) as error:
            log.error("closing a state failed", partition=self.partition, why=str(error))

    def _take_counts(self) -> Counts:
        context = self._context
        counts = Counts(dict(context.events), dict(context.rejected), dict(context.observed))
        context.events.clear()
        context.rejected.clear()
        context.observed.clear()
        return counts

    def _move(self, move: str) -> None:
        legal, to = MOVES[move]
        assert self.task_state in legal, f"{move} is no move of a task that is {self.task_state.value}"
        self.task_state = to


def _wall_clock_ms() -> int:
    return int(time.time() * 1000)
