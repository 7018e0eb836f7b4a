"""What a processor sees of its state: layers before a store, which must look like one dict."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.errors import DiskUnusable
from processor.record import Stored
from processor.state.layout import encode_record
from processor.state.memory import MemoryStore
from processor.state.rocks import RocksMemory, RocksStore
from processor.state.store import Progress
from processor.state.transactional import TransactionalState

KEYS = [b"a", b"b", b"c", b"d"]
VALUES = st.binary(max_size=9) | st.just(bytes(500))
STORED = st.builds(Stored, st.integers(1, 9), VALUES, st.just(0), st.integers(-1, 9))
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.none() | STORED)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "put and commit", "read", "restore"]), CHANGES),
        st.tuples(
            st.sampled_from(["commit", "rollback", "write", "write some", "write some", "reopen", "crash", "wipe"]),
            st.just({}),
        ),
    ),
    min_size=3,
    max_size=25,
)


class Disk:
    """A store that outlives its users: in RocksDB, or kept in memory as a disk would keep it."""

    def __init__(self, directory: Path | None) -> None:
        self._directory, self._memory = directory, RocksMemory(1024 * 1024)
        self._kept = MemoryStore()

    def open(self) -> MemoryStore | RocksStore:
        """The store, as it was left."""
        if self._directory is None:
            return self._kept
        return RocksStore(self._directory, identity="orders.sow/0", memory=self._memory)


@contextmanager
def disk(kind: str) -> Iterator[Disk]:
    """A disk of each kind."""
    if kind == "memory":
        yield Disk(None)
        return
    with tempfile.TemporaryDirectory() as directory:
        yield Disk(Path(directory))


def applied(model, changes):
    """A dict after these changes."""
    return {key: stored for key, stored in {**model, **changes}.items() if stored is not None}


def seen(state):
    """What a processor would find under every key."""
    return {key: stored for key, stored in state.get_many(KEYS).items() if stored is not None}


@pytest.mark.parametrize("kind", ["memory", "rocks"])
@settings(max_examples=100, deadline=None, print_blob=True)
@given(STEPS, st.sampled_from([0, 600, 1100, 1_000_000]))
def test_the_layers_look_like_one_dict(kind, steps, cache_bytes):
    """Whatever is put, rolled back, committed, written, restored or reopened, in any order and with any cache."""
    with disk(kind) as kept:
        state = TransactionalState(kept.open(), cache_bytes=cache_bytes)
        staged: dict[bytes, Stored] = {}
        committed: dict[bytes, Stored] = {}
        written: dict[bytes, Stored] = {}
        position = written_position = 0
        aim, aimed_position = written, 0  # What the store comes to by the pieces that it gets.
        for step, changes in steps:
            if step in ("put", "put and commit"):
                state.put_many(changes)
                staged = applied(staged, changes)
            if step == "read":
                state.get_many(list(changes))
            elif step in ("commit", "put and commit"):
                position += 1
                state.commit(position)
                committed = staged
            elif step == "rollback":
                state.rollback()
                staged = committed
            elif step == "write":
                state.write(position)
                written, written_position = committed, position
            elif step == "write some":
                if not state.is_writing:
                    state.start_writing(position)
                    aim, aimed_position = committed, position
                if state.is_writing:
                    state.write_some(1)
                if not state.is_writing:
                    written, written_position = aim, aimed_position
            elif step == "restore":
                state.rollback()
                position += 10
                state.restore(changes, position, position)
                staged = committed = written = applied(committed, changes)
                written_position = position
            elif step == "reopen":
                state.close(position)
                state = TransactionalState(kept.open(), cache_bytes=cache_bytes)
                staged, written, written_position = committed, committed, position
            elif step == "crash" and kind == "memory":
                state = TransactionalState(kept.open(), cache_bytes=cache_bytes)
                written = dict(state.store.scan())  # With some of what is newer than its position.
                staged, committed, position = written, written, written_position
            elif step == "wipe":
                state.wipe()
                staged, committed, written, position, written_position = {}, {}, {}, 0, 0
            assert seen(state) == staged
            if state.is_writing:
                stored = state.store.get_many(KEYS)
                assert all(new in (written.get(key), aim.get(key)) for key, new in zip(KEYS, stored, strict=True))
            else:
                assert dict(state.store.scan()) == written
            assert state.position == position
            assert state.store.progress().position == written_position
            assert state._clean_bytes <= cache_bytes
        state.store.close()


class Recorded(MemoryStore):
    """A store that remembers what it was asked and given."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bytes] = []
        self.batches: list[tuple[dict[bytes, Stored | None], Progress]] = []

    def get_many(self, keys):
        """Remember the keys."""
        self.asked += keys
        return super().get_many(keys)

    def apply(self, changes, progress):
        """Remember the batch."""
        self.batches.append((dict(changes), progress))
        super().apply(changes, progress)


