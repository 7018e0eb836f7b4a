"""Checks the sequences of one client in a range of offsets, in a Spark task: the parts of `sequence_check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_integration.merge.batch.sequences.sequence_log import RAISES, REPLAY, TREATED, Block

SUMMARY_DDL: Final = (
    "partition int, key binary, name binary, block bigint, raised bigint, raised_at bigint, low bigint, needs bigint, "
    "is_right boolean"
)
PLACES_DDL: Final = "partition int, offset bigint"

_SUMMARY = pa.schema(
    [
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("name", pa.binary()),
        ("block", pa.int64()),
        ("raised", pa.int64()),
        ("raised_at", pa.int64()),
        ("low", pa.int64()),
        ("needs", pa.int64()),
        ("is_right", pa.bool_()),
    ]
)
_PLACES = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])


def summarise(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check each block by itself: rows of `partition`, `key` and `value`, those of a block together."""
    for partition, key, parts, _ in _grouped(batches):
        entries = _Entries.of(parts)
        is_repeat = ~entries.is_replay & (entries.numbers <= entries.highest)
        is_wrong = (is_repeat & ~entries.is_treated) | (entries.is_replay & entries.is_treated)
        is_merged = ~entries.is_replay & ~entries.is_treated
        is_open = entries.is_treated & ~is_repeat
        raised = np.where(entries.is_raising, entries.numbers, -1)
        top = int(np.argmax(raised))
        low, needs = entries.numbers[is_merged], entries.numbers[is_open]
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "partition": partition,
                    "key": key,
                    "name": parts[0].name,
                    "block": parts[0].number,
                    "raised": int(raised[top]),
                    "raised_at": int(entries.offsets[top]),
                    "low": int(low.min()) if len(low) else None,
                    "needs": int(needs.max()) if len(needs) else None,
                    "is_right": not is_wrong.any(),
                }
            ],
            schema=_SUMMARY,
        )


def find_repeats(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Find the duplicates of each block: rows as for `summarise`, and `highest` of the blocks before."""
    for partition, _, parts, highest in _grouped(batches):
        entries = _Entries.of(parts)
        is_repeat = ~entries.is_replay & (entries.numbers <= np.maximum(entries.highest, highest))
        offsets = entries.offsets[is_repeat]
        if len(offsets):
            yield pa.RecordBatch.from_arrays(
                [pa.array(np.full(len(offsets), partition, np.int32)), pa.array(offsets)], schema=_PLACES
            )


def _grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes, list[Block], int]]:
    """The blocks of each client and range of offsets, and the highest sequence before them."""
    group: tuple[int, bytes] | None = None
    parts: list[Block] = []
    highest = -1
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("partition", "key", "value")]
        highs = batch.column("highest").to_pylist() if "highest" in batch.schema.names else [None] * batch.num_rows
        for partition, key, value, high in zip(*columns, highs, strict=True):
            if group is not None and group != (partition, key):
                yield *group, parts, highest
                parts = []
            group, highest = (partition, key), -1 if high is None else high
            parts.append(Block.of(key, value))
    if group is not None:
        yield *group, parts, highest


class _Entries(NamedTuple):
    """The entries of a block, in the order of their offsets."""

    offsets: np.ndarray
    numbers: np.ndarray
    is_raising: np.ndarray
    is_treated: np.ndarray
    is_replay: np.ndarray
    highest: np.ndarray
    """The highest sequence before each of them in the block; -1: none."""

    @classmethod
    def of(cls, parts: list[Block]) -> _Entries:
        offsets, numbers, kinds = (np.concatenate([part[column] for part in parts]) for column in (2, 3, 4))
        order = np.argsort(offsets, kind="stable")
        offsets, numbers, kinds = offsets[order], numbers[order], kinds[order]
        is_raising, is_treated, is_replay = (kinds & flag != 0 for flag in (RAISES, TREATED, REPLAY))
        running = np.maximum.accumulate(np.where(is_raising, numbers, -1))
        highest = np.concatenate((np.array([-1], np.int64), running[:-1]))
        return cls(offsets, numbers, is_raising, is_treated, is_replay, highest)
