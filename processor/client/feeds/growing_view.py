"""The view that a feed fills, and the one in memory that moves to a temporary directory when it grows too large.

The contract is the engine's, with additions for views that are kept between runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from processor.subscriptions.request.subscribed_topic import MemoryRecords, NoRecords, RecordView

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from processor.client.feeds.stored_view import StoredView
    from processor.record import Record


class ReaderView(RecordView, Protocol):
    """A view that is closed, and that may be kept for the next run."""

    @property
    def positions(self) -> Mapping[int, int]:
        """The next offset of each partition of a kept view; empty for other views."""

    def settle(self) -> None:
        """Mark all records as delivered: the next run does not deliver them again."""

    def reached(self, partition: int, position: int, as_of_s: float) -> None:
        """Move a partition to an offset before which nothing is left to put.

        Args:
            partition: the number.
            position: the offset.
            as_of_s: when that was known, seconds since the epoch.
        """

    def wipe(self) -> None:
        """Forget everything."""

    def close(self) -> None:
        """Release the resources of the view."""


class NotKept:
    """The part of a view that is kept between runs, for one that is not."""

    @property
    def positions(self) -> Mapping[int, int]:
        """Always empty."""
        return {}

    def settle(self) -> None:
        """Do nothing."""

    def reached(self, partition: int, position: int, as_of_s: float) -> None:
        """Do nothing."""

    def wipe(self) -> None:
        """Forget everything, and close the view: it is not used again."""
        self.close()

    def close(self) -> None:
        """Release the resources of the view: here it has none."""


class NothingKept(NotKept, NoRecords):
    """A view without records, for feeds that deliver each update by itself."""


MEMORY_BYTES: Final = 512 * 1024 * 1024
"""Memory limit of a view: a million records of a hundred bytes."""
_RECORD_BYTES: Final = 360
"""Memory of a record besides its key and value: the tuple, its numbers, object headers, its slot; measured."""
_HEADERS_BYTES: Final = 70
_HEADER_BYTES: Final = 100
"""Memory of a header of a record's own besides its value: a tuple and object headers; `_HEADERS_BYTES`: their tuple."""
_MOVED_AT_ONCE: Final = 10_000
_FULL: Final = 0.75
"""Share of the limit at which a counted view moves to disk; near the limit it would be counted at every batch."""


class GrowingView(NotKept):
    """A view with the contract of `processor.subscriptions.RecordView`; closing it deletes its records."""

    def __init__(self, partitions: int, *, memory_bytes: int = MEMORY_BYTES) -> None:
        """Create an empty view.

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
        """True if it has moved to disk."""
        return self._stored is not None

    def get_many(self, keys: Sequence[bytes], partition: int | None = None) -> Mapping[bytes, Record | None]:
        """The records of these keys, None where there is none."""
        if self._stored is not None:
            return self._stored.get_many(keys, partition)
        if partition is not None:
            return self._in_memory[partition].get_many(keys)
        records: dict[bytes, Record | None] = dict.fromkeys(keys)
        for view in self._in_memory.values():
            records |= {key: record for key, record in view.get_many(keys).items() if record is not None}
        return records

    def put(self, partition: int, records: Sequence[Record]) -> None:
        """Take the next records of a partition, in order."""
        if self._stored is not None:
            self._stored.put(partition, records)
            return
        self._in_memory[partition].put(partition, records)
        self._taken_bytes += _size(records)
        # Replaced records are counted too, so that the records are recounted now and then.
        if self._taken_bytes > self._memory_max:
            self._taken_bytes = sum(_size(list(view.scan())) for view in self._in_memory.values())
            if self._taken_bytes > self._memory_max * _FULL:
                self._move()

    def scan(self) -> Iterator[Record]:
        """Every record as it is now, unaffected by later puts."""
        if self._stored is not None:
            return self._stored.scan()
        return chain.from_iterable([view.scan() for view in self._in_memory.values()])

    def close(self) -> None:
        """Delete all records, on disk too."""
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
        """Move all records to a temporary directory."""
        from processor.client.feeds.stored_view import StoredView  # noqa: PLC0415 - RocksDB: most views are small.

        self._directory = tempfile.TemporaryDirectory(prefix="sowstream-view-", ignore_cleanup_errors=True)
        stored = StoredView(Path(self._directory.name), "", "", self._partitions, keeps=False)
        self._stored = stored
        for partition, view in self._in_memory.items():
            records = view.scan()
            while part := list(islice(records, _MOVED_AT_ONCE)):
                stored.put(partition, part)
        self._in_memory = {}


def _size(records: Sequence[Record]) -> int:
    """The approximate memory of records."""
    own = [record[2] for record in records if record[2] and len(record[2]) > 1]  # One alone is a version: shared.
    headers_bytes = sum([_HEADER_BYTES + len(value or b"") for headers in own for _, value in headers])
    records_bytes = sum([len(record[0] or b"") + len(record[1] or b"") + _RECORD_BYTES for record in records])
    return records_bytes + headers_bytes + len(own) * _HEADERS_BYTES
