"""`sowstream broker start|stop|status`: a broker that outlives the command, found by its directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from processor.trial.broker.background import find, stop
from processor.trial.broker.server import Server, is_ready

pytestmark = pytest.mark.broker


def broker(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, as a shell does."""
    program = "from processor.cli.trial import app; app()"
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=150)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data directory; a broker that still runs in it at the end is stopped."""
    yield tmp_path / "data"
    stop(tmp_path / "data")


def test_life_cycle(data: Path):
    """Start prints the address of a ready broker; status and a second start print the same; stop ends it."""
    started = broker("start", "--data", data, "--port", "0", "--heap", "384m")
    assert started.returncode == 0, started.stderr
    bootstrap = started.stdout.strip()
    assert is_ready(bootstrap, timeout_s=120)
    process = psutil.Process(find(data).pid)

    again = broker("start", "--data", data, "--port", "0")
    assert (again.returncode, again.stdout) == (0, started.stdout)
    assert "Runs already" in again.stderr
    status = broker("status", "--data", data)
    assert (status.returncode, status.stdout) == (0, started.stdout)

    assert broker("stop", "--data", data).returncode == 0
    assert not process.is_running()
    assert not is_ready(bootstrap, timeout_s=0.5)
    assert (data / "records" / ".kafka_cleanshutdown").exists()


def test_a_folder_may_have_any_name(tmp_path: Path):
    """Records and log are in the folder itself, with other letters than ASCII and in a locale without them."""
    data = tmp_path / "Große Übung €"
    words = ("start", "--data", str(data), "--port", "0", "--heap", "384m")
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "processor.cli.main", "broker", *words]
    try:
        started = subprocess.run(command, check=False, capture_output=True, text=True, timeout=150, env=env)
        assert started.returncode == 0, started.stderr
        assert (data / "kafka.log").stat().st_size > 0
        assert (data / "records" / "meta.properties").exists()
        assert [path.name for path in tmp_path.iterdir()] == [data.name]
    finally:
        stop(data)


def test_a_comma_in_the_folder_is_refused(tmp_path: Path):
    """Kafka would take the name for two folders: the error names it, and nothing is made."""
    done = broker("start", "--data", tmp_path / "a,b", "--port", "0")
    assert (done.returncode, "comma" in done.stderr) == (1, True)
    assert not (tmp_path / "a,b" / "records").exists()


@pytest.mark.parametrize(
    ("files", "timeout_ms"),
    [([], "60000"), (["meta.properties", ".kafka_cleanshutdown"], "60000"), (["meta.properties"], "5000")],
)
def test_late_heartbeats_take_no_partition(data: Path, files: list[str], timeout_ms: str):
    """A broker has a long session with itself; only the one after a kill has a short one, as it waits for its end."""
    (data / "records").mkdir(parents=True)
    for name in files:
        (data / "records" / name).touch()
    Server(data, 1, "384m", Path("java"), "*").prepare()
    settings = (data / "server.properties").read_text().splitlines()
    assert [line for line in settings if line.startswith("broker.session")][-1].endswith(f"={timeout_ms}")


@pytest.mark.long
def test_killed_broker_is_not_found(data: Path):
    """After a kill -9 of the broker status reports none, and the next start works."""
    assert broker("start", "--data", data, "--port", "0", "--heap", "384m").returncode == 0
    process = psutil.Process(find(data).pid)
    process.kill()
    process.wait(100)
    assert broker("status", "--data", data).returncode == 1
    started = broker("start", "--data", data, "--port", "0", "--heap", "384m")
    assert started.returncode == 0, started.stderr
    assert find(data).pid != process.pid


def test_foreign_process_is_not_taken_for_it(data: Path):
    """A process id that now belongs to another program is not a broker, and stop does not touch it."""
    data.mkdir()
    with subprocess.Popen(["sleep", "600"]) as foreign:
        (data / "broker.json").write_text(json.dumps({"pid": foreign.pid, "bootstrap": "127.0.0.1:1"}))
        assert find(data) is None
        assert stop(data) is None
        assert foreign.poll() is None
        foreign.kill()


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"pid": "x", "bootstrap": 1}', '{"pid": 999999999, "bootstrap": ""}']
)
def test_broken_state_file_is_no_broker(data: Path, text: str):
    """A state file that is truncated or invalid counts as none."""
    data.mkdir()
    (data / "broker.json").write_text(text)
    assert find(data) is None


def test_none_runs(data: Path):
    """Without a broker, status prints nothing and exits with 1; stop reports it and succeeds."""
    status, stopped = broker("status", "--data", data), broker("stop", "--data", data)
    assert (status.returncode, status.stdout) == (1, "")
    assert stopped.returncode == 0
    assert "No broker runs" in stopped.stderr


def test_heap_is_checked(data: Path):
    """A heap that Java would not understand is a usage error."""
    assert broker("start", "--data", data, "--heap", "lots").returncode == 2
