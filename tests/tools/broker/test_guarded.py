"""Guarded programs always end, and leave the necessary information."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from processor.tools.broker.guarded import GuardedProcess

DEAF = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", file=sys.stderr, flush=True)
def hang(): time.sleep(120)
hang()
"""


def started(directory: Path, program: str, *, stop_timeout_s: float = 10.0) -> GuardedProcess:
    """A process that has printed that it is ready."""
    process = GuardedProcess("a worker", [sys.executable, "-c", program], directory, stop_timeout_s=stop_timeout_s)
    process.start()
    deadline = time.monotonic() + 100.0
    while "ready" not in process.tail():
        assert time.monotonic() < deadline, process.tail()
        time.sleep(0.01)
    return process


def test_a_hanging_program_logs_its_stack(tmp_path: Path) -> None:
    """A process that ignores SIGTERM is killed, and its stack is in its log."""
    process = started(tmp_path, DEAF, stop_timeout_s=0.5)
    assert process.await_end() != 0
    assert not process.is_running
    assert "in hang" in process.tail()


def test_one_that_is_killed_gets_no_warning(tmp_path: Path) -> None:
    """A killed process has not seen SIGTERM; started again it runs, and appends to its log."""
    heard = DEAF.replace("signal.SIG_IGN", "lambda *_: print('heard', file=sys.stderr, flush=True)")
    process = started(tmp_path, heard)
    process.kill()
    assert not process.is_running
    assert "heard" not in process.tail()
    process.start()
    assert process.is_running
    process.kill()


def test_the_exit_code_is_the_programs_own(tmp_path: Path) -> None:
    """The caller gets the program's exit code."""
    process = started(tmp_path, "print('ready', flush=True); raise SystemExit(3)")
    while process.is_running:  # Waiting for its end would order it.
        time.sleep(0.01)
    assert process.await_end() == 3
