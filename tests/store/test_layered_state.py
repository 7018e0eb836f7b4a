"""The state as the processor sees it: layers in front of a store, which must look like one dict."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.errors import DiskUnusable
from processor.record import Stored
from processor.store.contract import Progress
from processor.store.layered_state import LayeredState
from processor.store.layout import encode_record
from processor.store.memory import MemoryStore
from tests.store.layers import Layers, disk

KEYS = [b"a", b"b", b"c", b"d"]
VALUES = st.binary(max_size=9) | st.just(bytes(500))
TEXTS = st.sampled_from([b"", b"60"]), st.sampled_from([b"", b'{"/ts":{"w":null}}'])
STORED = st.builds(Stored, st.integers(1, 9), VALUES, st.just(0), st.integers(-1, 9), *TEXTS)
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.none() | STORED)
UNDER_WAY = "put and prepare and put again"
WITH_CHANGES = ["put", "put and prepare", UNDER_WAY, f"{UNDER_WAY} and write", "put and prepare and commit"]
ALONE = ["prepare", "commit", "rollback", "write", "write some", "recount", "reopen", "crash", "wipe"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([*WITH_CHANGES, "read", "restore"]), CHANGES),
        st.tuples(st.sampled_from([*ALONE, "commit", "write some"]), st.just({})),
    ),
    min_size=3,
    max_size=25,
)


@pytest.mark.parametrize("kind", ["memory", "rocks"])
@settings(max_examples=80, deadline=None, print_blob=True)
@given(STEPS, st.sampled_from([0, 600, 1100, 1_000_000]))
def test_the_layers_look_like_one_dict(kind, steps, cache_bytes):
    """The layers look like one dict after any steps in any order, with a cache of any size."""
    with disk(kind) as kept:
        layers = Layers(kept, cache_bytes)
        for step, changes in steps:
            layers.do(step, changes)
            layers.read(dict.fromkeys(KEYS))
            layers.check()
        layers.state.store.close()


class Recorded(MemoryStore):
    """A store that remembers its calls."""

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
def state(store) -> LayeredState:
    """An empty state in front of it."""
    return LayeredState(store, cache_bytes=10_000)


def test_what_is_staged_is_seen_before_what_is_committed(state):
    """A read returns the newest state, staged, unwritten or stored; a delete counts as one."""
    stored, unwritten, staged = Stored(1, b"stored"), Stored(2, b"unwritten"), Stored(3, b"staged")
    state.put_many({b"a": stored, b"b": stored, b"c": stored, b"d": stored})
    state.prepare()
    state.commit(1)
    state.write(0)
    state.put_many({b"b": unwritten, b"c": unwritten, b"d": unwritten})
    state.prepare()
    state.commit(2)
    state.put_many({b"c": staged, b"d": None})
    assert state.get_many([b"d", b"c", b"b", b"a", b"a"]) == {b"a": stored, b"b": unwritten, b"c": staged, b"d": None}


def test_nothing_uncommitted_reaches_the_store(state):
    """An uncommitted change reaches the store neither by writing nor by closing: it is never ahead of the SOW topic."""
    state.put_many({b"a": Stored(1, b"x")})
    state.write(0)
    assert list(state.store.scan()) == []
    state.close(0)
    assert list(state.store.scan()) == []
    assert state.store.progress() == Progress(0, 0)


def test_the_store_gets_the_last_state_of_a_key_once(state, store):
    """The store gets the last state of each key of many commits in one batch, with the position and the time."""
    for version in range(1, 100):
        state.put_many({b"a": Stored(version, b"x")})
        state.prepare()
        state.commit(version * 2)
    state.write(77)
    state.write(78)
    assert store.batches == [({b"a": Stored(99, b"x")}, Progress(198, 77))]
    assert state.unwritten_bytes == 0


def test_a_quiet_partition_says_now_and_then_that_it_is_up_to_date(state, store):
    """A quiet partition writes its progress now and then: otherwise it would look too old to have all deletes."""
    state.put_many({b"a": Stored(1, b"x")})
    state.prepare()
    state.commit(1)
    state.write(1_000)
    state.write(600_000)
    assert len(store.batches) == 1
    state.write(700_000)
    assert store.batches[1:] == [({}, Progress(1, 700_000))]


def test_a_half_restored_state_is_as_old_as_its_last_record(state, store):
    """A half restored state is as old as its last record; closing it does not make it newer."""
    state.restore({b"a": Stored(1, b"x")}, 5, 1_000)
    state.close(0)
    assert store.progress() == Progress(5, 1_000)


def test_what_was_written_is_not_written_again(state, store):
    """A written record is not written again by the next commit or write: only the position moves."""
    state.put_many({b"a": Stored(1, b"x")})
    state.prepare()
    state.commit(1)
    state.write(5)
    state.prepare()
    state.commit(2)
    state.write(6)
    assert store.batches[1:] == [({}, Progress(2, 6))]


def test_a_commit_without_sow_records_keeps_the_position(state):
    """A commit without SOW records, as of rejections only, keeps the position."""
    state.put_many({b"a": Stored(1, b"x")})
    state.prepare()
    state.commit(5)
    state.prepare()
    state.commit(None)
    assert state.position == 5


def test_what_was_read_is_not_read_from_the_store_again(state, store):
    """A record that was read is cached; the absence of one is not, as a new record takes its place soon."""
    store.apply({b"a": Stored(1, b"x")}, Progress(1, 0))
    state.get_many([b"a", b"b", b"a"])
    state.get_many([b"b", b"a", b"c"])
    assert store.asked == [b"a", b"b", b"b", b"c"]
    assert state._known.keys() == {b"a"}


def test_what_was_written_is_not_read_from_the_store(state, store):
    """The batch that was written last is cached: hot keys come again."""
    state.put_many({b"a": Stored(1, b"x"), b"b": None})
    state.prepare()
    state.commit(1)
    state.write(0)
    assert state.get_many([b"a", b"b"]) == {b"a": Stored(1, b"x"), b"b": None}
    assert store.asked == []


@pytest.mark.parametrize("keys_read", [5, 1000])
def test_the_cache_has_its_bound(state, keys_read):
    """The cache keeps its limit, for single keys and for more at once than it can hold."""
    for first in range(0, 3000, keys_read):
        state.get_many([b"%d" % number for number in range(first, first + keys_read)])
        assert state._clean_bytes <= 10_000
        assert len(state._known) < 100


def test_what_waits_to_be_written_is_measured(state):
    """The memory of unwritten changes is measured, value and overhead: it decides when to write."""
    state.put_many({b"a": Stored(1, bytes(1000)), b"b": None})
    assert state.unwritten_bytes == 0, "not prepared yet"
    state.prepare()
    assert state.unwritten_bytes == 0, "not committed yet"
    state.put_many({b"c": Stored(1, bytes(100_000))})
    state.commit(1)
    assert 1000 + 2 * 100 < state.unwritten_bytes < 1000 + 2 * 1000, "what came after the prepare is not in it"
    state.write(1)
    assert state.unwritten_bytes == 0


def test_a_key_counts_for_each_change_until_it_is_counted_again(state):
    """A key counts for each change until it is recounted: otherwise a few hot keys would be written again and again."""
    state.put_many({b"a": Stored(1, bytes(1000)), b"b": Stored(1, bytes(10)), b"c": None})
    state.prepare()
    state.commit(1)
    waits = state.unwritten_bytes
    for version in range(2, 100):
        for size in (100, 1000):
            state.put_many({b"a": Stored(version, bytes(size)), b"c": None})
        state.prepare()
        state.commit(version)
    assert state.unwritten_bytes > waits + 98 * 1100
    state.recount()
    assert state.unwritten_bytes == waits
    state.put_many({b"a": None})
    state.prepare()
    state.commit(100)
    state.recount()
    assert state.unwritten_bytes == waits - 1000
    state.write(1)
    assert state.unwritten_bytes == 0


def test_keys_that_change_once_are_counted_well_at_once(state):
    """Keys that change once are counted right at once, each with its own commit."""
    for number in range(10):
        state.put_many({b"%d" % number: Stored(1, bytes(100))})
        state.prepare()
        state.commit(number)
        quick = state.unwritten_bytes
        state.recount()
        assert state.unwritten_bytes == quick


def test_what_is_rolled_back_never_counts(state):
    """Changes that are rolled back never count, prepared or staged, with any later commit."""
    state.put_many({b"a": Stored(1, bytes(1000))})
    state.prepare()
    state.put_many({b"b": Stored(1, bytes(1000))})
    state.rollback()
    state.put_many({b"c": Stored(1, b"x")})
    state.prepare()
    state.commit(1)
    assert 0 < state.unwritten_bytes < 1000


def test_counting_again_leaves_what_is_being_written(state):
    """A recount leaves the records that are being written: they take memory until their last piece is stored."""
    state.put_many({b"a": Stored(1, bytes(1000)), b"b": Stored(1, bytes(1000))})
    state.prepare()
    state.commit(1)
    waits = state.unwritten_bytes
    state.start_writing(1)
    state.write_some(1)
    state.recount()
    assert state.unwritten_bytes == waits


def test_what_is_put_while_a_commit_is_under_way_is_not_part_of_it(state, store):
    """A change that is put during a commit is visible, but neither written nor kept by a rollback after the commit."""
    old, new = Stored(1, b"old"), Stored(2, b"new")
    state.put_many({b"a": old, b"b": old})
    state.prepare()
    state.put_many({b"a": new, b"c": new})
    state.commit(2)
    assert state.get_many([b"a", b"b", b"c"]) == {b"a": new, b"b": old, b"c": new}
    state.write(1)
    assert store.batches == [({b"a": old, b"b": old}, Progress(2, 1))]
    assert state.get_many([b"a", b"b", b"c"]) == {b"a": new, b"b": old, b"c": new}
    state.rollback()
    assert state.get_many([b"a", b"b", b"c"]) == {b"a": old, b"b": old, b"c": None}


def test_a_rollback_drops_what_is_prepared_and_what_came_after_it(state):
    """A rollback drops the prepared changes and later ones: the outcome of the commit will be in the SOW topic."""
    old, prepared, staged = Stored(1, b"old"), Stored(2, b"prepared"), Stored(3, b"staged")
    state.put_many({b"a": old})
    state.prepare()
    state.commit(1)
    state.put_many({b"a": prepared, b"b": prepared})
    state.prepare()
    state.put_many({b"a": staged, b"c": staged})
    state.rollback()
    assert state.get_many([b"a", b"b", b"c"]) == {b"a": old, b"b": None, b"c": None}
    state.prepare()
    state.commit(None)
    assert state.get_many([b"a", b"b", b"c"]) == {b"a": old, b"b": None, b"c": None}


def test_a_rollback_comes_back_to_what_is_on_its_way_to_the_store(state):
    """A rollback returns to the states that are being written, which the store does not have yet."""
    old, new = Stored(1, b"old"), Stored(2, b"new")
    state.put_many({b"a": old, b"b": old})
    state.prepare()
    state.commit(2)
    state.start_writing(1)
    state.put_many({b"a": new})
    state.prepare()
    state.put_many({b"b": new})
    state.rollback()
    assert state.get_many([b"a", b"b"]) == {b"a": old, b"b": old}


def test_one_commit_ends_before_the_next_is_prepared(state):
    """A commit must end before the next one is prepared: otherwise its changes would be lost, or kept by mistake."""
    state.put_many({b"a": Stored(1, b"x")})
    state.prepare()
    with pytest.raises(AssertionError):
        state.prepare()


def test_a_piece_holds_no_position_until_the_last(state, store):
    """A piece has no position until the last one: a half written store keeps its former position after a crash."""
    state.put_many({b"%d" % number: Stored(1, b"x") for number in range(5)})
    state.prepare()
    state.commit(5)
    state.start_writing(7)
    state.write_some(2)
    state.put_many({b"0": Stored(2, b"y"), b"9": Stored(1, b"y")})
    state.prepare()
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
    """A store on a disk that is full for one batch."""

    is_full = False

    def apply(self, changes, progress):
        """Refuse the first batch."""
        if self.is_full:
            self.is_full = False
            raise DiskUnusable("full")
        super().apply(changes, progress)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_closing_after_a_restore_that_the_disk_refused_claims_none_of_its_records(is_loaded):
    """A close after a restore that the disk refused keeps the former position, so that the records are read again."""
    store = FullOnce()
    state = LayeredState(store, cache_bytes=0)
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
    """After the disk refused a piece, all changes wait again, the newest of each key: earlier pieces may be lost."""
    store = FullOnce()
    state = LayeredState(store, cache_bytes=0)
    state.put_many({b"a": Stored(1, b"x"), b"b": Stored(1, b"x"), b"c": Stored(1, b"x")})
    state.prepare()
    state.commit(3)
    state.start_writing(1)
    state.write_some(1)
    state.put_many({b"a": Stored(2, b"y")})
    state.prepare()
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
