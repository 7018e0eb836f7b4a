"""The measured programs work, and the error for one that dies has the reason."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from processor.errors import Stop
from processor.kafka.admin.admin import Admin
from processor.tools.bench.load import load
from processor.tools.bench.programs import require_alive, run_ceiling, run_worker, running, wait_until
from processor.tools.bench.setup import PARTITIONS, topics, write_setup
from processor.tools.broker.guarded import GuardedProcess


@pytest.mark.broker
def test_the_ceiling_writes_every_record_twice(tmp_path: Path, bootstrap: str, unique: str) -> None:
    """The ceiling copies every record to the same partition of two topics."""
    kafka = {"bootstrap.servers": bootstrap}
    outputs = f"{unique}.pass1", f"{unique}.pass2"
    with topics(kafka, unique, *outputs):
        load(kafka, f"{unique}.publish", 1_000, 100)
        figure = run_ceiling(kafka, tmp_path, f"{unique}.publish", outputs, 1_000)
        ends = [Admin(kafka).end_offsets(topic, range(PARTITIONS)) for topic in (f"{unique}.publish", *outputs)]
    assert sum(ends[0].values()) == 1_000
    assert ends[1] == ends[2] == ends[0]
    assert figure.records_per_s > 0


def test_a_ceiling_that_ends_is_reported_with_its_log(tmp_path: Path) -> None:
    """The error of a ceiling that ends too early has the end of its log."""
    with pytest.raises(Stop, match=r"the ceiling ended with exit code 1(.|\n)*sasl.passwort"):
        run_ceiling({"sasl.passwort": "x"}, tmp_path, "source", ("a", "b"), 1)


@pytest.mark.broker
def test_a_worker_that_ends_is_reported_with_its_log(tmp_path: Path, bootstrap: str, unique: str) -> None:
    """The error of a worker that ends too early, here without topics, has the end of its log."""
    setup = write_setup(tmp_path / "worker", unique, {"bootstrap.servers": bootstrap})
    with pytest.raises(Stop, match=rf"the worker ended with exit code [12](.|\n)*{unique}\.publish"):
        run_worker(setup, 1_000)


def test_a_worker_that_stalls_is_not_waited_for(tmp_path: Path) -> None:
    """A worker that runs past its deadline raises an error with the end of its log."""
    program = "import time; print('thinking', flush=True); time.sleep(60)"
    process = GuardedProcess("worker", [sys.executable, "-c", program], tmp_path)
    with running(process):
        wait_until(process, lambda: "thinking" in process.tail(), every_s=0.01)
        with pytest.raises(Stop, match=r"the worker has stalled(.|\n)*thinking"):
            require_alive(process, time.monotonic() - 1)
    assert not process.is_running
