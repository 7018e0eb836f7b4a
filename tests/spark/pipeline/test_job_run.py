"""The run of jobs, each a thread of a driver: their input, their retries, and one driver at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from processor.wire.partition_marks import first_version

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from structlog.testing import capture_logs

from processor.errors import ConfigurationError, Stop
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from spark_integration.foundation.small_files import LocalFiles
from spark_integration.pipeline.driver_claim import FILE, DriverClaim, holder_of, kept_alive
from spark_integration.pipeline.job_run import sentence
from spark_integration.pipeline.job_status import job_status
from spark_integration.pipeline.jobs.merge import Merge
from spark_integration.pipeline.jobs.table import Table
from spark_integration.pipeline.runner import divide_shuffles


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_each_job_waits_fails_and_goes_on_alone(pipeline_of, unique) -> None:
    """Jobs without input wait and begin when there is some, and one that fails is tried again, without the others.

    The features of an empty topic, an ingest from a folder that is made later, and an archive of a topic that is made
    later wait, each with one line. The job that fails ends the run with an error, and only that one.
    """
    depth, late = f"{unique}_depth", f"{unique}_late"
    pipeline = pipeline_of(
        others={depth: {"key": ["/item"], "partitions": 1}, late: {"key": ["/id"], "partitions": 1}},
        creates_topics=False,
    )
    world = pipeline.world
    admin, topics = Admin(world.config.kafka), specs(world.config)
    admin.create([spec for spec in topics if not spec.name.startswith(late)])
    sums = {"job": "features", "from": [unique], "topic": depth, "key": ["item"], "every": "100ms", "writers": 1}
    pipeline.write(
        feed={"job": "ingest", "from": {"path": "incoming"}, "topic": unique, "every": "100ms"},
        depth={**sums, "sql": f"SELECT item, sum(qty) AS qty FROM {unique} GROUP BY item"},
        keep={"job": "archive", "topics": [late], "to": {"path": "archive"}, "every": "100ms"},
        bad={**sums, "sql": f"SELECT no_such_column AS item FROM {unique}", "schemas": {unique: "id LONG"},
             "retries": 1, "retry_delay": "100ms"},
    )  # fmt: skip
    with capture_logs() as lines, pipeline.running() as running:
        running.wait(lambda: {running.state(job) for job in ("feed", "depth", "keep")} == {"waiting"})
        running.wait(lambda: running.state("bad") == "failed")
        pipeline.drop("a.json", {"id": 1, "item": "a", "qty": 5})
        running.wait(lambda: len(world.read("publish")) == 1)
        world.publish([(b"1", {"id": 1, "item": "a", "qty": 5}, {"version": "1"})], "sow")
        admin.create([spec for spec in topics if spec.name.startswith(late)])
        running.wait(lambda: len(world.read("publish", depth)) == 1)
        running.wait(lambda: running.state("keep") == "running")
    assert json.loads(world.read("publish", depth)[0].value) == {"item": "a", "qty": 5}
    assert isinstance(running.error, ConfigurationError)
    assert "1 of 4 jobs failed:\n  bad: sql: " in str(running.error)
    assert "no_such_column" in str(running.error)
    waits = [(line["job"], line["why"]) for line in lines if line["event"] == "job waits"]
    assert sorted(job for job, _ in waits) == ["depth", "feed", "keep"], "one line each"
    assert "there is no" in dict(waits)["feed"]
    assert f"there is no Kafka topic '{late}.publish' yet" in dict(waits)["keep"]
    failed = [line for line in lines if line["event"] == "job failed"]
    assert [(line["job"], line["log_level"]) for line in failed] == [("bad", "error")] * 2


@pytest.mark.spark
@pytest.mark.broker
def test_an_input_that_is_missing_fails_a_run_that_does_not_wait(pipeline) -> None:
    """With `--once` a run does not wait: a folder that is missing is an error, and one without files is a good end."""
    pipeline.write(feed={"job": "ingest", "from": {"path": "incoming"}, "topic": pipeline.world.name})
    with pytest.raises(Stop, match=r"feed: from: there is no .*/incoming yet"):
        pipeline.run()
    pipeline.write(
        feed={"job": "ingest", "from": {"path": "incoming", "format": "parquet"}, "topic": pipeline.world.name}
    )
    (pipeline.home / "incoming").mkdir()
    pipeline.run()


JAVA = """An error occurred while calling o93.save.
: org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)
Caused by: java.io.IOException: writing failed
\tat java.base/java.io.FileOutputStream.write(FileOutputStream.java:349)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError(JAVA), "java.io.IOException: No space left on device"),
        (RuntimeError("[STREAM_FAILED] It failed\nmore\n\nJVM stacktrace:\nCaused by: x"), "[STREAM_FAILED] It failed"),
        (
            RuntimeError(
                "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"
                'Traceback (most recent call last):\n  File "a.py", line 1, in f\nprocessor.errors.Stop: no JSON\n'
            ),
            "Stop: no JSON",
        ),
        (Stop("feed: a\nb"), "feed: a\nb"),
        (ValueError(), "ValueError"),
    ],
)  # fmt: skip
def test_the_sentence_of_a_failure_is_its_first_cause(error, expected) -> None:
    """Of nested errors of Java the innermost one is shown, of others the first line, and ours as they are."""
    assert sentence(error) == expected


