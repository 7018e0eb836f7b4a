"""Tests of the log lines about rejected records."""

from __future__ import annotations

from structlog.testing import capture_logs

from processor.runtime.holding.rejection_log import RejectionLog


class Clock:
    """A clock that is set by hand."""

    now_s = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now_s


def test_the_first_of_each_reason_is_logged_and_the_others_are_counted():
    """Each reason has one line a minute with offset and detail, then one with the number of further records."""
    clock = Clock()
    rejections = RejectionLog("orders.publish", clock)
    with capture_logs() as lines:
        for offset in range(3):
            rejections.add(2, offset, "undecodable", f"not JSON at {offset}")
        rejections.add(1, 9, "bad_header", "header 'Command' is spelled 'command'")
        clock.now_s = 59.9
        rejections.flush()
        assert [(line["reason"], line["partition"], line["offset"], line["detail"]) for line in lines] == [
            ("undecodable", 2, 0, "not JSON at 0"),
            ("bad_header", 1, 9, "header 'Command' is spelled 'command'"),
        ]
        assert {line["topic"] for line in lines} == {"orders.publish"}
        clock.now_s = 60.0
        rejections.flush()
        assert [(line["reason"], line["count"]) for line in lines[2:]] == [("undecodable", 2)]
        rejections.add(2, 3, "undecodable", "not JSON at 3")
        assert lines[-1]["detail"] == "not JSON at 3"


def test_nothing_is_logged_twice_for_a_single_rejection():
    """A single rejection leaves one log line."""
    clock = Clock()
    rejections = RejectionLog("orders.publish", clock)
    with capture_logs() as lines:
        rejections.add(0, 0, "too_deep", "129 levels")
        clock.now_s = 1000.0
        rejections.flush()
    assert len(lines) == 1
