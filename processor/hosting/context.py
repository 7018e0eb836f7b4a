"""The runtime as one partition's processor sees it: state and marks, outputs and clock; it keeps the calls' effects."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final, NoReturn

from processor.errors import UndeclaredOutput
from processor.hosting.commit_metadata import checked_note
from processor.hosting.forwarded import CheckedMarks, CheckedState, checked_records, is_ours
from processor.hosting.output_limits import OutputLimits, WaitingOutput, dead_letter, size_of
from processor.hosting.record_writer import RecordWriter
from processor.kafka.partitioner import partition_for
from processor.wire.partition_marks import Lives

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.api import Codec, Marks, State
    from processor.config import TopicConfig
    from processor.errors import RecordRejected
    from processor.hosting.pipeline import Pipeline
    from processor.record import Headers, Outgoing, Record, Value


BOUNDS_S: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 5.0, 6.0, 7.5, 10.0, 15.0, 30.0, 60.0, 300.0,
)  # fmt: skip


class Timing:
    """The observations of one name. No lock: one thread only."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """The number of durations up to the bound of this index, and above the bound before it."""
        self.seconds = 0.0
        """The sum of all durations."""

    def add(self, seconds: float, times: int) -> None:
        """Add a duration, so many times; a negative one, of a clock that was set back, counts as none."""
        seconds = max(0.0, seconds)
        self.counts[bisect_left(BOUNDS_S, seconds)] += times
        self.seconds += seconds * times

    def include(self, other: Timing) -> None:
        """Add all observations of another timing."""
        self.counts = [mine + more for mine, more in zip(self.counts, other.counts, strict=True)]
        self.seconds += other.seconds

    @property
    def times(self) -> int:
        """The number of observations."""
        return sum(self.counts)


class TaskContext:
    """The `Context` of one partition. Forwarded records wait here until the task hands them to the transaction."""

    def __init__(
        self,
        pipeline: Pipeline,
        partition: int,
        codec: Codec,
        state: State,
        marks: Marks | None = None,
        on_reject: Callable[[Record, str, str], None] | None = None,
        applied: Mapping[int, Sequence[bytes]] | None = None,
        noted: str = "",
        partitions: int = 1,
        waiting: WaitingOutput | None = None,
        limits: OutputLimits | None = None,
        table: State | None = None,
        table_until: int = 0,
        input_codec: Codec | None = None,
        lives: Lives | None = None,
    ) -> None:
        self.name = pipeline.name
        self.source_topic = pipeline.source
        self.partition = partition
        self.partitions = partitions
        self.topic: TopicConfig = pipeline.topic
        self.codec = codec
        self.input_codec = input_codec or codec
        self.lives = lives or Lives()
        self.queues = pipeline.queues
        self._is_trusted = is_ours(pipeline.processor_type)
        no_state = _undeclared(pipeline, "its state, and its `outputs` declare no output of role 'sow'")
        self.state: State = state if pipeline.has_state else no_state
        no_table = _undeclared(pipeline, "its state, and `keeps_table` is not declared")
        self.table: State = no_table if table is None else table
        self.table_until = table_until
        self.applied: Mapping[int, Sequence[bytes]] = applied or {}
        no_marks = _undeclared(pipeline, "the mark {!r}, and its `outputs` declare no output of role 'mark'")
        self.marks: Marks = no_marks if marks is None else marks
        if not self._is_trusted:
            self.state = CheckedState(self.state, pipeline.name, self._has_acted)
            self.table = CheckedState(self.table, pipeline.name, self._has_acted)
            self.marks = CheckedMarks(self.marks, pipeline.name, self._has_acted)
        self.now_ms = 0
        self.stream_time_ms = 0
        self.complete_until_ms = 0
        self.is_at_end = False
        self.noted = noted
        self.held_offset: int | None = None
        self.paused_offset: int | None = None
        self.stopped_offset: int | None = None
        self.skipped_offset = 0
        self.acts = 0
        self.note = noted  # Until the next `hold`.
        self.gauges: dict[str, float] = {}
        self.observed: defaultdict[str, Timing] = defaultdict(Timing)
        self.events: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self._on_reject = on_reject
        self.waiting = waiting or WaitingOutput(sys.maxsize)
        self.is_full = self.waiting.is_enough
        self._limits = limits or OutputLimits(pipeline)
        self._pipeline = pipeline
        self._writer: RecordWriter | None = None  # Made for the first `put`: most of ours write batches.
        # Marks go out through `marks` alone, which knows the committed ones.
        self._outputs: dict[str, list[Outgoing]] = {
            role: [] for role in (*pipeline.roles, *pipeline.outlets) if role != "mark"
        }
        self._places: dict[str, list[int]] = {role: [] for role in pipeline.outlets}

    def put(self, key: bytes, record: Value, headers: Headers | None = None) -> None:
        """Write the record of a key: state, SOW record, version and delta."""
        self._records.put(key, record, headers)

    def delete(self, key: bytes, headers: Headers | None = None) -> bool:
        """Delete the record of a key; return whether there was one."""
        return self._records.delete(key, headers)

    def put_changed(
        self, records: Mapping[bytes, Value], headers: Headers | None = None
    ) -> dict[bytes, RecordRejected]:
        """Write those of many records that differ from what is there; return the errors of those that cannot be."""
        return self._records.put_changed(records, headers)

    @property
    def _records(self) -> RecordWriter:
        if self._writer is None:
            self._writer = RecordWriter(self, self._pipeline)
        return self._writer

    def forward(self, output: str, key: bytes, value: bytes | None, headers: Headers) -> None:
        """Send one record to an output."""
        self.forward_many(output, [(key, value, headers)])

    def forward_many(self, output: str, records: Sequence[Outgoing], size_bytes: int | None = None) -> None:
        """Send records to an output."""
        if not self._is_trusted:
            records = checked_records(self.name, output, records)
        try:
            self._outputs[output].extend(records)
        except KeyError:
            why = "is written through `marks` alone" if output == "mark" else "its `outputs` do not declare"
            raise UndeclaredOutput(f"{self.name} forwards to {output!r}, which {why}") from None
        self.acts += 1
        self.waiting.records += len(records)
        if size_bytes is None:
            size_bytes = sum([len(value) for _, value, _ in records if value is not None])
        if size_bytes:
            self.waiting.add(size_bytes)

    def forward_to(self, output: str, partition: int, records: Sequence[Outgoing]) -> None:
        """Send records to one partition of a downstream output."""
        places = self._places.get(output)
        if places is None or not 0 <= partition < self._pipeline.outlets[output].partitions:
            raise UndeclaredOutput(
                f"{self.name} forwards to partition {partition} of {output!r}, which is no partition of a declared "
                "downstream output"
            )
        self.forward_many(output, records)
        places.extend([partition] * len(records))

    def stop(self, offset: int) -> None:
        """Take no record from this offset on in this call; of several offsets the first one counts."""
        self.acts += 1
        self.stopped_offset = offset if self.stopped_offset is None else min(offset, self.stopped_offset)
        self.waiting.end_turn()

    def reject(self, record: Record, reason: str, detail: str) -> None:
        """Send an input record to the dead-letter topic with the reason: complete, or as much of it as fits.

        Raises:
            ValueError: the reason is not a word that a metric can have as its label.
        """
        source = f"{self.source_topic}/{self.partition}/{record.offset}"
        letter = dead_letter(record, reason, detail, source, self._limits.of("dlq"))
        self.acts += 1
        self._outputs["dlq"].append(letter)
        self.waiting.records += 1
        self.waiting.add(len(letter[1] or b""))
        self.rejected[reason] += 1
        if self._on_reject is not None:
            self._on_reject(record, reason, detail)

    def partition_for(self, key: bytes, output: str | None = None) -> int:
        """Return the partition that a key's hash chooses, of the own topics or of a downstream output's."""
        if output is not None:
            return partition_for(key, self._pipeline.outlets[output].partitions)
        return self.partition if self.partitions == 1 else partition_for(key, self.partitions)

    def partitions_of(self, output: str) -> int:
        """Return the number of partitions of a downstream output's topic."""
        return self._pipeline.outlets[output].partitions

    def hold(self, offset: int | None, note: str = "") -> None:
        """Do not commit input positions above this offset, and commit a note beside the one that is."""
        self.note = checked_note(note)
        self.held_offset = offset
        self.acts += 1

    def pause(self, offset: int) -> None:
        """Take no record from this offset on until `resume`."""
        self.acts += 1
        self.paused_offset = offset
        self.waiting.end_turn()

    def resume(self) -> None:
        """Take records again."""
        self.paused_offset = None

    def fits(self, output: str, record: Outgoing) -> bool:
        """Return whether the topic of an output takes a record, as far as its limit is known."""
        return size_of(record) <= self._limits.of(output)

    def skip_to(self, offset: int) -> None:
        """Go on with the input at an offset."""
        self.skipped_offset = offset

    def count(self, event: str, amount: int = 1) -> None:
        """Count an event."""
        if not amount >= 0:
            raise ValueError(f"{self.name} counts {amount} of {event!r}; an event occurs 0 times or more")
        self.events[event] += amount

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge."""
        self.gauges[name] = float(value)

    def observe(self, name: str, seconds: float, times: int = 1) -> None:
        """Add a duration to a timing."""
        self.observed[name].add(seconds, times)

    def _has_acted(self) -> None:
        self.acts += 1

    def take_outputs(self) -> dict[str, list[Outgoing]]:
        """Return the records forwarded since the last call, by output; outputs without records are left out."""
        taken = {role: records for role, records in self._outputs.items() if records}
        for role in taken:
            self._outputs[role] = []
        self.waiting.sent()
        return taken

    def take_places(self, output: str) -> list[int]:
        """Return the partitions of the records of a downstream output since the last call, in their order."""
        taken, self._places[output] = self._places[output], []
        return taken

    def output_counts(self) -> dict[str, int]:
        """Return the number of records that wait for each output, for `outputs_after`."""
        return {role: len(records) for role, records in self._outputs.items()}

    def outputs_after(self, counts: Mapping[str, int]) -> dict[str, list[Outgoing]]:
        """Return the records that were forwarded since these counts were taken, and still wait."""
        return {role: records[counts[role] :] for role, records in self._outputs.items()}


class _Undeclared:
    """The state, the table or the marks of a processor that declares none: a change would be lost."""

    def __init__(self, text: str) -> None:
        self._text = text  # Formatted with the arguments of the call.

    def __getattr__(self, _name: str) -> Callable[..., NoReturn]:
        return self._fail

    def _fail(self, *arguments: object) -> NoReturn:
        raise UndeclaredOutput(self._text.format(*arguments))


def _undeclared(pipeline: Pipeline, text: str) -> Any:
    return _Undeclared(f"{pipeline.name} uses {text}")
