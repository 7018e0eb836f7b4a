"""One partition of a pipeline: its processor, its state, and its changes between two commits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from processor.errors import DiskUnusable, PartitionHeld, StateDamaged, Stop, TransactionAborted
from processor.hosting.commit_metadata import CommitMetadata, Ends
from processor.hosting.context import TaskContext
from processor.hosting.output_limits import OutputLimits
from processor.record import Record
from processor.runtime.hosted_processor import HostedProcessor
from processor.runtime.task_state import MOVES, TaskState
from processor.store.marks import TransactionalMarks
from processor.topics import recreated
from processor.wire.partition_marks import Lives

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.api import Codec
    from processor.errors import OutputTooLarge
    from processor.hosting.commit_metadata import Redelivered
    from processor.hosting.context import Timing
    from processor.hosting.pipeline import Pipeline
    from processor.record import Outgoing
    from processor.runtime.rejections import RejectionLog
    from processor.store.layered_state import LayeredState

log = structlog.stdlib.get_logger("sowstream.task")

_ALONE_RECORDS: Final = 10_000
"""Records behind a stuck one that are processed one at a time, so that the next death names the record."""

_PROOF_MS: Final = 600_000
"""Time without a commit after which a task commits its unchanged offset, as the proof that it owns its partition."""


class Counts(NamedTuple):
    """The events that a processor counted between two commits."""

    events: dict[str, int]
    """Number of times that each event occurred."""
    rejected: dict[str, int]
    """Number of rejected records, by reason."""
    observed: dict[str, Timing]
    """Observed durations, by name."""
    taken: Sequence[tuple[int, int]] = ()
    """The batches whose results are complete: the timestamp of the first record, and the number of records."""


class Prepared(NamedTuple):
    """A task's part of a transaction, apart from its records."""

    offset: int
    """The input position."""
    metadata: CommitMetadata
    """The metadata of that offset."""
    counts: Counts
    """The events counted up to there."""


