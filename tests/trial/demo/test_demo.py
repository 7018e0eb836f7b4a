"""The demo end to end on the command line, on a real broker."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from processor.kafka.admin.admin import Admin
from tests.waiting import until

pytestmark = pytest.mark.broker

RATE = "1000"


@contextmanager
def demo(directory: Path, bootstrap: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A running demo that puts its temporary files into a directory of the test."""
    command = [sys.executable, "-m", "processor.cli.main", "demo", "--bootstrap", bootstrap, "--rate", RATE, *options]
    environment = os.environ | {"TMPDIR": str(directory), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)


def left_behind(directory: Path, bootstrap: str, output: str) -> list[str]:
    """Files and processes that a finished demo has left; it leaves no topics."""
    (prefix,) = set(re.findall(r"demo_[0-9a-f]{8}_", output))

    def topics() -> list[str]:
        return [topic for topic in Admin({"bootstrap.servers": bootstrap}).cluster().topics if topic.startswith(prefix)]

    # The broker learns from its controller that they are gone.
    until(lambda: not topics(), lambda: f"left: {topics()}")
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [
        *map(str, directory.iterdir()),
        *[line for line in commands.splitlines() if str(directory) in line],
    ]


def await_line(process: subprocess.Popen[str], pattern: str) -> str:
    """The output up to the first line that matches a pattern."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return "".join(lines)
    raise AssertionError(f"{pattern!r} never came:\n{''.join(lines)}")


@pytest.mark.long
def test_the_demo_checks_itself_and_leaves_nothing(tmp_path: Path, bootstrap: str) -> None:
    """A run of ten seconds ends with every check held, rejected records included, and leaves nothing."""
    with demo(tmp_path, bootstrap, "--seconds", "10") as process:
        output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    assert re.search(r"(\d+) of \1 checks hold", output), output
    found = re.search(r"ran +\d+ s, ([\d,]+) records merged, (\d+) rejected", output)
    assert found is not None, output
    merged, rejected = (int(number.replace(",", "")) for number in found.groups())
    assert merged > 1_000
    assert rejected > 0
    for name in ("prices_1s", "orders_2s"):
        assert re.search(
            rf"{name} +[\d,]+ updates in, [\d,]+ out: [\d.]+ : 1 *\n +late by p50 [\d.]+ m?s, p99 ", output
        ), output
    assert left_behind(tmp_path, bootstrap, output) == []


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_table_on_spark_is_shown_and_checked(tmp_path: Path, bootstrap: str) -> None:
    """With `--spark` the figures of the table are shown, and it equals the SOW topic at the end."""
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")
    with demo(tmp_path, bootstrap, "--seconds", "20", "--spark") as process:
        output, _ = process.communicate(timeout=880)
    assert process.returncode == 0, output
    assert re.search(r"on Spark [1-9]\d* rows, batch \d+", output), output
    assert re.search(r"ok the table on Spark equals orders.sow: [1-9][\d,]* records", output), output
    assert left_behind(tmp_path, bootstrap, output) == []


@pytest.mark.long
def test_the_checks_hold_although_a_worker_is_killed(tmp_path: Path, bootstrap: str) -> None:
    """After kill -9 of a worker midway nothing is lost, doubled or out of order."""
    with demo(tmp_path, bootstrap, "--seconds", "10", "--kill-worker") as process:
        output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    assert "kill -9 worker 1" in output
    assert "worker 1 started again" in output
    assert re.search(r"(\d+) of \1 checks hold", output), output
    assert left_behind(tmp_path, bootstrap, output) == []


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 0),
        *(pytest.param(number, 1, marks=pytest.mark.long) for number in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_an_interrupted_demo_cleans_up(number: signal.Signals, code: int, tmp_path: Path, bootstrap: str) -> None:
    """A signal ends it at once without checks, which it reports; and nothing is left."""
    with demo(tmp_path, bootstrap) as process:
        output = await_line(process, r"\bstarting the workers\b")
        process.send_signal(number)
        output += process.communicate(timeout=100)[0]
    assert process.returncode == code, output
    assert f"Stopped by {number.name}; nothing was checked" in output
    assert left_behind(tmp_path, bootstrap, output) == []


@pytest.mark.long
def test_a_worker_that_dies_by_itself_ends_the_demo(tmp_path: Path, bootstrap: str) -> None:
    """A worker that dies unexpectedly ends the demo at once, with the end of the worker's log."""
    with demo(tmp_path, bootstrap) as process:
        output = await_line(process, r"orders in [1-9]")
        kill_worker(tmp_path)
        output += process.communicate(timeout=100)[0]
    assert process.returncode == 1, output
    assert re.search(r"sowstream: (worker \d|conflate) ended with exit code", output), output
    assert "── worker 1: worker-1.log" in output
    assert left_behind(tmp_path, bootstrap, output) == []


def kill_worker(directory: Path) -> None:
    """Kill a random worker without warning, unexpected by the demo."""
    file = next(directory.glob("sowstream-demo-*/state/slots/0"))
    os.kill(int(file.read_text().split()[1]), signal.SIGKILL)  # Behind the identity.


def await_answer(url: str, pattern: bytes) -> re.Match[bytes]:
    """Wait until a server is up, and its answer to a request has a pattern."""
    until_s = time.monotonic() + 100
    while True:
        answer = b""
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as opened:
            answer = opened.read()
            if (match := re.search(pattern, answer)) is not None:
                return match
        assert time.monotonic() < until_s, (url, answer)
        time.sleep(0.1)


@pytest.mark.long
def test_the_demo_serves_its_page(tmp_path: Path, bootstrap: str) -> None:
    """At the address that the demo prints are the page and the records of its topics; `--no-web` prints none."""
    with demo(tmp_path, bootstrap) as process:
        output = await_line(process, "in a browser:")
        address = re.search(r"in a browser: (http://\S+)/", output)
        assert address is not None
        await_answer(f"{address[1]}/", b'<script type="module" src="page.js">')
        await_answer(f"{address[1]}/page.js", b"sowstream.js")
        await_answer(f"{address[1]}/readyz", b"")
        topic = await_answer(f"{address[1]}/v1/topics", rb'"(demo_\w+_prices)"')[1].decode()
        await_answer(f"{address[1]}/v1/topics/{topic}/sow?top_n=1", b'"data"')
        process.send_signal(signal.SIGINT)
        output += process.communicate(timeout=100)[0]
    assert process.returncode == 0, output
    assert left_behind(tmp_path, bootstrap, output) == []
    with demo(tmp_path, bootstrap, "--no-web") as process:
        assert "in a browser" not in await_line(process, r"\bstarting the workers\b")
