"""Collects the sequences of the records that a task merges, for the check of its duplicates when all tasks are done.

A worker remembers the sequences of each client in a partition (`processor.wire.publisher_mark`), and drops a record
whose sequence was taken. A merge key by key cannot know it, so a task takes for duplicates the records that repeat a
sequence within their key: nearly always, these are all. `sequence_check` finds the others. It needs, of each record,
the few bytes that are kept here: client, offset, sequence, and the treatment of the record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from processor.builtin.delta_merge.deduplication import mark_name
from processor.errors import RecordRejected
from processor.record import Record
from processor.wire.command import read_numbered
from processor.wire.forwarding import came_in
from spark_integration.foundation.arrow_records import outgoing

if TYPE_CHECKING:
    import pyarrow as pa

    from processor.record import Outgoing
    from processor.wire.command import CommandHeaders

SEQUENCE: Final = "sequence"
"""Value of column `topic` in a row with sequences: see `Block`."""

RAISES: Final = 1
"""The record was not rejected, so that its sequence counts."""
TREATED: Final = 2
"""The record was merged as a duplicate."""
REPLAY: Final = 4
"""The record is a dead letter that was sent again, or was refused where it came in: it is never a duplicate."""
DENIED: Final = 8
"""The record was rejected for its sequence."""
UNCHECKED: Final = 16
"""The record was rejected before its sequence was looked at."""

NUMBER_BYTES: Final = 8
"""Bytes of a block's number, with which its key begins."""

_BLOCK_BITS: Final = 20
"""Bits of an offset within a block: a check holds the sequences of one client in one block, at most 17 MiB."""
_ENTRIES_MAX: Final = 500_000
"""Entries that a task keeps, about 12 MiB, before it writes them."""
_KEYS_HIGHS_MAX: Final = 10_000


class Repeat(Record):
    """A record that is a duplicate of another one."""

    __slots__ = ()


class Denied(Record):
    """A record that a worker rejects for its sequence."""

    detail: str
    """The detail of the rejection."""


class Block(NamedTuple):
    """The sequences of one client in a range of offsets, some or all: a row with the name in its key."""

    name: bytes
    """The name of the client's mark."""
    number: int
    """The offsets, without their last 20 bits."""
    offsets: np.ndarray
    numbers: np.ndarray
    """The sequences."""
    kinds: np.ndarray
    """Sums of the flags above."""

    def key(self) -> bytes:
        """The key of the row."""
        return struct.pack(">q", self.number) + self.name

    def value(self) -> bytes:
        """The value of the row."""
        return self.offsets.tobytes() + self.numbers.tobytes() + self.kinds.tobytes()

    @classmethod
    def of(cls, key: bytes, value: bytes) -> Block:
        """Read a row."""
        (number,) = struct.unpack_from(">q", key)
        count = len(value) // 17
        longs = np.frombuffer(value, np.int64, 2 * count)
        return cls(
            key[NUMBER_BYTES:], number, longs[:count], longs[count:], np.frombuffer(value, np.uint8, count, 16 * count)
        )


