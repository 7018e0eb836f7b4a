"""The memory that all RocksDB databases of a process share, and the options that keep them within it.

The limits, with `runtime.block_cache_bytes` as the capacity:

    block cache      data blocks, filters and indexes of the tables: the capacity. The filters and the top of each index
                     are read in parts, so a cold key costs the parts it needs.
    write buffers    half the capacity, charged to the cache at the expense of blocks. A write that finds them
                     over it waits for a flush (`relieve`), so they stand above it by one part of a batch at most.
                     Each has a filter of its keys, a 2048th of the capacity, but not beyond 256 partitions: the
                     filters alone would be over the budget, and each write would wait for a flush.
    table readers    a few KB for each open table; their number is bounded by `max_open_files`.
    compactions      a few MB for each of RocksDB's two threads while they run.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteBufferManager,
)

from processor.store import rocksdb_writes

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOOM_BITS_PER_KEY: Final = 10  # One miss in a hundred reads the disk; RocksDB's own advice.
_BLOCK_BYTES: Final = 4 * 1024
"""The unit that is read and unpacked for one cold key: 16 KB took twice the time, and saved 2 % of the disk."""
_ARENA_BYTES: Final = 16 * 1024  # The least share of a partition in the write buffers; RocksDB's default is 1 MB.
_WRITE_BUFFER_BYTES: Final = 64 * 1024 * 1024  # RocksDB's default; a flush comes much earlier, by the shared budget.
_BUFFER_FILTERS: Final = 2048
"""The filter of a write buffer takes this part of the capacity, 32 KB of 64 MB, also in an idle partition. With four
partitions a buffer has 30,000 to 60,000 keys, so 4 to 9 bits a key; twice as many saved 0.04 µs a key."""

_FILTERS_MAX: Final = 256
"""Partitions whose write buffers have a filter: those of more would take over a quarter of the budget while idle."""


class RocksMemory:
    """The block cache and write-buffer budget that all partitions of a process share.

    One for each partition would multiply "64 MB" by their number.
    """

    def __init__(self, capacity_bytes: int, beat: Callable[[], None] = lambda: None) -> None:
        """Create the shared memory; `beat` is called again and again by a thread that waits for a compaction."""
        self.capacity_bytes = capacity_bytes
        self.beat = beat
        self._cache = Cache(capacity_bytes)
        # Write buffers are charged to the cache, so that the capacity limits both.
        self._write_buffers_max = capacity_bytes // 2
        self._write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            self._write_buffers_max, False, self._cache
        )
        self.part_bytes = capacity_bytes // 16
        """The largest part of a batch to be written at once: the write buffers may exceed their budget by it."""
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        """The stores that use it."""

    @property
    def used_bytes(self) -> int:
        """The bytes that cache and write buffers take now."""
        return self._cache.get_usage()

    def relieve(self, database: Rdict) -> None:
        """Wait until a database that was just written is flushed, if the write buffers are over their budget.

        RocksDB by itself only starts a flush then, and lets writes go on: a burst took nine times the budget.
        """
        if self._write_buffers.get_usage() > self._write_buffers_max:
            database.flush(True)

    def relieve_loading(self, database: Rdict) -> None:
        """`relieve` for a database that is being loaded: its write buffers may take the share of the blocks, too."""
        if self._write_buffers.get_usage() > self.capacity_bytes:
            database.flush(True)

    def options(self) -> Options:
        """The options of one partition's database, which is among the users."""
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_block_size(_BLOCK_BYTES)
        table.set_bloom_filter(_BLOOM_BITS_PER_KEY, False)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        # In parts of 4 KB with a small index on top: unpartitioned ones are half a megabyte for each table, and if not
        # all of them fit into the cache, a key would cost that much.
        table.set_index_type(BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_pin_top_level_index_and_filter(True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self._write_buffers)
        options.set_arena_block_size(_ARENA_BYTES)
        options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
        # A key that a buffer lacks, as a new one, is not searched in its sorted list, which took half of such a read.
        options.set_memtable_whole_key_filtering(True)
        filter_bytes = self.capacity_bytes / _BUFFER_FILTERS if len(self.users) <= _FILTERS_MAX else 0
        options.set_memtable_prefix_bloom_ratio(filter_bytes / _WRITE_BUFFER_BYTES)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_keep_log_file_num(2)
        options.set_max_open_files(256)
        rocksdb_writes.never_wait(options)
        return options
