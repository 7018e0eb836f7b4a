"""A limit that holds for calls that do not keep theirs."""

import threading

import pytest

from processor.kafka.limit import within


def test_a_call_that_comes_back_is_as_if_made_here():
    """It has run, and what it raises is raised."""
    done = []
    within(10, lambda: done.append(1))
    assert done == [1]
    with pytest.raises(ZeroDivisionError):
        within(10, lambda: 1 // 0)


def test_a_call_that_does_not_come_back_is_left_behind():
    """The caller goes on when the time is over."""
    forever = threading.Event()
    try:
        with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
            within(0.05, forever.wait)
    finally:
        forever.set()
