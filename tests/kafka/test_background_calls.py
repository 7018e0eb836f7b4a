"""A thread that makes calls for another one, with a time limit that calls cannot exceed."""

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
    made.join()


def of_tests() -> list[threading.Thread]:
    """The threads of the fixture's name."""
    return [thread for thread in threading.enumerate() if thread.name == "calls of a test"]


def test_a_call_is_as_if_made_here(calls):
    """A call has run after the wait for it, its error is raised there, and one thread makes all calls."""
    names = []
    for _ in range(3):
        calls.begin(lambda: names.append(threading.current_thread().name))
        calls.wait(60)
        calls.begin(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            calls.wait(60)
    assert names == ["calls of a test"] * 3
    assert len(of_tests()) == 1


def test_the_caller_goes_on_meanwhile(calls):
    """The caller runs on while a call is made, and may wait for it late: the outcome is kept."""
    may_end, has_ended = threading.Event(), threading.Event()

    def call() -> None:
        may_end.wait(60)
        has_ended.set()

    calls.begin(call)
    assert not has_ended.is_set()
    may_end.set()
    assert has_ended.wait(60)
    calls.wait(0.0)


def test_a_call_that_does_not_come_back_is_left_behind(calls):
    """A call that hangs is abandoned at its limit; the next call gets a thread of its own."""
    forever = threading.Event()
    try:
        calls.begin(forever.wait)
        with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
            calls.wait(0.05)
        calls.begin(lambda: None)
        calls.wait(60)
        [left, used] = of_tests()
    finally:
        forever.set()
    left.join(60)
    calls.close()
    used.join(60)
    assert not of_tests()


def test_nothing_of_a_call_is_kept_until_the_next(calls):
    """A thread keeps no reference to a finished call, which may refer to a large batch of records."""

    class Batch:
        """An object with weak references."""

    batch = Batch()
    watched = weakref.ref(batch)
    calls.begin(lambda batch=batch: None)
    del batch
    calls.wait(60)
    calls.begin(lambda: None)  # The thread has dropped the first call when it has taken this one.
    calls.wait(60)
    assert watched() is None
