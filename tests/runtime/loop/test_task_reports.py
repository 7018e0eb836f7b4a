"""Tests of task reports: the progress of restores, lags and holds as the health pages show them."""

from __future__ import annotations

from processor.runtime.loop.task_reports import PipelineReport, RestoreReport
from processor.runtime.task_state import TaskState


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
