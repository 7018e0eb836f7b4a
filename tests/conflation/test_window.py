"""The window: whose interval runs, in which order it ends, and what it all takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.conflation import Window
from processor.conflation.window import KEY_BYTES, UPDATE_BYTES
from processor.record import Record


def record(offset=0, value=b"{}"):
    """One update."""
    return Record(b"k", value, None, offset, 0)


def wait(window, key, now_ms, *, offset=0, value=b"{}"):
    """One update of a key, as the processor lets it wait."""
    update = record(offset, value)
    if (pending := window.pending.get(key)) is None:
        window.begin(key, update, now_ms)
    else:
        pending.unread.append(update)
    window.grew([update])


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
            wait(window, key, now_ms, value=None if n == 5 else b"x" * n * 10)
        elif move == "due":
            window.due(now_ms - n, n)
        elif move == "pop" and key in window.pending:
            window.pop(key)
        elif move == "overflow":
            window.overflow(n)
        elif move == "read" and (pending := window.pending.get(key)) is not None and pending.unread:
            size_bytes = pending.size_bytes
            pending.last, pending.unread = pending.unread[-1], []
            window.shrank(pending, size_bytes)
        assert window.size_bytes == sum(pending.size_bytes for pending in window.pending.values())
