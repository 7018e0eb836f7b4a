"""The reports of tasks: their metrics, and the log line of one that has caught up."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from processor.runtime.loop.task_metrics import BACKLOG_MIN, CatchUp
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
