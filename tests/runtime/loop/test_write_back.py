"""The schedule of writes to the stores, and the reports of tasks."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from processor.record import Stored
from processor.runtime.loop.state_access import WriteBack, is_writing
from processor.runtime.loop.task_metrics import BACKLOG_MIN, CatchUp
from processor.runtime.loop.task_reports import PipelineReport, RestoreReport
from processor.runtime.task_state import TaskState
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


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """The time in seconds."""
        return self.now_s


def test_a_restore_shows_its_progress_and_the_time_that_remains() -> None:
    """The time that remains follows from the rate until now."""
    clock = Clock()
    report = PipelineReport(clock)
    report.update({0: TaskState.RESTORING}, {0: 1000}, {})
    assert report.tasks[0].restore == RestoreReport(0, 1000, 0.0)
    assert report.tasks[0].restore.remaining_s is None
    clock.now_s += 2
    report.update({0: TaskState.RESTORING}, {0: 800}, {})
    assert report.tasks[0].restore == RestoreReport(200, 1000, 2.0)
    assert report.tasks[0].restore.remaining_s == 8.0


def test_a_later_restore_of_the_same_partition_begins_at_zero() -> None:
    """The total of an earlier restore is forgotten when the partition runs."""
    report = PipelineReport(Clock())
    report.update({0: TaskState.RESTORING}, {0: 1000}, {})
    report.update({0: TaskState.RUNNING}, {}, {})
    report.update({0: TaskState.RESTORING}, {0: 10}, {})
    restore = report.tasks[0].restore
    assert restore is not None
    assert restore.total == 10


def test_an_unopened_partition_has_no_progress() -> None:
    """Before the end of its log is known, a restoring partition has no progress to show."""
    report = PipelineReport(Clock())
    report.update({0: TaskState.RESTORING, 1: TaskState.CREATED}, {}, {})
    assert [report.tasks[number].restore for number in (0, 1)] == [None, None]


def test_the_last_lag_stays_until_the_next_one_is_known() -> None:
    """A report without lags, as during a restore, keeps those of running partitions and drops the others'."""
    report = PipelineReport(Clock())
    report.update({0: TaskState.RUNNING, 1: TaskState.RUNNING}, {}, {}, {0: 7, 1: 8})
    report.update({0: TaskState.RUNNING, 1: TaskState.RESTORING, 2: TaskState.RUNNING}, {}, {})
    assert [report.tasks[number].lag for number in (0, 1, 2)] == [7, None, None]


class CatchUpClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        """The time, in seconds."""
        return self.now_s


def logged(steps: list[tuple[float, int]], *, expected_at_s: float = 0.0) -> list[dict[str, Any]]:
    """The log lines of a backlog that has these sizes at these seconds after the start."""
    clock = CatchUpClock()
    begin_s, clock.now_s = clock.now_s, clock.now_s + expected_at_s
    catch_up = CatchUp("positions.split", clock)
    catch_up.expect()
    with capture_logs() as lines:
        for at_s, left in steps:
            clock.now_s = begin_s + at_s
            catch_up.update(left)
    return [dict(line) for line in lines]


def test_progress_and_end_of_a_backlog_are_logged() -> None:
    """A line every five seconds has the records that remain, and the last one the duration."""
    lines = logged([(0, 0), (1, 100_000), (2, 90_000), (6.5, 50_000), (12, 40_000), (20, 10)])
    assert [(line["event"], line.get("records_left")) for line in lines] == [
        ("catching up", 100_000), ("catching up", 50_000), ("catching up", 40_000), ("caught up", None),
    ]  # fmt: skip
    assert (lines[1]["percent"], lines[-1]["seconds"]) == (50, 19)
    assert {line["pipeline"] for line in lines} == {"positions.split"}


def test_delay_of_a_pipeline_that_has_caught_up_is_no_backlog() -> None:
    """Nothing is logged of a small backlog, and of a large one that comes later."""
    assert logged([(0, 0), (5, BACKLOG_MIN - 1), (30, 10 * BACKLOG_MIN)]) == []
