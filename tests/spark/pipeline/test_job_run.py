"""Jobs that run at the same time: what one of them waits for, or fails of, is no other's affair."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from structlog.testing import capture_logs

from processor.errors import ConfigurationError, Stop
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from spark_integration.pipeline.job_run import sentence

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]


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
