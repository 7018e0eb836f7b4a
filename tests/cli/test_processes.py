"""`--processes`: several processes share the work, and their logs show the state of each."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from tests.cli.conftest import Cli

pytestmark = pytest.mark.broker


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port that another socket uses."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        yield server.getsockname()[1]


def set_runtime(cli: Cli, **settings: object) -> None:
    """Write a `runtime` section to the settings."""
    cli.settings.write_text(yaml.safe_dump(yaml.safe_load(cli.settings.read_text()) | {"runtime": settings}))


def first_assigned(running: subprocess.Popen[str]) -> int:
    """Wait until a child has partitions; returns its number from its log."""
    assert running.stderr is not None
    for line in running.stderr:
        said = json.loads(line)
        if said["event"] == "assigned":
            return int(said["pid"])
    pytest.fail("no process got partitions")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_metrics_port_that_is_taken_ends_with_a_sentence(cli: Cli, taken_port: int, processes: str):
    """The error has the setting, the port and advice, without a traceback, also from a child process; exit code 1."""
    cli("topics", "apply")
    set_runtime(cli, metrics_port=taken_port)
    done = cli("worker", "--processes", processes)
    assert done.returncode == 1
    assert f"runtime.metrics_port {taken_port}: process 0 of this state_dir cannot serve metrics" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_killed_process_is_reported_and_the_others_stop(cli: Cli):
    """Every line of a child has its number; the parent reports the child that ended, and exits with 1."""
    cli("topics", "apply")
    running = cli.start("worker", "--processes", "2")
    try:
        pid = first_assigned(running)
        os.kill(pid, signal.SIGKILL)
        _, err = running.communicate(timeout=150)
    finally:
        running.terminate()
    ended = [json.loads(line) for line in err.splitlines() if "ended by itself" in line]
    assert [(line["pid"], line["exit_code"]) for line in ended] == [(pid, -signal.SIGKILL)]
    assert running.returncode == 1
