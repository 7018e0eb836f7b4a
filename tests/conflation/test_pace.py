"""The pace: how long an interval is, by how far the reader is behind."""

from processor.conflation import Pace
from processor.conflation.pace import FAR_BEHIND_MS, NEAR_MS


def test_a_fixed_interval_stays_whatever_the_backlog():
    """Up to where nobody could use what is told."""
    pace = Pace(500, 500)
    for now_ms in range(0, 100_000, 100):
        pace.feel(now_ms, FAR_BEHIND_MS)
    assert (pace.interval_ms, pace.wait_ms) == (500, 500)


def test_auto_begins_at_the_floor_and_stays_there_without_a_backlog():
    """What lies between a record and its reader is none."""
    pace = Pace(100, 5000)
    for now_ms in range(0, 10_000, 20):
        pace.feel(now_ms, NEAR_MS)
    assert pace.interval_ms == 100


def test_auto_grows_with_a_backlog_up_to_the_ceiling():
    """Doubling once an interval, so that each step can show what it does."""
    pace = Pace(100, 1500)
    seen = []
    for now_ms in range(0, 6000, 20):
        pace.feel(now_ms, 5000)
        if not seen or seen[-1] != pace.interval_ms:
            seen.append(pace.interval_ms)
    assert seen == [200, 400, 800, 1500]


def test_auto_comes_back_when_the_backlog_is_gone():
    """A fifth an interval, down to the floor."""
    pace = Pace(100, 1600)
    for now_ms in range(0, 6000, 20):
        pace.feel(now_ms, 5000)
    assert pace.interval_ms == 1600
    for now_ms in range(6000, 30_000, 20):
        before = pace.interval_ms
        pace.feel(now_ms, 0)
        assert pace.interval_ms >= before * 0.79
    assert pace.interval_ms == 100


def test_a_small_backlog_moves_nothing():
    """Between none and more than an interval, it stays where it is: no swinging to and fro."""
    pace = Pace(100, 1600)
    pace.feel(0, 5000)
    for now_ms in range(200, 20_000, 20):
        pace.feel(now_ms, NEAR_MS + 150)
    assert pace.interval_ms == 200


def test_far_behind_an_interval_is_ten_times_as_long():
    """Until the backlog is less than an interval: what has been overtaken is not told."""
    pace = Pace(500, 500)
    pace.feel(0, FAR_BEHIND_MS + 1)
    assert pace.is_far_behind
    assert pace.wait_ms == 5000
    pace.feel(100, NEAR_MS + 501)
    assert pace.is_far_behind, "it catches up; turning back now would tell what is about to be overtaken"
    pace.feel(200, NEAR_MS + 500)
    assert (pace.is_far_behind, pace.wait_ms) == (False, 500)


def test_a_long_interval_is_far_behind_later():
    """Less than two intervals of a minute are nothing to skip."""
    pace = Pace(60_000, 60_000)
    pace.feel(0, 120_000)
    assert not pace.is_far_behind
    pace.feel(1, 120_001)
    assert pace.is_far_behind


def test_a_clock_that_was_set_back_does_not_stop_the_adaptation():
    """The next look is due as before."""
    pace = Pace(100, 1600)
    pace.feel(3_600_000, 5000)
    pace.shift(3_600_000)
    pace.feel(200, 5000)
    assert pace.interval_ms == 400