ELSEWHERE = {"host": "node-7", "machine": "another", "process": 42}


@pytest.fixture
def files(tmp_path):
    """The files of a checkpoint."""
    return LocalFiles(tmp_path)


def _taken(files, **changes):
    """A claim that is held, and looks as if by another process where `changes` have its place."""
    claim = DriverClaim("book", files)
    assert claim.take() is None
    claim.settle()
    claim.note("running")
    if changes:
        _change(files, **changes)
    return claim


def _change(files, **changes) -> None:
    files.write(FILE, json.dumps(asdict(replace(holder_of(files), **changes))))


def test_a_second_driver_is_refused_while_the_first_lives(files) -> None:
    """The error has the job, and the host, the process and the start of the first one, also while that is idle."""
    first = _taken(files)
    with pytest.raises(ConfigurationError, match=r"book: another driver runs this job: process \d+ on .*, since 20..-"):
        DriverClaim("book", files).take()
    first.release()
    assert DriverClaim("book", files).take() is None, "a claim that was given back is free"


def test_the_claim_of_a_dead_process_of_this_machine_is_free_at_once(files) -> None:
    """A process that has ended, and another one that has its id since, hold nothing."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    _taken(files, process=ended.pid)
    assert job_status("book", "table", files, None).state == "gone"
    assert DriverClaim("book", files).take() is None
    _change(files, is_released=True)
    _taken(files, started="1")
    assert DriverClaim("book", files).take() is None


def test_a_driver_elsewhere_is_alive_as_long_as_its_file_changes(files) -> None:
    """Its signs of life within the lease decide, and no clock of a host."""
    _taken(files, at=1.0, **ELSEWHERE)
    second = DriverClaim("book", files)
    holder = second.take()
    assert (holder.host, holder.process) == ("node-7", 42)
    _change(files, beat=holder.beat + 1)
    with pytest.raises(ConfigurationError, match="process 42 on node-7"):
        second.take()
    assert DriverClaim("book", files, lease_s=0.0).take() is None, "silent for the lease"


def test_of_two_takers_one_goes_on_and_a_holder_notices_its_loss(files) -> None:
    """The last one to write has the claim; the other is refused, and one that held it before learns so by its beat."""
    before = _taken(files)
    _change(files, is_released=True)
    one, other = DriverClaim("book", files), DriverClaim("book", files)
    assert one.take() is None
    _change(files, is_released=True)
    assert other.take() is None
    with pytest.raises(ConfigurationError, match="another process has just taken this job"):
        one.settle()
    other.settle()
    before.renew()
    assert "another process has taken this job" in before.lost


def test_a_claim_is_kept_alive_and_a_file_that_cannot_be_written_loses_it(files, tmp_path) -> None:
    """Signs of life come by themselves; after a lease without one the claim is lost, as another process may have it."""
    claim = _taken(files)
    with kept_alive([claim], beat_s=0.01):
        first = holder_of(files).beat
        while holder_of(files).beat < first + 3:
            assert not claim.lost
    claim._lease_s = 0.0
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    claim.renew()
    assert "cannot be written" in claim.lost


def test_a_damaged_claim_is_refused(files) -> None:
    """A file that is no claim may be that of a living driver: the job does not start."""
    files.write(FILE, "{")
    with pytest.raises(ConfigurationError, match=r"is damaged.*remove it once no other process runs this job"):
        DriverClaim("book", files).take()


TASKS = "spark.sql.shuffle.partitions"


@pytest.mark.parametrize(
    ("named", "cores", "expected"),
    [({}, 1, "8"), ({}, 2, "8"), ({}, 10, "40"), ({}, 500, "200"), ({TASKS: "2"}, 10, None)],
)
def test_shuffles_have_a_few_tasks_for_each_core(named, cores, expected) -> None:
    """Without a number in Spark's settings, the tasks of a shuffle follow the cores."""
    own: dict[str, str] = {}
    context = SimpleNamespace(getConf=lambda: SimpleNamespace(contains=named.__contains__), defaultParallelism=cores)
    divide_shuffles(SimpleNamespace(sparkContext=context, conf=SimpleNamespace(set=own.__setitem__)))
    assert own.get(TASKS) == expected


def test_the_number_of_tasks_of_a_merge_stays_that_of_its_checkpoint() -> None:
    """A merge keeps its state by the tasks of its first start; a table keeps none in its checkpoint."""
    assert not Merge.is_stateless
    assert Table.is_stateless


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_each_run_over_the_input_of_now_merges_all_of_it(pipeline) -> None:
    """A run with `once` merges all input before it ends, the first one of a checkpoint too; records before it stay."""
    world = pipeline.world
    world.publish([(b"0", {"id": 0}, {"version": "3"})], "sow")
    pipeline.write(merging={"job": "merge", "topic": world.name})
    for run in range(2):
        world.publish([(b"%d" % n, {"id": n, "run": run}, {}) for n in range(10)])
        pipeline.run()
        begins: dict[bytes, int] = {}
        for record in world.read("publish"):
            begins.setdefault(record.key, first_version(0, record.offset))
        begins[b"0"] = 4  # The record before it has version 3.
        versions = {record.key: record.headers["version"] for record in world.read("sow")}
        assert versions == {key: str(begin + run) for key, begin in begins.items()}
