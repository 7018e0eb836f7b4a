"""When the stores are written, and how much in a turn."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from processor.record import Stored
from processor.runtime.write_back import WriteBack, is_writing
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore

if TYPE_CHECKING:
    from processor.runtime.task import Task

MUCH = 1_000_000
"""Bytes that may wait."""


def task(waiting: int = 0, times: int = 1) -> Task:
    """One whose state has a record of so many bytes that is committed, so many times, and not written."""
    state = LayeredState(MemoryStore(), cache_bytes=0)
    for version in range(1, times + 1) if waiting else ():
        state.put_many({b"a": Stored(version, bytes(waiting))})
        state.prepare()
        state.commit(version)
    return cast("Task", SimpleNamespace(state=state))


@pytest.fixture
def writes() -> WriteBack:
    """Every ten seconds, begun with at a hundred."""
    return WriteBack(MUCH, 10.0, 100.0)


def test_little_waits_for_its_time(writes):
    """And then for the next."""
    tasks = [task(1_000)]
    assert [second for second in range(100, 135) if writes.is_due(tasks, second)] == [110, 120, 130]


def test_much_is_begun_with_before_it_is_too_much(writes):
    """All tasks together, and not again while it is being written."""
    tasks = [task(400_000), task(300_000)]
    assert not writes.is_due(tasks, 101.0)
    tasks.append(task(100_000))
    assert writes.is_due(tasks, 101.0)
    tasks[0].state.start_writing(0)
    assert not writes.is_due(tasks, 101.0)
    assert writes.is_due(tasks, 111.0)


def test_one_key_that_changes_often_is_not_much(writes):
    """The quick count says so, which counts each change; the good one, which is asked then, does not."""
    hot = task(10_000, times=200)
    assert hot.state.unwritten_bytes > MUCH
    assert not writes.is_due([hot], 101.0)
    assert hot.state.unwritten_bytes < 20_000
    assert writes.is_due([hot, task(750_000)], 102.0)


def test_one_key_that_changes_often_lets_no_piece_be_a_large_one(writes):
    """All at once is written only where too much waits indeed."""
    tasks = [task(10_000), task(10_000, times=200)]
    tasks[0].state.start_writing(0)
    assert sum(each.state.unwritten_bytes for each in tasks) > MUCH
    ((chosen, keys),) = writes.pieces(tasks, 0)
    assert chosen is tasks[0]
    assert keys < 10_000


def test_they_are_counted_well_only_where_the_quick_count_says_much(writes):
    """That takes a look at every key that waits."""
    tasks = [task(10_000, times=50)]
    quick = tasks[0].state.unwritten_bytes
    assert 500_000 < quick < MUCH / 2 * 1.1
    assert not writes.is_due(tasks, 101.0)
    assert tasks[0].state.unwritten_bytes == quick


def test_what_was_counted_well_is_not_counted_again_at_every_turn(writes):
    """Nearly as much as begins, of keys that change over and over: a fifth of all has to come, and is found in time."""
    waits, hot = task(700_000), task(10_000, times=10)
    assert not writes.is_due([waits, hot], 101.0)
    counted = waits.state.unwritten_bytes + hot.state.unwritten_bytes
    assert 700_000 < counted < 720_000
    more = task(10_000, times=15)
    assert not writes.is_due([waits, hot, more], 101.0)
    assert more.state.unwritten_bytes > 140_000, "not counted well"
    assert writes.is_due([waits, hot, more, task(100_000)], 101.0)
    assert more.state.unwritten_bytes < 11_000


def test_a_turn_writes_a_piece_of_one_task_and_more_keys_than_it_took_records(writes):
    """However fast records come, it comes to an end."""
    tasks = [task(), task(1_000), task(1_000)]
    assert list(writes.pieces(tasks, 70_000)) == []
    for each in tasks:
        each.state.start_writing(0)
    ((chosen, keys),) = writes.pieces(tasks, 70_000)
    assert chosen is tasks[1]
    assert 70_000 < keys < 75_000
    ((_, fewest),) = writes.pieces(tasks, 0)
    assert fewest > 0


def test_too_much_is_written_at_once(writes):
    """The memory that may wait is a limit; what is being written is still in it."""
    tasks = [task(600_000), task(500_000), task()]
    tasks[0].state.start_writing(0)
    tasks[1].state.start_writing(0)
    assert list(writes.pieces(tasks, 10)) == [(tasks[0], sys.maxsize), (tasks[1], sys.maxsize)]
    for each, keys in writes.pieces(tasks, 10):
        each.state.write_some(keys)
    assert not is_writing(tasks)
    assert sum(each.state.unwritten_bytes for each in tasks) == 0
