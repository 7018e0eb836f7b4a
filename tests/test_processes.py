"""The processes of a run report all tests to the first one, and share one broker."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from processor.errors import BrokerUnavailable
from tests.processes import SharedBroker, shared_bootstrap


@contextmanager
def shared(start):
    """A run whose broker is started by `start`; the doors at which its processes ask."""
    ended = []
    run = SharedBroker(SimpleNamespace(bootstrap="127.0.0.1:9", stop=lambda: ended.append(True)), start)
    try:
        yield run.door
    finally:
        run.stop()
    assert ended == [True]


def test_all_processes_have_one_broker_that_is_started_once():
    """Four processes that ask at once get the same address of a broker that was started once."""
    started = []
    with shared(started.append) as door, ThreadPoolExecutor(4) as processes:
        assert not started
        assert list(processes.map(shared_bootstrap, [door] * 4)) == ["127.0.0.1:9"] * 4
    assert len(started) == 1


def test_each_process_learns_why_the_broker_did_not_start():
    """The reason for which the broker did not start is the error of each question, and it is not started again."""
    tries = []

    def fail(broker):
        tries.append(broker)
        raise BrokerUnavailable("no Java")

    with shared(fail) as door:
        for _ in range(2):
            with pytest.raises(BrokerUnavailable, match="no Java"):
                shared_bootstrap(door)
    assert len(tries) == 1


ONE = """
import os, signal

def test_before(tmp_path):
    assert "process-" in str(tmp_path)

def test_kills_its_process():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after():
    print(f"process {os.getpid()}")
"""
ANOTHER = """
def test_fails():
    print("its output")
    assert 1 == 2

def test_passes():
    pass
"""


def pytest_of(folder, *words):
    """The output of a run of two processes over the files of a folder."""
    (folder / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-c", "pytest.ini", "-p", "tests.conftest", "--processes", "2", *words]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout


def test_a_test_that_ends_its_process_fails_alone(tmp_path):
    """Failures come with their output, and a test that kills its process is one; those after it run all the same."""
    (tmp_path / "test_one.py").write_text(ONE)
    (tmp_path / "test_another.py").write_text(ANOTHER)
    output = pytest_of(tmp_path)
    assert "2 failed, 3 passed" in output
    assert "its process ended with SIGKILL" in output
    assert "its output" in output


def test_a_run_that_is_to_stop_at_a_failure_stops_in_all_processes(tmp_path):
    """With `-x` no process begins another test after a failure is known."""
    (tmp_path / "test_another.py").write_text(ANOTHER)
    for number in range(20):
        (tmp_path / f"test_{number}.py").write_text("import time\ndef test_a(): time.sleep(0.2)")
    output = pytest_of(tmp_path, "-x", "test_another.py", *(f"test_{number}.py" for number in range(20)))
    assert "stopping after 1 failures" in output
    assert "1 failed" in output
    assert "20 passed" not in output


def test_each_file_with_a_long_test_shows_it(hidden_long_files):
    """It names `mark.long`, or takes its markers from elsewhere: a run of long tests imports no other files."""
    assert hidden_long_files == set()