@pytest.fixture
def store() -> Recorded:
    """An empty store in memory."""
    return Recorded()


@pytest.fixture
def state(store) -> TransactionalState:
    """An empty state before it."""
    return TransactionalState(store, cache_bytes=10_000)


def test_what_is_staged_is_seen_before_what_is_committed(state):
    """Staged, unwritten, stored: the newest one is read, a delete as well."""
    stored, unwritten, staged = Stored(1, b"stored"), Stored(2, b"unwritten"), Stored(3, b"staged")
    state.put_many({b"a": stored, b"b": stored, b"c": stored, b"d": stored})
    state.commit(1)
    state.write(0)
    state.put_many({b"b": unwritten, b"c": unwritten, b"d": unwritten})
    state.commit(2)
    state.put_many({b"c": staged, b"d": None})
    assert state.get_many([b"d", b"c", b"b", b"a", b"a"]) == {b"a": stored, b"b": unwritten, b"c": staged, b"d": None}


def test_nothing_uncommitted_reaches_the_store(state):
    """Neither by writing nor by closing: the store is never ahead of the SOW topic."""
    state.put_many({b"a": Stored(1, b"x")})
    state.write(0)
    assert list(state.store.scan()) == []
    state.close(0)
    assert list(state.store.scan()) == []
    assert state.store.progress() == Progress(0, 0)


def test_the_store_gets_the_last_state_of_a_key_once(state, store):
    """Many commits become one batch, with the position of the last of them and the time of writing."""
    for version in range(1, 100):
        state.put_many({b"a": Stored(version, b"x")})
        state.commit(version * 2)
    state.write(77)
    state.write(78)
    assert store.batches == [({b"a": Stored(99, b"x")}, Progress(198, 77))]
    assert state.unwritten_bytes == 0


def test_a_quiet_partition_says_now_and_then_that_it_is_up_to_date(state, store):
    """Else a state that nothing happened to for a day would look too old to have seen all deletes."""
    state.put_many({b"a": Stored(1, b"x")})
    state.commit(1)
    state.write(1_000)
    state.write(600_000)
    assert len(store.batches) == 1
    state.write(700_000)
    assert store.batches[1:] == [({}, Progress(1, 700_000))]


def test_a_half_restored_state_is_as_old_as_its_last_record(state, store):
    """What lies behind it may be as old: closing it does not make it newer."""
    state.restore({b"a": Stored(1, b"x")}, 5, 1_000)
    state.close(0)
    assert store.progress() == Progress(5, 1_000)


def test_what_was_written_is_not_written_again(state, store):
    """Neither by the next commit nor by the next write: only the position moves."""
    state.put_many({b"a": Stored(1, b"x")})
    state.commit(1)
    state.write(5)
    state.commit(2)
    state.write(6)
    assert store.batches[1:] == [({}, Progress(2, 6))]


def test_a_commit_without_sow_records_keeps_the_position(state):
    """A transaction of rejections alone moves nothing here."""
    state.put_many({b"a": Stored(1, b"x")})
    state.commit(5)
    state.commit(None)
    assert state.position == 5


def test_what_was_read_is_not_read_from_the_store_again(state, store):
    """A key that is there and one that is not are remembered alike."""
    store.apply({b"a": Stored(1, b"x")}, Progress(1, 0))
    state.get_many([b"a", b"b", b"a"])
    state.get_many([b"b", b"a", b"c"])
    assert store.asked == [b"a", b"b", b"c"]


def test_what_was_written_is_not_read_from_the_store(state, store):
    """The batch last written is remembered: hot keys come again."""
    state.put_many({b"a": Stored(1, b"x"), b"b": None})
    state.commit(1)
    state.write(0)
    assert state.get_many([b"a", b"b"]) == {b"a": Stored(1, b"x"), b"b": None}
    assert store.asked == []


