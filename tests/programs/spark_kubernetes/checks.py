"""The steps of a run: each changes the cluster, waits for the result and compares it with the records published."""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster import ROOT, Cluster

HERE = Path(__file__).parent
RELEASE = "desk"
DRIVER = f"{RELEASE}-sowstream-spark-0"
WORKER = f"{RELEASE}-sowstream-worker-0"
SETTINGS = "/etc/sowstream/sowstream.yaml"
EXECUTORS = f"spark-role=executor,app.kubernetes.io/instance={RELEASE}"
EXAMPLES = ROOT / "tests" / "deploy" / "spark_examples.py"

Report = Callable[[str], None]


@dataclass
class Published:
    """The records that were published: the results are compared with them."""

    keys: int
    count: int = 0
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The last record of each key."""

    def more(self, count: int) -> str:
        """The next records, one JSON object a line: each differs from the one before it of its key."""
        lines = []
        for number in range(self.count, self.count + count):
            record = {
                "id": f"o{number % self.keys}",
                "instrument": f"I{number % 5}",
                "side": "buy",
                "state": "working",
                "customer": f"c{number % 10}",
                "price": 10.5,
                "open": number + 1,
                "balance": 3.5,
            }
            self.records[record["id"]] = record
            lines.append(json.dumps(record))
        self.count += count
        return "\n".join(lines) + "\n"

    @property
    def open(self) -> int:
        """The sum of `open` of all last records."""
        return sum(record["open"] for record in self.records.values())


@dataclass
class Run:
    """One run against a cluster."""

    cluster: Cluster
    published: Published
    report: Report
    images: tuple[str, ...]
    """Arguments of Helm that name the images."""

    def prepare(self, broker_image: str) -> None:
        """Create the namespace, Kafka, the shared volume, the topics and a worker."""
        self.cluster.create()
        # It reaches kubectl by its standard input, not by a command line that all may see.
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "desk-spark"}}
        secret |= {"stringData": {"secret": secrets.token_urlsafe(32)}}
        self.cluster.kubectl("apply", "-f", "-", text=json.dumps(secret))
        manifest = (HERE / "kafka.yaml").read_text(encoding="utf-8").replace("BROKER_IMAGE", broker_image)
        self.cluster.kubectl("apply", "-f", "-", text=manifest)
        self.cluster.wait_for("Kafka is ready", self._is_kafka_ready)
        self.cluster.upgrade(RELEASE, *self.images)
        self.cluster.wait_for(
            "a worker runs", lambda: self.cluster.pods("app.kubernetes.io/component=worker") == {WORKER: "Running"}
        )

    def publish(self, count: int) -> None:
        """Publish more records, and wait until the worker has merged them."""
        self.sowstream("publish", "orders", "--ack", "completed", text=self.published.more(count))
        self.report(f"published: {self.published.count:,} records of {self.published.keys:,} keys")

    def sowstream(self, *arguments: str, text: str | None = None) -> str:
        """The output of a command of Sowstream in the worker's pod."""
        return self.cluster.kubectl("exec", "-i", WORKER, "--", "sowstream", *arguments, "-c", SETTINGS, text=text)

    def start(self) -> None:
        """Start the driver, which starts its executors, and wait for the results."""
        began = time.monotonic()
        self.cluster.upgrade(RELEASE, *self.images, "--set", "spark.enabled=true")
        pods = self.two_executors()
        self.report(f"driver and {len(pods)} executors run after {time.monotonic() - began:.0f} s: {', '.join(pods)}")
        self.right("after the first start")

    def two_executors(self, without: str = "") -> list[str]:
        """Wait until the driver and two executors run, of which none has a certain name."""

        def look() -> list[str] | None:
            driver = self.cluster.pods("app.kubernetes.io/component=spark")
            pods = self.cluster.pods(EXECUTORS)
            phases = [*driver.values(), *pods.values()]
            return sorted(pods) if phases == ["Running"] * 3 and without not in pods else None

        return self.cluster.wait_for("a driver and two executors run", look)

    def right(self, occasion: str) -> dict[str, Any]:
        """Wait until archive and table have exactly what was published; returns the executors."""
        count = self.published.count
        archive = {f"orders.{role}": {"rows": count, "offsets": count} for role in ("publish", "delta")}
        book = {"records": len(self.published.records), "open": self.published.open}
        program = (HERE / "counted.py").read_text(encoding="utf-8")
        seen: dict[str, Any] = {}

        def look() -> bool:
            seen.clear()
            seen.update(self.cluster.python(DRIVER, program))
            offsets = {topic: dict(counts) for topic, counts in seen["archive"].items()}
            assert all(counts["rows"] == counts["offsets"] for counts in offsets.values()), f"rows twice: {offsets}"
            return offsets == archive and seen["book"] == book

        self.cluster.wait_for(f"{occasion}: archive {archive}, table {book}", look)
        tasks = {number: row["tasks"] for number, row in seen["executors"].items()}
        self.report(f"{occasion}: archive {archive}, table {book}; tasks by executor {tasks}")
        return seen["executors"]

    def executors(self) -> dict[str, Any]:
        """The executors that the driver knows, by number."""
        rows: dict[str, Any] = self.cluster.python(DRIVER, (HERE / "counted.py").read_text(encoding="utf-8"))[
            "executors"
        ]
        return rows

    def kill_executor(self, more: int) -> None:
        """Kill an executor, publish more, and wait for its replacement and the results."""
        victim = self.two_executors()[0]
        self.cluster.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
        began = time.monotonic()
        self.publish(more)
        pods = self.two_executors(without=victim)
        self.report(f"{victim} was killed; {time.monotonic() - began:.0f} s later these run: {', '.join(pods)}")
        self.right("after the kill of an executor")
        # A pod runs a moment before the driver knows its executor.
        self.cluster.wait_for("the third executor works", lambda: "3" in self.executors())

    def end_driver(self, more: int) -> None:
        """Send the driver SIGTERM while records wait for it: its jobs drain, and the next driver continues there."""
        before = self.two_executors()
        self.publish(more)
        uid = self.cluster.kubectl("get", "pod", DRIVER, "-o", "jsonpath={.metadata.uid}")
        command = ["kubectl", "-n", self.cluster.namespace, "logs", "-f", DRIVER]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as logs:
            began = time.monotonic()
            self.cluster.kubectl("delete", "pod", DRIVER, "--wait=true")
            seconds = time.monotonic() - began
            lines, _ = logs.communicate(timeout=60)
        ended = [line for line in lines.splitlines() if "job ended" in line]
        self.report(f"SIGTERM: the driver ended after {seconds:.0f} s; {len(ended)} jobs drained")
        assert len(ended) == 2, lines[-4000:]
        assert "forbidden" not in lines, lines[-4000:]
        self.cluster.wait_for("a new driver", lambda: self._driver_uid() not in ("", uid))
        pods = self.two_executors()
        assert not set(before) & set(pods), (before, pods)
        self.report(f"the next driver has executors {', '.join(pods)}")
        self.right("after SIGTERM of the driver")

    def _driver_uid(self) -> str:
        return self.cluster.kubectl("get", "pod", DRIVER, "-o", "jsonpath={.metadata.uid}", "--ignore-not-found")

    def _is_kafka_ready(self) -> bool:
        return self.cluster.kubectl("get", "statefulset", "kafka", "-o", "jsonpath={.status.readyReplicas}") == "1"
