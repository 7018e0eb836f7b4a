"""`sowstream bench` on the command line, on a real broker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from processor.cli.main import run
from processor.kafka.admin.admin import Admin
from tests.waiting import until

pytestmark = pytest.mark.broker


class Run(NamedTuple):
    """A finished run."""

    directory: Path
    bootstrap: str
    code: int
    out: str
    err: str

    @property
    def figures(self) -> dict:
        """The figures in its file."""
        return json.loads((self.directory / "figures.json").read_text())

    def left_behind(self) -> list[str]:
        """Topics, temporary files and processes that are left."""
        [family] = set(re.findall(r"bench_[0-9a-f]{8}_", self.err))
        topics = Admin({"bootstrap.servers": self.bootstrap}).cluster().topics
        temporary = self.directory / "tmp"
        commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        return [
            *[topic for topic in topics if topic.startswith(family)],
            *map(str, temporary.iterdir()),
            *[line for line in commands.splitlines() if str(temporary) in line],
        ]


def started(directory: Path, *options: str) -> subprocess.Popen[str]:
    """The command, with temporary files in a directory of the test."""
    (directory / "tmp").mkdir()
    settings_of_others = {"SOWSTREAM_STATE_DIR": str(directory / "others"), "SOWSTREAM_APPLICATION_ID": "others"}
    return subprocess.Popen(
        [sys.executable, "-m", "processor.cli.main", "bench", "--records", "2000", "--keys", "500", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(directory / "tmp")} | settings_of_others,
    )


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, bootstrap: str) -> Run:
    """A short run on the Kafka of a settings file."""
    directory = tmp_path_factory.mktemp("bench")
    settings = directory / "mine.yaml"
    settings.write_text(yaml.safe_dump({"kafka": {"bootstrap.servers": bootstrap}, "topics": {"orders": {}}}))
    process = started(
        directory, "--rounds", "1", "--rate", "2000", "-c", str(settings), "--json", str(directory / "figures.json")
    )
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    return Run(directory, bootstrap, process.returncode, out, err)


@pytest.mark.long
def test_the_table_and_the_file_agree(ended: Run) -> None:
    """The table has the rate, processor time, ratio and latency of the file; in a pipe, columns separated by tabs."""
    rows = {name: cells for name, *cells in (line.split("\t") for line in ended.out.splitlines())}
    rounds, latency = ended.figures["rounds"], ended.figures["latency_ms"]
    assert list(rows) == ["pass-through", "sowstream", "exactly once", "at least once"]
    for program, [figure] in rounds.items():
        rate, rates, cpu = rows[program][:3]
        assert rates == f"{rate} - {rate}"
        # The file's figures are rounded to four digits, so one in the middle may be rounded the other way.
        assert float(rate.replace(",", "")) == pytest.approx(figure["records_per_s"], abs=0.51)
        assert float(cpu) == pytest.approx(figure["cpu_s_per_million"], abs=0.051)
    ratio = rounds["sowstream"][0]["records_per_s"] / rounds["pass-through"][0]["records_per_s"]
    assert ended.figures["of_the_ceiling"]["rounds"] == [pytest.approx(ratio, abs=1e-3)]
    assert int(rows["sowstream"][3].rstrip("%")) == pytest.approx(
        100 * ended.figures["of_the_ceiling"]["median"], abs=0.51
    )
    for guarantee, told in latency.items():
        cells = [float(cell) for cell in rows[guarantee.replace("_", " ")]]
        assert cells == pytest.approx([told[name] for name in ("p50", "p99", "most")], abs=0.051)
        assert 0 < told["p50"] <= told["p99"] <= told["most"]
        assert told["records"] == 400


@pytest.mark.long
def test_the_plan_and_its_duration_are_printed_first(ended: Run) -> None:
    """The plan and its duration are printed first, with a warning about few records, and an explanation at the end."""
    before, after = ended.err.split("Round 1 of 1")
    assert "one round of 2,000 records over 500 keys" in before
    assert "So few records" in before
    assert re.search(r"That takes about \d+ seconds", before)
    assert "the broker's are not in it" in after
    assert "until a reader of committed records has its delta" in after


@pytest.mark.long
def test_nothing_is_left(ended: Run) -> None:
    """No topic, file or process is left, and no state of the user is touched, despite settings in the environment."""
    assert ended.left_behind() == []
    assert not (ended.directory / "others").exists()


def test_ctrl_c_ends_a_benchmark_and_leaves_nothing(tmp_path: Path, bootstrap: str) -> None:
    """Ctrl-C while the worker runs gives exit code 130, without figures or a traceback."""
    process = started(tmp_path, "--rounds", "2", "--bootstrap", bootstrap)
    logs = "tmp/sowstream-bench-*/*/worker.log"
    until(lambda: process.poll() is not None or list(tmp_path.glob(logs)), "a worker")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, ""), err
    assert "Stopped by SIGINT" in err
    assert "Traceback" not in err
    assert Run(tmp_path, bootstrap, process.returncode, out, err).left_behind() == []


def test_an_unwritable_output_file_is_rejected_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An output file that cannot be written is rejected before the benchmark runs."""
    monkeypatch.chdir(tmp_path)  # A long path would break the message within the words.
    assert run(["bench", "--json", "missing/figures.json"]) == 2
    assert "cannot be written" in capsys.readouterr().err
