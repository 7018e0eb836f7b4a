from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict

import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from spark_integration import read_sow
from spark_integration.foundation.small_files import LocalFiles
from spark_integration.pipeline.job_status import job_status
from spark_integration.tables.upsert import read_snapshot
from spark_integration.tables.versions import read_versions
from tests.endtoend.world import random_commands
from tests.spark.pipeline.test_table import folded, versions_of

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(3000)]

KILLS = 3
PATIENCE_S = 400
SPARK = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}


class Run:
    """`sowstream-spark run` in its own processes: Python, and the Java that it starts."""

    def __init__(self, pipeline, *arguments) -> None:
        self._pipeline = pipeline
        self._log = pipeline.home / f"run-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "spark_integration.cli", "run", "-c", str(pipeline.file), *arguments]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def log(self) -> str:
        """The end of its output."""
        return self._log.read_text(errors="replace")[-5000:]

    def status(self, job):
        """The status of a job, from its checkpoint."""
        return job_status(job, "", LocalFiles(self._pipeline.home / "checkpoints" / job), None)

    def wait(self, reached) -> None:
        """Wait for a fact; a run that has ended is an error."""
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.01)  # Between two looks; the fact decides.

    def wait_for_open_batch(self, job, after) -> int:
        """Wait until a micro-batch above `after` has begun and has not ended; returns its number."""

        def is_open() -> bool:
            status = self.status(job)
            return (status.planned or 0) > after and status.planned != status.committed

        self.wait(is_open)
        return self.status(job).planned

    def end(self, code=0) -> None:
        """Wait for the end with an exit code."""
        assert self.process.wait(PATIENCE_S) == code, self.log()

    def kill(self) -> None:
        """Kill all processes at once, as a power cut would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _write(pipeline, **jobs):
    import yaml

    tree = {"settings": "sowstream.yaml", "spark": SPARK, "jobs": jobs}
    pipeline.file.write_text(yaml.safe_dump(tree))


def _kill_and_finish(pipeline, jobs, rng, between) -> None:
    """Kill the run within micro-batches of any job, then let it finish."""
    after = dict.fromkeys(jobs, -1)
    for number in range(KILLS):
        between(number)
        run = Run(pipeline)
        try:
            job = rng.choice(jobs)
            after[job] = run.wait_for_open_batch(job, after[job] if number else -1)
        finally:
            run.kill()
        print(f"killed within batch {after[job]} of {job}")
    run = Run(pipeline, "--once")
    try:
        run.end()
    finally:
        if run.process.poll() is None:
            run.kill()


def test_ingest_killed_within_batches_loses_and_doubles_nothing(pipeline, random_seed) -> None:
    """After kills within batches each row is merged once, in the order of its key, or set aside once."""
    rng, world = random.Random(random_seed), pipeline.world
    source = {"path": "incoming", "options": {"maxFilesPerTrigger": 2}}
    _write(pipeline, feed={"job": "ingest", "from": source, "topic": world.name, "quarantine": "quarantine",
                           "writers": 2, "every": "0s"})  # fmt: skip
    numbers, bad = defaultdict(list), []

    def files(part: int) -> None:
        for index in range(6):
            rows = []
            for number in range(200):
                n = (part * 6 + index) * 200 + number
                if rng.random() < 0.05:
                    rows.append(f"{{broken {n}")
                    bad.append(rows[-1])
                else:
                    rows.append({"id": f"k{rng.randrange(30)}", "n": n})
                    numbers[rows[-1]["id"]].append(n)
            pipeline.drop(f"{part}-{index}.json", *rows)

    world.start()
    _kill_and_finish(pipeline, ["feed"], rng, files)
    world.settle()
    merged = defaultdict(list)
    for record in world.read("delta"):
        merged[record.key.decode()].append(json.loads(record.value)["n"])
    assert merged == numbers
    assert sorted(row["row"] for row in pipeline.rejected()) == sorted(bad)
    assert world.read("dlq") == []


def test_outputs_killed_within_batches_equal_their_topics(pipeline, spark, random_seed) -> None:
    """After kills within batches of several jobs the archive has each offset once, and the tables equal the topics."""
    rng, world = random.Random(random_seed), pipeline.world
    small = {"maxOffsetsPerTrigger": 60}
    jobs = {
        "keep": {"job": "archive", "topics": [world.name], "to": {"path": "archive"}, "options": small, "every": "0s"},
        "book": {"job": "table", "topic": world.name, "to": {"path": "book"}, "options": small, "every": "0s"},
        "history": {"job": "table", "topic": world.name, "kind": "scd2", "to": {"path": "history"}, "options": small,
                    "every": "0s"},
    }  # fmt: skip
    _write(pipeline, **jobs)
    commands = random_commands(random_seed, 900, 40)
    world.start()

    def publish(part: int) -> None:
        world.publish(commands[part * 300 : (part + 1) * 300])
        world.settle()

    _kill_and_finish(pipeline, [*jobs], rng, publish)
    rows = spark.read.parquet(str(pipeline.home / "archive"))
    found = sorted((row["topic"], row["partition"], row["offset"]) for row in rows.collect())
    assert found == sorted((f"{world.name}.{role}", record.partition, record.offset)
                           for role in ("publish", "delta") for record in world.read(role))  # fmt: skip
    wanted = read_sow(spark, world.name, options={"kafka.bootstrap.servers": world.bootstrap})
    assert sorted(row["value"] for row in read_snapshot(spark, str(pipeline.home / "book")).collect()) == sorted(
        row["value"] for row in wanted.collect()
    )
    assert versions_of(read_versions(spark, str(pipeline.home / "history")).collect()) == folded(world)


@pytest.mark.parametrize("once", [False, True], ids=["endless", "once"])
def test_sigterm_lets_the_running_batch_end(pipeline, once) -> None:
    """After SIGTERM within a batch that batch is committed, no other has begun, and the exit code is 0.

    With `--once` it is 130, as not all input is processed.
    """
    world = pipeline.world
    _write(pipeline, feed={"job": "ingest", "from": {"path": "incoming", "options": {"maxFilesPerTrigger": 1}},
                           "topic": world.name, "writers": 2, "every": "0s"})  # fmt: skip
    rows = 2_000
    for index in range(30):
        pipeline.drop(f"{index}.json", *({"id": n, "n": n} for n in range(rows)))
    run = Run(pipeline, *["--once"] * once)
    reader = Consumer({"bootstrap.servers": world.bootstrap, "group.id": world.name})
    places = [TopicPartition(f"{world.name}.publish", number) for number in range(4)]

    def published() -> int:
        return sum(reader.get_watermark_offsets(place, timeout=30)[1] for place in places)

    try:
        # A batch that is planned may be left to the next start; one that has sent rows may not.
        run.wait(lambda: published() > rows)
        begun = (published() - 1) // rows
        run.process.send_signal(signal.SIGTERM)
        run.end(130 if once else 0)
    finally:
        reader.close()
        if run.process.poll() is None:
            run.kill()
    status = run.status("feed")
    assert (status.state, "Draining" in run.log()) == ("ended", False)
    assert "Draining" not in (pipeline.home / "spark.log").read_text(), "Spark took it for a part of the stop"
    assert status.committed >= begun >= 1
    assert status.committed < 29
    assert len(world.read("publish")) == rows * (status.committed + 1)
    assert status.totals["published"] == rows * (status.committed + 1)


def test_a_second_driver_is_refused_until_the_first_is_dead(pipeline) -> None:
    """While the first driver is idle the second one ends at its start, with the first one's process and host.

    After a kill the next driver takes the claim of the dead one over at once, and goes on in its place.
    """
    _write(pipeline, feed={"job": "ingest", "from": {"path": "incoming"}, "topic": pipeline.world.name})
    (pipeline.home / "incoming").mkdir()
    first = Run(pipeline)
    try:
        first.wait(lambda: first.status("feed").state == "running")
        second = Run(pipeline, "--once")
        assert second.process.wait(PATIENCE_S) == 2
        assert f"feed: another driver runs this job: process {first.process.pid} on " in second.log()
        pipeline.drop("a.json", {"id": 1})
        first.wait(lambda: first.status("feed").totals.get("published") == 1)
    finally:
        first.kill()
    assert first.status("feed").state == "gone"
    third = Run(pipeline, "--once")
    third.end()
    assert "the claim of a dead driver is taken over" in third.log()
    assert third.status("feed").state == "ended"


def test_the_end_of_a_killed_jvm_is_one_sentence(tmp_path) -> None:
    """A command whose JVM is killed says so and names Spark's log; nothing of the JVM is on its standard output.

    Until then its session is that of the caller's thread, and Ctrl-C has the handler of the caller.
    """
    (tmp_path / "sowstream.yaml").write_text("topics: {orders: {}}\n")
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump({"settings": "sowstream.yaml", "spark": SPARK, "jobs": {}}))
    program = (
        "from pyspark import SparkContext\n"
        "from spark_integration.cli.pipeline_file import pipeline_session, pipeline_settings\n"
        "import signal\n"
        "with pipeline_session(pipeline_settings(None), 'test') as session:\n"
        "    assert session.getActiveSession() is session\n"
        "    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "    SparkContext._gateway.proc.kill()\n"
        "    session.range(1).count()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=False, timeout=PATIENCE_S, text=True, capture_output=True
    )
    assert (result.returncode, ":: loading settings" in result.stdout) == (1, False)
    last = f"Stop: Spark's JVM has ended; its output is in {tmp_path}/spark.log. The next start goes on where "
    assert last in result.stderr.splitlines()[-1]
