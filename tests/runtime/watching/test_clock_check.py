"""Tests of the comparison of this machine's clock with the input."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from processor.runtime.watching.clock_check import BEHIND_MAX_S, ClockCheck

NOW_MS = 1_800_000_000_000
LIMIT_MS = int(BEHIND_MAX_S * 1000)


def test_a_clock_that_is_days_behind_is_warned_of_once_a_minute() -> None:
    """The warning names the topic and the difference, and comes again after a minute."""
    seconds = [5.0]
    check = ClockCheck("orders.publish", lambda: seconds[0])
    with capture_logs() as logs:
        for seconds[0] in (5.0, 30.0, 64.9, 65.0):
            check.compare(NOW_MS + 864_000_000, NOW_MS)
    assert [(one["topic"], one["seconds_ahead"]) for one in logs] == [("orders.publish", 864_000)] * 2


@pytest.mark.parametrize("timestamp_ms", [0, NOW_MS - 864_000_000, NOW_MS, NOW_MS + LIMIT_MS])
def test_records_of_the_past_and_of_the_next_hour_are_in_order(timestamp_ms: int) -> None:
    """Old input is normal, and brokers take records of up to an hour ahead."""
    with capture_logs() as logs:
        ClockCheck("orders.publish").compare(timestamp_ms, NOW_MS)
    assert logs == []
