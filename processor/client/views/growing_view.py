"""A view in memory as long as it is small: what is too large goes to a temporary directory."""

from __future__ import annotations

import tempfile
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from processor.client.views.stored_view import StoredView
from processor.subscriptions.record_view import MemoryRecords

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from processor.record import Record

MEMORY_BYTES: Final = 512 * 1024 * 1024
"""What a view may take of memory: a million records of a hundred bytes."""
_RECORD_BYTES: Final = 360
"""What a record takes besides its key and value: the tuple, its numbers, the objects' heads, its place; measured."""
_HEADERS_BYTES: Final = 70
_HEADER_BYTES: Final = 100
"""What headers of its own take besides their values: the tuple of them, and of each a tuple and the objects' heads."""
_MOVED_AT_ONCE: Final = 10_000
_FULL: Final = 0.75
"""Share of the bound from which on it moves when it is counted: else it would be counted at every batch near it."""


class GrowingView:
    """Keeps the contract of `processor.subscriptions.record_view.RecordView`; forgets everything when it is closed."""

    def __init__(self, partitions: int, *, memory_bytes: int = MEMORY_BYTES) -> None:
        """Make an empty one.

        Args:
            partitions: how many the topic has.
            memory_bytes: how much of memory its records may take before they go to disk.
        """
        self._partitions = partitions
        self._memory_max = memory_bytes
        self._in_memory = {partition: MemoryRecords() for partition in range(partitions)}
        self._taken_bytes = 0
        self._stored: StoredView | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    @property
    def is_on_disk(self) -> bool:
        """Whether it has outgrown memory."""
        return self._stored is not None

    @property
    def positions(self) -> Mapping[int, int]:
        """None: it is not kept."""
        return {}

    def get_many(self, keys: Sequence[bytes], partition: int | None = None) -> Mapping[bytes, Record | None]:
        """The records of these keys, None where there is none."""
        if self._stored is not None:
            return self._stored.get_many(keys, partition)
        if partition is not None:
            return self._in_memory[partition].get_many(keys)
        found: dict[bytes, Record | None] = dict.fromkeys(keys)
        for view in self._in_memory.values():
            found |= {key: record for key, record in view.get_many(keys).items() if record is not None}
        return found

    def put(self, partition: int, records: Sequence[Record]) -> None:
        """Take the next records of a partition, in order."""
        if self._stored is not None:
            self._stored.put(partition, records)
            return
        self._in_memory[partition].put(partition, records)
        self._taken_bytes += _size(records)
        # What takes the place of other records is counted too: so now and then all are counted anew.
        if self._taken_bytes > self._memory_max:
            self._taken_bytes = sum(_size(list(view.scan())) for view in self._in_memory.values())
            if self._taken_bytes > self._memory_max * _FULL:
                self._move()

    def scan(self) -> Iterator[Record]:
        """Every record as it is now, whatever is put while the iterator lives."""
        if self._stored is not None:
            return self._stored.scan()
        return chain.from_iterable([view.scan() for view in self._in_memory.values()])

    def settle(self) -> None:
        """Nothing is kept for a next run: no need to know what has been told."""

    def reached(self, partition: int, position: int, as_of_s: float) -> None:
        """The same."""

    def wipe(self) -> None:
        """Forget everything: as `close`, for a view that is not used again."""
        self.close()

    def close(self) -> None:
        """Forget everything, on disk too."""
        stored, self._stored = self._stored, None
        directory, self._directory = self._directory, None
        self._in_memory = {}
        try:
            if stored is not None:
                stored.close()
        finally:
            if directory is not None:
                directory.cleanup()

    def _move(self) -> None:
        """Go on in a temporary directory."""
        self._directory = tempfile.TemporaryDirectory(prefix="sowstream-view-", ignore_cleanup_errors=True)
        stored = StoredView(Path(self._directory.name), "", "", self._partitions, keeps=False)
        self._stored = stored
        for partition, view in self._in_memory.items():
            records = view.scan()
            while part := list(islice(records, _MOVED_AT_ONCE)):
                stored.put(partition, part)
        self._in_memory = {}


def _size(records: Sequence[Record]) -> int:
    """About how much memory records take."""
    own = [record[2] for record in records if record[2] and len(record[2]) > 1]  # One alone is a version: shared.
    headers_bytes = sum([_HEADER_BYTES + len(value or b"") for headers in own for _, value in headers])
    records_bytes = sum([len(record[0] or b"") + len(record[1] or b"") + _RECORD_BYTES for record in records])
    return records_bytes + headers_bytes + len(own) * _HEADERS_BYTES