@pytest.mark.parametrize("keys_read", [5, 1000])
def test_the_cache_has_its_bound(state, keys_read):
    """However the keys come, one after the other or more at once than it holds."""
    for first in range(0, 3000, keys_read):
        state.get_many([b"%d" % number for number in range(first, first + keys_read)])
        assert state._clean_bytes <= 10_000
        assert len(state._known) < 100


def test_what_waits_to_be_written_is_measured(state):
    """Whoever decides when to write needs to know how much memory that takes: value and overhead of each change."""
    state.put_many({b"a": Stored(1, bytes(1000)), b"b": None})
    assert state.unwritten_bytes == 0, "not committed yet"
    state.commit(1)
    assert 1000 + 2 * 100 < state.unwritten_bytes < 1000 + 2 * 1000


def test_what_waits_is_measured_once_a_key(state):
    """However often it changes: else a few keys that change often would be written again and again."""
    state.put_many({b"a": Stored(1, bytes(1000)), b"b": Stored(1, bytes(10)), b"c": None})
    state.commit(1)
    waits = state.unwritten_bytes
    for version in range(2, 100):
        state.put_many({b"a": Stored(version, bytes(100)), b"c": None})
        state.put_many({b"a": Stored(version, bytes(1000)), b"c": None})
        state.commit(version)
    assert state.unwritten_bytes == waits
    state.put_many({b"a": None})
    state.commit(100)
    assert state.unwritten_bytes == waits - 1000


def test_a_piece_holds_no_position_until_the_last(state, store):
    """A store that a crash finds half written stands where it stood, and what comes meanwhile waits for the next."""
    state.put_many({b"%d" % number: Stored(1, b"x") for number in range(5)})
    state.commit(5)
    state.start_writing(7)
    state.write_some(2)
    state.put_many({b"0": Stored(2, b"y"), b"9": Stored(1, b"y")})
    state.commit(9)
    waits = state.unwritten_bytes
    state.write_some(2)
    assert [(len(changes), progress) for changes, progress in store.batches] == [(2, None), (2, None)]
    assert store.progress() == Progress(0, 0)
    state.write_some(2)
    assert not state.is_writing
    assert store.progress() == Progress(5, 7)
    assert 0 < state.unwritten_bytes < waits
    state.write(8)
    assert store.batches[3:] == [({b"0": Stored(2, b"y"), b"9": Stored(1, b"y")}, Progress(9, 8))]
    assert state.unwritten_bytes == 0


class FullOnce(MemoryStore):
    """A store on a disk that is full for one batch; then somebody makes room."""

    is_full = False

    def apply(self, changes, progress):
        """Refuse the batch that finds the disk full."""
        if self.is_full:
            self.is_full = False
            raise DiskUnusable("full")
        super().apply(changes, progress)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_closing_after_a_restore_that_the_disk_refused_claims_none_of_its_records(is_loaded):
    """The store stands where it stood: at the batch's end its records would never be read again."""
    store = FullOnce()
    state = TransactionalState(store, cache_bytes=0)
    state.restore({b"a": Stored(1, b"x")}, 5, 1000)
    store.is_full = True
    late = Stored(1, b"y")
    restore = partial(state.restore, {b"b": late})
    load = partial(state.load, {b"b": encode_record(late)}, is_many=False)
    with pytest.raises(DiskUnusable):
        (load if is_loaded else restore)(position=9, as_of_ms=2000)
    state.close(0)
    assert store.progress() == Progress(5, 1000)


def test_what_the_disk_refused_a_piece_of_waits_again():
    """The newest of each key, and all of it: nobody knows what of the pieces before will be there after a crash."""
    store = FullOnce()
    state = TransactionalState(store, cache_bytes=0)
    state.put_many({b"a": Stored(1, b"x"), b"b": Stored(1, b"x"), b"c": Stored(1, b"x")})
    state.commit(3)
    state.start_writing(1)
    state.write_some(1)
    state.put_many({b"a": Stored(2, b"y")})
    state.commit(4)
    waits = state.unwritten_bytes
    store.is_full = True
    with pytest.raises(DiskUnusable):
        state.write_some(1)
    assert not state.is_writing
    assert state.unwritten_bytes == waits
    assert store.progress() == Progress(0, 0)
    state.write(2)
    assert dict(store.scan()) == {b"a": Stored(2, b"y"), b"b": Stored(1, b"x"), b"c": Stored(1, b"x")}
    assert store.progress() == Progress(4, 2)
