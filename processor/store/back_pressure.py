"""Writes wait for the compactions they have outrun: here, for RocksDB's own wait has no end where a compaction fails.

One that lacks room is tried again every second, for ever. RocksDB would hold back writes, flushes and even the closing
meanwhile, and tell nobody why. So it is told never to wait for that, and a write waits here until there are few enough
tables to be read one by one, or until another try has failed.
"""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, Final

from rocksdict import WriteBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocksdict import Options, Rdict, WriteOptions

TABLES_MAX: Final = 20
"""Tables that may lie on one another before writes wait: where RocksDB by itself begins to slow them down."""
_NEVER: Final = 1 << 30  # Tables.
_LOOK_S: Final = 0.01  # A compaction of this many tables takes longer.


def prepare(options: Options) -> None:
    """Let RocksDB wait for no compaction of tables that lie on one another."""
    options.set_level_zero_slowdown_writes_trigger(_NEVER)
    options.set_level_zero_stop_writes_trigger(_NEVER)


def wait(database: Rdict, tables_max: int, unlogged: WriteOptions, beat: Callable[[], None] = lambda: None) -> None:
    """Wait until fewer than so many tables lie on one another.

    Args:
        database: is to be written.
        tables_max: that number.
        unlogged: how it is written.
        beat: called again and again while a compaction is on its way: on a slow disk it may take longer than a thread
            may be away.

    Raises:
        OSError: a compaction failed meanwhile for want of room.
        Exception: RocksDB's, if it failed for another reason.
    """
    if _tables(database) < tables_max:
        return
    failures = _failures(database)
    while _tables(database) >= tables_max:
        has_failed = _failures(database) > failures
        # After any failure but this one RocksDB tries no more: it refuses what is written, and says why.
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
    """Whether a compaction or a flush runs: a wait without one has no end, and somebody should see it."""
    names = ("rocksdb.num-running-compactions", "rocksdb.num-running-flushes")
    return any(database.property_int_value(name) for name in names)


def _failures(database: Rdict) -> int:
    """How many flushes and compactions have failed since it was opened."""
    return database.property_int_value("rocksdb.background-errors") or 0
