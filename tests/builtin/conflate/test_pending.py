"""The interval of a conflated topic, and the updates that are pending within it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.builtin.conflate.conflate import NEAR_MS, AdaptiveInterval
from processor.builtin.conflate.pending import (
    KEY_BYTES,
    UPDATE_BYTES,
    PendingUpdates,
    pack_head,
)
from processor.record import Record
from processor.wire.record_headers import PLAIN_DIGITS_MAX

HOUR_MS = 3_600_000


@pytest.mark.parametrize("lag_ms", [0, 10_001, 60_000, HOUR_MS, 365 * 24 * HOUR_MS, -HOUR_MS])
def test_a_fixed_interval_stays_whatever_the_backlog(lag_ms):
    """A fixed interval has the configured length, whether the input is an hour old, a year, or ahead of the clock."""
    interval = AdaptiveInterval(500, 500)
    for now_ms in range(0, 100_000, 100):
        interval.observe_lag(now_ms, lag_ms)
        assert interval.interval_ms == 500


def test_auto_never_leaves_its_range():
    """Under `auto` the interval stays between floor and ceiling, also when the input is an hour behind or ahead."""
    interval = AdaptiveInterval(100, 1500)
    for now_ms in range(0, 60_000, 20):
        interval.observe_lag(now_ms, HOUR_MS if now_ms < 30_000 else -HOUR_MS)
        assert 100 <= interval.interval_ms <= 1500


def test_auto_begins_at_the_floor_and_stays_there_without_a_backlog():
    """The usual delay between a record and its reader is no backlog, so the interval stays at its floor."""
    interval = AdaptiveInterval(100, 5000)
    for now_ms in range(0, 10_000, 20):
        interval.observe_lag(now_ms, NEAR_MS)
    assert interval.interval_ms == 100


def test_auto_grows_with_a_backlog_up_to_the_ceiling():
    """The interval doubles once in its length, so that each step can take effect."""
    interval = AdaptiveInterval(100, 1500)
    seen = []
    for now_ms in range(0, 6000, 20):
        interval.observe_lag(now_ms, 5000)
        if not seen or seen[-1] != interval.interval_ms:
            seen.append(interval.interval_ms)
    assert seen == [200, 400, 800, 1500]


def test_auto_comes_back_when_the_backlog_is_gone():
    """Without a backlog the interval shrinks by a fifth each time, down to the floor."""
    interval = AdaptiveInterval(100, 1600)
    for now_ms in range(0, 6000, 20):
        interval.observe_lag(now_ms, 5000)
    assert interval.interval_ms == 1600
    for now_ms in range(6000, 30_000, 20):
        before = interval.interval_ms
        interval.observe_lag(now_ms, 0)
        assert interval.interval_ms >= before * 0.79
    assert interval.interval_ms == 100


def test_a_small_backlog_moves_nothing():
    """A backlog of less than an interval changes nothing, so the interval does not swing."""
    interval = AdaptiveInterval(100, 1600)
    interval.observe_lag(0, 5000)
    for now_ms in range(200, 20_000, 20):
        interval.observe_lag(now_ms, NEAR_MS + 150)
    assert interval.interval_ms == 200


def test_a_clock_that_was_set_back_does_not_stop_the_adaptation():
    """After a clock is set back the next adaptation is due as before."""
    interval = AdaptiveInterval(100, 1600)
    interval.observe_lag(3_600_000, 5000)
    interval.shift(3_600_000)
    interval.observe_lag(200, 5000)
    assert interval.interval_ms == 400


def wait(pending_updates, key, now_ms, *, offset=0, value=b"{}", version=b"1", headers=None):
    """One update of a key, as the processor lets it wait; without a version its headers are kept."""
    pending = pending_updates.pending.get(key) or pending_updates.begin(key, offset, now_ms)
    headers_bytes = 0 if version else pending.keep_headers(headers)
    value_bytes = len(value or b"")
    pending.values.append(value)
    pending.heads += pack_head(offset, offset + 7, version)
    pending.value_bytes += value_bytes
    pending_updates.grew(1, value_bytes + headers_bytes)


@pytest.fixture
def pending_updates():
    """An empty one with room for all."""
    return PendingUpdates(keys_max=1000, bytes_max=10**9)


def test_keys_are_due_in_the_order_in_which_they_began(pending_updates):
    """Later updates of a key do not move it."""
    for now_ms, key in enumerate((b"b", b"a", b"b", b"c", b"a")):
        wait(pending_updates, key, now_ms)
    assert list(pending_updates.due(10, 10)) == [b"b", b"a", b"c"]
    assert len(pending_updates) == 0


def test_only_what_began_long_enough_ago_is_due(pending_updates):
    """Keys whose interval began later stay, in their order."""
    for now_ms, key in enumerate((b"a", b"b", b"c")):
        wait(pending_updates, key, now_ms)
    assert list(pending_updates.due(0, 10)) == [b"a"]
    assert list(pending_updates.due(0, 10)) == []
    assert list(pending_updates.due(2, 10)) == [b"b", b"c"]


def test_due_keys_come_in_pieces(pending_updates):
    """A burst of keys that began at once is not delivered at once."""
    for n in range(10):
        wait(pending_updates, b"%d" % n, 0)
    pieces = [len(pending_updates.due(0, 4)) for _ in range(4)]
    assert pieces == [4, 4, 2, 0]


def test_the_oldest_is_where_a_successor_begins(pending_updates):
    """The oldest pending update is the first one of its key, also after later ones; without keys there is none."""
    assert pending_updates.oldest is None
    for offset, key in enumerate((b"a", b"b", b"a")):
        wait(pending_updates, key, offset, offset=offset + 5)
    assert pending_updates.oldest.first_offset == 5
    pending_updates.pop(b"a")
    assert pending_updates.oldest.first_offset == 6


def test_too_many_keys_overflow_oldest_first():
    """An overflow delivers the oldest keys, and no more than there are too many."""
    pending_updates = PendingUpdates(keys_max=3, bytes_max=10**9)
    for n in range(5):
        wait(pending_updates, b"%d" % n, n)
    assert list(pending_updates.overflow(100)) == [b"0", b"1"]
    assert list(pending_updates.overflow(100)) == []


def test_too_much_memory_overflows():
    """Large updates of few keys overflow, in as many pieces as are asked for."""
    pending_updates = PendingUpdates(keys_max=1000, bytes_max=3 * (KEY_BYTES + UPDATE_BYTES + 100))
    for n in range(5):
        wait(pending_updates, b"%d" % n, n, value=b"x" * 100)
    assert list(pending_updates.overflow(1)) == [b"0"]
    assert list(pending_updates.overflow(100)) == [b"1"]


def test_a_clock_that_was_set_back_makes_nobody_wait_longer(pending_updates):
    """After a clock is set back a key that has waited a second has still waited a second."""
    wait(pending_updates, b"a", 5000)
    pending_updates.shift(3_600_000)
    assert list(pending_updates.due(6000 - 3_600_000 - 1000, 10)) == [b"a"]


def test_unread_updates_are_as_they_came(pending_updates):
    """An unread update comes back unchanged, with kept or packed headers and between updates of both sorts."""
    wait(pending_updates, b"k", 0, offset=2**62, value=b"one", version=b"007")
    wait(pending_updates, b"k", 0, offset=5, value=None, version=b"", headers=[("version", b"9"), ("kind", b"delete")])
    wait(pending_updates, b"k", 0, offset=6, value=b"three", version=b"", headers=None)
    wait(pending_updates, b"k", 0, offset=7, value=b"four", version=b"9" * PLAIN_DIGITS_MAX)
    pending = pending_updates.pending[b"k"]
    assert [pending.unread(place) for place in range(4)] == [
        Record(b"k", b"one", [("version", b"007")], 2**62, 2**62 + 7),
        Record(b"k", None, [("version", b"9"), ("kind", b"delete")], 5, 12),
        Record(b"k", b"three", None, 6, 13),
        Record(b"k", b"four", [("version", b"9" * PLAIN_DIGITS_MAX)], 7, 14),
    ]
    assert pending.unread_timestamp_ms == 2**62 + 7


MOVES = st.lists(
    st.tuples(st.sampled_from(["wait", "wait", "wait", "due", "pop", "overflow", "read"]), st.integers(0, 5)),
    max_size=40,
)


@given(MOVES)
def test_the_size_is_that_of_what_waits(moves):
    """After any sequence of additions, reads, early ends and overflows no byte is lost or counted twice."""
    pending_updates = PendingUpdates(keys_max=4, bytes_max=3000)
    for now_ms, (move, n) in enumerate(moves):
        key = b"%d" % n
        if move == "wait":
            wait(pending_updates, key, now_ms, value=None if n == 5 else b"x" * n * 10, version=b"" if n > 3 else b"1")
        elif move == "due":
            pending_updates.due(now_ms - n, n)
        elif move == "pop" and key in pending_updates.pending:
            pending_updates.pop(key)
        elif move == "overflow":
            pending_updates.overflow(n)
        elif move == "read" and (pending := pending_updates.pending.get(key)) is not None and pending.values:
            size_bytes = pending.size_bytes
            pending.forget_unread(pending.unread(len(pending.values) - 1))
            pending_updates.shrank(pending, size_bytes)
        assert pending_updates.size_bytes == sum(pending.size_bytes for pending in pending_updates.pending.values())
