"""The store on disk: one RocksDB a partition, memory shared by all of them. The only home of rocksdict."""

from __future__ import annotations

import fcntl
import shutil
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, cast

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from processor.errors import StateDamaged, StateLocked
from processor.state import layout
from processor.state.store import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from processor.record import Stored
    from processor.state.store import Expiring

_BLOOM_BITS_PER_KEY = 10  # One miss in a hundred goes to disk; RocksDB's own advice.
_BLOCK_BYTES = 16 * 1024
_ARENA_BYTES = 64 * 1024  # What an idle partition takes of the write buffers; RocksDB's own is 1 MB.


class RocksMemory:
    """The block cache and write-buffer budget that all partitions of a process share.

    One for each partition would multiply "64 MB" by their number, as users of others found out.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._cache = Cache(capacity_bytes)
        # Write buffers are charged to the cache, so that the capacity bounds both.
        self._write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            capacity_bytes // 2, False, self._cache
        )

    def options(self) -> Options:
        """Options of one partition's database."""
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_block_size(_BLOCK_BYTES)
        table.set_bloom_filter(_BLOOM_BITS_PER_KEY, False)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self._write_buffers)
        options.set_arena_block_size(_ARENA_BYTES)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_keep_log_file_num(2)
        options.set_max_open_files(256)
        return options


