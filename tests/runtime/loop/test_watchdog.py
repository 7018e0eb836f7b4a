"""Tests of the watchdog: a stuck thread ends the process, a suspended process goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from processor.record import Record
from processor.runtime.loop.watchdog import ProcessorCall, Stuck, StuckCall, Watchdog

if TYPE_CHECKING:
    from processor.runtime.task import Task

PROCESS = """
import sys, threading, time
from processor.runtime.loop.watchdog import Watchdog

watchdog = Watchdog(float(sys.argv[1]))

def the_call_that_never_returns():
    watchdog.watch()  # Only here: a busy machine may not come so far within the limit.
    print("working", flush=True)
    threading.Lock().acquire() and time.sleep(600)

def work():
    if sys.argv[2] == "stuck":
        the_call_that_never_returns()
    watchdog.watch()
    print("working", flush=True)
    while True:
        watchdog.beat()
        time.sleep(0.02)

threading.Thread(target=work, name="orders", daemon=True).start()
for line in range(100_000):
    watchdog.check()
    if len(sys.argv) > 3 and line == int(sys.argv[3]):
        print("done", flush=True)
        break
    time.sleep(0.05)
"""


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """Create a clock."""
    return Clock()


@pytest.fixture
def watchdog(clock: Clock) -> Watchdog:
    """Create a watchdog that watches this thread."""
    created = Watchdog(10.0, clock)
    created.watch()
    return created


def passed(watchdog: Watchdog, clock: Clock, seconds: float, step_s: float = 0.5) -> list[Stuck]:
    """Let time pass and return the results of the looks."""
    looks = []
    for _ in range(round(seconds / step_s)):
        clock.now_s += step_s
        if (stuck := watchdog.look()) is not None:
            looks.append(stuck)
    return looks


def test_a_thread_that_does_not_beat_within_the_limit_is_stuck(watchdog, clock):
    """A stuck thread is reported with its name and the time since its last beat."""
    assert passed(watchdog, clock, 10.0) == []
    assert passed(watchdog, clock, 0.5) == [Stuck(threading.current_thread().name, 10.5)]


def test_a_thread_that_beats_is_not_stuck(watchdog, clock):
    """A thread that beats is never stuck."""
    for _ in range(5):
        assert passed(watchdog, clock, 9.5) == []
        watchdog.beat()


def test_time_without_looks_does_not_count(watchdog, clock):
    """While a process is suspended the remaining time of its threads neither shrinks nor grows."""
    assert passed(watchdog, clock, 8.0) == []
    clock.now_s += 3600.0
    assert watchdog.look() is None
    assert passed(watchdog, clock, 2.0) == []
    assert len(passed(watchdog, clock, 0.5)) == 1


def test_a_thread_that_ended_is_not_missed(watchdog, clock):
    """A released thread is never stuck, and a beat of an unwatched thread is ignored."""
    watchdog.release()
    watchdog.beat()
    assert passed(watchdog, clock, 60.0) == []


def hanging(record: Record, is_over: threading.Event) -> None:
    """Work on a record until the event is set."""
    while not is_over.wait(0.01):
        assert record is not None


TASK = cast("Task", SimpleNamespace(partition=3))


def a_call() -> ProcessorCall:
    """Create the call of a thread that is in none."""
    return ProcessorCall("orders", lambda _task, _error: None)


def test_the_error_of_a_call_is_handled_once_the_call_is_over():
    """The handler may take long, as it waits for a commit: the call would then look stuck."""
    handled: list[tuple[object, BaseException, float]] = []
    call = ProcessorCall("orders", lambda task, error: handled.append((task, error, call.began_s)))
    with call.of(TASK, 40):
        assert (call.partition, call.first, call.last) == (3, 40, 40)
        assert call.began_s > 0
    with pytest.raises(ValueError, match="torn") as raised, call.of(TASK, 40, 49):
        raise ValueError("torn")
    assert handled == [(TASK, raised.value, 0.0)]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_call_that_does_not_return_is_reported_with_its_record(is_known):
    """A processor's call beyond its limit is stuck; the place is the record of the innermost function that has one."""
    began_s = time.monotonic()
    watchdog = Watchdog(1_000.0, lambda: began_s + 1.0, call_limit_s=20.0)
    call, is_over, is_in = a_call(), threading.Event(), threading.Event()

    def work() -> None:
        watchdog.watch()
        watchdog.watch_call(call)
        with call.of(TASK, 40, 49):
            is_in.set()
            if is_known:
                hanging(Record(b"k", b"{}", None, 44, 0), is_over)
            else:
                while not is_over.wait(0.01):
                    pass

    thread = threading.Thread(target=work, name="orders")
    thread.start()
    try:
        assert is_in.wait(60)
        assert watchdog.look() is None
        watchdog._clock = lambda: began_s + 1.9
        assert watchdog.look() is None
        call.began_s -= 20.0
        stuck = watchdog.look()
        assert stuck is not None
        assert stuck.call == StuckCall("orders", 3, 44 if is_known else 40, 49)
    finally:
        is_over.set()
        thread.join()
    assert watchdog.look() is None


def test_a_call_of_a_suspended_process_is_not_stuck():
    """The time for which a process was suspended does not count for a call either."""
    now_s = [time.monotonic()]
    watchdog = Watchdog(1_000.0, lambda: now_s[0], call_limit_s=20.0)
    call = a_call()
    watchdog.watch_call(call)
    call.of(TASK, 40, 49)
    now_s[0] += 3_600.0
    assert watchdog.look() is None
    now_s[0] += 1.0
    assert watchdog.look() is None


def run(*arguments: str) -> subprocess.Popen[str]:
    """Run a process with a watchdog and one thread at work."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    return process


def test_a_call_that_never_returns_ends_the_process_and_is_named():
    """The process ends with exit code 1 and the stacks of all threads on stderr."""
    process = run("0.3", "stuck")
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "a thread is stuck" in out + errors
    assert "in the_call_that_never_returns" in errors


def test_a_process_that_was_stopped_for_longer_than_the_limit_goes_on():
    """After SIGSTOP for longer than the limit and SIGCONT a process runs to its end."""
    process = run("2.2", "beats", "60")
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=2.5)
    process.send_signal(signal.SIGCONT)
    out, errors = process.communicate(timeout=100)
    assert (out, process.returncode) == ("done\n", 0), errors
