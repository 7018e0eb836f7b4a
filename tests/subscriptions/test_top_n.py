"""A window has the keys of sorting and slicing all keys, and returns the keys that entered or left."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from processor.subscriptions.request.top_n import Moved, TopN
from tests.subscriptions.desk import Desk

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


Windows.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, print_blob=True)
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


@pytest.fixture
def desk():
    """A desk with four orders, by falling price 4, 3, 2, 1."""
    desk = Desk()
    for key, px in enumerate((10, 20, 30, 40), 1):
        desk.put(key, px=px)
    return desk


TOP_TWO = "top_n=2,order_by=[/px DESC],oof"


def test_the_snapshot_is_the_window_in_order(desk):
    """The snapshot of a window has the first `top_n` records after `skip_n`, in order."""
    desk.subscribe("sow", None, "top_n=2,skip_n=1,order_by=[/px DESC]")
    assert desk.take_messages() == ["group_begin", "sow {id:3,px:30}", "sow {id:2,px:20}", "group_end"]


def test_without_an_order_it_goes_by_key(desk):
    """A window without an order goes by key, so pages of one topic never overlap."""
    desk.subscribe("sow", "/px > 10", "skip_n=1")
    assert desk.take_messages() == ["group_begin", "sow {id:3,px:30}", "sow {id:4,px:40}", "group_end"]


def test_a_record_that_enters_pushes_another_one_out(desk):
    """A record that enters pushes another one out: first its `oof match`, then the new record in full."""
    desk.subscribe("sow_and_delta_subscribe", None, TOP_TWO)
    desk.take_messages()
    desk.put(1, px=50)
    assert desk.take_messages() == ["oof match {id:3,px:30}", "publish {id:1,px:50}"]


@pytest.mark.parametrize("end", [lambda desk: desk.delete(4), lambda desk: desk.put(4, px=50, gone=1)])
def test_a_record_that_leaves_lets_another_one_in(desk, end):
    """A record that enters the window for one that leaves is sent in full, also on a delta subscription."""
    desk.subscribe("sow_and_delta_subscribe", "/gone IS NULL", TOP_TWO)
    desk.take_messages()
    end(desk)
    messages = desk.take_messages()
    assert messages[0].startswith("oof")
    assert messages[1:] == ["publish {id:2,px:20}"]


def test_a_record_that_leaves_by_its_update_is_sent_in_its_new_state(desk):
    """A record that leaves the window by its own update is sent as `oof` in its new state."""
    desk.subscribe("sow_and_subscribe", None, TOP_TWO)
    desk.take_messages()
    desk.put(4, px=5)
    assert desk.take_messages() == ["oof match {id:4,px:5}", "publish {id:2,px:20}"]


def test_a_record_that_stays_is_sent_as_a_delta(desk):
    """A record that stays in the window is sent as a delta, at the same or another place."""
    desk.subscribe("sow_and_delta_subscribe", None, TOP_TWO)
    desk.take_messages()
    desk.put(3, px=35)
    desk.put(3, px=45)
    assert desk.take_messages() == ["delta {id:3,px:35}", "delta {id:3,px:45}"]


def test_changes_outside_the_window_send_no_message(desk):
    """Updates, new records and deletes outside the window send no message."""
    desk.subscribe("sow_and_subscribe", None, TOP_TWO)
    desk.take_messages()
    desk.put(1, px=11)
    desk.put(5, px=1)
    desk.delete(2)
    assert not desk.subscriber.has_waiting


def test_a_change_before_the_window_moves_it(desk):
    """A change among the first `skip_n` records moves one record out of the window and another one in."""
    desk.subscribe("sow_and_delta_subscribe", None, "skip_n=1,top_n=2,order_by=[/px DESC],oof")
    assert desk.take_messages()[1:3] == ["sow {id:3,px:30}", "sow {id:2,px:20}"]
    desk.delete(4)
    assert desk.take_messages() == ["oof match {id:3,px:30}", "publish {id:1,px:10}"]
    desk.put(5, px=99)
    assert desk.take_messages() == ["oof match {id:1,px:10}", "publish {id:3,px:30}"]


def test_updates_of_a_batch_move_the_window_one_by_one():
    """Updates of a batch move the window one by one, with the records as they were at each update."""
    desk = Desk(partitions=1)
    desk.put(1, px=10)
    desk.put(2, px=20)
    desk.subscribe("sow_and_subscribe", None, "top_n=1,order_by=[/px DESC],oof")
    desk.take_messages()
    desk.take(desk.record(1, b'{"id":1,"px":30}'), desk.record(2, b'{"id":2,"px":25}'), desk.record(1, None))
    assert desk.take_messages() == [
        "oof match {id:2,px:20}",
        "publish {id:1,px:30}",
        "oof deleted {id:1,px:30}",
        "publish {id:2,px:25}",
    ]


def test_a_window_without_a_snapshot_sends_deltas(desk):
    """A window without a snapshot sends deltas of its first records, and no `oof` of a record that was never sent."""
    desk.subscribe("delta_subscribe", None, TOP_TWO)
    desk.put(4, px=41)
    desk.put(5, px=60)
    desk.put(6, px=70)
    assert desk.take_messages() == [
        "delta {id:4,px:41}",
        "publish {id:5,px:60}",
        "oof match {id:4,px:41}",
        "publish {id:6,px:70}",
    ]


def test_a_window_is_conflated_by_key(desk):
    """A record that left and returned within an interval is sent once, and one that only passed through is not sent."""
    desk.subscribe("sow_and_subscribe", None, f"{TOP_TWO},conflation=100ms")
    desk.take_messages()
    desk.put(1, px=50)
    desk.put(1, px=10)
    desk.pass_ms(100)
    assert desk.take_messages() == ["publish {id:3,px:30}"]
    desk.put(1, px=50)
    desk.pass_ms(100)
    assert desk.take_messages() == ["oof match {id:3,px:30}", "publish {id:1,px:50}"]


def test_a_record_leaves_the_window_it_was_in(functions):
    """A record leaves the window that it was in, even if its filter now matches neither its old nor its new state."""
    desk = Desk()
    desk.put(1, at=1)
    desk.subscribe("sow_and_delta_subscribe", "/at >= TICK()", "top_n=9")
    desk.take_messages()
    functions.Clock.now = 5
    desk.put(1, at=2)
    desk.put(1, at=5)
    assert desk.take_messages() == ["publish {at:5,id:1}"]


def test_windows_without_keys_get_separate_messages(desk):
    """An update that lets different records into two windows without keys sends two messages."""
    for sub_id, skip_n in (("a", 0), ("b", 1)):
        options = f"no_sowkey,skip_n={skip_n},top_n=1,order_by=[/px DESC]"
        desk.subscribe("sow_and_delta_subscribe", None, options, sub_id=sub_id)
    desk.take_messages()
    desk.put(5, px=99)
    assert desk.take_messages() == ["publish {id:5,px:99} @a", "publish {id:4,px:40} @b"]


def test_a_window_keeps_nothing_of_deleted_keys():
    """A window keeps nothing of deleted keys."""
    desk = Desk()
    subscription = desk.subscribe("sow_and_subscribe", None, TOP_TWO)
    for key in range(50):
        desk.put(key, px=key)
    for key in range(50):
        desk.delete(key)
    desk.take_messages()
    focus = subscription.focus
    assert not focus._received
    assert not focus.window.places.sort_keys
