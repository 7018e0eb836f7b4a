"""The length of a conflation interval, by how far the reader is behind its input."""

import pytest

from processor.builtin.conflate.conflate import NEAR_MS, AdaptiveInterval

HOUR_MS = 3_600_000


@pytest.mark.parametrize("lag_ms", [0, 10_001, 60_000, HOUR_MS, 365 * 24 * HOUR_MS, -HOUR_MS])
def test_a_fixed_interval_stays_whatever_the_backlog(lag_ms):
    """A fixed interval has the configured length, whether the input is an hour old, a year, or ahead of the clock."""
    interval = AdaptiveInterval(500, 500)
    for now_ms in range(0, 100_000, 100):
        interval.observe_lag(now_ms, lag_ms)
        assert interval.interval_ms == 500


def test_auto_never_leaves_its_range():
    """Under `auto` the interval stays between floor and ceiling, also when the input is an hour behind or ahead."""
    interval = AdaptiveInterval(100, 1500)
    for now_ms in range(0, 60_000, 20):
        interval.observe_lag(now_ms, HOUR_MS if now_ms < 30_000 else -HOUR_MS)
        assert 100 <= interval.interval_ms <= 1500


def test_auto_begins_at_the_floor_and_stays_there_without_a_backlog():
    """The usual delay between a record and its reader is no backlog, so the interval stays at its floor."""
    interval = AdaptiveInterval(100, 5000)
    for now_ms in range(0, 10_000, 20):
        interval.observe_lag(now_ms, NEAR_MS)
    assert interval.interval_ms == 100


def test_auto_grows_with_a_backlog_up_to_the_ceiling():
    """The interval doubles once in its length, so that each step can take effect."""
    interval = AdaptiveInterval(100, 1500)
    seen = []
    for now_ms in range(0, 6000, 20):
        interval.observe_lag(now_ms, 5000)
        if not seen or seen[-1] != interval.interval_ms:
            seen.append(interval.interval_ms)
    assert seen == [200, 400, 800, 1500]


def test_auto_comes_back_when_the_backlog_is_gone():
    """Without a backlog the interval shrinks by a fifth each time, down to the floor."""
    interval = AdaptiveInterval(100, 1600)
    for now_ms in range(0, 6000, 20):
        interval.observe_lag(now_ms, 5000)
    assert interval.interval_ms == 1600
    for now_ms in range(6000, 30_000, 20):
        before = interval.interval_ms
        interval.observe_lag(now_ms, 0)
        assert interval.interval_ms >= before * 0.79
    assert interval.interval_ms == 100


def test_a_small_backlog_moves_nothing():
    """A backlog of less than an interval changes nothing, so the interval does not swing."""
    interval = AdaptiveInterval(100, 1600)
    interval.observe_lag(0, 5000)
    for now_ms in range(200, 20_000, 20):
        interval.observe_lag(now_ms, NEAR_MS + 150)
    assert interval.interval_ms == 200


def test_a_clock_that_was_set_back_does_not_stop_the_adaptation():
    """After a clock is set back the next adaptation is due as before."""
    interval = AdaptiveInterval(100, 1600)
    interval.observe_lag(3_600_000, 5000)
    interval.shift(3_600_000)
    interval.observe_lag(200, 5000)
    assert interval.interval_ms == 400
