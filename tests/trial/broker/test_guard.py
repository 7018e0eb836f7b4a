"""The guard process ends its programs in any case, and leaves the necessary information."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from processor.trial.broker import guard as guard_module
from processor.trial.broker.guarded import GuardedProcess
from tests.waiting import until

GUARD = str(guard_module.__file__)
SLEEP = ["sleep", "600"]
FORKS = """
import os, subprocess, sys, time
guard = subprocess.Popen([sys.executable, '-I', '-S', *sys.argv[1:]], stdin=subprocess.PIPE)
child = os.fork() or time.sleep(600)
print(guard.pid, child, flush=True)
time.sleep(600)
"""
STUBBORN = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]


def order(tmp_path: Path, *commands: list[str], stop_timeout_s: float = 10) -> str:
    """The guard's argument: commands, and a directory to remove."""
    (tmp_path / "remove").mkdir()
    log, remove = str(tmp_path / "log"), str(tmp_path / "remove")
    return json.dumps({"commands": commands, "log": log, "remove": remove, "stop_timeout_s": stop_timeout_s})


def begin(text: str) -> subprocess.Popen[bytes]:
    """Start a guard as a broker's caller does."""
    return subprocess.Popen([sys.executable, "-I", "-S", GUARD, text], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def program_of(guard: psutil.Process) -> psutil.Process:
    """The program that the guard runs, once it has started."""
    while not (children := guard.children()):
        assert guard.is_running(), "the guard ended before it ran anything"
    return children[0]


def test_end_of_pipe_ends_the_program(tmp_path: Path):
    """A closed pipe ends the program in good order, and the directory is gone when the guard is."""
    with begin(order(tmp_path, SLEEP)) as guard:
        program = program_of(psutil.Process(guard.pid))
        guard.stdin.close()
        assert guard.wait(100) == 128 + signal.SIGTERM
    assert not program.is_running()
    assert not (tmp_path / "remove").exists()


def test_stubborn_program_is_killed(tmp_path: Path):
    """A program that does not end when asked is killed after its timeout."""
    with begin(order(tmp_path, [*STUBBORN], stop_timeout_s=0.3)) as guard:
        program = program_of(psutil.Process(guard.pid))
        while not any(line.startswith("SigIgn") and int(line.split()[1], 16) & 1 << 14 for line in status(program)):
            assert program.is_running()
        guard.stdin.close()
        assert guard.wait(100) == 128 + signal.SIGKILL
    assert not program.is_running()


def status(program: psutil.Process) -> list[str]:
    """Linux's status of a process, one fact per line."""
    path = Path(f"/proc/{program.pid}/status")
    if not path.exists():
        pytest.skip("needs Linux's /proc to see that a signal is ignored")
    return path.read_text().splitlines()


def test_ended_program_is_reported_before_its_directory_goes(tmp_path: Path):
    """The guard of a program that ends by itself closes its output; the directory stays until its release."""
    with begin(order(tmp_path, ["sh", "-c", "echo out; echo err >&2; exit 7"])) as guard:
        assert guard.stdout.read() == b""
        assert (tmp_path / "remove").exists()
        guard.stdin.close()
        assert guard.wait(100) == 7
    assert (tmp_path / "log").read_text() == "out\nerr\n"
    assert not (tmp_path / "remove").exists()


def test_nothing_to_remove_ends_at_once(tmp_path: Path):
    """Without a directory to remove, the guard ends with the program, with its exit code."""
    text = json.dumps(json.loads(order(tmp_path, ["sh", "-c", "exit 7"])) | {"remove": None})
    with begin(text) as guard:
        assert guard.wait(100) == 7


def test_failed_command_is_the_last(tmp_path: Path):
    """Commands run one after the other; after a failed one, no more run."""
    ran = tmp_path / "ran"
    with begin(order(tmp_path, ["touch", str(tmp_path / "first")], ["false"], ["touch", str(ran)])) as guard:
        assert guard.stdout.read() == b""
        guard.stdin.close()
        assert guard.wait(100) == 1
    assert (tmp_path / "first").exists()
    assert not ran.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_to_the_guard_ends_all(tmp_path: Path, number: signal.Signals):
    """A signal to the guard itself, as at a machine's shutdown, ends the program and removes the directory."""
    with begin(order(tmp_path, SLEEP)) as guard:
        program = program_of(psutil.Process(guard.pid))
        guard.send_signal(number)
        guard.wait(100)
    assert not program.is_running()
    assert not (tmp_path / "remove").exists()


def test_forked_child_does_not_keep_it(tmp_path: Path):
    """A child that the dead parent had forked holds the pipe open; the program ends all the same."""
    parent = subprocess.Popen([sys.executable, "-c", FORKS, GUARD, order(tmp_path, SLEEP)], stdout=subprocess.PIPE)
    with parent:
        guard, child = (psutil.Process(int(number)) for number in parent.stdout.readline().split())
        program = program_of(guard)
        parent.kill()
        parent.wait()
        try:
            guard.wait(100)
            assert child.is_running(), "the child was to hold the pipe until the guard had ended"
        finally:
            os.kill(child.pid, signal.SIGKILL)
    assert not program.is_running()
    assert not (tmp_path / "remove").exists()


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
    until(lambda: "ready" in process.tail(), process.tail)
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
    until(lambda: not process.is_running)  # Waiting for its end would order it.
    assert process.await_end() == 3
