"""A view on disk with bounded memory: for topics too large for memory, and for views that are kept between runs.

`<directory>/<partition>/` has one RocksDB for each partition of the SOW topic, like the states of workers; see
`stored_partition.py` for the bytes. It is a cache: after any damage, it is filled again from the SOW topic.
"""

from __future__ import annotations

import logging
import time
from itertools import chain
from typing import TYPE_CHECKING, Final

from processor.client.feeds.stored_partition import ROW_FORMAT, StoredPartition
from processor.errors import StateDamaged, StateLocked, Stop
from processor.kafka.partitioner import partition_for
from processor.store import partition_directory
from processor.store.contract import stale_reason
from processor.store.rocksdb import RocksStore
from processor.store.rocksdb_memory import RocksMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from processor.record import Record

log = logging.getLogger("sowstream.client")

CACHE_BYTES: Final = 64 * 1024 * 1024
"""Memory of RocksDB's block cache and write buffers, for one view."""
WRITE_BACK_BYTES: Final = 16 * 1024 * 1024
"""Limit of the records of a view that wait in memory before they are written."""
WRITE_BACK_INTERVAL_S: Final = 10.0
"""Longest time that records of a kept view wait; a client that is killed receives them again."""
_UNTOLD_TIMES_MAX: Final = 4


