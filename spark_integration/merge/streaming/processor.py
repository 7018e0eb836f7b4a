"""Merges a micro-batch, partition by partition, with Spark's state store as the workers' RocksDB.

    rows of a partition ─▶ in the order of offsets ─▶ PartitionMerge ─▶ sow, delta, dlq, publish, mark   now
                                                                    └─▶ ack                              one batch later

The output of a micro-batch depends on its records, the state before it and its time. Spark keeps all three, so a
micro-batch that is repeated after a failure writes the same records, byte for byte.

Keeps acks, records and the window of rejected records of a partition for the next micro-batch.

Acks wait until their records are in Kafka.

name         value
acks         a bundle for the ack topic
held         the number of bundles of records, ASCII decimal
held/<n>     the n-th bundle
window       see `RejectWindow`

The marks of publishers, without a limit of their number, and that of the versions of lives
(`processor.wire.partition_marks`) are in the same map, under their own names.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from processor.kafka.partitioner import partition_for
from processor.wire.publisher_mark import mark_text
from spark_integration.foundation.arrow_records import outgoing, records
from spark_integration.merge.partition_merge import PartitionMerge
from spark_integration.merge.streaming.buckets import Buckets, BulkMap
from spark_integration.merge.streaming.chunks import MARK, RECORDS, SOW, load, pack, partition_of, unpack
from spark_integration.merge.streaming.state import GRACE_MS, RejectWindow, SparkMarks, SparkState

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

    from processor.api import Codec
    from processor.record import Outgoing, Record
    from spark_integration.foundation.settings import TopicSettings


_ACKS: Final = b"acks"
_HELD: Final = b"held"
_WINDOW: Final = b"window"


class InputEnd(NamedTuple):
    """The last time that a query asks Kafka for the end of its input, where it does not in each micro-batch.

    A partition without new input in a micro-batch is read to the end that was asked for last, and its records that were
    due by then expire. Updates of the others, published in time, may wait in Kafka.
    """

    asked_ms: int
    """The time of the last question. Each micro-batch up to that time has asked."""
    later_ms: int
    """The time up to which later micro-batches expire records in partitions without new input; 0: none."""


class Left(NamedTuple):
    """The values that the previous micro-batch has left."""

    acks: list[bytes]
    """Bundles for the ack topic: one, or none."""
    held: list[bytes]
    """Bundles of records, in their order."""
    window: bytes | None
    """The window of rejected records."""


class Kept:
    """Wraps a Spark map state with the names above, separately for each partition."""

    def __init__(self, kept: BulkMap) -> None:
        self._kept = kept

    def keep_acks(self, bundle: bytes) -> None:
        """Keep acks for the next micro-batch, which begins after Kafka has all records of this one."""
        self._kept.put_many({_ACKS: bundle})

    def keep_window(self, window: bytes | None) -> None:
        """Keep the window of rejected records; None removes it."""
        self._kept.put_many({_WINDOW: window})

    def hold(self, bundles: Sequence[bytes]) -> None:
        """Keep records for the next micro-batch."""
        self._kept.put_many({_HELD: b"%d" % len(bundles), **dict(zip(_names(len(bundles)), bundles, strict=True))})

    def take(self) -> Left:
        """Return all of it, and remove the acks and the records."""
        values = self._kept.get_many([_ACKS, _HELD, _WINDOW])
        acks, held = values[_ACKS], values[_HELD]
        names = [] if held is None else _names(int(held))
        bundles = [bundle for bundle in self._kept.get_many(names).values() if bundle is not None] if names else []
        gone = [*names, *(name for name in (_ACKS, _HELD) if values[name] is not None)]
        if gone:
            self._kept.put_many(dict.fromkeys(gone))
        return Left([] if acks is None else [acks], bundles, values[_WINDOW])


def _names(count: int) -> list[bytes]:
    return [b"held/%d" % number for number in range(count)]


# ruff: noqa: N802, N803 - the names are Spark's.

MARKS_KEPT_MS: Final = 7 * 86_400_000
"""Time to live of the unchanged mark of a name for one occasion, which workers keep for a day."""

_LOOKED_AT_MAX: Final = 50_000  # Records that expire together: they are in memory.
_LOADED_MAX: Final = 50  # Bundles of records that are in memory while the initial state is stored.
_BINARY: Final = "value binary"

_codecs: dict[bytes, Codec] = {}


class MergeProcessor(StatefulProcessor):
    """The merge of one topic for Spark's `transformWithStateInPandas`; a group is the slot of one partition."""

    def __init__(
        self,
        settings: TopicSettings,
        bytes_max: Mapping[str, int] | None = None,
        input_id: str = "",
        input_end: InputEnd | None = None,
    ) -> None:
        """Create the merge on the driver.

        Args:
            settings: the settings of the topic.
            bytes_max: the largest record that the topic of a role accepts; None: no limits.
            input_id: Kafka's id of the input topic; empty: unknown.
            input_end: the last time that the query asks for the end of the input; None: each micro-batch asks.
        """
        self._settings, self._bytes_max, self._input_id = settings, dict(bytes_max or {}), input_id
        self._input_end = input_end

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state; Spark calls this once on the driver and once in each task."""
        self._handle = handle
        self._rows = BulkMap(handle.getMapState("buckets", "name binary", _BINARY))
        self._former = BulkMap(handle.getMapState("records", "key binary", _BINARY))
        self._expiring = BulkMap(handle.getMapState("expiring", "time binary", _BINARY))
        self._marks = BulkMap(handle.getMapState("marks", "name binary", _BINARY, MARKS_KEPT_MS))
        self._kept_rows = BulkMap(handle.getMapState("kept", "name binary", _BINARY))
        self._kept = Kept(self._kept_rows)
        self._seen_until: dict[int, int] = {}
        """By slot, the time until which all records of the partition have been processed."""
        self._codec = _codec_of(self._settings)
        self._began: set[int] = set()
        """The slots that got their initial state in this micro-batch."""

    def handleInitialState(
        self,
        key: Any,
        initialState: pd.DataFrame,
        timerValues: TimerValues,
    ) -> None:
        """Store the records and marks of the topics as initial state.

        That micro-batch writes no output: if it were repeated, the initial state would already include the output.
        """
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        self._began.add(int(key[0]))
        state, marks = self._state(), SparkMarks(self._marks, self._kept_rows)
        loaded = 0
        for kind, chunk in zip(initialState["kind"], initialState["chunk"], strict=True):
            if kind == SOW:
                load(state, records(unpack(chunk)))
                loaded += 1
                if loaded % _LOADED_MAX == 0:
                    self._wake_at(state.flush(now_ms, now_ms))
            elif kind == MARK:
                for record in records(unpack(chunk)):
                    name = record.key or b""
                    marks.put(name, mark_text(name, record.value, record.headers) or b"")
        self._wake_at(state.flush(now_ms, now_ms))
        marks.flush()

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,
    ) -> Iterator[pd.DataFrame]:
        """Merge the records of a partition."""
        slot, now_ms = int(key[0]), timerValues.getCurrentProcessingTimeInMs()
        bundles = [row for frame in rows for row in zip(frame["first_offset"], frame["chunk"], strict=True)]
        chunks = [chunk for _, chunk in sorted(bundles, key=_first_offset)]
        if slot in self._began:
            self._kept.hold(chunks)
            self._wake_at([now_ms + 1])
            return
        yield from self._begin(slot, chunks, now_ms)

    def handleExpiredTimer(
        self,
        key: Any,
        timerValues: TimerValues,
        expiredTimerInfo: ExpiredTimerInfo,
    ) -> Iterator[pd.DataFrame]:
        """Expire the records that are due, after all records published before that time."""
        slot, now_ms = int(key[0]), timerValues.getCurrentProcessingTimeInMs()
        time_ms = expiredTimerInfo.getExpiryTimeInMs()
        if slot not in self._seen_until:
            yield from self._begin(slot, [], now_ms)
        until_ms = self._seen_until[slot]
        keys = self._state().expiring(time_ms)
        if not keys:
            return
        merge = self._merge(slot)
        for begin in range(0, len(keys), _LOOKED_AT_MAX):
            merge.state.look_at(keys[begin : begin + _LOOKED_AT_MAX], time_ms)
            merge.partition_merge.expire(until_ms)
            yield from self._output_frames(merge, merge.partition_merge.take())
            self._wake_at(merge.state.flush(now_ms, until_ms))
        yield from merge.counts_frame()

    def _begin(self, slot: int, chunks: Sequence[bytes], now_ms: int) -> Iterator[pd.DataFrame]:
        """Process the kept acks and records of the previous micro-batch, then the new records."""
        end = self._input_end
        until_ms = (now_ms if end is None or now_ms <= end.asked_ms else end.later_ms) - GRACE_MS
        left = self._kept.take()
        yield from _frame(left.acks)
        if chunks := [*left.held, *chunks]:
            merge = self._merge(slot, left.window)
            acks: list[Outgoing] = []
            for chunk in chunks:
                batch = records(unpack(chunk))
                merge.process(batch, now_ms)
                until_ms = min(batch[-1].timestamp_ms, until_ms)
                sent = merge.partition_merge.take()
                acks += sent.pop("ack", [])
                yield from self._output_frames(merge, sent)
            self._wake_at(merge.state.flush(now_ms, until_ms))
            yield from self._output_frames(merge, {"mark": merge.marks.flush()})
            if merge.window.changed:
                self._kept.keep_window(merge.window.value)
            if acks:
                merge.counts["emitted/ack"] += len(acks)
                self._kept.keep_acks(pack(self._batch("ack", merge.partition, acks)))
                self._wake_at([now_ms + 1])
            yield from merge.counts_frame()
        self._seen_until[slot] = until_ms

    def _merge(self, slot: int, window: bytes | None = None) -> _Merge:
        partition = partition_of(slot)
        marks, rejects = SparkMarks(self._marks, self._kept_rows), RejectWindow(self._settings, partition, window)
        return _Merge(
            self._settings, partition, self._state(), marks, rejects, self._codec, self._bytes_max, self._input_id
        )

    def _state(self) -> SparkState:
        return SparkState(Buckets(self._rows, self._former), self._expiring)

    def _output_frames(self, merge: _Merge, sent: Mapping[str, Sequence[Outgoing]]) -> Iterator[pd.DataFrame]:
        """The output for the topics, as data frames of bundles."""
        merge.counts.update({f"emitted/{role}": len(sent[role]) for role in sent})
        return _frame([pack(self._batch(role, merge.partition, sent[role])) for role in sent if sent[role]])

    def _batch(self, role: str, partition: int, sent: Sequence[Outgoing]) -> pa.RecordBatch:
        batch = outgoing(self._settings.kafka_topic(role), partition, sent)
        if role != "publish":
            return batch
        # A forwarded record goes to the partition of its own key.
        places = [partition_for(key or b"", self._settings.topic.partitions) for key, _, _ in sent]
        return batch.set_column(1, batch.schema.field(1), pa.array(places, pa.int32()))

    def _wake_at(self, times_ms: Sequence[int]) -> None:
        for time_ms in times_ms:
            self._handle.registerTimer(time_ms)


class _Merge:
    """The merge and the state of one partition, during one micro-batch."""

    def __init__(
        self,
        settings: TopicSettings,
        partition: int,
        state: SparkState,
        marks: SparkMarks,
        window: RejectWindow,
        codec: Codec,
        bytes_max: Mapping[str, int],
        input_id: str,
    ) -> None:
        self.partition, self.state, self.marks, self.window = partition, state, marks, window
        self.counts: Counter[str] = Counter()
        self.partition_merge = PartitionMerge(
            settings,
            partition,
            state,
            marks,
            codec=codec,
            partitions=settings.topic.partitions,
            bytes_max=bytes_max,
            on_reject=window.rejected,
            input_id=input_id,
        )

    def process(self, batch: Sequence[Record], now_ms: int) -> None:
        """Merge records.

        Raises:
            Stop: too many of them were rejected, or a worker would stop.
        """
        self.partition_merge.process(batch, now_ms)
        self.window.took(batch)
        self.counts[RECORDS] += len(batch)

    def counts_frame(self) -> Iterator[pd.DataFrame]:
        """The counters, as rows for the driver; nothing where nothing was counted."""
        import pandas  # noqa: ICN001, PLC0415 - as in `_frame`

        merge = self.partition_merge
        self.counts.update({f"event/{name}": count for name, count in merge.events.items()})
        self.counts.update({f"rejected/{reason}": count for reason, count in merge.rejected.items()})
        if names := list(self.counts):
            yield pandas.DataFrame({"chunk": None, "name": names, "count": list(self.counts.values())})


def _codec_of(settings: TopicSettings) -> Codec:
    """The codec of the topic, cached for the next tasks in this process, as creating one takes some 10 ms."""
    name = pickle.dumps(settings)
    if name not in _codecs:
        _codecs.clear()
        _codecs[name] = settings.codec()
    return _codecs[name]


def _frame(chunks: Sequence[bytes]) -> Iterator[pd.DataFrame]:
    import pandas  # noqa: ICN001, PLC0415 - on executors

    if chunks:
        yield pandas.DataFrame({"chunk": chunks, "name": None, "count": 0})


def _first_offset(row: tuple[int, bytes]) -> int:
    return row[0]
