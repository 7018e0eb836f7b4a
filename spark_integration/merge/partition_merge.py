"""Runs the workers' delta merge of one Kafka partition without Kafka: the caller has the state and gets the output."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NoReturn

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.errors import RecordRejected, SowstreamError
from processor.hosting.context import TaskContext
from processor.hosting.output_limits import size_of
from processor.hosting.pipeline import Pipeline
from processor.topics.family import KEY_BYTES_MAX
from processor.wire.partition_marks import Lives

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.api import Codec, Marks, State
    from processor.builtin.delta_merge.deduplication import Numbers
    from processor.record import Outgoing, Record, Stored
    from processor.wire.command import CommandHeaders
    from spark_integration.foundation.settings import TopicSettings
    from spark_integration.merge.key_lives import KeyLives


class StagedState:
    """A state whose changes reach another state with `apply`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._staged: dict[bytes, Stored | None] = {}

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, Stored | None]:
        """The states of these keys, staged ones included."""
        found = self._state.get_many(keys)
        return self._with_staged(found)

    def get_some(self, keys: Sequence[bytes], bytes_max: int) -> tuple[dict[bytes, Stored | None], int]:
        """The states of the first keys; see `State`."""
        found, count = self._state.get_some(keys, bytes_max)
        return self._with_staged(found), count

    def put_many(self, changes: Mapping[bytes, Stored | None]) -> None:
        """Stage changes; None removes a key."""
        self._staged.update(changes)

    def due(self, until_ms: int, keys_max: int) -> list[tuple[bytes, Stored]]:
        """The records that expire until a time; staged changes are not looked at."""
        return self._state.due(until_ms, keys_max)

    def scan(self, after: bytes | None, keys_max: int) -> list[tuple[bytes, Stored]]:
        """The records behind a key; staged changes are not looked at."""
        return self._state.scan(after, keys_max)

    def apply(self) -> None:
        """Pass the staged changes on."""
        if self._staged:
            staged, self._staged = self._staged, {}
            self._state.put_many(staged)

    def drop(self) -> None:
        """Forget the staged changes."""
        self._staged = {}

    def _with_staged(self, found: dict[bytes, Stored | None]) -> dict[bytes, Stored | None]:
        if staged := self._staged:
            found.update({key: staged[key] for key in found if key in staged})
        return found