class StoredView:
    """A view with the contract of `processor.subscriptions.RecordView`, for one engine, on its thread."""

    def __init__(
        self,
        directory: Path,
        topic: str,
        topic_id: str,
        partitions: int,
        *,
        keeps: bool,
        cache_bytes: int = CACHE_BYTES,
        write_back_bytes: int = WRITE_BACK_BYTES,
    ) -> None:
        """Open the view; damaged partitions and those of another topic are wiped.

        Args:
            directory: created if it is missing; one process may use it at a time.
            topic: the SOW topic's name in Kafka.
            topic_id: the topic's id, which differs from that of an earlier topic of the same name.
            partitions: the topic's number of partitions.
            keeps: whether the view is kept for the next run. Then it is written only up to the last `settle`, otherwise
                as records arrive.
            cache_bytes: the bound of RocksDB's memory.
            write_back_bytes: the limit of records that wait to be written.

        Raises:
            Stop: another process uses the directory, or the disk cannot be used.
        """
        self._directory = directory
        self._keeps = keeps
        self._write_back_max = write_back_bytes
        self._memory = RocksMemory(cache_bytes)
        self._written_s = time.monotonic()
        self._partitions: dict[int, StoredPartition] = {}
        try:
            for partition in range(partitions):
                identity = f"{topic}/{partition}/{topic_id}/{ROW_FORMAT}"
                self._partitions[partition] = StoredPartition(self._store(directory / str(partition), identity))
        except BaseException:
            self.close(keeps=False)
            raise

    @property
    def positions(self) -> dict[int, int]:
        """The next SOW offset of each partition."""
        return {number: part.position for number, part in self._partitions.items()}

    def wipe_stale(self, ends: Mapping[int, int], oldest: Mapping[int, int], horizon_ms: float) -> dict[int, str]:
        """Wipe the partitions that cannot be continued; returns the reason for each of them.

        Args:
            ends: the end of each partition of the topic.
            oldest: the oldest offset kept of each partition.
            horizon_ms: how long the topic keeps deletes.
        """
        wiped = {}
        for number, part in self._partitions.items():
            stale = stale_reason(part.progress, ends[number], horizon_ms)
            if stale is not None:
                wiped[number] = stale[1]
            elif 0 < part.position < oldest[number]:
                wiped[number] = "records were deleted from the topic before they were read"
        for number in wiped:
            self._partitions[number].wipe()
        return wiped

    def get_many(self, keys: Sequence[bytes], partition: int | None = None) -> Mapping[bytes, Record | None]:
        """The records of these keys, None where there is none.

        Without a partition, each key is looked up where Java's partitioner puts it, and, if it is not there, in all
        other partitions: publishers may use another partitioner.
        """
        if partition is not None:
            return self._partitions[partition].get_many(keys)
        homes: dict[int, list[bytes]] = {}
        for key in keys:
            homes.setdefault(partition_for(key, len(self._partitions)), []).append(key)
        records: dict[bytes, Record | None] = {}
        for home, its_keys in homes.items():
            records |= self._partitions[home].get_many(its_keys)
        for number, part in self._partitions.items():
            elsewhere = [
                key for home, its_keys in homes.items() if home != number for key in its_keys if records[key] is None
            ]
            if elsewhere:
                records |= part.get_many(elsewhere)
        return records

    def put(self, partition: int, records: Sequence[Record]) -> None:
        """Take the next records of a partition, in order."""
        if not records:
            return
        self._partitions[partition].put(records)
        waiting = self._waiting_bytes()
        # A subscriber that always has undelivered records must not let memory grow without limit.
        if not self._keeps or waiting > self._write_back_max * _UNTOLD_TIMES_MAX:
            self.settle()

    def reached(self, partition: int, position: int, as_of_s: float) -> None:
        """Move a partition to an offset before which nothing is left to put, as of a time in epoch seconds."""
        self._partitions[partition].reached(position, as_of_s)

    def settle(self) -> None:
        """Mark all records as delivered: they may be written, and the next run does not deliver them again."""
        for part in self._partitions.values():
            part.settle()
        now_s = time.monotonic()
        if self._waiting_bytes() > self._write_back_max or (
            self._keeps and now_s - self._written_s > WRITE_BACK_INTERVAL_S
        ):
            self._written_s = now_s
            for part in self._partitions.values():
                part.write()

    def as_of_s(self, partition: int) -> float:
        """Time at which the position on disk of a partition was current, seconds since the epoch."""
        return self._partitions[partition].progress.applied_at_ms / 1000

    def write_behind(self) -> None:
        """Write the records up to the last call to disk: the view there stays behind by one call.

        Raises:
            StateDamaged: it cannot be written.
            DiskUnusable: the disk takes no more.
        """
        for part in self._partitions.values():
            part.write_and_flush()
            part.settle()

    def scan(self) -> Iterator[Record]:
        """Every record as it is now, unaffected by later puts."""
        return chain.from_iterable([part.scan() for part in self._partitions.values()])

    def wipe(self) -> None:
        """Forget everything."""
        for part in self._partitions.values():
            part.wipe()

    def close(self, *, keeps: bool = True) -> None:
        """Release the directory; write delivered records first if the view is kept."""
        parts, self._partitions = self._partitions, {}
        failed: BaseException | None = None
        for part in parts.values():
            try:
                part.close(keeps=keeps and self._keeps)
            except Exception as error:  # noqa: BLE001 - The others must be closed too.
                failed = failed or error
        if failed is not None:
            raise failed

    def _waiting_bytes(self) -> int:
        return sum([part.waiting_bytes for part in self._partitions.values()])

    def _store(self, directory: Path, identity: str) -> RocksStore:
        """The store of a partition; a damaged one is replaced by an empty one."""
        try:
            store = self._opened(directory, identity)
        except StateLocked:
            raise Stop(
                f"the view in {self._directory} is in use by another client; give each a view_dir of its own, or close "
                "the other"
            ) from None
        if store.initial_content in ("format", "identity"):
            log.warning(
                "the kept view in %s is of another version or topic (%s), and is filled again",
                directory,
                store.initial_content,
            )
        return store

    def _opened(self, directory: Path, identity: str) -> RocksStore:
        try:
            return RocksStore(directory, identity=identity, memory=self._memory)
        except StateDamaged as error:
            log.warning("the kept view in %s is damaged, and is filled again: %s", directory, error)
            partition_directory.destroy(directory)
            return RocksStore(directory, identity=identity, memory=self._memory)


class KeptView(StoredView):
    """A view on disk that is kept for the next run, and reports when its directory is free again."""

    def __init__(
        self, directory: Path, topic: str, topic_id: str, partitions: int, *, on_close: Callable[[], None]
    ) -> None:
        self._on_close = on_close
        super().__init__(directory, topic, topic_id, partitions, keeps=True)

    def close(self, *, keeps: bool = True) -> None:
        """Release the directory."""
        try:
            super().close(keeps=keeps)
        finally:
            self._on_close()
