"""Runs a processor of one partition without Kafka, on a clock that stands still: for the tests of its author.

After Kafka Streams' TopologyTestDriver::

    driver = ProcessorTestDriver(DeltaMerge, TopicConfig(), name="orders")
    driver.pipe_input("7", {"id": 7, "qty": 1})
    driver.commit()
    [record] = driver.read_output("sow")
    assert record.value == b'{"id":7,"qty":1}'

Task, context and state are the runtime's own; only Kafka is played here, with what it does to a processor: a
transaction may roll back, the process may die, and both times records come again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import BaseModel

from processor.codec import codec_options, load_codec
from processor.config import TopicConfig
from processor.errors import OutputTooLarge, ProcessorFailed
from processor.hosting.declaration import check_declaration
from processor.hosting.output_limits import OutputLimits
from processor.hosting.pipeline import Pipeline
from processor.hosting.timings import Timing
from processor.kafka.partitioner import partition_for
from processor.record import Record
from processor.runtime.task import Task
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from processor.wire.sow_record import stored_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from processor.api import Headers, Marks, Outgoing, Processor, State, Value
    from processor.topics.family import Role

_CACHE_BYTES = 1024 * 1024

GivenHeaders: TypeAlias = "Mapping[str, str | bytes] | Headers | None"
"""Headers as a test writes them: a mapping, or the list itself where a name occurs twice."""


@dataclass(slots=True)
class _Log:
    """One partition of an output topic."""

    committed: list[Record] = field(default_factory=list)
    open: list[Record] = field(default_factory=list)
    """Sent in the open transaction."""
    end: int = 0

    def send(self, key: bytes | None, value: bytes | None, headers: Headers, now_ms: int) -> None:
        self.open.append(Record(key, value, headers, self.end, now_ms))
        self.end += 1

    def finish(self, *, commit: bool) -> list[Record]:
        """End the transaction, which takes an offset for its marker; what was committed by it."""
        done = self.open if commit else []
        self.end += bool(self.open)
        self.committed += done
        self.open = []
        return done


class ProcessorTestDriver:
    """One partition. What a processor forwards to its own input comes back to it with the commit."""

    def __init__(
        self,
        processor_type: type[Processor],
        settings: BaseModel | Mapping[str, Any],
        *,
        name: str,
        topic: TopicConfig | None = None,
        underlying: str | None = None,
        partition: int = 0,
        partitions: int = 1,
        registry: Mapping[str, str] | None = None,
        now_ms: int = 1_700_000_000_000,
        batch_bytes_max: int = 16 * 1024 * 1024,
    ) -> None:
        """Start with no record anywhere.

        Args:
            processor_type: the plug-in.
            settings: its settings, or what its settings model makes them of.
            name: the family of its outputs.
            topic: what holds for the records; by default what a topic of no settings has.
            underlying: the family it reads, if that is another one.
            partition: the partition's number.
            partitions: the number of partitions that keys are hashed over; 1: this partition has all keys. A record
                that is forwarded to its own partition comes back as input if that is this one, and is only in
                `read_output("publish")` else.
            registry: settings of a schema registry's client, such as `{"url": "mock://tests"}`.
            now_ms: what the clock says, milliseconds since the epoch.
            batch_bytes_max: outputs that may wait before they are sent, as the runtime's setting of this name says.
        """
        check_declaration(processor_type, processor_type.__name__)
        if not isinstance(settings, BaseModel):
            settings = processor_type.settings_type.model_validate(settings)
        topic = topic or TopicConfig()
        self.now_ms = now_ms
        """What the clock says; `advance_time` moves it."""
        self.input: list[Record] = []
        """The input partition, from offset 0."""
        self.events: Counter[str] = Counter()
        """What the processor counted, as far as it is committed."""
        self.rejections: Counter[str] = Counter()
        """Records rejected for each reason, as far as that is committed."""
        self.observed: dict[str, Timing] = {}
        """How long things took that the processor observed, by name, as far as that is committed."""
        self._pipeline = Pipeline.of(processor_type, settings, name=name, topic=topic, underlying=underlying)
        self._partition, self._partitions = partition, partitions
        self._limits = OutputLimits(self._pipeline, batch_bytes_max=batch_bytes_max)
        self._codec = load_codec(topic.message_type, codec_options(topic, name=name, registry=registry))
        self._logs: dict[Role, _Log] = {role: _Log() for role in self._pipeline.roles}
        self._task: Task
        self._begin(MemoryStore(), 0)

    def pipe_input(self, key: str | bytes | None, value: Value, headers: GivenHeaders = None) -> None:
        """Give the processor one record.

        Args:
            key: the Kafka record key.
            value: bytes as they are, None for a tombstone; anything else the codec writes.
            headers: the Kafka headers.
        """
        self.pipe_batch([(key, value, headers)])

    def pipe_batch(self, records: Iterable[tuple[str | bytes | None, Value, GivenHeaders]]) -> None:
        """Give the processor records at once: key, value and headers of each."""
        for key, value, headers in records:
            raw_key = key.encode() if isinstance(key, str) else key
            raw = value if value is None or isinstance(value, bytes) else self._codec.encode(value)
            self._append(raw_key, raw, _raw(headers))
        self.feed()

    def feed(self, records_max: int | None = None) -> None:
        """Give the processor what it has not seen, at most so many records: all that waits, if None.

        Only after `abort` or `crash` with `feed=False` is there anything, and where the processor paused: then
        `advance_time` lets it go on, with 0 too.
        """
        task = self._task
        end = len(self.input) if records_max is None else min(len(self.input), task.next_offset + records_max)
        while task.next_offset < end and not task.is_paused:
            try:
                task.process(self.input[task.next_offset : end])
                self._emit()
            except (ProcessorFailed, OutputTooLarge):
                self._roll_back()
        self._look_for_more()

    def advance_time(self, ms: int, *, punctuations_max: int | None = None) -> None:
        """Move the clock, then punctuate, again while the processor has more to do, at most so often.

        A processor that had paused and has resumed is given the records that waited.
        """
        self.now_ms += ms
        has_more, left = True, punctuations_max
        while has_more and left != 0:
            was_paused = self.is_paused
            has_more = self._task.punctuate()
            try:
                self._emit()
            except OutputTooLarge:
                self.abort()
            left = None if left is None else left - 1
            if was_paused and not self.is_paused:
                self.feed()

    def commit(self) -> None:
        """Commit the outputs and the input position; the state follows."""
        task = self._task
        if task.marks is not None:
            self._send("mark", [(name, value, []) for name, value in task.marks.staged])
        sent = {role: log.finish(commit=True) for role, log in self._logs.items()}
        counts = task.prepare().counts
        task.committed()
        self.events.update(counts.events)
        self.rejections.update(counts.rejected)
        for timing, observed in counts.observed.items():
            self.observed.setdefault(timing, Timing()).include(observed)
        own_input = self._pipeline.processor_type.input
        if not own_input.from_underlying:
            for record in sent.get(own_input.role, ()):
                if self._partitions == 1 or partition_for(record.key or b"", self._partitions) == self._partition:
                    self._append(record.key, record.value, record.headers)
            self.feed()

    def abort(self, *, feed: bool = True) -> None:
        """Roll back the open transaction: a new instance gets its records again, unless `feed` is False."""
        self._roll_back()
        if feed:
            self.feed()

    def crash(self, *, keep_store: bool = False, feed: bool = True) -> None:
        """Kill the process and start another.

        Args:
            keep_store: it comes back on the same machine and finds what `write` brought to the store, no more.
            feed: give it the records after the committed input position at once.
        """
        self._finish_aborted()
        store = self._store if keep_store else MemoryStore()
        self._begin(store, self._task.committed_offset, self._task.noted)
        if feed:
            self.feed()

    def write(self) -> None:
        """Bring what is committed from memory to the store, as the runtime does now and then."""
        self._task.state.write(self.now_ms)

    def close(self) -> None:
        """End the task."""
        self._task.close()

    def read_output(self, role: Role) -> list[Record]:
        """An output topic from its beginning, as a reader of committed records sees it."""
        return list(self._logs[role].committed)

    def pending_output(self, role: Role) -> list[Record]:
        """What the open transaction would add to an output topic."""
        return list(self._logs[role].open)

    @property
    def state(self) -> State:
        """What the processor sees of its state.

        Raises:
            LookupError: it declares no output for it.
        """
        if not self._pipeline.has_state:
            raise LookupError(f"{self._pipeline.processor_type.__name__} declares no output of role 'sow'")
        return self._task.state

    @property
    def marks(self) -> Marks:
        """What the processor sees of its marks.

        Raises:
            LookupError: it declares no output for them.
        """
        if self._task.marks is None or not self._pipeline.has_marks:
            raise LookupError(f"{self._pipeline.processor_type.__name__} declares no output of role 'mark'")
        return self._task.marks

    @property
    def is_paused(self) -> bool:
        """Whether the processor takes no records until it has done something else."""
        return self._task.is_paused

    @property
    def committed_offset(self) -> int:
        """The input offset at which a successor would begin."""
        return self._task.committed_offset

    @property
    def noted(self) -> str:
        """What the processor noted beside it."""
        return self._task.noted

    @property
    def gauges(self) -> dict[str, float]:
        """What the processor says of itself now."""
        return dict(self._task.gauges)

    def _begin(self, store: MemoryStore, offset: int, noted: str = "") -> None:
        """A process starts: nothing is in memory."""
        self._store = store
        self._task = Task(
            self._pipeline,
            self._partition,
            self._codec,
            lambda: self.now_ms,
            partitions=self._partitions,
            limits=self._limits,
        )
        self._task.noted = noted
        self._task.open(LayeredState(store, cache_bytes=_CACHE_BYTES))
        self._restore(offset)

    def _restore(self, offset: int) -> None:
        """Read the SOW topic to its end, if there is one, then begin at an input offset."""
        if self._pipeline.has_state:
            state, sow = self._task.state, self._logs["sow"]
            changes = {}
            for record in sow.committed:
                if record.offset >= state.position:
                    assert record.key is not None, "a SOW record has a key"
                    changes[record.key] = stored_from(record)
            state.restore(changes, sow.end, self.now_ms)
        if (marks := self._task.marks) is not None:
            log = self._logs["mark"]
            news = [(record.key or b"", record.value) for record in log.committed if record.offset >= marks.position]
            marks.restore(news, log.end)
        self._task.start(offset)
        self._look_for_more()

    def _look_for_more(self) -> None:
        """Tell the end of the input where it is reached, as Kafka does."""
        if self._task.next_offset >= len(self.input) and not self._task.is_paused:
            self._task.reached_end()

    def _roll_back(self) -> None:
        self._finish_aborted()
        offset = self._task.committed_offset
        self._task.rewind()
        self._restore(offset)

    def _finish_aborted(self) -> None:
        for log in self._logs.values():
            log.finish(commit=False)

    def _emit(self) -> None:
        """Send what the processor forwarded, in the open transaction.

        Raises:
            OutputTooLarge: a producer would not take one of them.
        """
        outputs = self._task.take_outputs()
        if (large := self._limits.largest(outputs)) is not None:
            topic = self._pipeline.output(large.role)
            said = f"{topic}: {large.size_bytes} bytes; a producer takes {large.limit_bytes}"
            error = OutputTooLarge(said, topic, self._partition)
            self._task.host.refused(large.role, error, is_learnt=False)
            raise error
        for role, outgoing in outputs.items():
            self._send(role, outgoing)

    def _send(self, role: Role, outgoing: Sequence[Outgoing]) -> None:
        log = self._logs[role]
        for key, value, headers in outgoing:
            log.send(key, value, headers, self.now_ms)
        if outgoing and role in {"sow", "mark"}:
            self._task.await_delivery(role)(log.end - 1)

    def _append(self, key: bytes | None, value: bytes | None, headers: Headers | None) -> None:
        self.input.append(Record(key, value, headers or None, len(self.input), self.now_ms))


def _raw(headers: GivenHeaders) -> Headers | None:
    """Headers as Kafka has them."""
    if not isinstance(headers, Mapping):
        return headers
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in headers.items()]
