"""Applies the sequences of each client to its mark, in a Spark task: the parts of `sequence_check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa

from processor.errors import RecordRejected
from processor.wire.publisher_mark import FIRST_MAX, PublisherMark, is_one_shot
from spark_integration.merge.batch.runs.sequence_log import (
    DENIED,
    NUMBER_BYTES,
    RAISES,
    REPLAY,
    SEQUENCE,
    TREATED,
    UNCHECKED,
    Block,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUMMARY_DDL: Final = "partition int, name binary, mark binary, is_one_shot boolean, offset bigint, is_right boolean"
PLACES_DDL: Final = "partition int, offset bigint, denial string"

_SUMMARY = pa.schema(
    [
        ("partition", pa.int32()),
        ("name", pa.binary()),
        ("mark", pa.binary()),
        ("is_one_shot", pa.bool_()),
        ("offset", pa.int64()),
        ("is_right", pa.bool_()),
    ]
)
_PLACES = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("denial", pa.string())])
_PLAIN_ENTRIES: Final = 1_000
"""Entries that are looked at together: where all of them are new, nothing else is computed."""


@dataclass(frozen=True, slots=True)
class Settling:
    """Applies the sequences of clients; pickled for the executors.

    The rows are `topic`, `partition`, `key` and `value`: those of a client together, its mark before the history first
    (with another `topic` than `SEQUENCE`), then its blocks.
    """

    jump_max: int
    """The topic's `sequence_jump_max`."""

    def summarise(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Output of each client its mark, where it was set, and whether its records were treated as by a worker."""
        for client in self._clients(batches):
            mark = client.mark.text()
            row = {
                "partition": client.partition,
                "name": client.name,
                "mark": mark,
                "is_one_shot": is_one_shot(client.name, mark),
                "offset": client.offset,
                "is_right": client.is_right,
            }
            yield pa.RecordBatch.from_pylist([row], schema=_SUMMARY)

    def find_repeats(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Output the records that a worker drops, and those that it rejects for their sequence, with the reason."""
        for client in self._clients(batches):
            if client.places:
                columns = list(zip(*client.places, strict=True))
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array(np.full(len(client.places), client.partition, np.int32)),
                        pa.array(columns[0], pa.int64()),
                        pa.array(columns[1], pa.string()),
                    ],
                    schema=_PLACES,
                )

    def _clients(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Client]:
        """The clients after all of their entries."""
        client: _Client | None = None
        blocks: list[Block] = []
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in ("topic", "partition", "key", "value")]
            for topic, partition, key, value in zip(*columns, strict=True):
                block = Block.of(key, value) if topic == SEQUENCE else None
                name = key[NUMBER_BYTES:]
                if client is not None and (client.partition, client.name) != (partition, name):
                    client.take(blocks)
                    yield client
                    client, blocks = None, []
                if client is None:
                    client = _Client(partition, name, self.jump_max)
                if block is None:
                    client.mark = PublisherMark(value)
                    continue
                if blocks and blocks[0].number != block.number:
                    client.take(blocks)
                    blocks = []
                blocks.append(block)
        if client is not None:
            client.take(blocks)
            yield client


@dataclass(slots=True)
class _Client:
    """One client of one partition, after some of its entries."""

    partition: int
    name: bytes
    jump_max: int
    mark: PublisherMark = field(default_factory=PublisherMark)
    offset: int = -1
    """The offset of the last record that changed the mark; -1: none has."""
    is_right: bool = True
    """Whether all records were treated as by a worker."""
    places: list[tuple[int, str | None]] = field(default_factory=list)
    """Offsets of the records that a worker drops, and of those that it rejects, with the detail."""

    def take(self, blocks: list[Block]) -> None:
        """Apply the entries of a block, which may be in parts."""
        if not blocks:
            return
        offsets, numbers, kinds = (np.concatenate([block[column] for block in blocks]) for column in (2, 3, 4))
        order = np.argsort(offsets, kind="stable")
        offsets, numbers, kinds = offsets[order], numbers[order], kinds[order]
        for begin in range(0, len(offsets), _PLAIN_ENTRIES):
            part = slice(begin, begin + _PLAIN_ENTRIES)
            if self._are_new(numbers[part], kinds[part]):
                self.mark.accept(int(numbers[part][0]))
                self.mark.accept(int(numbers[part][-1]))
                self.offset = int(offsets[part][-1])
                continue
            rows = (column[part].tolist() for column in (offsets, numbers, kinds))
            for offset, number, kind in zip(*rows, strict=True):
                self._apply(offset, number, kind)

    def _are_new(self, numbers: NDArray[np.int64], kinds: NDArray[np.uint8]) -> bool:
        """Return whether all entries are merged ones, each with a number above all before, and no jumps."""
        mark = self.mark
        highest = max(mark.highest, mark.refused[-1][1] if mark.refused else -1)
        steps = np.diff(numbers)
        if numbers[0] <= highest or (kinds != RAISES).any() or (steps <= 0).any():
            return False
        farthest = max(int(numbers[0]) - max(mark.highest, 0), int(steps.max(initial=0)))
        return not self.jump_max or farthest <= min(self.jump_max, FIRST_MAX)

    def _apply(self, offset: int, number: int, kind: int) -> None:
        """Apply one entry."""
        mark = self.mark
        if kind & UNCHECKED:
            if mark.refuse(number):
                self.offset = offset
            return
        treatment: Literal["new", "dropped", "denied"]
        treatment = "denied" if kind & DENIED else "dropped" if kind & TREATED else "new"
        try:
            if kind & REPLAY:
                is_repeat = False
                if number > mark.highest:
                    mark.check_jump(number, self.jump_max)
            else:
                is_repeat = mark.is_duplicate(number, self.jump_max)
        except RecordRejected as denial:
            self.places.append((offset, denial.detail))
            self.is_right &= treatment == "denied"
            if mark.refuse(number):
                self.offset = offset
            return
        if is_repeat:
            self.places.append((offset, None))
            self.is_right &= treatment == "dropped"
            return
        self.is_right &= treatment == "new"
        # The outcome of one that was treated otherwise is not known yet: it is assumed to be merged.
        if kind & (RAISES | DENIED):
            before = mark.text()
            mark.accept(number)
            if mark.text() != before:
                self.offset = offset
        elif mark.refuse(number):
            self.offset = offset
