"""Scans and due records see the store, and uncommitted and unwritten changes in front of it, by key and by time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.errors import StateDamaged
from processor.record import Stored
from processor.store import layout
from processor.store.contract import Progress
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from tests.store.layers import Layers, applied, disk


def scanned(state: LayeredState, piece: int) -> list[tuple[bytes, bytes]]:
    """All keys and values, read in pieces."""
    rows: list[tuple[bytes, bytes]] = []
    after = None
    while True:
        read = state.scan(after, piece)
        rows += [(key, stored.value) for key, stored in read]
        if len(read) < piece:
            return rows
        after = read[-1][0]


def test_scan_equals_a_sorted_dict_through_commits_rollbacks_and_writes() -> None:
    """Random changes, of which some are rolled back and some are on their way to the store."""
    for seed in range(30):
        rng = random.Random(seed)
        state = LayeredState(MemoryStore(), cache_bytes=rng.choice((0, 10_000)))
        committed: dict[bytes, bytes] = {}
        staged: dict[bytes, bytes | None] = {}
        for step in range(60):
            changes = {b"%d" % rng.randrange(40): rng.choice((None, b"%d" % step)) for _ in range(rng.randrange(50))}
            state.put_many({key: None if value is None else Stored(1, value) for key, value in changes.items()})
            staged |= changes
            what = rng.random()
            if what < 0.2:
                state.rollback()
                staged = {}
            elif what < 0.5:
                state.prepare()
                state.commit(step + 1)
                committed = {key: value for key, value in (committed | staged).items() if value is not None}
                staged = {}
                state.start_writing(0)
            if state.is_writing and rng.random() < 0.7:
                state.write_some(rng.randrange(1, 30))
            expected = {key: value for key, value in (committed | staged).items() if value is not None}
            assert scanned(state, rng.randrange(1, 9)) == sorted(expected.items()), (seed, step)


def test_scans_of_many_changed_keys_stay_short() -> None:
    """A scan looks at the keys that it returns, and not at all changed keys."""
    state = LayeredState(MemoryStore(), cache_bytes=0)
    looked_at = []

    class Key(bytes):
        __slots__ = ()

        def __lt__(self, other: bytes) -> bool:
            looked_at.append(self)
            return bytes.__lt__(self, other)

        __hash__ = bytes.__hash__

    state.put_many({Key(b"%06d" % number): Stored(1, b"") for number in range(20_000)})
    state.scan(None, 1)
    looked_at.clear()
    for number in range(0, 20_000, 100):
        assert state.scan(b"%06d" % number, 5)[0][0] == b"%06d" % (number + 1)
    assert len(looked_at) < 200 * 60


KEYS = [b"", b"\0", b"a", b"ab", b"b", b"\xff"]
TIMES = st.sampled_from([-1, 0, 1, 2, 3, 255, 256, 2**40, 2**63 - 1])
FEW_CHANGES = st.dictionaries(
    st.sampled_from(KEYS[:3]),
    st.none() | st.builds(Stored, st.just(1), st.just(b"x"), st.sampled_from([0, 1, 2, 3]), st.just(-1), st.just(b"")),
)
STORED = st.builds(Stored, st.integers(1, 9), st.sampled_from([b"", b"value"]), TIMES, st.just(-1), st.just(b""))
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.none() | STORED)
INDEX_STEPS = st.lists(
    st.tuples(st.sampled_from(["apply", "apply", "apply", "look", "reopen", "wipe"]), CHANGES), max_size=20
)
PUTS = ["put", "put", "put and prepare", "put and prepare and put again", "put and prepare and commit", "restore"]
ALONE = ["prepare", "commit", "rollback", "write", "write some", "reopen", "wipe"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(PUTS), CHANGES | FEW_CHANGES),
        st.tuples(st.sampled_from(ALONE), st.just({})),
        st.tuples(st.just("due"), st.tuples(TIMES, st.integers(0, 3))),
    ),
    min_size=3,
    max_size=30,
)
EXAMPLES = {"memory": 150, "rocks": 20}  # Creating a database takes a while.
KINDS = pytest.mark.parametrize("kind", ["memory", "rocks"])


def expiring(model: dict[bytes, Stored]) -> list[tuple[int, bytes]]:
    """The records that expire, in order, by a naive search."""
    return sorted((stored.expires_at_ms, key) for key, stored in model.items() if stored.expires_at_ms > 0)


@pytest.mark.random
@KINDS
def test_the_index_follows_the_records(kind):
    """The index lists the records that expire, in order of time, after puts, deletes, a reopening and a wipe.

    Calls in between matter: a store that finds no record to expire stops maintaining its index.
    """

    @settings(max_examples=EXAMPLES[kind], deadline=None, print_blob=True)
    @given(INDEX_STEPS)
    def check_all(steps):
        with disk(kind) as kept:
            store = kept.open()
            model: dict[bytes, Stored] = {}
            for step, changes in steps:
                if step == "apply":
                    store.apply(changes, Progress(1, 1))
                    model = applied(model, changes)
                elif step == "look":
                    assert store.expiring(None, 1) == expiring(model)[:1]
                elif step == "reopen":
                    store.close()
                    store = kept.open()
                else:
                    store.wipe()
                    model = {}
            listed = expiring(model)
            assert store.expiring(None, 100) == listed
            # In parts, each after the last row of the one before.
            for size in (1, 2):
                found, after = [], None
                while part := store.expiring(after, size):
                    found += part
                    after = part[-1]
                assert found == listed
            assert store.expiring((2, b"a"), 100) == [entry for entry in listed if entry > (2, b"a")]
            assert dict(store.scan()) == model, "the index is not among the records"
            store.close()

    check_all()


@pytest.mark.random
@KINDS
def test_what_is_due_is_what_the_processor_sees(kind):
    """The due records are the first ones of the state that the processor sees, after any steps in any order.

    A record stays due until it is put again, so that every call returns the same.
    """

    @settings(max_examples=EXAMPLES[kind], deadline=None, print_blob=True)
    @given(STEPS, st.sampled_from([0, 1_000_000]), st.booleans())
    def check_all(steps, cache_bytes, asks_always):
        with disk(kind) as kept:
            layers = Layers(kept, cache_bytes)
            assert layers.state.due(0, 1) == []  # The index is maintained from the first call on.

            def check(until_ms: int, keys_max: int) -> None:
                seen = layers.staged
                due = [(key, seen[key]) for time, key in expiring(seen) if time <= until_ms]
                assert layers.state.due(until_ms, keys_max) == due[:keys_max]

            for step, given_ in steps:
                if step == "due":
                    check(*given_)
                else:
                    layers.do(step, given_)
                for until_ms in (0, 2, 300, 2**63 - 1) if asks_always else ():
                    check(until_ms, 2)
            check(2**63 - 1, 100)
            check(3, 100)
            layers.state.store.close()

    check_all()


@pytest.mark.parametrize(
    ("expiries", "listed"),
    [([5, 7], [7]), ([7, 5], [5]), ([5, 0], []), ([5, None], []), ([0, 5], [5]), ([5, None, 7], [7]), ([5, 5], [5])],
)
def test_a_record_has_one_row_which_says_when_it_expires(store, expiries, listed):
    """A record has one row in the index, with its last expiry, after any sequence of puts and deletes."""
    for expires_at_ms in expiries:
        store.apply({b"a": None if expires_at_ms is None else Stored(1, b"x", expires_at_ms)}, Progress(1, 1))
    assert store.expiring(None, 9) == [(expires_at_ms, b"a") for expires_at_ms in listed]


@pytest.mark.parametrize(
    "steps",
    [
        (5, 7, "write"),
        (5, 7, "write", 6, 7),
        (7, 5, "write", 5),
        (5, None, 5, 6),
        (5, None, "look", 6),
        (5, None, "look", 4),
        (5, 0, "look", 7, "write"),
        (5, "write", 7, "look", 6),
        (5, "write", None, "look", 5),
        (5, "write", 7, "rollback"),
        (5, "prepare", 7, "write"),
        (7, "prepare", 5, "write", "write"),
        (5, "prepare", None, "look", "write", 6),
        (5, "prepare", 7, "write", "rollback"),
        (5, "write", 7, "prepare", 6, "look", "rollback"),
        (5, "write", 7, "prepare", "look", None, "rollback"),
    ],
    ids=str,
)
@pytest.mark.parametrize("looks_always", [True, False])
def test_one_key_on_its_way_is_due_when_its_last_state_says(store, steps, looks_always):
    """A key is due at the expiry of its last state, in each stage between put and store; calls change nothing."""
    state = LayeredState(store, cache_bytes=0)
    assert state.due(0, 1) == []
    expires_at_ms = prepared = committed = None
    for position, step in enumerate(steps, 1):
        if step == "look":
            state.due(9, 1)
        if step == "prepare" or (step == "write" and not state._prepared):
            state.prepare()
            prepared = expires_at_ms
        if step == "write":
            state.commit(position)
            state.write(position)
            committed = prepared
        elif step == "rollback":
            state.rollback()
            expires_at_ms = committed
        elif step is None or isinstance(step, int):
            expires_at_ms = step
            state.put_many({b"a": None if step is None else Stored(1, b"x", step)})
        for until_ms in range(1, 9) if looks_always or position == len(steps) else ():
            is_due = bool(expires_at_ms) and expires_at_ms <= until_ms
            assert [key for key, _ in state.due(until_ms, 2)] == ([b"a"] if is_due else [])


class Counted(MemoryStore):
    """A store that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.rows = 0

    def expiring(self, after, rows_max):
        """Count the call and the rows that it returns."""
        found = super().expiring(after, rows_max)
        self.asked += 1
        self.rows += len(found)
        return found