class SequenceLog:
    """The sequences of the records of one partition in a task; the `Numbers` of its merge."""

    def __init__(self, own_topic: str, *, is_marked: bool) -> None:
        """Begin without entries.

        Args:
            own_topic: the input topic.
            is_marked: whether the records say which of them are duplicates; else the log guesses.
        """
        self._is_marked = is_marked
        self._rekeyed_from = f"{own_topic}/".encode()
        self._ids: dict[bytes, int] = {}
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        self._size = 0
        self._pending: dict[int, tuple[int, int, int]] = {}
        """By offset: client, sequence and kind."""
        self._refused: set[int] = set()
        """The offsets of pending entries whose records were rejected."""
        self.count = 0
        """The number of settled entries."""
        self._key: bytes | None = None
        self._highs: dict[bytes, int] = {}

    def is_duplicate(self, record: Record, request: CommandHeaders) -> bool:
        """Note a record with a sequence; return whether it is to be treated as a duplicate.

        Args:
            record: the record; those of a key follow one another.
            request: its headers.

        Raises:
            RecordRejected: a worker rejects it for its sequence.
        """
        key, offset = record.key, record.offset
        self._refused.discard(offset)
        if type(record) is Denied:
            self._pending[offset] = self._id(request), request.sequence, DENIED
            raise RecordRejected("bad_header", record.detail)
        if (before := self._pending.get(offset)) is not None:  # The merge of its batch failed and is repeated.
            return bool(before[2] & TREATED)
        if key != self._key or len(self._highs) > _KEYS_HIGHS_MAX:
            self._key = key
            self._highs.clear()
        name, sequence = mark_name(request, self._rekeyed_from), request.sequence
        is_replay = request.is_replay or (request.is_mended and bool(self.came_in(request)))
        if self._is_marked:
            is_treated = type(record) is Repeat
        else:
            high = self._highs.get(name, -1)
            is_treated = sequence <= high and not is_replay
            self._highs[name] = max(high, sequence)
        kind = RAISES | TREATED * is_treated | REPLAY * is_replay
        self._pending[offset] = self._id(request), sequence, kind
        return is_treated

    def take(self, request: CommandHeaders) -> bool:  # noqa: ARG002
        """Return False: this merge sends no acks, and a record that is not refused is taken."""
        return False

    def refuse(self, record: Record) -> None:
        """Note that a record is rejected, or expects another version."""
        if record.offset not in self._pending:
            request = read_numbered(record)
            if request is None:
                return
            self._pending[record.offset] = self._id(request), request.sequence, UNCHECKED
        self._refused.add(record.offset)

    def pass_on(self, request: CommandHeaders) -> bool:  # noqa: ARG002
        """Return False: this merge forwards nothing."""
        return False

    def came_in(self, request: CommandHeaders) -> bytes:
        """Return the place where a forwarded record came in; empty for one that came in here."""
        return came_in(request.source, self._rekeyed_from)

    def flush(self) -> None:
        """Do nothing: `settle` keeps the entries."""

    def _id(self, request: CommandHeaders) -> int:
        return self._ids.setdefault(mark_name(request, self._rekeyed_from), len(self._ids))

    def settle(self) -> None:
        """Keep the pending entries; those of rejected records raise nothing."""
        if not self._pending:
            return
        offsets = np.array(list(self._pending), np.int64)
        ids, numbers, kinds = (np.array(column, np.int64) for column in zip(*self._pending.values(), strict=True))
        if self._refused:
            kinds[np.isin(offsets, list(self._refused))] &= ~RAISES
            self._refused.clear()
        self._add(ids.astype(np.int32), offsets, numbers, kinds.astype(np.uint8))
        self._pending.clear()

    def add(self, clients: list[bytes], ids: bytes, offsets: bytes, numbers: bytes, kinds: bytes) -> None:
        """Keep entries of `json_runs`, whose ids are places in a list of clients."""
        places = np.array(
            [self._ids.setdefault(b"sequence//" + client, len(self._ids)) for client in clients], np.int32
        )
        self._add(
            places[np.frombuffer(ids, np.int32)],
            np.frombuffer(offsets, np.int64),
            np.frombuffer(numbers, np.int64),
            np.frombuffer(kinds, np.uint8),
        )

    def rows(self, partition: int, *, is_end: bool) -> Iterator[pa.RecordBatch]:
        """Write the entries if they are many, or the partition ends."""
        if not self._parts or (self._size < _ENTRIES_MAX and not is_end):
            return
        names = list(self._ids)
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
        blocks = columns[1] >> _BLOCK_BITS
        order = np.lexsort((columns[1], blocks, columns[0]))
        ids, offsets, numbers, kinds = (column[order] for column in columns)
        blocks = blocks[order]
        ends = [*(np.flatnonzero((np.diff(ids) != 0) | (np.diff(blocks) != 0)) + 1), len(ids)]
        begin = 0
        rows: list[Outgoing] = []
        for end in ends:
            part = slice(begin, end)
            block = Block(names[ids[begin]], int(blocks[begin]), offsets[part], numbers[part], kinds[part])
            rows.append((block.key(), block.value(), []))
            begin = end
        self._ids, self._parts, self._size = {}, [], 0
        yield outgoing(SEQUENCE, partition, rows)

    def _add(self, ids: np.ndarray, offsets: np.ndarray, numbers: np.ndarray, kinds: np.ndarray) -> None:
        self._parts.append((ids, offsets, numbers, kinds))
        self._size += len(ids)
        self.count += len(ids)
