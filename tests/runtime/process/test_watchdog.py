"""A stuck thread ends the process; a process that was stopped as a whole is not stuck."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from processor.runtime.process.watchdog import Stuck, Watchdog

PROCESS = """
import sys, threading, time
from processor.runtime.process.watchdog import Watchdog

watchdog = Watchdog(float(sys.argv[1]))

def the_call_that_never_returns():
    threading.Lock().acquire() and time.sleep(600)

def work():
    watchdog.watch()
    print("working", flush=True)
    if sys.argv[2] == "stuck":
        the_call_that_never_returns()
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
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """At some time."""
    return Clock()


@pytest.fixture
def watchdog(clock: Clock) -> Watchdog:
    """One that watches this thread."""
    made = Watchdog(10.0, clock)
    made.watch()
    return made


def passed(watchdog: Watchdog, clock: Clock, seconds: float, step_s: float = 0.5) -> list[Stuck]:
    """What looks found while time went by."""
    found = []
    for _ in range(round(seconds / step_s)):
        clock.now_s += step_s
        if (stuck := watchdog.look()) is not None:
            found.append(stuck)
    return found


def test_who_does_not_beat_within_the_limit_is_stuck(watchdog, clock):
    """And is named, with the time."""
    assert passed(watchdog, clock, 10.0) == []
    assert passed(watchdog, clock, 0.5) == [Stuck(threading.current_thread().name, 10.5)]


def test_who_beats_is_not(watchdog, clock):
    """However long it goes on."""
    for _ in range(5):
        assert passed(watchdog, clock, 9.5) == []
        watchdog.beat()


def test_time_in_which_nobody_looked_counts_for_nobody(watchdog, clock):
    """The process stood still; what was nearly stuck before has what it had left, and no more."""
    assert passed(watchdog, clock, 8.0) == []
    clock.now_s += 3600.0
    assert watchdog.look() is None
    assert passed(watchdog, clock, 2.0) == []
    assert len(passed(watchdog, clock, 0.5)) == 1


def test_a_thread_that_ended_is_not_missed(watchdog, clock):
    """Nor is a beat of a thread that was never watched."""
    watchdog.release()
    watchdog.beat()
    assert passed(watchdog, clock, 60.0) == []


def run(*arguments: str) -> subprocess.Popen[str]:
    """A process with one thread and a watchdog, its thread at work."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    return process


def test_a_call_that_never_returns_ends_the_process_and_is_named():
    """Exit code 1, the stacks of all threads on stderr."""
    process = run("0.3", "stuck")
    out, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "a thread is stuck" in out + said
    assert "in the_call_that_never_returns" in said


def test_a_process_that_was_stopped_for_longer_than_the_limit_goes_on():
    """SIGSTOP for longer than the limit, then SIGCONT: it runs to its end."""
    process = run("2.2", "beats", "30")
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=2.5)
    process.send_signal(signal.SIGCONT)
    out, said = process.communicate(timeout=20)
    assert (out, process.returncode) == ("done\n", 0), said