def test_a_look_that_finds_nothing_due_asks_nobody():
    """A call that finds nothing due does not read the store, before the first expiry and after a write, too."""
    store = Counted()
    state = LayeredState(store, cache_bytes=0)
    assert state.due(10**13, 10) == []
    asked = store.asked
    for turn in range(100):
        state.put_many({b"a": Stored(turn + 1, b"x"), b"b": Stored(turn + 1, b"x", 1000 + turn)})
        state.prepare()
        state.commit(turn + 1)
        state.write(turn * 1_000_000)
        assert state.due(999, 10) == []
    assert store.asked == asked


def test_many_that_are_due_are_each_visited_once():
    """Many due records are visited once each: a call does not start again at the beginning."""
    store = Counted()
    store.apply({b"%d" % n: Stored(1, b"x", 1 + n) for n in range(20_000)}, Progress(1, 1))
    state = LayeredState(store, cache_bytes=10_000_000)
    seen = 0
    while due := state.due(15_000, 1000):
        seen += len(due)
        state.put_many(dict.fromkeys(key for key, _ in due))
    assert seen == 15_000
    assert store.rows < 20_000 + 1000


def test_a_key_put_again_and_again_has_one_entry():
    """A key that is put again and again has one entry: a hot key must not fill the memory."""
    state = LayeredState(MemoryStore(), cache_bytes=0)
    assert state.due(0, 1) == []
    for turn in range(1000):
        state.put_many({b"hot": Stored(turn + 1, b"x", 5000 + turn)})
        state.prepare()
        state.commit(turn + 1)
    assert len(state._expiry._heap) == 1
    assert state.due(5998, 10) == []
    assert state.due(5999, 10) == [(b"hot", Stored(1000, b"x", 5999))]
    assert len(state._expiry._heap) == 1


def test_an_index_that_disagrees_with_its_record_is_damage():
    """An index that contradicts its record is damage, so that the partition is restored."""
    store = MemoryStore()
    store.apply({b"a": Stored(1, b"x", 5)}, Progress(1, 1))
    store._records[b"a"] = Stored(1, b"x", 7)
    with pytest.raises(StateDamaged, match=r"the index says that b'a' expires at 5; its record says 7"):
        LayeredState(store, cache_bytes=0).due(9, 1)


def test_a_row_too_short_to_have_a_time_is_damage():
    """A row that is too short for a time is damage, and not an error that would stop the worker."""
    with pytest.raises(StateDamaged, match="an index row of 3 bytes is shorter than its time"):
        layout.expiring_of(b"e\0\0")
