"""The statistics of the figures, the input, and the measured programs of a benchmark."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from processor.errors import Stop
from processor.kafka.admin.admin import Admin
from processor.trial.bench.plan import BenchOptions, Machine, about, whole_s
from processor.trial.bench.programs import (
    require_alive,
    run_ceiling,
    run_worker,
    running,
    wait_until,
    worker_process,
)
from processor.trial.bench.result import (
    CEILING,
    WORKER,
    Figure,
    Result,
    Spread,
    as_tree,
    latency_rows,
    percentile,
    ratios,
    spread,
    throughput_rows,
)
from processor.trial.bench.setup import PARTITIONS, load, messages, topics, write_setup
from processor.trial.broker.guarded import GuardedProcess
from tests.certificates import Authority
from tests.waiting import until

OPTIONS = BenchOptions(
    records=300_000, keys=50_000, rounds=3, rate=500.0, latency_records=2_000, kafka={"sasl.password": "hunter2"}
)
RESULT = Result(
    OPTIONS,
    Machine(cores=2, load=0.1, system="Linux", python="3.11", librdkafka="2.16", sowstream="0.1", allocator="libc"),
    {
        CEILING: [Figure(200_000.0, 3.0), Figure(100_000.0, 4.0), Figure(240_000.0, 5.0)],
        WORKER: [Figure(100_000.0, 7.0), Figure(90_000.0, 8.0), Figure(96_000.0, 6.0)],
    },
    {"exactly_once": [n / 1000 for n in range(100, 0, -1)]},
)


def test_a_spread_is_the_median_between_the_extremes() -> None:
    """The spread does not depend on the order; for an even number of values the median is the middle of two."""
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert spread([4.0, 1.0]) == Spread(2.5, 1.0, 4.0)
    assert spread([5.0]) == Spread(5.0, 5.0, 5.0)


def test_ratios_are_taken_round_by_round() -> None:
    """A round that was slow for both programs has a normal ratio; incomplete rounds have none."""
    assert ratios(RESULT.figures[WORKER], RESULT.figures[CEILING]) == [0.5, 0.9, 0.4]
    with pytest.raises(ValueError, match="longer"):
        ratios(RESULT.figures[WORKER][:2], RESULT.figures[CEILING])


def test_a_percentile_is_one_of_the_values() -> None:
    """The percentile does not depend on the order, and the highest is the maximum."""
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 51.0, 100.0, 100.0]
    assert percentile([7.0], 0.5) == 7.0


def test_the_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """The median of ratios is 50 %, where the ratio of medians would be 48 %; only the worker has one."""
    ceiling, worker = throughput_rows(RESULT)
    assert ceiling == (CEILING, "200,000", "100,000 - 240,000", "4.0", "", "")
    assert worker == (WORKER, "96,000", "90,000 - 100,000", "7.0", "50%", "40% - 90%")


def test_latency_is_shown_in_milliseconds() -> None:
    """Latencies of 1 to 100 ms are shown in milliseconds."""
    assert latency_rows(RESULT) == [("exactly once", "51.0", "100.0", "100.0")]


def test_the_file_has_every_figure_and_no_password() -> None:
    """The file has the rounds, their statistics, the options and the machine, but no Kafka properties."""
    tree = as_tree(RESULT)
    assert [row["records_per_s"] for row in tree["rounds"][WORKER]] == [100_000.0, 90_000.0, 96_000.0]
    assert tree["of_the_ceiling"] == {"median": 0.5, "least": 0.4, "most": 0.9, "rounds": [0.5, 0.9, 0.4]}
    assert tree["latency_ms"]["exactly_once"] == {"p50": 51.0, "p99": 100.0, "most": 100.0, "records": 100}
    assert (tree["options"]["records"], tree["options"]["broker"], tree["machine"]["cores"]) == (300_000, "given", 2)
    assert "hunter2" not in json.dumps(tree)


def test_the_default_run_is_expected_to_take_a_minute_or_two() -> None:
    """The default run is announced with a minute or two, and a smaller run with less."""
    assert 60 <= whole_s(OPTIONS) <= 120
    assert whole_s(BenchOptions(20_000, 5_000, 1, 500.0, 0, {})) < 15


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(3, "10 seconds"), (34, "30 seconds"), (60, "a minute"), (86, "a minute and a half"), (130, "2 minutes")],
)
def test_times_are_rounded(seconds: float, said: str) -> None:
    """Expected durations are estimates, and printed as such."""
    assert about(seconds) == said


def test_the_input_hangs_on_the_seed_alone() -> None:
    """The same seed gives the same input, another seed another one."""
    assert list(messages(500, 50)) == list(messages(500, 50))
    assert list(messages(500, 50)) != list(messages(500, 50, seed=8))


def test_a_key_begins_with_a_whole_record() -> None:
    """The first record of a key is full; the smaller deltas after it contain the key."""
    seen = set()
    for key, body, is_delta in messages(500, 50):
        assert is_delta is (key in seen)
        assert is_delta is (len(body) < 9)
        assert body["id"] == key
        seen.add(key)
    assert len(seen) == 50


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


def test_the_ceiling_takes_the_properties_that_a_worker_takes(tmp_path: Path) -> None:
    """A plug-in for logins is looked up as for every client, and is no property of librdkafka."""
    kafka = {"sasl.mechanism": "OAUTHBEARER", "sasl.callback": "signer"}
    with pytest.raises(Stop, match="there is no SASL callback 'signer'"):
        run_ceiling(kafka, tmp_path, "source", ("a", "b"), 1)


def test_measured_programs_find_the_files_of_the_callers_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path of the properties, as of a certificate, is one in the directory of the command."""
    authority = Authority(tmp_path / "certs")
    monkeypatch.chdir(tmp_path)
    kafka = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", "ssl.ca.location": "certs/ca.pem"}
    # The programs go through the files in this order, and end at the second one.
    kafka["ssl.crl.location"] = "certs/missing.pem"
    assert authority.file.exists()
    logs = tmp_path / "logs"
    logs.mkdir()
    with pytest.raises(Stop, match="the ceiling ended with exit code 1") as ended:
        run_ceiling(kafka, logs, "source", ("a", "b"), 1)
    worker = worker_process(write_setup(tmp_path / "worker", "measured", kafka))
    with running(worker):
        until(lambda: not worker.is_running, "the end of the worker")
    for log in (str(ended.value), worker.tail()):
        assert "ssl.crl.location" in log
        assert "ssl.ca.location" not in log


@pytest.mark.broker
def test_a_worker_that_ends_is_reported_with_its_log(tmp_path: Path, bootstrap: str, unique: str) -> None:
    """The error of a worker that ends too early, here without topics, has the end of its log."""
    setup = write_setup(tmp_path / "worker", unique, {"bootstrap.servers": bootstrap})
    with pytest.raises(Stop, match=rf"the worker ended with exit code [12](.|\n)*{unique}\.publish"):
        run_worker(setup, 1_000)


def test_a_worker_that_stalls_is_not_waited_for(tmp_path: Path) -> None:
    """A worker that runs past its deadline raises an error with the end of its log."""
    program = "import time; print('thinking', flush=True); time.sleep(600)"
    process = GuardedProcess("worker", [sys.executable, "-c", program], tmp_path)
    with running(process):
        wait_until(process, lambda: "thinking" in process.tail(), every_s=0.01)
        with pytest.raises(Stop, match=r"the worker has stalled(.|\n)*thinking"):
            require_alive(process, time.monotonic() - 1)
    assert not process.is_running
