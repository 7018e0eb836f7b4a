"""Tests of the schedule of writes to the stores."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from processor.record import Stored
from processor.runtime.loop.state_access import WriteBack, is_writing
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore

if TYPE_CHECKING:
    from processor.runtime.task import Task

MUCH = 1_000_000
"""Bytes that may wait."""


def task(waiting: int = 0, times: int = 1) -> Task:
    """Create a task whose state has committed records of this size and number, not written yet."""
    state = LayeredState(MemoryStore(), cache_bytes=0)
    for version in range(1, times + 1) if waiting else ():
        state.put_many({b"a": Stored(version, bytes(waiting))})
        state.prepare()
        state.commit(version)
    return cast("Task", SimpleNamespace(state=state, stores=[state]))


@pytest.fixture
def writes() -> WriteBack:
    """Create a schedule of ten seconds and a hundred bytes."""
    return WriteBack(MUCH, 10.0, 100.0)


def test_little_data_waits_for_the_interval(writes):
    """After a write the next interval begins."""
    tasks = [task(1_000)]
    assert [second for second in range(100, 135) if writes.is_due(tasks, second)] == [110, 120, 130]


def test_much_data_is_begun_with_below_the_limit(writes):
    """The data of all tasks counts, and writing does not begin twice."""
    tasks = [task(400_000), task(300_000)]
    assert not writes.is_due(tasks, 101.0)
    tasks.append(task(100_000))
    assert writes.is_due(tasks, 101.0)
    tasks[0].state.start_writing(0)
    assert not writes.is_due(tasks, 101.0)
    assert writes.is_due(tasks, 111.0)


def test_a_key_that_changes_often_is_not_much_data(writes):
    """The estimate counts each change; the exact count, which follows, counts the key once."""
    hot = task(10_000, times=200)
    assert hot.state.unwritten_bytes > MUCH
    assert not writes.is_due([hot], 101.0)
    assert hot.state.unwritten_bytes < 20_000
    assert writes.is_due([hot, task(750_000)], 102.0)


def test_a_key_that_changes_often_causes_no_large_piece(writes):
    """All data is written at once only if the exact count exceeds the limit."""
    tasks = [task(10_000), task(10_000, times=200)]
    tasks[0].state.start_writing(0)
    assert sum(each.state.unwritten_bytes for each in tasks) > MUCH
    ((chosen, _, keys),) = writes.pieces(tasks, 0)
    assert chosen is tasks[0]
    assert keys < 10_000


def test_bytes_are_counted_exactly_only_above_the_estimate(writes):
    """An exact count visits every waiting key."""
    tasks = [task(10_000, times=50)]
    quick = tasks[0].state.unwritten_bytes
    assert 500_000 < quick < MUCH / 2 * 1.1
    assert not writes.is_due(tasks, 101.0)
    assert tasks[0].state.unwritten_bytes == quick


def test_bytes_are_not_counted_exactly_at_every_turn(writes):
    """Just below the limit a fifth of it must be added before the next exact count."""
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
    """So writing ends at any rate of input."""
    tasks = [task(), task(1_000), task(1_000)]
    assert list(writes.pieces(tasks, 70_000)) == []
    for each in tasks:
        each.state.start_writing(0)
    ((chosen, _, keys),) = writes.pieces(tasks, 70_000)
    assert chosen is tasks[1]
    assert 70_000 < keys < 75_000
    ((_, _, fewest),) = writes.pieces(tasks, 0)
    assert fewest > 0


def test_all_data_is_written_at_once_above_the_limit(writes):
    """The limit of waiting memory includes the data that is being written."""
    tasks = [task(600_000), task(500_000), task()]
    tasks[0].state.start_writing(0)
    tasks[1].state.start_writing(0)
    assert list(writes.pieces(tasks, 10)) == [(each, each.state, sys.maxsize) for each in tasks[:2]]
    for _, store, keys in writes.pieces(tasks, 10):
        store.write_some(keys)
    assert not is_writing(tasks)
    assert sum(each.state.unwritten_bytes for each in tasks) == 0
