"""The window: whose interval runs, in which order it ends, and what it all takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.builtin.conflate.pending import (
    HEADERS_BYTES,
    KEY_BYTES,
    UPDATE_BYTES,
    Window,
    pack_head,
)
from processor.record import Record
from processor.wire.sow_headers import PLAIN_DIGITS_MAX


def wait(window, key, now_ms, *, offset=0, value=b"{}", version=b"1", headers=None):
    """One update of a key, as the processor lets it wait; without a version its headers are kept."""
    pending = window.pending.get(key) or window.begin(key, offset, now_ms)
    if not version:
        pending.keep_headers(headers)
    value_bytes = len(value or b"")
    pending.values.append(value)
    pending.heads += pack_head(offset, offset + 7, version)
    pending.value_bytes += value_bytes
    window.grew(1, value_bytes + (0 if version else HEADERS_BYTES))


@pytest.fixture
def window():
    """An empty one with room for all."""
    return Window(keys_max=1000, bytes_max=10**9)


def test_keys_are_due_in_the_order_in_which_they_began(window):
    """Later updates of a key do not move it."""
    for now_ms, key in enumerate((b"b", b"a", b"b", b"c", b"a")):
        wait(window, key, now_ms)
    assert list(window.due(10, 10)) == [b"b", b"a", b"c"]
    assert len(window) == 0


def test_only_what_began_long_enough_ago_is_due(window):
    """The others stay, in their order."""
    for now_ms, key in enumerate((b"a", b"b", b"c")):
        wait(window, key, now_ms)
    assert list(window.due(0, 10)) == [b"a"]
    assert list(window.due(0, 10)) == []
    assert list(window.due(2, 10)) == [b"b", b"c"]


def test_what_is_due_comes_in_pieces(window):
    """A burst of keys that began at once is not delivered at once."""
    for n in range(10):
        wait(window, b"%d" % n, 0)
    pieces = [len(window.due(0, 4)) for _ in range(4)]
    assert pieces == [4, 4, 2, 0]


def test_the_oldest_is_where_a_successor_begins(window):
    """Its first update, whatever came after it; nothing when nothing waits."""
    assert window.oldest is None
    for offset, key in enumerate((b"a", b"b", b"a")):
        wait(window, key, offset, offset=offset + 5)
    assert window.oldest.first_offset == 5
    window.pop(b"a")
    assert window.oldest.first_offset == 6


def test_too_many_keys_overflow_oldest_first():
    """No more than are too many."""
    window = Window(keys_max=3, bytes_max=10**9)
    for n in range(5):
        wait(window, b"%d" % n, n)
    assert list(window.overflow(100)) == [b"0", b"1"]
    assert list(window.overflow(100)) == []


def test_too_much_memory_overflows():
    """Large updates of few keys, and as many pieces as are asked for."""
    window = Window(keys_max=1000, bytes_max=3 * (KEY_BYTES + UPDATE_BYTES + 100))
    for n in range(5):
        wait(window, b"%d" % n, n, value=b"x" * 100)
    assert list(window.overflow(1)) == [b"0"]
    assert list(window.overflow(100)) == [b"1"]


def test_a_clock_that_was_set_back_makes_nobody_wait_longer(window):
    """What had waited a second has waited a second."""
    wait(window, b"a", 5000)
    window.shift(3_600_000)
    assert list(window.due(6000 - 3_600_000 - 1000, 10)) == [b"a"]


def test_what_nobody_has_looked_at_is_as_it_came(window):
    """Whether headers were kept or not, and whatever its neighbours say."""
    wait(window, b"k", 0, offset=2**62, value=b"one", version=b"007")
    wait(window, b"k", 0, offset=5, value=None, version=b"", headers=[("version", b"9"), ("kind", b"delete")])
    wait(window, b"k", 0, offset=6, value=b"three", version=b"", headers=None)
    wait(window, b"k", 0, offset=7, value=b"four", version=b"9" * PLAIN_DIGITS_MAX)
    pending = window.pending[b"k"]
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
    """Whatever came, was read early, ended at once, was due or overflowed: no byte is lost or counted twice."""
    window = Window(keys_max=4, bytes_max=3000)
    for now_ms, (move, n) in enumerate(moves):
        key = b"%d" % n
        if move == "wait":
            wait(window, key, now_ms, value=None if n == 5 else b"x" * n * 10, version=b"" if n > 3 else b"1")
        elif move == "due":
            window.due(now_ms - n, n)
        elif move == "pop" and key in window.pending:
            window.pop(key)
        elif move == "overflow":
            window.overflow(n)
        elif move == "read" and (pending := window.pending.get(key)) is not None and pending.values:
            size_bytes = pending.size_bytes
            pending.forget_unread(pending.unread(len(pending.values) - 1))
            window.shrank(pending, size_bytes)
        assert window.size_bytes == sum(pending.size_bytes for pending in window.pending.values())
