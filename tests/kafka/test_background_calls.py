"""A thread that makes calls for another one, and a limit that holds for calls that do not keep theirs."""

import threading
import weakref
from collections.abc import Iterator

import pytest

from processor.kafka.background_calls import BackgroundCalls


@pytest.fixture
def calls() -> Iterator[BackgroundCalls]:
    """A thread that ends with the test."""
    made = BackgroundCalls("calls of a test")
    yield made
    made.close()


def of_tests() -> list[threading.Thread]:
    """The threads of that name."""
    return [thread for thread in threading.enumerate() if thread.name == "calls of a test"]


def test_a_call_is_as_if_made_here(calls):
    """It has run when it was waited for, and what it raises is raised; one thread makes all of them."""
    names = []
    for _ in range(3):
        calls.begin(lambda: names.append(threading.current_thread().name))
        calls.wait(10)
        calls.begin(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            calls.wait(10)
    assert names == ["calls of a test"] * 3
    assert len(of_tests()) == 1


def test_the_caller_goes_on_meanwhile(calls):
    """And may be late to ask: the end is kept."""
    may_end, has_ended = threading.Event(), threading.Event()

    def call() -> None:
        may_end.wait(10)
        has_ended.set()

    calls.begin(call)
    assert not has_ended.is_set()
    may_end.set()
    assert has_ended.wait(10)
    calls.wait(0.0)


def test_a_call_that_does_not_come_back_is_left_behind(calls):
    """The caller goes on when the time is over; the next call has a thread of its own, and the old one ends at last."""
    forever = threading.Event()
    try:
        calls.begin(forever.wait)
        with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
            calls.wait(0.05)
        calls.begin(lambda: None)
        calls.wait(10)
        [left, used] = of_tests()
    finally:
        forever.set()
    left.join(10)
    calls.close()
    used.join(10)
    assert not of_tests()


def test_nothing_of_a_call_is_kept_until_the_next(calls):
    """A batch of records that a call refers to may be large."""

    class Batch:
        """Something that can be watched."""

    batch = Batch()
    watched = weakref.ref(batch)
    calls.begin(lambda batch=batch: None)
    del batch
    calls.wait(10)
    calls.begin(lambda: None)  # The thread has let the first one go when it has taken this one.
    calls.wait(10)
    assert watched() is None
