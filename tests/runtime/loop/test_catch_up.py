"""The log of a pipeline that works off a backlog, such as the build of a view."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from processor.runtime.loop.task_metrics import BACKLOG_MIN, CatchUp


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        """The time, in seconds."""
        return self.now_s


def logged(steps: list[tuple[float, int]], *, expected_at_s: float = 0.0) -> list[dict[str, Any]]:
    """The log lines of a backlog that has these sizes at these seconds after the start."""
    clock = Clock()
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
