"""Loads very many records at once: the database options for that time, and the batches.

A database spends most of its time on keeping its write buffer sorted, though no one reads it during a load. So it is
reopened with a buffer that is only appended to, and sorted by a thread of RocksDB's when it is full; and its tables are
compacted later, more of them at a time. It is reopened as usual before the first read.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from rocksdict import MemtableFactory, Options, WriteBatch

from processor.store import layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from processor.store.contract import Progress

_COMPACTED_FROM: Final = 16  # Overlapping tables.
TABLES_MAX: Final = 3 * _COMPACTED_FROM
"""Number of overlapping tables from which writes wait during a load."""


def prepare(options: Options) -> None:
    """Change the options of a database for a load."""
    options.set_memtable_factory(MemtableFactory.vector())
    options.set_allow_concurrent_memtable_write(False)  # RocksDB demands it.
    options.set_level_zero_file_num_compaction_trigger(_COMPACTED_FROM)


def batches(rows: Mapping[bytes, bytes | None], progress: Progress, bytes_max: int) -> Iterator[WriteBatch]:
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
