"""Tests of the age of a copy: too old a copy is wiped, and no clock that was ahead makes it look fresh."""

from __future__ import annotations

import time

import pytest

from processor.store.contract import SKEW_MAX_MS, Progress, past_ms, stale_reason

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.mark.parametrize(
    ("age_ms", "reason"),
    [
        (0, None),
        (HOUR_MS, None),
        (DAY_MS + HOUR_MS, "too_old"),
        (-SKEW_MAX_MS + 60_000, None),
        (-SKEW_MAX_MS - 60_000, "too_old"),
        (-10 * DAY_MS, "too_old"),
        (-(2**62), "too_old"),
    ],
)
def test_a_copy_is_used_while_its_age_is_known_and_below_the_retention(age_ms: int, reason: str | None) -> None:
    """A copy from the future has no known age; clocks that differ by a few minutes wipe nothing."""
    progress = Progress(7, int(time.time() * 1000) - age_ms)
    stale = stale_reason(progress, 10, DAY_MS)
    assert (None if stale is None else stale[0]) == reason


def test_an_empty_copy_has_no_age() -> None:
    """There is nothing to wipe before the first record."""
    assert stale_reason(Progress(0, 0), 10, DAY_MS) is None


def test_a_record_from_the_future_is_as_old_as_now() -> None:
    """A copy whose last record has the time of a clock that was ahead is dated by the own clock."""
    before_ms = int(time.time() * 1000)
    assert before_ms <= past_ms(before_ms + DAY_MS) <= before_ms + HOUR_MS
    assert past_ms(before_ms - DAY_MS) == before_ms - DAY_MS
