"""Runs one partition of a processor without Kafka."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog
from pydantic import BaseModel

from processor.api import Processor
from processor.codec import codec_options, load_codec
from processor.config import TopicConfig
from processor.config.suggestions import validated
from processor.errors import OutputTooLarge, ProcessorFailed
from processor.hosting.context import Timing
from processor.hosting.output_limits import OutputLimits
from processor.hosting.pipeline import Outlet, Pipeline, check_settings
from processor.hosting.plugins import check_declaration
from processor.kafka.partitioner import partition_for
from processor.record import Record
from processor.runtime.task import Task
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from processor.testing.commit_check import OutputLogs, StateCheck, WatchedState
from processor.wire.publisher_mark import mark_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from processor.api import Codec, Headers, Marks, Outgoing, State, Value
    from processor.config import QueueConfig

BEHIND_MS: Final = 1_000
"""The distance of the stream time from the clock while no record comes: about that of a worker."""

_CACHE_BYTES = 1024 * 1024

GivenHeaders: TypeAlias = "Mapping[str, str | bytes] | Headers | None"
"""Headers in a test: a mapping, or the list itself where a name occurs twice."""


class ProcessorTestDriver:
    """One partition of a processor. Records that it forwards to its own input come back to it with the commit."""

    def __init__(
        self,
        processor_type: type[Processor],
        settings: BaseModel | Mapping[str, Any] | None = None,
        *,
        name: str,
        topic: TopicConfig | None = None,
        underlying: str | None = None,
        partition: int = 0,
        partitions: int = 1,
        registry: Mapping[str, str] | None = None,
        now_ms: int = 1_700_000_000_000,
        behind_ms: int = BEHIND_MS,
        batch_bytes_max: int = 16 * 1024 * 1024,
        checks_state: bool = True,
        queues: Mapping[str, QueueConfig] | None = None,
        outlets: Mapping[str, int] | None = None,
        input_codec: Codec | None = None,
    ) -> None:
        """Start with no record in any topic.

        Args:
            processor_type: the plug-in.
            settings: its settings, or the mapping that its settings model validates; None: the defaults.
            name: the family of its outputs.
            topic: the settings of the records. By default the processor's own settings where these are a topic's, else
                those of a topic without settings.
            underlying: the family it reads, if that is another one.
            partition: the partition's number.
            partitions: the number of partitions that keys are hashed over; 1: this partition has all keys. A record
                that is forwarded to its own partition comes back as input if that is this one, and is only in
                `read_output("publish")` else.
            registry: settings of a schema registry's client, such as `{"url": "mock://tests"}`.
            now_ms: the time of the clock, milliseconds since the epoch.
            behind_ms: the time by which the stream time is behind the clock while no record comes, as in a worker; 0:
                not at all.
            batch_bytes_max: outputs that may wait before they are sent, as in the runtime's setting of this name.
            checks_state: whether each commit compares the state with the SOW records, and their keys with those of the
                input, unless the topic has one partition.
            queues: the queues over the records, by name; the messages of `NAME` are `read_output("NAME.queue")`.
            outlets: the number of partitions of each downstream output. Its records are in `read_output` under the
                output's name with `@` and the partition, such as `parts@3`.
            input_codec: the message type of its input, if it is not that of the topic.

        Raises:
            ConfigurationError: the declaration or the settings are wrong.
        """
        _shorten_tracebacks()
        check_declaration(processor_type, processor_type.__name__)
        if not isinstance(settings, BaseModel):
            settings = validated(processor_type.settings_type, settings or {}, name)
        topic = topic or (settings if isinstance(settings, TopicConfig) else TopicConfig())
        self.now_ms = now_ms
        """The time of the clock; `advance_time` moves it."""
        self.input: list[Record] = []
        """The input partition, from offset 0."""
        self.events: Counter[str] = Counter()
        """The events that the processor counted, as far as they are committed."""
        self.rejections: Counter[str] = Counter()
        """The number of rejected records for each reason, as far as they are committed."""
        self.observed: dict[str, Timing] = {}
        """The durations that the processor observed, by name, as far as they are committed."""
        self.on_commit: Callable[[Mapping[str, list[Record]]], None] = self._return_to_input
        """Called with the records of each commit, by output. The default returns those for the own input."""
        self._pipeline = Pipeline.of(
            processor_type,
            settings,
            name=name,
            topic=topic,
            underlying=underlying,
            queues=tuple((queues or {}).items()),
            outlets={role: Outlet(f"{name}.{role}", count) for role, count in (outlets or {}).items()},
        )
        self._behind_ms, self._partition, self._partitions = behind_ms, partition, partitions
        self._check = StateCheck.of(self._pipeline, partition) if checks_state else None
        self._limits = OutputLimits(self._pipeline, batch_bytes_max=batch_bytes_max)
        self._codec = load_codec(topic.message_type, codec_options(topic, name=name, registry=registry))
        self._input_codec = input_codec or self._codec
        check_settings([self._pipeline], lambda _: self._input_codec)
        self._logs = OutputLogs(self._pipeline)
        self._task: Task
        self._begin(MemoryStore(), 0)

    def pipe_input(
        self, key: str | bytes | None, value: Value, headers: GivenHeaders = None, *, timestamp_ms: int | None = None
    ) -> None:
        """Deliver one record to the processor.

        Args:
            key: the Kafka record key.
            value: bytes as they are, None for a tombstone; the codec writes anything else.
            headers: the Kafka headers.
            timestamp_ms: the timestamp; None: the time of the clock.
        """
        self._append(key, value, headers, timestamp_ms)
        self.feed()

    def pipe_batch(self, records: Iterable[tuple[str | bytes | None, Value, GivenHeaders]]) -> None:
        """Deliver several records at once: key, value and headers of each."""
        for key, value, headers in records:
            self._append(key, value, headers)
        self.feed()

    def feed(self, records_max: int | None = None) -> None:
        """Deliver the input records that wait, at most so many; None: all of them.

        Records wait after `abort` or `crash` with `feed=False`, and where the processor paused: then `advance_time`
        lets it go on, with 0 too.
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

        A processor that had paused and has resumed receives the records that waited.
        """
        self.now_ms += ms
        has_more, left = True, punctuations_max
        while has_more and left != 0:
            was_paused = self.is_paused
            self._look_for_more()
            has_more = self._task.punctuate()
            try:
                self._emit()
            except OutputTooLarge:
                self.abort()
            left = None if left is None else left - 1
            if was_paused and not self.is_paused:
                self.feed()

    def commit(self) -> None:
        """Commit the outputs and the input position; the state follows.

        A note that changed alone is committed here, as with the work of another partition of its worker's thread; where
        there is none, a worker makes no commit for it.

        Raises:
            AssertionError: a crash would change the state, as its SOW records are missing or different, or without a
                `source` in a processor that is repeatable; or their keys would be written in other partitions, too.
        """
        task = self._task
        task.flush()
        self._emit()
        if self._check is not None and self._pipeline.has_state:
            self._check.check(self._state, self._logs["sow"].open)
        if task.marks is not None:
            self._send("mark", [mark_record(name, text) for name, text in task.marks.staged])
        sent = self._logs.finish(commit=True)
        counts = task.prepare().counts
        task.committed()
        self.events.update(counts.events)
        self.rejections.update(counts.rejected)
        for timing, observed in counts.observed.items():
            self.observed.setdefault(timing, Timing()).include(observed)
        self.on_commit(sent)

    def append_input(
        self, key: bytes | None, value: bytes | None, headers: Headers | None, timestamp_ms: int | None = None
    ) -> None:
        """Append a record to the input partition, by default of the clock's time; `feed` delivers it."""
        if self._check is not None and key is not None:
            self._check.input_keys.add(key)
        timestamp_ms = self.now_ms if timestamp_ms is None else timestamp_ms
        self.input.append(Record(key, value, headers or None, len(self.input), timestamp_ms))

    def abort(self, *, feed: bool = True) -> None:
        """Roll back the open transaction: a new instance gets its records again, unless `feed` is False."""
        self._roll_back()
        if feed:
            self.feed()

    def crash(self, *, keep_store: bool = False, feed: bool = True) -> None:
        """Kill the process and start another.

        Args:
            keep_store: the new process starts on the same machine, with the states that `write` brought to the store.
            feed: deliver the records after the committed input position at once.
        """
        self._finish_aborted()
        store, table = (self._store, self._table) if keep_store else (MemoryStore(), MemoryStore())
        self._begin(store, self._task.committed_offset, self._task.committed_note, table)
        if feed:
            self.feed()

    def write(self) -> None:
        """Write the committed states from memory to the store, as the runtime does now and then."""
        for store in self._task.stores:
            store.write(self.now_ms)

    def close(self) -> None:
        """End the task."""
        self._task.close()

    def read_output(self, role: str) -> list[Record]:
        """Return an output topic from its beginning, as a reader of committed records sees it.

        Raises:
            LookupError: there is no such output.
        """
        return list(self._logs[role].committed)

    def pending_output(self, role: str) -> list[Record]:
        """Return the records that the open transaction would add to an output topic."""
        return list(self._logs[role].open)

    @property
    def state(self) -> State:
        """The state as the processor sees it, uncommitted changes included.

        Raises:
            LookupError: it declares no output for it.
        """
        if not self._pipeline.has_state:
            raise LookupError(f"{self._pipeline.processor_type.__name__} declares no output of role 'sow'")
        return self._task.state

    @property
    def marks(self) -> Marks:
        """The marks as the processor sees them, uncommitted changes included.

        Raises:
            LookupError: it declares no output for them.
        """
        if self._task.marks is None or not self._pipeline.has_marks:
            raise LookupError(f"{self._pipeline.processor_type.__name__} declares no output of role 'mark'")
        return self._task.marks

    @property
    def is_paused(self) -> bool:
        """True if the processor has paused its input until other work is done."""
        return self._task.is_paused

    @property
    def has_input(self) -> bool:
        """True if records wait that `feed` would deliver."""
        return self._task.next_offset < len(self.input) and not self.is_paused

    @property
    def pipeline(self) -> Pipeline:
        """The processor with its settings and topics."""
        return self._pipeline

    @property
    def committed_offset(self) -> int:
        """The input offset at which a successor would begin."""
        return self._task.committed_offset

    @property
    def noted(self) -> str:
        """The note that the processor committed with it."""
        return self._task.committed_note

    @property
    def gauges(self) -> dict[str, float]:
        """The gauges that the processor shows now."""
        return dict(self._task.gauges)

    def _append(
        self, key: str | bytes | None, value: Value, headers: GivenHeaders, timestamp_ms: int | None = None
    ) -> None:
        """Append a record of a test to the input partition."""
        raw_key = key.encode() if isinstance(key, str) else key
        raw = value if value is None or isinstance(value, bytes) else self._input_codec.encode(value)
        if isinstance(headers, Mapping):
            headers = [(name, text.encode() if isinstance(text, str) else text) for name, text in headers.items()]
        self.append_input(raw_key, raw, headers, timestamp_ms)

    def _begin(self, store: MemoryStore, offset: int, noted: str = "", table: MemoryStore | None = None) -> None:
        """Start a process with nothing in memory."""
        self._store, self._table = store, table or MemoryStore()
        self._task = Task(
            self._pipeline,
            self._partition,
            self._codec,
            lambda: self.now_ms,
            partitions=self._partitions,
            limits=self._limits,
            input_codec=self._input_codec,
        )
        self._task.committed_note = noted
        self._state = WatchedState(store, cache_bytes=_CACHE_BYTES)
        has_table = self._pipeline.has_table
        self._task.open(self._state, LayeredState(self._table, cache_bytes=_CACHE_BYTES) if has_table else None)
        self._restore(offset)

    def _restore(self, offset: int) -> None:
        """Read the outputs to their ends, then begin at an input offset."""
        self._logs.restore(self._task, self.input, self.now_ms)
        self._task.start(offset)
        self._look_for_more()

    def _look_for_more(self) -> None:
        """Signal the end of the input where it is reached, as Kafka does."""
        if self._task.next_offset >= len(self.input) and not self._task.is_paused:
            self._task.reached_end()
            self._task.has_seen(max(0, self.now_ms - self._behind_ms))

    def _roll_back(self) -> None:
        self._finish_aborted()
        offset = self._task.committed_offset
        self._task.rewind()
        self._restore(offset)

    def _finish_aborted(self) -> None:
        self._logs.finish(commit=False)
        self._state.changed_keys.clear()

    def _return_to_input(self, sent: Mapping[str, list[Record]]) -> None:
        """Append the committed records of the own input to it, if they are for this partition, and deliver them."""
        own_input = self._pipeline.processor_type.input
        if own_input.from_underlying:
            return
        for record in sent.get(own_input.role, ()):
            if self._partitions == 1 or partition_for(record.key or b"", self._partitions) == self._partition:
                self.append_input(record.key, record.value, record.headers)
        self.feed()

    def _emit(self) -> None:
        """Send the forwarded records, in the open transaction.

        Raises:
            OutputTooLarge: a producer would not take one of them.
        """
        outputs = self._task.take_outputs()
        if (large := self._limits.largest(outputs)) is not None:
            topic = self._pipeline.output(large.role)
            detail = f"{topic}: {large.size_bytes} bytes; a producer takes {large.limit_bytes}"
            error = OutputTooLarge(detail, topic, self._partition)
            self._task.refused(large.role, error, is_learnt=False)
            raise error
        for role, outgoing in outputs.items():
            if role not in self._pipeline.outlets:
                self._send(role, outgoing)
                continue
            for partition, record in zip(self._task.take_places(role), outgoing, strict=True):
                self._send(f"{role}@{partition}", [record])

    def _send(self, role: str, outgoing: Sequence[Outgoing]) -> None:
        self._logs.send(self._task, role, outgoing, self.now_ms)


def _shorten_tracebacks() -> None:
    """Print the error of a failing processor as Python does: structlog's own form shows all variables, on 70 lines."""
    if not structlog.is_configured():
        shown = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        structlog.configure(processors=[*structlog.get_config()["processors"][:-1], shown])
