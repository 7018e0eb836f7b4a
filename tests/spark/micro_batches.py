"""Runs a stateful processor without Spark: micro-batches with a time, state by group, timers and failures."""

# ruff: noqa: N802 - the names are Spark's.

from __future__ import annotations

import copy
import math
import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from processor.record import Outgoing, Record
from spark_integration.foundation.arrow_records import headers_column, headers_of
from spark_integration.merge.streaming.chunks import RECORDS_MAX, bundled, slot_of, taken_apart
from spark_integration.merge.streaming.processor import MergeProcessor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class MicroBatches:
    """A query, in which each batch has its own processor, as each task in Spark has."""

    def __init__(self, make: Callable[[], MergeProcessor], rng: random.Random) -> None:
        self._make = make
        self._rng = rng  # A shuffle keeps no order.
        self._maps: dict[tuple[str, int], dict[bytes, tuple[bytes, float]]] = defaultdict(dict)
        self._timers: set[tuple[int, int]] = set()

    def run(
        self,
        inputs: Mapping[int, Sequence[Record]],
        now_ms: int,
        *,
        initial: Iterable[tuple[int, str, Sequence[Record]]] = (),
        fails: bool = False,
    ) -> list[tuple[str, int, Outgoing]]:
        """Run a micro-batch; returns topic, partition and record of each row of its output.

        Args:
            inputs: the new records of each partition.
            now_ms: the time of the micro-batch.
            initial: partition, kind and records of an initial state.
            fails: whether it fails before its commit.
        """
        before = copy.deepcopy(self._maps), set(self._timers)
        frames = list(self._frames(inputs, now_ms, list(initial)))
        told = [_outgoing(frame) for frame in frames]
        self.counts = Counter[str]()
        """The counters of the last micro-batch."""
        for frame in frames:
            for name, count in zip(frame["name"], frame["count"], strict=True):
                self.counts.update({} if name is None else {name: count})
        if fails:
            self._maps, self._timers = before
        return [row for rows in told for row in rows]

    def _frames(self, inputs: Mapping[int, Sequence[Record]], now_ms: int, initial: list[Any]) -> Iterable[Any]:
        processor, handle, times = self._make(), _Handle(self._maps, self._timers, now_ms), _Times(now_ms)
        processor.init(handle)
        slots = {slot_of(partition): partition for partition in (*inputs, *(row[0] for row in initial))}
        for slot, partition in slots.items():
            handle.slot = slot
            if begin := [
                (kind, chunk)
                for at, kind, records in initial
                if at == partition
                for chunk in _rows(at, records) or [(0, None)]
            ]:
                frame = pd.DataFrame({"kind": [kind for kind, _ in begin], "chunk": [chunk for _, (_, chunk) in begin]})
                processor.handleInitialState((slot,), frame, times)
            rows = _rows(partition, inputs.get(partition, ()))
            self._rng.shuffle(rows)
            if rows:
                frames = [pd.DataFrame({"first_offset": [first], "chunk": [chunk]}) for first, chunk in rows]
                yield from processor.handleInputRows((slot,), iter(frames), times)
        for time_ms, slot in sorted(timer for timer in self._timers if timer[0] <= now_ms):
            handle.slot = slot
            yield from processor.handleExpiredTimer((slot,), times, _Expired(time_ms))
            self._timers.discard((time_ms, slot))
        processor.close()


class _Handle:
    """Spark's handle for the state of the current group."""

    def __init__(
        self, maps: dict[tuple[str, int], dict[bytes, tuple[bytes, float]]], timers: set[tuple[int, int]], now_ms: int
    ) -> None:
        self._maps, self._timers, self._now_ms = maps, timers, now_ms
        self.slot = 0

    def getMapState(self, name: str, _key: str, _value: str, life_ms: float = math.inf) -> _Map:
        return _Map(lambda: self._maps[name, self.slot], self._now_ms, life_ms)

    def registerTimer(self, time_ms: int) -> None:
        self._timers.add((time_ms, self.slot))


class _Map:
    """Spark's map state, in which each value has the time of its end."""

    def __init__(self, rows: Callable[[], dict[bytes, tuple[bytes, float]]], now_ms: int, life_ms: float) -> None:
        self._rows, self._now_ms, self._life_ms = rows, now_ms, life_ms

    def exists(self) -> bool:
        return any(end_ms > self._now_ms for _, end_ms in self._rows().values())

    def getValue(self, key: tuple[bytes]) -> tuple[bytes] | None:
        value, end_ms = self._rows().get(key[0], (b"", 0))
        return (value,) if end_ms > self._now_ms else None

    def updateValue(self, key: tuple[bytes], value: tuple[bytes]) -> None:
        self._rows()[key[0]] = value[0], self._now_ms + self._life_ms

    def removeKey(self, key: tuple[bytes]) -> None:
        self._rows().pop(key[0], None)


class _Times:
    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def getCurrentProcessingTimeInMs(self) -> int:
        return self._now_ms


class _Expired:
    def __init__(self, time_ms: int) -> None:
        self._time_ms = time_ms

    def getExpiryTimeInMs(self) -> int:
        return self._time_ms


def _rows(partition: int, records: Sequence[Record]) -> list[tuple[int, bytes]]:
    """Bundles of small batches, as the previous stage creates them."""
    batches = [_batch(partition, records[at : at + 7]) for at in range(0, len(records), 7)]
    assert RECORDS_MAX > 7
    return [
        row
        for bundle in bundled(batches)
        for row in zip(bundle.column("first_offset").to_pylist(), bundle.column("chunk").to_pylist(), strict=True)
    ]


def _batch(partition: int, records: Sequence[Record]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "headers": headers_column([record.headers or [] for record in records]),
            "partition": pa.array([partition] * len(records), pa.int32()),
            "offset": [record.offset for record in records],
            "timestamp_ms": [record.timestamp_ms for record in records],
        }
    )


def _outgoing(frame: pd.DataFrame) -> list[tuple[str, int, Outgoing]]:
    rows = []
    for batch in taken_apart([pa.RecordBatch.from_pandas(frame)]):
        columns = [batch.column(name).to_pylist() for name in ("topic", "partition", "key", "value")]
        for (topic, partition, key, value), headers in zip(
            zip(*columns, strict=True), headers_of(batch.column("headers")), strict=True
        ):
            rows.append((topic, partition, (key, value, headers or [])))
    return rows
