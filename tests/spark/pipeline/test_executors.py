"""Every job under `spark-submit --master local-cluster[2,1,1024]`: two executors, each a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

import pyspark
import yaml

from processor.trial.broker.directories import cache_dir
from spark_integration.tables.upsert import read_snapshot
from spark_integration.tables.versions import read_versions
from tests.programs.faults.broker.ports import quiet_port
from tests.spark.pipeline.test_table import folded, versions_of
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(3600)]

MASTER = "local-cluster[2,1,1024]"
ROOT = Path(__file__).parents[3]
SPARK_HOME = Path(pyspark.__file__).parent


class Cluster:
    """Runs programs by `spark-submit`, and counts the tasks of each executor."""

    def __init__(self, directory: Path) -> None:
        """Create it.

        Args:
            directory: an existing folder, for Spark's home and its events.
        """
        self.home, self._events = directory / "spark", directory / "events"
        self._events.mkdir()
        self.home.mkdir()
        for path in SPARK_HOME.iterdir():  # Executors work below Spark's home.
            if path.name != "work":
                (self.home / path.name).symlink_to(path)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of Spark's programs, with the PySpark of this process and its packages."""
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"SPARK_HOME": str(self.home), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(paths)}
        kept = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK_")}
        return kept | own | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}

    def submit(self, *program: str, master: str = MASTER) -> None:
        """Run a program to its end, which must be a good one."""
        conf = {
            "spark.jars.packages": f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}",
            "spark.jars.ivy": str(cache_dir() / "ivy"),
            "spark.jars.ivySettings": str(ROOT / "spark_integration" / "ivysettings.xml"),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "768m",
            "spark.executor.memory": "768m",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.network.timeout": "900s",
            "spark.executor.heartbeatInterval": "60s",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self._events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }
        words = [word for name, text in conf.items() for word in ("--conf", f"{name}={text}")]
        done = subprocess.run(
            [str(self.home / "bin" / "spark-submit"), "--master", master, *words, *program],
            env=self.environment, capture_output=True, text=True, timeout=3000, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]

    @contextmanager
    def standalone(self) -> Iterator[str]:
        """Start a master and two workers of Spark's own manager, until the block ends; gives the master's address."""
        port = quiet_port()
        url = f"spark://127.0.0.1:{port}"
        master = ["master.Master", "--host", "127.0.0.1", "--port", str(port)]
        worker = ["worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", url]
        with ExitStack() as stack:
            for number, (kind, *words) in enumerate((master, worker, worker)):
                log = stack.enter_context((self.home.parent / f"daemon-{number}.log").open("wb"))
                command = [str(self.home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *words]
                process = subprocess.Popen(
                    [*command, "--webui-port", str(quiet_port())],
                    env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                )  # fmt: skip
                stack.callback(process.wait, 60)
                stack.callback(process.terminate)
                if kind.startswith("master"):
                    until(lambda: self._answers(port), "Spark's master")
            yield url

    @staticmethod
    def _answers(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def tasks(self) -> dict[str, Counter[str]]:
        """The number of completed tasks of each executor, by the name of the application."""
        tasks: dict[str, Counter[str]] = {}
        for log in self._events.iterdir():
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            (name,) = (line["App Name"] for line in lines if line["Event"] == "SparkListenerApplicationStart")
            ends = (line for line in lines if line["Event"] == "SparkListenerTaskEnd")
            tasks.setdefault(name, Counter()).update(end["Task Info"]["Executor ID"] for end in ends)
        return tasks


def test_executors_do_the_tasks_of_every_job(pipeline_of, spark, unique) -> None:
    """Rows go from files to the archive, both tables and the features, and a merge ends, all by tasks of executors."""
    merged, depth = f"{unique}_merged", f"{unique}_depth"
    others = {merged: {"key": ["/id"], "partitions": 2}, depth: {"key": ["/item"], "partitions": 2}}
    pipeline = pipeline_of(others=others)
    world, cluster = pipeline.world, Cluster(pipeline.home)
    program = str(ROOT / "deploy" / "spark" / "sowstream_spark.py")

    def run(*command: str) -> None:
        cluster.submit(program, *command, "-c", str(pipeline.file))

    jobs = {
        "feed": {"job": "ingest", "from": {"path": "incoming"}, "topic": unique, "quarantine": "bad", "writers": 2},
        "keep": {"job": "archive", "topics": [unique], "to": {"path": "archive"}},
        "book": {"job": "table", "topic": unique, "to": {"path": "book"}},
        "history": {"job": "table", "topic": unique, "kind": "scd2", "to": {"path": "history"}},
        "depth": {
            "job": "features", "from": [unique], "schemas": {unique: "id LONG, item STRING, qty LONG"}, "topic": depth,
            "sql": f"SELECT item, sum(qty) AS qty FROM {unique} GROUP BY item", "key": ["item"], "writers": 2,
        },
    }  # fmt: skip
    pipeline.file.write_text(yaml.safe_dump({"settings": "sowstream.yaml", "jobs": jobs}))
    for number in range(4):
        rows = ({"id": n % 20, "item": f"i{n % 3}", "qty": 10 * number + n} for n in range(50))
        pipeline.drop(f"{number}.json", *rows, "{broken")
    run("run", "feed", "--once")
    worker = world.start(name=unique)
    world.settle()
    assert worker.stop() == 0
    run("run", "keep", "book", "history", "depth", "--once")
    world.publish([(b"%d" % n, {"id": n}, {}) for n in range(30)], name=merged)
    run("merge", merged, "--once")
    assert len(pipeline.rejected("bad")) == 4
    archive = spark.read.parquet(str(pipeline.home / "archive"))
    assert {row["topic"]: row["count"] for row in archive.groupBy("topic").count().collect()} == {
        f"{unique}.publish": 200, f"{unique}.delta": 200,
    }  # fmt: skip
    present = {record.key: json.loads(record.value) for record in world.read("sow")}
    book = [json.loads(row["value"]) for row in read_snapshot(spark, str(pipeline.home / "book")).collect()]
    assert sorted(book, key=str) == sorted(present.values(), key=str)
    assert versions_of(read_versions(spark, str(pipeline.home / "history")).collect()) == folded(world)
    sums: Counter[str] = Counter()
    for record in present.values():
        sums[record["item"]] += record["qty"]
    features = (json.loads(record.value) for record in world.read("publish", depth))
    assert {row["item"]: row["qty"] for row in features} == sums
    assert len(world.read("sow", merged)) == 30
    tasks = cluster.tasks()
    print(tasks)
    assert set(tasks) == {"sowstream-spark run", f"sowstream-spark merge {merged}"}
    assert all(set(counts) == {"0", "1"} for counts in tasks.values()), tasks
