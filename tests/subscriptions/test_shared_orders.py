"""Declared orders and orders of earlier windows are ready at once, stay right as records change, and are bounded."""

from __future__ import annotations

import random

import pytest

from processor.errors import FilterError
from processor.record import Record
from processor.subscriptions import Engine
from processor.subscriptions.records.shared_orders import ORDERS_MAX
from processor.subscriptions.request.record_order import SlicedSort
from tests.subscriptions.test_memo_index import Unscanned
from tests.subscriptions.test_order_build import TOPIC, World, spec


class ScanningWorld(World):
    """An engine with random records over a view that counts its scans."""

    def __init__(self, seed, count=200, orders=()):
        self.view = Unscanned()
        self.rng = random.Random(seed)
        self.engine = Engine(TOPIC, self.view, orders=orders)
        self.offset = 0
        for key in range(count):
            self.write(key)
        self.engine.index()

    def take_window(self, asked):
        """Build the order of a window in slices and begin it; returns its connection and the keys of its snapshot."""
        build = self.engine.prepare(asked)
        if build is not None:
            build.finish()
        desk = self.engine.connect()
        desk.subscribe(asked)
        if build is not None:
            self.engine.release(build)
        return desk, [m.sow_key for m in desk.take(1_000) if m.command == "sow"]

    def expected(self, asked):
        """The keys of a window, from a scan of all records and a sort."""
        values = [(TOPIC.value(record), record) for record in self.view.scan()]
        self.view.scans -= 1
        rows = [
            (asked.order.key(record.key, value, TOPIC.metadata_of(record)), record.key.decode())
            for value, record in values
            if asked.filter is None or asked.filter.matches(value)
        ]
        return [key for _, key in sorted(rows)][asked.options.skip_n :][: asked.options.top_n]


@pytest.mark.parametrize("order", ["/px DESC, /id", "/px desc,/id", " /px  DESC , /id ASC", None])
def test_a_window_of_a_declared_order_scans_nothing(random_seed, order):
    """A window of all records in a declared order, however it is written, is right at any time without a scan."""
    world = ScanningWorld(random_seed, orders=["/px DESC, /id", ""])
    before = world.view.scans
    asked = spec(order=order, top=7, skip=3)
    for _ in range(30):
        for _ in range(10):
            world.write()
        desk, keys = world.take_window(asked)
        assert keys == world.expected(asked)
        if world.rng.random() < 0.5:
            world.write()  # Put in its place by the window that runs.
        desk.close()
    assert world.view.scans == before


def test_the_order_of_a_window_that_ended_is_there_for_the_next(random_seed):
    """The next window of the same filter and order scans nothing, although records changed when no window ran."""
    world = ScanningWorld(random_seed)
    asked = spec("/px > 10")
    world.take_window(asked)[0].close()
    before = world.view.scans
    for _ in range(20):
        for _ in range(10):
            world.write()
        desk, keys = world.take_window(asked)
        assert keys == world.expected(asked)
        desk.close()
    assert world.view.scans == before


def test_few_orders_are_kept():
    """Of more orders than may be kept, those that were asked for last are there without a scan."""
    world = ScanningWorld(1, orders=["/px DESC"])
    texts = [f"/px > {number}" for number in range(ORDERS_MAX + 1)]
    for text in texts:
        world.take_window(spec(text))[0].close()
    before = world.view.scans
    for text in (None, *texts[1:]):
        world.take_window(spec(text, order="/px DESC" if text is None else "/px"))[0].close()
    assert world.view.scans == before
    world.take_window(spec(texts[0]))[0].close()
    assert world.view.scans == before + 1


@pytest.mark.parametrize("runs", [True, False])
def test_an_order_that_missed_an_update_is_built_again(runs):
    """After an unreadable record, which ends a running window, the next window is built again, and is right."""
    world = ScanningWorld(1, orders=["/px"])
    asked = spec()
    if runs:
        world.take_window(asked)
    world.engine.take(0, [Record(b"7", b"{", [("version", b"1")], world.offset, 1)], 1)
    world.offset += 1
    world.engine.take(0, [Record(b"7", None, [("version", b"2")], world.offset, 1)], 1)
    world.offset += 1
    desk, keys = world.take_window(asked)
    assert keys == world.expected(asked)
    desk.close()


def test_a_wrong_declared_order_is_refused():
    """An order that cannot be meant is an error of the settings."""
    with pytest.raises(FilterError, match="/px >"):
        ScanningWorld(1, orders=["/px >"])


def test_keys_are_sorted_in_slices(random_seed):
    """The parts together are the sorted keys, with those added meanwhile, and none is much larger than a slice."""
    rng = random.Random(random_seed)
    for count in (0, 1, 499, 5_000):
        keys = [(rng.randrange(50), b"%d" % number) for number in range(count)]
        above = rng.choice([None, (25, b"")])
        wanted = [key for key in keys if above is None or key >= above]
        slices, parts = SlicedSort(list(keys), above), []
        while not slices.is_done:
            parts.append(slices.advance(700))
            added = (rng.randrange(60), b"n%d" % len(parts))
            if not slices.is_done and (slices.bound is None or added >= slices.bound):
                slices.add(added)
                wanted.append(added)
        assert [key for part in parts for key in part] == sorted(wanted)
        assert max(map(len, parts)) < 3_500
