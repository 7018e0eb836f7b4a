"""The store on disk: one RocksDB per partition, with memory shared by all of them. The only home of rocksdict."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Final, cast

from rocksdict import Rdict, ReadOptions, WriteBatch, WriteOptions

from processor.errors import DiskFull, StateBehind
from processor.store import layout, partition_directory, rocksdb_writes
from processor.store.contract import Progress
from processor.store.errors import mapped_errors
from processor.store.rocksdb_memory import RocksMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from processor.record import Stored
    from processor.store.contract import Expiring, InitialContent


_USAGE: Final = {
    "write_buffers": "rocksdb.cur-size-all-mem-tables",
    "table_readers": "rocksdb.estimate-table-readers-mem",
    "disk": "rocksdb.total-sst-files-size",
}
_KEY_BEGIN: Final = len(layout.RECORD_PREFIX)
_ROW_BYTES: Final = 100  # About the size of a row in a write buffer without its record's value.


class RocksStore:
    """Implements `Store` in a directory that one process may use at a time."""

    def __init__(
        self, directory: Path, *, identity: str, memory: RocksMemory, make_room: Callable[[], bool] | None = None
    ) -> None:
        """Open the store of one partition; a store with another identity or format is wiped.

        Args:
            directory: created if it is missing.
            identity: the SOW topic, partition and topic id that it is a cache of.
            memory: the memory shared by all stores of the process.
            make_room: called when the disk is full; returns whether there may be room now. None: no room can be made.

        Raises:
            StateLocked: another process uses the directory.
            StateDamaged: the database cannot be opened; `RocksStore.destroy` makes room for a new one.
            DiskUnusable: the disk is full, read-only, failing or forbidden.
        """
        self._directory = directory
        self._identity = identity
        self._memory = memory
        memory.users.add(self)
        self._make_room = make_room or (lambda: False)
        self._lock = partition_directory.lock(directory)
        self._is_closed_on_disk = False  # Whether the database is marked as closed; the next batch removes the mark.
        # A store that is dropped without close must not keep the directory from its successor in this process.
        self._release = weakref.finalize(self, self._lock.close)
        self._unlogged = WriteOptions()
        self._is_loading = False  # Whether it is opened for `load`, and must not be read.
        # A time before which no record expires; None: none expires, and the index costs nothing. Kept in memory,
        # because expired records leave rows behind that RocksDB would have to skip in every call, until it compacts.
        self._expiring_from_ms: int | None = 0
        self._unlogged.disable_wal = True  # type: ignore[method-assign,assignment]  # A property; the stub says method.
        try:
            self._db = self._open()
            self.initial_content: InitialContent = self._settle()
            """The content of the directory when it was opened."""
        except BaseException:
            self._release()
            raise

    def progress(self) -> Progress:
        """Its progress in the SOW topic."""
        self._end_load()
        with self._mapped_errors("reading"):
            data = self._db.get(layout.PROGRESS_KEY)
        return Progress(0, 0) if data is None else layout.decode_progress(data)

    def get_many(self, keys: Sequence[bytes]) -> list[Stored | None]:
        """The records of these keys, in the order of the keys: one multi-get, which lets other threads run."""
        self._end_load()
        with self._mapped_errors("reading"):
            rows = cast("list[bytes | None]", self._db.get([layout.RECORD_PREFIX + key for key in keys]))
        return [None if data is None else layout.decode_record(data) for data in rows]

    def apply(self, changes: Mapping[bytes, Stored | None], progress: Progress | None) -> None:
        """Write records and their progress: in one batch, or the progress with the last of several.

        The write-ahead log is not used: after a crash RocksDB has all batches up to some earlier one, progress
        included, and the SOW topic has the rest.
        """
        self._end_load()
        parts = _parts(changes, self._memory.part_bytes)
        last = parts.pop()
        for part in parts:
            self._write(self._batch(part))
        batch = self._batch(last)
        if progress is not None:
            batch[layout.PROGRESS_KEY] = layout.encode_progress(progress)
        self._write(batch)

    @property
    def can_load(self) -> bool:
        """True if no record in the store expires; otherwise the index would have to be read."""
        return self._expiring_from_ms is None

    def flush(self) -> None:
        """Put the writes, which were not logged, into files, where a killed process does not lose them.

        Raises:
            StateDamaged: it cannot be written.
            DiskUnusable: the disk takes no more.
        """
        with self._going_on(), self._mapped_errors("flushing"):
            self._db.flush(True)

    def load(self, rows: Mapping[bytes, bytes | None], progress: Progress, *, is_many: bool) -> None:
        """Write encoded records, of which none expires, and their progress, as `apply` does."""
        if is_many and not self._is_loading:
            self._reopen(is_loading=True)
        for batch in rocksdb_writes.load_batches(rows, progress, self._memory.part_bytes):
            self._write(batch)

    def scan(self, after: bytes | None = None) -> Iterator[tuple[bytes, Stored]]:
        """Every key and record, in key order; `after`: only the keys after this one."""
        return ((key, layout.decode_record(row)) for key, row in self.scan_rows(after))

    def scan_rows(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Every key and its row as it is on disk, in key order; `after`: only the keys after this one."""
        self._end_load()
        options = ReadOptions()
        options.set_iterate_upper_bound(layout.AFTER_RECORDS)
        with self._mapped_errors("reading"):
            rows = self._db.iter(options)
            # No key lies between a key and the same key with a zero byte at its end.
            rows.seek(layout.RECORD_PREFIX if after is None else layout.RECORD_PREFIX + after + b"\0")
            begin, key_of, row_of, move_on = _KEY_BEGIN, rows.key, rows.value, rows.next
            while (row_key := key_of()) is not None:
                yield row_key[begin:], row_of()
                move_on()
            # Damage ends an iteration as the last record does; only this call distinguishes them.
            rows.status()

    def expiring(self, after: Expiring | None, rows_max: int) -> list[Expiring]:
        """The records that expire, in order of time and key."""
        if self._expiring_from_ms is None:
            return []
        begin = layout.expiry_row((self._expiring_from_ms, b"") if after is None else after)
        options = ReadOptions()
        options.set_iterate_upper_bound(layout.AFTER_EXPIRIES)
        entries: list[Expiring] = []
        with self._mapped_errors("reading"):
            rows = self._db.iter(options)
            rows.seek(begin)
            if after is not None and rows.valid() and rows.key() == begin:
                rows.next()
            while len(entries) < rows_max and rows.valid():
                entries.append(layout.expiring_of(rows.key()))
                rows.next()
            rows.status()
        if after is None and rows_max > 0:
            self._expiring_from_ms = entries[0][0] if entries else None
        return entries

    def usage(self) -> dict[str, int]:
        """The bytes that the store takes: write buffers, open tables without the block cache, and tables on disk."""
        with self._mapped_errors("reading"):
            return {kind: self._db.property_int_value(name) or 0 for kind, name in _USAGE.items()}

    def wipe(self) -> None:
        """Delete all records: continue with a new, empty database."""
        self._abandon()
        self._is_loading = False
        partition_directory.destroy(self._directory)
        self._db = self._open()
        self._expiring_from_ms = None
        self._claim()

    def close(self) -> None:
        """Flush the writes, which were not logged, and release the directory."""
        try:
            with self._mapped_errors("closing"):
                try:
                    if not self._is_closed_on_disk:
                        # With the last of the records: buffers are flushed in order, or not at all.
                        self._db.put(layout.CLOSED_KEY, b"", write_opt=self._unlogged)
                finally:
                    self._db.close()  # It flushes, and closes even if the flush fails.
        finally:
            partition_directory.touch(self._lock)
            self._release()

    def _batch(self, changes: Mapping[bytes, Stored | None]) -> WriteBatch:
        """A batch with these changes and those of the index."""
        batch = WriteBatch(raw_mode=True)
        self._index(batch, changes)
        prefix, encode, put = layout.RECORD_PREFIX, layout.encode_record, batch.put
        # In key order: RocksDB's write buffer is a sorted list, in which it looks for a place from the last one on.
        for key in sorted(changes):
            stored = changes[key]
            if stored is None:
                batch.delete(prefix + key)
            else:
                put(prefix + key, encode(stored))
        return batch

    def _write(self, batch: WriteBatch) -> None:
        """Write a batch when there is room for it; the first batch marks the store as open."""
        if self._is_closed_on_disk:
            batch.delete(layout.CLOSED_KEY)
        with self._going_on(), self._mapped_errors("writing"):
            tables_max = rocksdb_writes.LOAD_TABLES_MAX if self._is_loading else rocksdb_writes.TABLES_MAX
            rocksdb_writes.wait_for_compaction(self._db, tables_max, self._unlogged, self._memory.beat)
            self._db.write(batch, self._unlogged)
            self._is_closed_on_disk = False
            if self._is_loading:
                self._memory.relieve_loading(self._db)
            else:
                self._memory.relieve(self._db)

    def _index(self, batch: WriteBatch, changes: Mapping[bytes, Stored | None]) -> None:
        """Add the changes of the expiry index for the records of a batch."""
        old: dict[bytes, int] = {}
        if self._expiring_from_ms is not None:
            with self._mapped_errors("reading"):
                rows = cast("list[bytes | None]", self._db.get([layout.RECORD_PREFIX + key for key in changes]))
            old = {
                key: expires_at_ms
                for key, data in zip(changes, rows, strict=True)
                if data is not None and (expires_at_ms := layout.expires_at_ms(data)) > 0
            }
        new = {key: stored[2] for key, stored in changes.items() if stored is not None and stored[2] > 0}
        for key, expires_at_ms in old.items():
            if new.get(key) != expires_at_ms:
                batch.delete(layout.expiry_row((expires_at_ms, key)))
        for key, expires_at_ms in new.items():
            if old.get(key) != expires_at_ms:
                batch[layout.expiry_row((expires_at_ms, key))] = b""
        if new:
            first_ms = min(new.values())
            known_ms = self._expiring_from_ms
            self._expiring_from_ms = first_ms if known_ms is None else min(known_ms, first_ms)

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Reopen the database when the disk was full and has room now: RocksDB accepts no writes after a failed flush.

        Writes that were not flushed are lost by that, as after a crash.

        Raises:
            StateBehind: it was reopened with the records that are on disk.
            DiskFull: there is no room.
        """
        try:
            yield
        except DiskFull as error:
            if not self._make_room():
                raise
            self._abandon()
            self._is_loading, self._expiring_from_ms = False, 0
            while True:
                try:
                    self._db = self._open()
                    self._settle()
                    break
                except DiskFull:
                    if not self._make_room():
                        raise
            raise StateBehind(f"{self._directory}: there was no room; the SOW topic has what is missing") from error

    def _end_load(self) -> None:
        """Reopen the database as usual after a load."""
        if self._is_loading:
            self._reopen(is_loading=False)

    def _reopen(self, *, is_loading: bool) -> None:
        """Reopen the database in the other mode; its write buffers are flushed."""
        with self._going_on(), self._mapped_errors("flushing"):
            self._db.close()
        self._is_loading = is_loading
        self._db = self._open()

    def _open(self) -> Rdict:
        options = self._memory.options()
        if self._is_loading:
            rocksdb_writes.prepare_load(options)
        with self._mapped_errors("opening"):
            # Without column_families a reopened database silently loses its table options: no bloom filter and an 8 MB
            # cache of its own.
            path = str(self._directory / layout.ROCKSDB_DIRECTORY)
            return Rdict(path, options=options, column_families={"default": options})

    def _settle(self) -> InitialContent:
        """Classify the database, wipe one that is not ours, and claim a new one."""
        try:
            content, marked = self._look()
            self._is_closed_on_disk = content == "clean"
            is_ours = content in {"clean", "unclean"} and not self._has_begun_only()
            self.expiring(None, 1)
            if content == "new":
                self._claim()
            elif is_ours and marked != layout.FORMAT:
                # Rows of this format may follow: buffers are flushed in order. Only an older store is changed here: a
                # handle with a write to flush waits for the disk when it is dropped.
                self._db.put(layout.FORMAT_KEY, layout.FORMAT, write_opt=self._unlogged)
        except BaseException:
            # RocksDB does not let the directory be opened again, wiped or not, before this handle is closed.
            self._abandon()
            raise
        if content != "new" and not is_ours:
            self.wipe()
        return content

    def _look(self) -> tuple[InitialContent, bytes | None]:
        """The content of the database: whether it is new, ours, and closed properly; and the mark of its format."""
        with self._mapped_errors("reading"):
            keys = layout.FORMAT_KEY, layout.IDENTITY_KEY, layout.CLOSED_KEY
            marked, identity, closed = cast("list[bytes | None]", self._db.get(list(keys)))
            if marked is None and identity is None:
                rows = self._db.iter()
                rows.seek_to_first()
                is_empty = not rows.valid()
                rows.status()
                return "new" if is_empty else "identity", marked
        if marked not in layout.READABLE_FORMATS:
            return "format", marked
        if identity != self._identity.encode():
            return "identity", marked
        return "unclean" if closed is None else "clean", marked

    def _has_begun_only(self) -> bool:
        """Return whether only a part of the first batch was written: position 0 is to mean an empty store.

        Otherwise the age of those records would be unknown, and a deleted one might stay for ever.
        """
        if self.progress().position > 0:
            return False
        return next(self.scan(), None) is not None

    def _claim(self) -> None:
        """Write format and identity into a new database."""
        batch = WriteBatch(raw_mode=True)
        batch[layout.FORMAT_KEY] = layout.FORMAT
        batch[layout.IDENTITY_KEY] = self._identity.encode()
        self._write(batch)

    def _abandon(self) -> None:
        """Close the database without keeping its writes: damage may prevent the flush, not the closing."""
        with suppress(Exception):
            self._db.close()

    def _mapped_errors(self, doing: str) -> AbstractContextManager[None]:
        return mapped_errors(doing, self._directory)


def _parts(changes: Mapping[bytes, Stored | None], bytes_max: int) -> list[Mapping[bytes, Stored | None]]:
    """Split changes into parts of about `bytes_max` bytes; at least one part."""
    sizes = [_ROW_BYTES if stored is None else _ROW_BYTES + len(stored.value) for stored in changes.values()]
    if sum(sizes) <= bytes_max:
        return [changes]
    parts: list[Mapping[bytes, Stored | None]] = []
    part: dict[bytes, Stored | None] = {}
    room = bytes_max
    for (key, stored), size in zip(changes.items(), sizes, strict=True):
        if size > room and part:
            parts.append(part)
            part, room = {}, bytes_max
        part[key] = stored
        room -= size
    return [*parts, part]