class StagedMarks:
    """Marks whose changes reach other marks with `apply`."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._staged: dict[bytes, bytes] = {}

    def get(self, name: bytes) -> bytes | None:
        """The value of a mark, a staged one included; None for a missing one."""
        value = self._staged.get(name)
        return self._marks.get(name) if value is None else value

    def put(self, name: bytes, value: bytes) -> None:
        """Stage a mark."""
        self._staged[name] = value

    def apply(self) -> None:
        """Pass the staged marks on."""
        staged, self._staged = self._staged, {}
        for name, value in staged.items():
            self._marks.put(name, value)

    def drop(self) -> None:
        """Forget the staged marks."""
        self._staged = {}


_SMALL_BYTES: Final = KEY_BYTES_MAX + 1024
"""A bound for the bytes of a record with one header, besides its value."""


def refuse_scan() -> NoReturn:
    """Reject a delete by filter: it needs every record of its partition, and here each key is merged by itself.

    Raises:
        RecordRejected: `bad_header`.
    """
    raise RecordRejected(
        "bad_header",
        "header filter: a merge on Spark sees one key at a time and cannot delete by filter; delete by keys, "
        "or send it to workers",
    )


class KeyedState:
    """The states of a few keys, in memory; the caller removes finished keys."""

    def __init__(self) -> None:
        self._stored: dict[bytes, Stored] = {}

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, Stored | None]:
        """The states of these keys."""
        get = self._stored.get
        return {key: get(key) for key in keys}

    def get_some(self, keys: Sequence[bytes], bytes_max: int) -> tuple[dict[bytes, Stored | None], int]:  # noqa: ARG002
        """The states of all these keys, as they are in memory."""
        return self.get_many(keys), len(keys)

    def put_many(self, changes: Mapping[bytes, Stored | None]) -> None:
        """Store changes; None removes a key."""
        for key, stored in changes.items():
            if stored is None:
                self._stored.pop(key, None)
            else:
                self._stored[key] = stored

    def due(self, until_ms: int, keys_max: int) -> list[tuple[bytes, Stored]]:
        """The records that expire until a time, in order of due time."""
        expired = [(key, stored) for key, stored in self._stored.items() if 0 < stored.expires_at_ms <= until_ms]
        return sorted(expired, key=lambda due: (due[1].expires_at_ms, due[0]))[:keys_max]

    def scan(self, after: bytes | None, keys_max: int) -> list[tuple[bytes, Stored]]:  # noqa: ARG002
        """Reject the scan; see `refuse_scan`."""
        refuse_scan()

    def pop(self, key: bytes) -> Stored | None:
        """Remove a key, and return its state."""
        return self._stored.pop(key, None)


class PartitionMerge:
    """The `DeltaMerge` of one partition, with the context that a worker would give it.

    A call that fails leaves state and marks as they were; a repeat of one that did not needs the earlier state.
    """

    def __init__(
        self,
        settings: TopicSettings,
        partition: int,
        state: State,
        marks: Marks | None,
        *,
        codec: Codec | None = None,
        partitions: int = 1,
        clock: Callable[[Record], int] | None = None,
        numbers: Numbers | None = None,
        bytes_max: Mapping[str, int] | None = None,
        on_reject: Callable[[Record, str, str], None] | None = None,
        lives: KeyLives | None = None,
        input_id: str = "",
    ) -> None:
        """Create the merge of a partition.

        Args:
            settings: the settings of the topic.
            partition: the partition number of the input, for headers `source`.
            state: the last record of every key.
            marks: the marks of the clients; None where the caller has found the duplicates, as it must if the input is
                not in the order of its offsets.
            codec: the codec of the topic's message type; None: a new one.
            partitions: the number of partitions that new keys are hashed over; 1: every key belongs to this partition.
            clock: the time at which a record is merged, milliseconds since the epoch; None: the time of `process`.
            numbers: finds the records that repeat earlier ones; None: the marks do, and without marks no record does.
            bytes_max: the largest record that the topic of a role accepts; an input record whose output is larger is
                rejected as `too_large`. None: no limits.
            on_reject: called with each rejected record, the reason and the detail; a record that is merged again after
                an error of its batch may be rejected twice.
            lives: the versions with which new records begin; None: as the marks have them.
            input_id: Kafka's id of the input topic, with which that of the marks is compared; empty: unknown.

        Raises:
            ConfigurationError: the settings cannot be used.
        """
        self._settings, self._partition = settings.topic, partition
        self._state, self._marks = StagedState(state), None if marks is None else StagedMarks(marks)
        self._codec = codec or settings.codec()
        self._partitions = partitions
        self._own_lives, self._input_id = lives, input_id
        self._clock = clock
        self._numbers = _NoNumbers() if numbers is None and marks is None else numbers
        self._pipeline = Pipeline.of(
            DeltaMerge, settings.topic, name=settings.name, topic=settings.topic, names=settings.names
        )
        self._bytes_max, self._on_reject = bytes_max or {}, on_reject
        self._outputs: dict[str, list[Outgoing]] = {}
        self.events: Counter[str] = Counter()
        """The counters of events."""
        self.rejected: Counter[str] = Counter()
        """The number of rejected records for each reason."""
        self._begin()

    def process(self, records: Sequence[Record], now_ms: int) -> None:
        """Merge records of the partition in their order.

        Args:
            records: at least one.
            now_ms: the time of the merge, milliseconds since the epoch.

        Raises:
            Stop: a worker would stop, for example as a schema registry does not answer.
        """
        self._context.now_ms = self._context.stream_time_ms = now_ms
        try:
            self._processor.process(records)
            self._context.lives.settle(records[-1].offset + 1)
            self._check_sizes()
        except SowstreamError:
            raise
        except Exception as error:  # noqa: BLE001 - a plug-in's rule may raise anything
            # As in a worker, the results of the batch are dropped, and its records are merged one at a time.
            self._begin()
            if len(records) == 1:
                self._put_aside(records[0], error)
                return
            for record in records:
                self.process([record], now_ms)
        else:
            self._collect()

    def expire(self, now_ms: int) -> None:
        """Expire all records that are due."""
        self._context.now_ms = self._context.stream_time_ms = self._context.complete_until_ms = now_ms
        while self._state.due(now_ms, 1):
            self._processor.punctuate(now_ms)
            self._state.apply()
        self._collect()

    def take(self) -> dict[str, list[Outgoing]]:
        """The output since the last call, by role; roles without records are left out."""
        taken, self._outputs = self._outputs, {}
        return taken

    def _begin(self) -> None:
        """Create a new processor, and drop the changes and the output that were not collected."""
        self._state.drop()
        if self._marks is not None:
            self._marks.drop()
        if self._own_lives is not None:
            self._own_lives.drop()
        self._context = TaskContext(
            self._pipeline,
            self._partition,
            self._codec,
            self._state,
            self._marks,
            self._on_reject,
            partitions=self._partitions,
            lives=self._own_lives or Lives(self._marks, self._input_id),
        )
        self._processor = DeltaMerge(clock=self._clock, numbers=self._numbers)
        self._processor.init(self._context, self._settings)

    def _collect(self) -> None:
        """Apply the changes of the processor, and collect its output and its counters."""
        context = self._context
        self._state.apply()
        if self._marks is not None:
            self._marks.apply()
        if self._own_lives is not None:
            self._own_lives.apply()
        for role, records in context.take_outputs().items():
            self._outputs.setdefault(role, []).extend(records)
        self.events.update(context.events)
        self.rejected.update(context.rejected)
        context.events.clear()
        context.rejected.clear()

    def _check_sizes(self) -> None:
        """Find an output record that its topic does not accept.

        Raises:
            _TooLarge: there is one.
        """
        if not self._bytes_max:
            return
        outputs = self._context.outputs_after(dict.fromkeys(self._context.output_counts(), 0))
        for role, bytes_max in self._bytes_max.items():
            # Measuring every record would cost a tenth of its merge: one header is the version, and keys are bounded.
            large = bytes_max - _SMALL_BYTES
            records = outputs.get(role, ())
            for record in [each for each in records if len(each[2]) > 1 or len(each[1] or b"") > large]:
                if (size := size_of(record)) > bytes_max:
                    raise _TooLarge(
                        f"an output of {size} bytes for {self._pipeline.output(role)}; the topic takes {bytes_max}"
                    )

    def _put_aside(self, record: Record, error: Exception) -> None:
        if isinstance(error, _TooLarge):
            rejection = RecordRejected("too_large", str(error))
        else:
            rejection = RecordRejected("plugin_failed", f"DeltaMerge raised {type(error).__name__}: {error}")
        self._context.reject(record, rejection.reason, rejection.detail)
        self._processor.rejected(record, rejection)
        self._collect()


class _TooLarge(Exception):
    """An output record is larger than its topic accepts."""


class _NoNumbers:
    """The numbers of records among which the caller has found the duplicates."""

    def is_duplicate(self, record: Record, request: CommandHeaders) -> bool:  # noqa: ARG002
        return False

    def take(self, request: CommandHeaders) -> bool:  # noqa: ARG002
        return False

    def refuse(self, record: Record) -> None:
        pass

    def pass_on(self, request: CommandHeaders) -> bool:  # noqa: ARG002
        return False

    def came_in(self, request: CommandHeaders) -> bytes:  # noqa: ARG002
        return b""

    def flush(self) -> None:
        pass
