"""Fixtures: an empty store of each kind."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from processor.store.contract import Store
from processor.store.memory import MemoryStore
from processor.store.rocksdb import RocksMemory, RocksStore


@pytest.fixture
def memory() -> RocksMemory:
    """Memory for the partitions of a test."""
    return RocksMemory(8 * 1024 * 1024)


@pytest.fixture
def open_rocks(tmp_path: Path, memory: RocksMemory) -> Iterator[Callable[..., RocksStore]]:
    """Open RocksDB in `tmp_path/0`, or in another directory; stores that the test leaves open are closed."""
    opened: list[RocksStore] = []

    def open_store(
        directory: Path | None = None, identity: str = "orders.sow/0", memory: RocksMemory = memory
    ) -> RocksStore:
        opened.append(RocksStore(directory or tmp_path / "0", identity=identity, memory=memory))
        return opened[-1]

    yield open_store
    for store in opened:
        store._abandon()
        store._release()


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest) -> Store:
    """An empty store."""
    return MemoryStore() if request.param == "memory" else request.getfixturevalue("open_rocks")()
