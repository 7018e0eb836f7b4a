"""Measures the states of very many keys: memory over time, disk, and the time of reads."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import tempfile
import time
from pathlib import Path

import psutil

from processor.config import RuntimeConfig
from processor.record import Stored
from processor.store import layout
from processor.store.layered_state import LayeredState
from processor.store.rocksdb import RocksStore
from processor.store.rocksdb_memory import RocksMemory
from tests.programs.benchmarks.figures import write
from tests.programs.benchmarks.throughput import print_progress

BATCH = 5_000
"""Number of records passed to a processor at once, over all partitions."""
MB = 1_000_000


class States:
    """The states of one process, filled and read as a processor does it."""

    def __init__(self, directory: Path, *, partitions: int, value_bytes: int, runtime: RuntimeConfig) -> None:
        self._directory = directory
        self._runtime = runtime
        self._rng = random.Random(7)
        self._noise = self._rng.randbytes(1 << 20)
        self._value_bytes = value_bytes
        self._positions = [0] * partitions
        self._began_s = time.monotonic()
        self.peak = 0
        """Largest resident memory, in bytes."""
        self.open()

    def open(self) -> None:
        """Open the states, with empty caches."""
        memory = self.memory = RocksMemory(self._runtime.block_cache_bytes)
        count = len(self._positions)
        self.states = [
            LayeredState(
                RocksStore(self._directory / str(number), identity=f"bench.sow/{number}", memory=memory),
                cache_bytes=self._runtime.write_back_bytes // count,
            )
            for number in range(count)
        ]

    def close(self) -> None:
        """Flush and close the states."""
        for state in self.states:
            state.close(0)

    def change(self, numbers: range | list[int], version: int) -> None:
        """Read and write records by number, commit, and write back when enough changes are waiting."""
        parted: dict[int, list[bytes]] = {}
        for number in numbers:
            parted.setdefault(number % len(self.states), []).append(b"%d" % number)
        for partition, keys in parted.items():
            state = self.states[partition]
            state.get_many(keys)
            state.put_many({key: Stored(version, self._value()) for key in keys})
            self._positions[partition] += len(keys)
            state.prepare()
            state.commit(self._positions[partition])
        if sum(state.unwritten_bytes for state in self.states) >= self._runtime.write_back_bytes:
            for state in self.states:
                state.write(0)

    def read_us(self, keys: int, turns: int) -> float:
        """The time to read one key of the store, in microseconds: random keys, in batches of the usual size."""
        store = self.states[0].store
        count = len(self.states)
        chosen = [[b"%d" % (self._rng.randrange(keys // count) * count) for _ in range(BATCH)] for _ in range(turns)]
        began_s = time.perf_counter()
        for batch in chosen:
            assert None not in store.get_many(batch)
        return (time.perf_counter() - began_s) / turns / BATCH * 1e6

    def drop_from_page_cache(self) -> None:
        """Drop the files from the page cache, so that the next reads come from the disk."""
        for table in self._directory.glob(f"*/{layout.ROCKSDB_DIRECTORY}/*.sst"):
            with table.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def report(self, what: str) -> None:
        """Print the current figures."""
        usage: dict[str, int] = {}
        for state in self.states:
            for kind, size in state.usage().items():
                usage[kind] = usage.get(kind, 0) + size
        resident = psutil.Process().memory_info().rss
        self.peak = max(self.peak, resident)
        parts = ", ".join(f"{kind} {size / MB:,.0f}" for kind, size in usage.items())
        print(
            f"{time.monotonic() - self._began_s:6.0f} s  {what:<24} resident {resident / MB:6,.0f} MB; "
            f"block cache {self.memory.used_bytes / MB:,.0f}, {parts}",
            flush=True,
        )

    def _value(self) -> bytes:
        begin = self._rng.randrange(len(self._noise) - self._value_bytes)
        return self._noise[begin : begin + self._value_bytes]


def main() -> None:
    """Fill, update and read the states, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--records", type=int, default=500_000, help="updates of random keys after all are there")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--value-bytes", type=int, default=200, help="of each record; they do not compress")
    parser.add_argument("--block-cache-mb", type=int, default=64)
    parser.add_argument("--write-back-mb", type=int, default=64)
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    arguments = parser.parse_args()
    runtime = RuntimeConfig(
        block_cache_bytes=arguments.block_cache_mb << 20, write_back_bytes=arguments.write_back_mb << 20
    )
    with contextlib.ExitStack() as cleanup:
        directory = Path(tempfile.mkdtemp(prefix="sowstream-bench-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        states = States(directory, partitions=arguments.partitions, value_bytes=arguments.value_bytes, runtime=runtime)
        figures = {"keys": arguments.keys, "new_keys_per_s": _fill(states, arguments.keys)}
        figures["updates_per_s"] = _update(states, arguments.keys, arguments.records)
        figures["disk_us"], figures["page_cache_us"] = _read(states, arguments.keys)
        figures["disk_mb"] = sum(state.usage()["disk"] for state in states.states) / MB
        states.close()
    highest = max(states.peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    print(f"most memory that was resident: {highest / MB:,.0f} MB, {highest / 2**30:.2f} GiB")
    write(arguments.json, {"states": [figures | {"resident_mb": highest / MB}]})


def _fill(states: States, keys: int) -> float:
    """Insert new keys; returns the rate per second."""
    print_progress(f"loading {keys:,} keys")
    began_s = time.monotonic()
    for begin in range(0, keys, BATCH):
        states.change(range(begin, begin + BATCH), version=1)
        if begin % (BATCH * 200) == 0:
            states.report(f"{begin:,} keys")
    states.report(f"{keys:,} keys")
    rate = keys / (time.monotonic() - began_s)
    print(f"{rate:,.0f} new keys/s")
    return rate


def _update(states: States, keys: int, records: int) -> float:
    """Update keys; returns the rate per second."""
    print_progress(f"updating {records:,} random ones")
    rng = random.Random(8)
    began_s = time.monotonic()
    for begin in range(0, records, BATCH):
        states.change([rng.randrange(keys) for _ in range(BATCH)], version=2)
        if begin % (BATCH * 20) == 0:
            states.report(f"{begin:,} updates")
    states.report(f"{records:,} updates")
    rate = records / (time.monotonic() - began_s)
    print(f"{rate:,.0f} updates/s of random keys, one thread")
    return rate


def _read(states: States, keys: int) -> tuple[float, float]:
    """The time to read a key, in microseconds, from the disk and from the page cache."""
    states.close()
    states.open()
    states.drop_from_page_cache()
    cold_us = states.read_us(keys, turns=1)
    for _ in range(3):
        warm_us = states.read_us(keys, turns=10)
    states.report("reads")
    print(f"a key read: {cold_us:.0f} us from the disk, {warm_us:.0f} us from the page cache")
    return cold_us, warm_us


if __name__ == "__main__":
    main()
