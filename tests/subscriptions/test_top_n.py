"""A window has the keys of sorting and slicing all keys, and returns the keys that entered or left."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from processor.subscriptions.top_n import Moved, TopN

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f", b"g"])
PLACES = st.integers(0, 4)


class Sorted:
    """A naive window that sorts all keys each time."""

    def __init__(self, top_n, skip_n):
        self.bounds = slice(skip_n, None if top_n is None else skip_n + top_n)
        self.places = {}

    def keys(self):
        """The keys in the window, in order."""
        return [key for _, key in sorted((place, key) for key, place in self.places.items())][self.bounds]


class Windows(RuleBasedStateMachine):
    """A window and its model side by side."""

    @initialize(top_n=st.none() | st.integers(0, 4), skip_n=st.integers(0, 3))
    def begin(self, top_n, skip_n):
        """Begin with any bounds."""
        self.window, self.model = TopN(top_n, skip_n), Sorted(top_n, skip_n)

    def moved(self, change):
        """The keys that left and entered by a change, from the model's keys before and after it."""
        before = set(self.model.keys())
        change()
        after = set(self.model.keys())
        return before - after, after - before

    @rule(key=KEYS, place=PLACES)
    def put(self, key, place):
        """Put a new or existing key at a place that others may share."""
        left, entered = self.moved(lambda: self.model.places.update({key: place}))
        self.agree(self.window.put(key, (place, key)), left, entered)

    @rule(key=KEYS)
    def remove(self, key):
        """Remove a key that may be missing."""
        left, entered = self.moved(lambda: self.model.places.pop(key, None))
        self.agree(self.window.remove(key), left, entered)

    def agree(self, reported, left, entered):
        """Check that the reported keys are those that left and entered."""
        assert (sorted(reported.left), sorted(reported.entered)) == (sorted(left), sorted(entered))

    @invariant()
    def same_keys(self):
        """Check that both have the same keys in the same order."""
        if hasattr(self, "window"):
            expected = self.model.keys()
            assert self.window.keys() == expected
            for key in (b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"unknown"):
                assert (key in self.window) is (key in expected)


Windows.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, print_blob=True)
TestWindows = Windows.TestCase


def filled(top_n, skip_n, keys="abcdefgh"):
    """A window over keys that are their own order."""
    window = TopN(top_n, skip_n)
    for key in keys:
        window.put(key.encode(), (key, key.encode()))
    return window


@pytest.mark.parametrize(
    ("place", "left", "entered"),
    [
        ("A", (b"e",), (b"a",)),
        ("bb", (b"e",), (b"x",)),
        ("e", (), ()),
        ("f", (), ()),
    ],
)
def test_a_key_that_comes(place, left, entered):
    """A new key before or in the window pushes the last one out; one behind it moves nothing."""
    window = filled(4, 1)
    assert window.keys() == [b"b", b"c", b"d", b"e"]
    assert window.put(b"x", (place, b"x")) == Moved(left, entered)


def test_a_key_that_moves_within_the_window():
    """A key that moves within the window changes its order, and no key leaves or enters."""
    window = filled(3, 0)
    assert window.put(b"a", ("bb", b"a")) == Moved((), ())
    assert window.keys() == [b"b", b"a", b"c"]


def test_a_key_that_moves_out_and_in():
    """A key that moves out of the window is replaced by the next one, and pushes it out when it returns."""
    window = filled(3, 0)
    assert window.put(b"a", ("z", b"a")) == Moved((b"a",), (b"d",))
    assert window.put(b"a", ("a", b"a")) == Moved((b"d",), (b"a",))


def test_a_key_that_moves_from_before_the_window_behind_it():
    """A key that moves from before the window to behind it makes the window slide by one."""
    window = filled(2, 2)
    assert window.put(b"a", ("z", b"a")) == Moved((b"c",), (b"e",))


def test_an_endless_window():
    """A window without `top_n` has all keys after the first `skip_n`."""
    window = filled(None, 2, "abc")
    assert window.keys() == [b"c"]
    assert window.remove(b"a") == Moved((b"c",), ())
    assert window.put(b"a", ("a", b"a")) == Moved((), (b"c",))
    assert window.put(b"d", ("d", b"d")) == Moved((), (b"d",))


def test_an_empty_window():
    """A window with `top_n=0` is always empty."""
    window = filled(0, 1)
    assert window.keys() == []
    assert b"b" not in window
    assert window.put(b"A", ("A", b"A")) == window.remove(b"a") == Moved((), ())


@settings(max_examples=20, deadline=None, print_blob=True)
@given(st.integers(0, 2**32), st.integers(1, 3000), st.integers(0, 3000))
def test_many_keys(seed, top_n, skip_n):
    """A window of thousands of keys, in several pieces of the sorted list, agrees with the model."""
    random_ = random.Random(seed)
    window, model = TopN(top_n, skip_n), Sorted(top_n, skip_n)
    keys = [b"%d" % number for number in range(5000)]
    for key in random_.sample(keys, 4500):
        place = random_.randrange(1000)
        window.put(key, (place, key))
        model.places[key] = place
    held = set(model.keys())
    assert window.keys() == model.keys()
    for _ in range(1000):
        key = random_.choice(keys)
        if random_.random() < 0.4:
            moved = window.remove(key)
            model.places.pop(key, None)
        else:
            model.places[key] = random_.randrange(1000)
            moved = window.put(key, (model.places[key], key))
        assert held.issuperset(moved.left)
        assert held.isdisjoint(moved.entered)
        held = (held - set(moved.left)) | set(moved.entered)
    assert window.keys() == model.keys()
    assert held == set(model.keys())


def test_the_window_of_an_earlier_time_is_found_from_the_places_that_changed(random_seed):
    """With the earlier places of the changed keys, `keys_before` is the window of then, wherever it lies."""
    rng = random.Random(random_seed)
    for _ in range(300):
        skip_n, top_n = rng.randrange(60), rng.choice([None, rng.randrange(12)])
        window, then = TopN(top_n, skip_n), {}
        for number in range(rng.randrange(80)):
            then[b"%d" % number] = (rng.randrange(40), b"%d" % number)
        now = dict(then)
        changed = rng.sample([b"%d" % number for number in range(90)], rng.randrange(6))
        for key in changed:
            if rng.random() < 0.3:
                now.pop(key, None)
            else:
                now[key] = (rng.randrange(40), key)
        window.places.load(now.items())
        end = None if top_n is None else skip_n + top_n
        wanted = [key for _, key in sorted(then.values())[skip_n:end]]
        assert window.keys_before({key: then.get(key) for key in changed}) == wanted
