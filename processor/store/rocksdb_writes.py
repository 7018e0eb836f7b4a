"""Makes writes wait for the compactions that they have outrun, and loads very many records at once.

RocksDB's own wait never ends if a compaction fails: it retries one that lacks room every second, for ever. Meanwhile it
would hold back writes, flushes and even the closing, without an error. So it is configured never to wait for that, and
a write waits here until there are few enough overlapping tables, or until another compaction has failed.

A database spends most of its time on keeping its write buffer sorted, though no one reads it during a load. So it is
reopened with a buffer that is only appended to, and sorted by a thread of RocksDB's when it is full; and its tables are
compacted later, more of them at a time. It is reopened as usual before the first read.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from rocksdict import MemtableFactory, Options, WriteBatch

from processor.store import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rocksdict import Rdict, WriteOptions

    from processor.store.contract import Progress


TABLES_MAX: Final = 20
"""Number of overlapping tables (level 0) from which writes wait: RocksDB's own limit for slowing writes down."""
_NEVER: Final = 1 << 30  # Tables.
_LOOK_S: Final = 0.01  # Compacting as many tables takes longer.


def never_wait(options: Options) -> None:
    """Configure RocksDB never to wait for the compaction of overlapping tables."""
    options.set_level_zero_slowdown_writes_trigger(_NEVER)
    options.set_level_zero_stop_writes_trigger(_NEVER)


def wait_for_compaction(
    database: Rdict, tables_max: int, unlogged: WriteOptions, beat: Callable[[], None] = lambda: None
) -> None:
    """Wait until there are fewer overlapping tables than `tables_max`.

    Args:
        database: the database to be written.
        tables_max: the limit.
        unlogged: the write options, without the write-ahead log.
        beat: called again and again while a compaction runs: on a slow disk that may take longer than the watchdog
            allows.

    Raises:
        OSError: a compaction failed meanwhile for lack of room.
        Exception: RocksDB's, if it failed for another reason.
    """
    if _tables(database) < tables_max:
        return
    failures = _failures(database)
    while _tables(database) >= tables_max:
        has_failed = _failures(database) > failures
        # After any other failure RocksDB does not retry: it refuses writes, with the reason.
        database.write(WriteBatch(raw_mode=True), unlogged)
        if has_failed:
            size = database.property_int_value("rocksdb.total-sst-files-size") or 0
            raise OSError(
                errno.ENOSPC,
                f"{os.strerror(errno.ENOSPC)} to compact tables of {size / 1e6:,.1f} MB, which takes as much again for "
                "a while, and nothing more can be written before",
            )
        if _is_compacting(database):
            beat()
        time.sleep(_LOOK_S)


def _tables(database: Rdict) -> int:
    return int(database.property_value("rocksdb.num-files-at-level0") or 0)


def _is_compacting(database: Rdict) -> bool:
    """True if a compaction or a flush runs; without one a wait would never end, and the operator should see that."""
    names = ("rocksdb.num-running-compactions", "rocksdb.num-running-flushes")
    return any(database.property_int_value(name) for name in names)


def _failures(database: Rdict) -> int:
    """The number of flushes and compactions that have failed since the database was opened."""
    return database.property_int_value("rocksdb.background-errors") or 0


_COMPACTED_FROM: Final = 16  # Overlapping tables.
LOAD_TABLES_MAX: Final = 3 * _COMPACTED_FROM
"""Number of overlapping tables from which writes wait during a load."""


def prepare_load(options: Options) -> None:
    """Change the options of a database for a load."""
    options.set_memtable_factory(MemtableFactory.vector())
    options.set_memtable_whole_key_filtering(False)  # Nothing is read.
    options.set_allow_concurrent_memtable_write(False)  # RocksDB demands it.
    options.set_level_zero_file_num_compaction_trigger(_COMPACTED_FROM)


def load_batches(rows: Mapping[bytes, bytes | None], progress: Progress, bytes_max: int) -> Iterator[WriteBatch]:
    """Group rows into batches of about `bytes_max` bytes; the last batch has the progress."""
    size = sum(map(len, filter(None, rows.values())))
    count = max(1, -(-size // bytes_max))
    keys, values = list(map(layout.RECORD_PREFIX.__add__, rows)), list(rows.values())
    share = -(-len(keys) // count)
    for begin in range(0, len(keys), share) if keys else (0,):
        end = begin + share
        batch = WriteBatch(raw_mode=True)
        if None in values:
            for key, row in zip(keys[begin:end], values[begin:end], strict=True):
                if row is None:
                    batch.delete(key)
                else:
                    batch.put(key, row)
        else:
            deque(map(batch.put, keys[begin:end], values[begin:end]), maxlen=0)
        if end >= len(keys):
            batch[layout.PROGRESS_KEY] = layout.encode_progress(progress)
        yield batch