class RocksStore:
    """Keeps the contract of `Store`, in a directory that one process may use at a time."""

    def __init__(self, directory: Path, *, identity: str, memory: RocksMemory) -> None:
        """Open the store of one partition; what does not belong to it is wiped.

        Args:
            directory: made if it is missing.
            identity: the SOW topic and partition it is a cache of, with the topic's id.
            memory: the memory it shares.

        Raises:
            StateLocked: another process uses the directory.
            StateDamaged: the database cannot be opened; `RocksStore.destroy` makes room for a new one.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._identity = identity
        self._memory = memory
        self._lock = (directory / layout.LOCK_FILE).open("a+b")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise StateLocked(
                f"{directory} is in use by another process; give each worker its own state_dir, or stop the other"
            ) from None
        # A store that is dropped without close must not keep the directory from its successor in this process.
        self._release = weakref.finalize(self, self._lock.close)
        self._unlogged = WriteOptions()
        # A time before which no record expires; None: none does, and the index costs nothing. Kept, because what
        # expired leaves rows behind that RocksDB would have to step over at every look, until it compacts.
        self._expiring_from_ms: int | None = 0
        self._unlogged.disable_wal = True  # type: ignore[method-assign,assignment]  # A property; the stub says method.
        try:
            self._db = self._open()
            self._settle()
        except BaseException:
            self._release()
            raise

    @staticmethod
    def destroy(directory: Path) -> None:
        """Remove a partition's database from disk; nobody may have it open."""
        shutil.rmtree(directory / layout.ROCKSDB_DIRECTORY, ignore_errors=True)

    def progress(self) -> Progress:
        """How far it has come."""
        with _damage(f"reading {self._directory}"):
            data = self._db.get(layout.PROGRESS_KEY)
        return Progress(0, 0) if data is None else layout.decode_progress(data)

    def get_many(self, keys: Sequence[bytes]) -> list[Stored | None]:
        """The records of these keys, in their order: one multi-get, which lets other threads run."""
        with _damage(f"reading {self._directory}"):
            found = cast("list[bytes | None]", self._db.get([layout.RECORD_PREFIX + key for key in keys]))
        return [None if data is None else layout.decode_record(data) for data in found]

    def apply(self, changes: Mapping[bytes, Stored | None], progress: Progress) -> None:
        """Write records and the progress they stand for in one batch.

        Without the write-ahead log: after a crash RocksDB holds some earlier batch's end, progress included, and
        the SOW topic the rest.
        """
        batch = WriteBatch(raw_mode=True)
        self._index(batch, changes)
        prefix, encode = layout.RECORD_PREFIX, layout.encode_record
        for key, stored in changes.items():
            if stored is None:
                batch.delete(prefix + key)
            else:
                batch[prefix + key] = encode(stored)
        batch[layout.PROGRESS_KEY] = layout.encode_progress(progress)
        with _damage(f"writing {self._directory}"):
            self._db.write(batch, self._unlogged)

    def scan(self) -> Iterator[tuple[bytes, Stored]]:
        """Every key and record, in key order."""
        options = ReadOptions()
        options.set_iterate_upper_bound(layout.AFTER_RECORDS)
        with _damage(f"reading {self._directory}"):
            rows = self._db.iter(options)
            rows.seek(layout.RECORD_PREFIX)
            while rows.valid():
                yield rows.key()[len(layout.RECORD_PREFIX) :], layout.decode_record(rows.value())
                rows.next()
            # Damage ends an iteration like the last record does; only this tells one from the other.
            rows.status()

    def expiring(self, after: Expiring | None, rows_max: int) -> list[Expiring]:
        """The records that expire, in order of time and key."""
        if self._expiring_from_ms is None:
            return []
        begin = layout.expiry_row((self._expiring_from_ms, b"") if after is None else after)
        options = ReadOptions()
        options.set_iterate_upper_bound(layout.AFTER_EXPIRIES)
        found: list[Expiring] = []
        with _damage(f"reading {self._directory}"):
            rows = self._db.iter(options)
            rows.seek(begin)
            if after is not None and rows.valid() and rows.key() == begin:
                rows.next()
            while len(found) < rows_max and rows.valid():
                found.append(layout.expiring_of(rows.key()))
                rows.next()
            rows.status()
        if after is None and rows_max > 0:
            self._expiring_from_ms = found[0][0] if found else None
        return found

    def wipe(self) -> None:
        """Forget everything: a new, empty database."""
        self._abandon()
        self.destroy(self._directory)
        self._db = self._open()
        self._expiring_from_ms = None
        self._claim()

    def close(self) -> None:
        """Flush what was applied, which was not logged, and release the directory."""
        try:
            with _damage(f"closing {self._directory}"):
                self._db.close()  # Flushes, and closes even if it cannot.
        finally:
            self._release()

    def _index(self, batch: WriteBatch, changes: Mapping[bytes, Stored | None]) -> None:
        """Bring the index of expiring records up to date with the records of a batch."""
        old: dict[bytes, int] = {}
        if self._expiring_from_ms is not None:
            with _damage(f"reading {self._directory}"):
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

    def _open(self) -> Rdict:
        options = self._memory.options()
        path = str(self._directory / layout.ROCKSDB_DIRECTORY)
        with _damage(f"opening {path}"):
            # Without column_families a reopened database silently loses its table options: no bloom filter and an
            # 8 MB cache of its own.
            return Rdict(path, options=options, column_families={"default": options})

    def _settle(self) -> None:
        """Wipe what is not ours."""
        try:
            belongs = self._belongs()
            self.expiring(None, 1)
        except BaseException:
            # RocksDB lets nobody open the directory again, wiped or not, before this handle is closed.
            self._abandon()
            raise
        if not belongs:
            self.wipe()

    def _abandon(self) -> None:
        """Close without a wish to keep anything: damage may prevent the flush, not the closing."""
        with suppress(Exception):
            self._db.close()

    def _belongs(self) -> bool:
        """Whether the database is in our format and a cache of our topic; a new one is claimed."""
        with _damage(f"reading {self._directory}"):
            found = self._db.get(layout.FORMAT_KEY), self._db.get(layout.IDENTITY_KEY)
        if found == (None, None) and self.progress().position == 0:
            self._claim()
            return True
        return found == (layout.FORMAT, self._identity.encode())

    def _claim(self) -> None:
        with _damage(f"writing {self._directory}"):
            self._db.put(layout.FORMAT_KEY, layout.FORMAT, write_opt=self._unlogged)
            self._db.put(layout.IDENTITY_KEY, self._identity.encode(), write_opt=self._unlogged)


@contextmanager
def _damage(doing: str) -> Iterator[None]:
    """Map what rocksdict raises: it knows one class of error only, so any of them means damage to us."""
    try:
        yield
    except StateDamaged:
        raise
    except Exception as error:
        raise StateDamaged(f"{doing}: {error}") from error
