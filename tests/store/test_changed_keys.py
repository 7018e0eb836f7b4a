"""Scans of a state see uncommitted and unwritten changes in key order, also while some are written."""

from __future__ import annotations

import random

from processor.record import Stored
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore


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
