"""A queue of deadlines, earliest first."""

import random

from processor.subscriptions.conflation.deadlines import Deadlines


def test_the_earliest_comes_first():
    """Deadlines come earliest first, equal ones in the order of insertion, and later ones stay."""
    due = Deadlines()
    for item, time_ms in (("c", 3), ("a", 1), ("b", 1), ("d", 4)):
        due.put(item, time_ms)
    assert due.first_ms == 1
    assert due.pop(3) == ["a", "b", "c"]
    assert due.pop(3) == []
    assert due.first_ms == 4
    assert len(due) == 1
    assert "d" in due
    assert "a" not in due


def test_a_discarded_item_does_not_come():
    """A discarded item does not come, also if it was put with several times."""
    due = Deadlines()
    due.put("a", 1)
    due.put("b", 2)
    due.discard("a")
    due.discard("nobody")
    assert due.first_ms == 2
    due.put("a", 5)
    assert due.pop(4) == ["b"]
    assert due.pop(5) == ["a"]
    assert due.first_ms is None


def test_a_discarded_item_takes_no_memory():
    """A discarded item takes no memory, for any of its times."""
    due = Deadlines()
    due.put("stays", 0)
    for number in range(10_000):
        due.put(number, number)
        due.discard(number)
    assert len(due._heap) < 200
    assert due.pop(10**9) == ["stays"]


def test_random_changes_agree_with_a_sorted_list():
    """Random puts, discards and pops give the results of a sorted list."""
    for seed in range(10):
        rng, due, listed = random.Random(seed), Deadlines(), {}
        for turn in range(3000):
            item = rng.randrange(100)
            if rng.random() < 0.5:
                due.discard(item)
                listed.pop(item, None)
            elif item not in due:
                listed[item] = (rng.randrange(1000), turn)
                due.put(item, listed[item][0])
            if rng.random() < 0.01:
                now_ms = rng.randrange(100)
                wanted = sorted((item for item in listed if listed[item][0] <= now_ms), key=listed.get)
                assert due.pop(now_ms) == wanted, f"seed {seed}"
                listed = {item: time for item, time in listed.items() if item not in wanted}
            assert due.first_ms == min((time_ms for time_ms, _ in listed.values()), default=None), f"seed {seed}"
