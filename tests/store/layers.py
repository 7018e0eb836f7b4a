"""A layered state compared with plain dicts, for tests that do anything in any order."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from processor.record import Stored
from processor.store.layered_state import LayeredState, _size
from processor.store.memory import MemoryStore
from processor.store.rocksdb import RocksMemory, RocksStore

Model: TypeAlias = dict[bytes, Stored]
Changes: TypeAlias = Mapping[bytes, Stored | None]


class Disk:
    """A store that outlives its users: in RocksDB, or in memory."""

    def __init__(self, directory: Path | None) -> None:
        self._directory, self._memory = directory, RocksMemory(1024 * 1024)
        self._kept = MemoryStore()
        self._opened: RocksStore | None = None

    def open(self) -> MemoryStore | RocksStore:
        """The store, as it was left."""
        if self._directory is None:
            return self._kept
        self._opened = RocksStore(self._directory, identity="orders.sow/0", memory=self._memory)
        return self._opened

    def release(self) -> None:
        """Close the store that was opened last: the end of an unclosed RocksDB waits for ever for its directory."""
        if self._opened is not None:
            self._opened._abandon()
            self._opened._release()


@contextmanager
def disk(kind: str) -> Iterator[Disk]:
    """A disk of each kind."""
    if kind == "memory":
        yield Disk(None)
        return
    with tempfile.TemporaryDirectory() as directory:
        kept = Disk(Path(directory))
        try:
            yield kept
        finally:
            kept.release()


def applied(model: Model, changes: Changes) -> Model:
    """A dict after these changes."""
    return {key: stored for key, stored in {**model, **changes}.items() if stored is not None}


class Layers:
    """One state, and the dicts that it must equal: the staged, prepared, committed and written records.

    A step is a method's name, or several with "and" between them.
    """

    def __init__(self, kept: Disk, cache_bytes: int) -> None:
        self._kept, self._cache_bytes = kept, cache_bytes
        self.state: LayeredState
        self.staged: Model = {}
        self.prepared: Model | None = None  # None: no transaction is being committed.
        self.committed: Model = {}
        self.position = 0
        self._written: Model = {}
        self._written_position = 0
        self._aim, self._aimed_position = self._written, 0  # The records of the store when all pieces are written.
        self._open()

    def do(self, steps: str, changes: Changes) -> None:
        """Do steps, with these changes for those that take some."""
        for step in steps.split(" and "):
            if step in ("put", "put again", "read", "restore"):
                getattr(self, step.replace(" ", "_"))(changes)
            else:
                getattr(self, step.replace(" ", "_"))()

    def check(self) -> None:
        """Check that the state equals the dicts."""
        state = self.state
        assert state.position == self.position
        assert state.store.progress().position == self._written_position
        assert state._clean_bytes <= self._cache_bytes
        waits = _size(state._unwritten.values()) + _size(state._writing.values())
        assert state.unwritten_bytes >= waits, "too little would let too much wait"
        assert waits > 0 or state.unwritten_bytes == 0
        for keys_max in (1, 2, 9):
            assert self._scanned(keys_max) == sorted(self.staged.items())
        if not state.is_writing:
            assert dict(state.store.scan()) == self._written
            return
        keys = [*self._written, *self._aim]
        found = state.store.get_many(keys)
        assert all(new in (self._written.get(key), self._aim.get(key)) for key, new in zip(keys, found, strict=True))

    def _scanned(self, keys_max: int) -> list[tuple[bytes, Stored]]:
        """Every state, read piece by piece."""
        found: list[tuple[bytes, Stored]] = []
        while len(piece := self.state.scan(found[-1][0] if found else None, keys_max)) == keys_max:
            found += piece
        assert len(piece) < keys_max
        return found + piece

    def put(self, changes: Changes) -> None:
        """Stage changes, also while a commit is under way."""
        self.state.put_many(changes)
        self.staged = applied(self.staged, changes)

    def put_again(self, changes: Changes) -> None:
        """Stage other changes of the same keys."""
        newer = Stored(10, b"again", expires_at_ms=2)
        self.put({key: newer if stored is None or stored.version % 3 else None for key, stored in changes.items()})

    def read(self, changes: Changes) -> None:
        """Read keys."""
        found = self.state.get_many(list(changes))
        assert found == {key: self.staged.get(key) for key in changes}

    def prepare(self) -> None:
        """Begin a commit; one that is under way ends first."""
        self.commit()
        self.state.prepare()
        self.prepared = self.staged

    def commit(self) -> None:
        """End the commit that is under way, if there is one."""
        if self.prepared is not None:
            self.position += 1
            self.state.commit(self.position)
            self.committed, self.prepared = self.prepared, None

    def rollback(self) -> None:
        """Drop the prepared and the staged changes."""
        self.state.rollback()
        self.staged, self.prepared = self.committed, None

    def recount(self) -> None:
        """Count each key once."""
        quick = self.state.unwritten_bytes
        self.state.recount()
        assert self.state.unwritten_bytes <= quick

    def write(self) -> None:
        """Write all committed changes."""
        self.state.write(self.position)
        self._written, self._written_position = self.committed, self.position

    def write_some(self) -> None:
        """Write a piece of the committed changes."""
        if not self.state.is_writing:
            self.state.start_writing(self.position)
            self._aim, self._aimed_position = self.committed, self.position
        if self.state.is_writing:
            self.state.write_some(1)
        if not self.state.is_writing:
            self._written, self._written_position = self._aim, self._aimed_position

    def restore(self, changes: Changes) -> None:
        """Roll back, and apply the records of the topic."""
        self.rollback()
        self.position += 10
        self.state.restore(changes, self.position, self.position)
        self.staged = self.committed = self._written = applied(self.committed, changes)
        self._written_position = self.position

    def reopen(self) -> None:
        """Close, which drops uncommitted changes, and open again."""
        self.state.close(self.position)
        self.staged, self.prepared = self.committed, None
        self._written, self._written_position = self.committed, self.position
        self._open()

    def crash(self) -> None:
        """Open the store as a crash leaves it, with some records newer than its position; only in memory."""
        if isinstance(self.state.store, MemoryStore):
            self._open()
            self.staged = self.committed = self._written = dict(self.state.store.scan())
            self.prepared, self.position = None, self._written_position

    def wipe(self) -> None:
        """Wipe the state."""
        self.state.wipe()
        self.staged, self.prepared, self.committed, self._written = {}, None, {}, {}
        self.position = self._written_position = 0

    def _open(self) -> None:
        self.state = LayeredState(self._kept.open(), cache_bytes=self._cache_bytes)