class Task(HostedProcessor):
    """One partition of a pipeline: its processor, with the state and the changes that wait for the next commit.

    One thread only.
    """

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
        input_codec: Codec | None = None,
    ) -> None:
        """Create a task that has no state yet.

        Args:
            pipeline: the pipeline it belongs to.
            partition: its partition number.
            codec: the message type of the records.
            clock_ms: the wall clock, milliseconds since the epoch; None: the system's.
            partitions: the number of partitions that keys are hashed over; None: the topic's.
            rejections: logs rejected records; None: they are not logged.
            limits: the size limits of outputs, and of the bytes that may wait; None: unknown.
            input_codec: the message type of the input, if it is another one.
        """
        super().__init__(pipeline, partition, limits or OutputLimits(pipeline), rejections, clock_ms)
        self.task_state = TaskState.CREATED
        self.state: LayeredState
        self.table: LayeredState | None = None
        """The table of its input; None where the processor keeps none."""
        self.marks = TransactionalMarks(clock_ms=clock_ms) if pipeline.keeps_position else None
        """The marks, the input position among them; None without a mark topic."""
        self.lacks_offset = False
        """True if the group has no offset although the mark topic has a position: it is committed soon."""
        self.input_id = ""
        """Kafka's id of the input topic; empty until it is known."""
        self.redelivered: Redelivered | None = None
        """The redelivered records that the restore found in SOW; None after a transaction."""
        self.committed_note = ""
        """The processor's note of the last commit."""
        self.missed: Sequence[Record] = ()
        """Deletes that have gone from its input while it was away, until an input position behind them is committed."""
        self._again_until = -1
        self._table_ms = self._prepared_ms = 0  # The stream time at the last commit, and at `prepare`.
        self._owned_ms = 0  # A time at which it owned its partition: before the last commit; 0: unknown.
        self._owned_until_ms = 0  # The time of the next commit, with or without work.
        self._preparing_ms = 0  # The time of `prepare`.
        self._prepared: Prepared | None = None
        self._delivered: dict[str, int | None] = {}  # In the open transaction; None: no report yet.
        self._codec, self._input_codec = codec, input_codec
        self._partitions = pipeline.topic.partitions if partitions is None else partitions

    def open(self, state: LayeredState, table: LayeredState | None = None) -> None:
        """Take over the partition's state from disk, which may lack the newest records; likewise its table."""
        self._move("open")
        self.state, self.table = state, table

    @property
    def stores(self) -> list[LayeredState]:
        """Its state and its table, if it has one."""
        return [self.state] if self.table is None else [self.state, self.table]

    def as_of_ms(self, store: LayeredState, now_ms: int) -> int:
        """Return a time before all changes that the committed part of one of its stores lacks, 0 if it is unknown.

        Only this task writes the SOW topic of its state, as long as it owns the partition. It may have lost it long ago
        without a notice, as a process that was frozen or cut off from Kafka: a commit is the proof. Its table is as old
        as the input that has been processed. A time of a clock that has been set back since is no proof.
        """
        if store is self.state:
            known_ms = self._owned_ms
        else:
            known_ms = self.stream_time_ms if self.next_offset <= self.committed_offset else self._table_ms
        return known_ms if known_ms <= now_ms else 0

    def start(self, offset: int) -> None:
        """Begin processing at an input offset, once the state is complete."""
        self._move("start")
        self._again_until = -1 if self.redelivered is None else self.redelivered.until
        self._owned_until_ms = self._clock_ms() + _PROOF_MS
        context = TaskContext(
            self.pipeline,
            self.partition,
            self._codec,
            self.state,
            self.marks if self.pipeline.has_marks else None,
            self.rejected,
            None if self.redelivered is None else self.redelivered.applied,
            self.committed_note,
            self._partitions,
            self.waiting,
            self._limits,
            self.table,
            0 if self.table is None else self.table.position,
            self._input_codec,
            Lives(self.marks, self.input_id),
        )
        self.begin(context, offset)
        self.left = self.missed
        if self._skips_unread and self._skip_until >= offset:
            self._pass_unread()

    def skip(self, until: int, *, is_readable: bool) -> None:
        """Skip the records up to an offset: they become dead letters.

        Args:
            until: the last offset to skip.
            is_readable: whether the records can be read; if not, one dead letter without a value stands for all.
        """
        self._skip_until, self._skips_unread = until, not is_readable
        self.limit.let_pass()

    def process_alone(self, offset: int) -> None:
        """Process records one at a time, from the one at which the processor did not return."""
        self.suspects.give_alone(offset + _ALONE_RECORDS)

    def refused(self, role: str | None, error: OutputTooLarge, *, is_learnt: bool) -> None:
        """Suspect the last records of an output that Kafka refused for its size; a rewind follows.

        Args:
            role: the role of the output, if it is known.
            error: the refusal.
            is_learnt: whether the limit of that output was not known before.
        """
        if role not in {"mark", "dlq"}:
            self.suspects.refused(self.next_offset, f"an output of this record: {error}")
        elif not is_learnt:
            topic = self.pipeline.output(role)
            self.suspects.hold(PartitionHeld("plugin_failed", f"{topic} does not take a record of ours: {error}"))

    def has_seen(self, until_ms: int) -> None:
        """Note that the processor has all records that the partition had at this time."""
        self.seen_ms = self._context.complete_until_ms = until_ms
        self._context.stream_time_ms = self._known_ms

    def take_places(self, role: str) -> list[int]:
        """Take the partitions of the records of a downstream output, in their order."""
        return self._context.take_places(role)

    def take_outputs(self) -> dict[str, list[Outgoing]]:
        """Take the records forwarded since the last call."""
        return self._context.take_outputs()

    def await_delivery(self, role: str) -> Callable[[int], None]:
        """Expect a delivery report for a record of a topic that is read back; returns the callback for its offset."""
        self._delivered[role] = None
        return partial(self._delivered.__setitem__, role)

    @property
    def has_uncommitted(self) -> bool:
        """True if a transaction is needed, even if nothing was forwarded: of a quiet task, now and then."""
        is_marked = self.marks is not None and self.marks.has_staged
        if is_marked or self.lacks_offset or self.committable_offset > self.committed_offset:
            return True
        # More is left than at the commit if the clock has been set back since.
        return self.pipeline.has_state and not 0 < self._owned_until_ms - self._clock_ms() <= _PROOF_MS

    @property
    def is_behind(self) -> bool:
        """True if the next record is a redelivered one, whose result is in SOW already."""
        return self.next_offset <= self._again_until

    @property
    def committable_offset(self) -> int:
        """The input offset that may be committed: never one between redelivered records."""
        if self.is_behind:
            return self.committed_offset
        held = self._context.held_offset
        return self.next_offset if held is None else min(held, self.next_offset)

    @property
    def commit_metadata(self) -> CommitMetadata:
        """The metadata that a transaction commits with the committable offset."""
        # Among redelivered records the offset stays where it was committed, and so does its note.
        return CommitMetadata(None, self.committed_note if self.is_behind else self._context.note)

    @property
    def new_position(self) -> tuple[int, CommitMetadata] | None:
        """The input offset that a transaction commits, and its metadata; None: both are in the SOW topic already."""
        return None if self.is_behind else self._position()

    @property
    def commit_metadata_with_ends(self) -> CommitMetadata:
        """The same for a commit without a transaction, with the ends of the output topics."""
        if self.redelivered is not None and self.is_behind:
            ends = Ends(self.redelivered.position, self.redelivered.mark_position)
        else:
            sow, mark = self._delivered.get("sow"), self._delivered.get("mark")
            ends = Ends(
                self.state.position if sow is None else sow + 1,
                mark + 1 if mark is not None else 0 if self.marks is None else self.marks.position,
            )
        return self.commit_metadata._replace(ends=ends)

    def prepare(self) -> Prepared:
        """Close the task's part of the open transaction: later changes belong to the next one.

        `committed` or `rewind` must be called before the next `prepare`.
        """
        assert self._prepared is None
        self._prepared = Prepared(*self._position(), self._take_counts())
        self._prepared_ms, self._preparing_ms = self.stream_time_ms, self._clock_ms()
        for store in self.stores:
            store.prepare()
        if self.marks is not None:
            self.marks.prepare()
        return self._prepared

    def committed(self) -> None:
        """Commit the state, as Kafka has committed the prepared part.

        Raises:
            TransactionAborted: a delivery report is missing, so that the state must be restored.
            Stop: the records went to another SOW topic than the one that the state comes from.
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
        self._owned_ms, self._owned_until_ms = self._preparing_ms, self._preparing_ms + _PROOF_MS
        self.state.commit(after.get("sow"))
        if self.table is not None:
            # Up to here its processor has put the input; records that were restored before they came stay.
            self.table.commit(max(self.table.position, prepared.offset))
            self._table_ms = self._prepared_ms
        if self.marks is not None:
            self.marks.commit(after.get("mark"))
            for event, count in self.marks.forgotten.items():
                self._context.count(event, count)
            self.marks.forgotten.clear()
        self.committed_note = prepared.metadata.note
        self.lacks_offset = False
        self._delivered = {}
        self.committed_offset = prepared.offset
        if self.missed and prepared.offset > self.missed[-1].offset + 1:
            self.missed = ()
        self.limit.committed(prepared.offset)
        if self.suspects.until >= 0:
            self.suspects.committed(prepared.offset)

    @property
    def stream_time_ms(self) -> int:
        """The time up to which its processor knows the input; 0 before the first record."""
        return self._context.stream_time_ms

    @property
    def gauges(self) -> Mapping[str, float]:
        """The current gauges of the processor."""
        return self._context.gauges

    def rewind(self) -> None:
        """Drop uncommitted changes; a new processor will begin at the last commit."""
        self._move("rewind")
        for store in self.stores:
            store.rollback()
        if self.marks is not None:
            self.marks.rollback()
        self._delivered, self._prepared = {}, None
        self.end_processor()

    def close(self) -> None:
        """End the task: committed changes are written to the store, others are dropped."""
        was = self.task_state
        self._move("close")
        try:
            if was is TaskState.RUNNING:
                self.close_processor()
        finally:
            if was is not TaskState.CREATED:
                # A state that is still being restored is not complete as of now.
                for store in self.stores:
                    store.close(self.as_of_ms(store, self._clock_ms()) if was is TaskState.RUNNING else 0)

    def release(self) -> None:
        """Close the task; an error is logged only, as the next owner restores all that is missing on disk."""
        try:
            self.close()
        except (StateDamaged, DiskUnusable) as error:
            log.error("closing a state failed", partition=self.partition, why=str(error))

    def _pass_unread(self) -> None:
        """Send one dead letter for all unreadable records, and continue behind them."""
        first, last = self.next_offset, self._skip_until
        detail = f"offsets {first} to {last} could not be read and were skipped by order (sowstream resume --skip)"
        self._context.reject(Record(None, None, None, first, 0), "skipped", detail)
        self.next_offset = self._context.lives.next_offset = last + 1

    def _position(self) -> tuple[int, CommitMetadata]:
        return max(self.committable_offset, self.committed_offset), self.commit_metadata

    def _take_counts(self) -> Counts:
        context = self._context
        counts = Counts(dict(context.events), dict(context.rejected), dict(context.observed), self._complete_batches)
        self._complete_batches = []
        context.events.clear()
        context.rejected.clear()
        context.observed.clear()
        return counts

    def _move(self, move: str) -> None:
        legal, to = MOVES[move]
        assert self.task_state in legal, f"{move} is no move of a task that is {self.task_state.value}"
        self.task_state = to
