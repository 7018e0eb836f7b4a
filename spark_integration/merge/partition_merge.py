"""Runs the workers' delta merge of one Kafka partition without Kafka: state comes from and outputs go to the caller."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NoReturn

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.errors import RecordRejected, SowstreamError
from processor.hosting.context import TaskContext
from processor.hosting.pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.api import Codec, Marks, State
    from processor.record import Outgoing, Record, Stored
    from spark_integration.settings import TopicSettings


def refuse_scan() -> NoReturn:
    """Reject a delete by filter: it looks at every record of its partition, and here each key is merged by itself.

    Raises:
        RecordRejected: `bad_header`.
    """
    raise RecordRejected(
        "bad_header",
        "header filter: a merge on Spark sees one key at a time and cannot delete by filter; delete by keys, "
        "or send it to workers",
    )


class KeyedState:
    """The states of a few keys, in memory; the caller says when a key is done."""

    def __init__(self) -> None:
        self._stored: dict[bytes, Stored] = {}

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, Stored | None]:
        """The states of these keys."""
        get = self._stored.get
        return {key: get(key) for key in keys}

    def get_some(self, keys: Sequence[bytes], bytes_max: int) -> tuple[dict[bytes, Stored | None], int]:  # noqa: ARG002
        """The states of all these keys: they are in memory."""
        return self.get_many(keys), len(keys)

    def put_many(self, changes: Mapping[bytes, Stored | None]) -> None:
        """Take over changes."""
        for key, stored in changes.items():
            if stored is None:
                self._stored.pop(key, None)
            else:
                self._stored[key] = stored

    def due(self, until_ms: int, keys_max: int) -> list[tuple[bytes, Stored]]:
        """What expires until then."""
        found = [(key, stored) for key, stored in self._stored.items() if 0 < stored.expires_at_ms <= until_ms]
        return sorted(found, key=lambda due: (due[1].expires_at_ms, due[0]))[:keys_max]

    def scan(self, after: bytes | None, keys_max: int) -> list[tuple[bytes, Stored]]:  # noqa: ARG002
        """Not here; see `refuse_scan`."""
        refuse_scan()

    def pop(self, key: bytes) -> Stored | None:
        """The state of a key that is done."""
        return self._stored.pop(key, None)


class PartitionMerge:
    """One partition's `DeltaMerge`, and what a runtime is to it.

    Nothing is rolled back from outside: who must repeat begins with a new host on the state of before.
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
        duplicates: Callable[[Record], bool] | None = None,
    ) -> None:
        """Begin with a partition.

        Args:
            settings: the topic's.
            partition: the input's partition number, which headers `source` name.
            state: the last record of every key.
            marks: the highest sequence of each client; None where repeats have been taken out of the input already, as
                they must be where it does not come in the order of its offsets.
            codec: the topic's message type, made before; None: it is made here.
            partitions: the number of partitions that new keys are hashed over; 1: every key belongs to this one.
            clock: the time at which a record is merged, milliseconds since the epoch; None: the time of `process`.
            duplicates: whether a record with a sequence repeats an earlier one; None: the marks decide, and without
                marks no record does.

        Raises:
            ConfigurationError: the settings cannot be used.
        """
        self._settings, self._partition, self._state, self._marks = settings.topic, partition, state, marks
        self._codec = codec or settings.codec()
        self._partitions = partitions
        self._clock = clock
        self._duplicates = _is_never_duplicate if duplicates is None and marks is None else duplicates
        self._pipeline = Pipeline.of(
            DeltaMerge, settings.topic, name=settings.name, topic=settings.topic, names=settings.names
        )
        self._outputs: dict[str, list[Outgoing]] = {}
        self.events: Counter[str] = Counter()
        """How often each event was counted."""
        self.rejected: Counter[str] = Counter()
        """How many records were rejected for each reason."""
        self._begin()

    def process(self, records: Sequence[Record], now_ms: int) -> None:
        """Merge records of the partition, in their order.

        Args:
            records: at least one.
            now_ms: the time at which they are merged, milliseconds since the epoch.

        Raises:
            Stop: what a worker stops for, such as a schema registry that does not answer.
        """
        self._context.now_ms = self._context.stream_time_ms = now_ms
        try:
            self._processor.process(records)
        except SowstreamError:
            raise
        except Exception as error:  # noqa: BLE001 - a third party's rule may raise anything
            # As a worker does it: what the batch came to is dropped, and its records are given one at a time.
            self._begin()
            if len(records) == 1:
                self._put_aside(records[0], error)
                return
            for record in records:
                self.process([record], now_ms)
        else:
            self._collect()

    def expire(self, now_ms: int) -> None:
        """Expire what is due."""
        self._context.now_ms = self._context.stream_time_ms = now_ms
        while self._state.due(now_ms, 1):
            self._processor.punctuate(now_ms)
        self._collect()

    def take(self) -> dict[str, list[Outgoing]]:
        """What was forwarded since the last time, by role; roles without records are left out."""
        taken, self._outputs = self._outputs, {}
        return taken

    def _begin(self) -> None:
        """A new instance, and nothing of what the last one did since its last records."""
        self._context = TaskContext(
            self._pipeline, self._partition, self._codec, self._state, self._marks, partitions=self._partitions
        )
        self._processor = DeltaMerge(clock=self._clock, duplicates=self._duplicates)
        self._processor.init(self._context, self._settings)

    def _collect(self) -> None:
        """Take over what the processor did."""
        context = self._context
        for role, records in context.take_outputs().items():
            self._outputs.setdefault(role, []).extend(records)
        self.events.update(context.events)
        self.rejected.update(context.rejected)
        context.events.clear()
        context.rejected.clear()

    def _put_aside(self, record: Record, error: Exception) -> None:
        rejection = RecordRejected("plugin_failed", f"DeltaMerge raised {type(error).__name__}: {error}")
        self._context.reject(record, rejection.reason, rejection.detail)
        self._processor.rejected(record, rejection)
        self._collect()


def _is_never_duplicate(record: Record) -> bool:  # noqa: ARG001
    return False
