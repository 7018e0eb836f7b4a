"""Runs programs by `spark-submit` from outside the cluster, in cluster mode, each with two executors of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import yaml

from tests.programs.spark_kubernetes.checks import EXAMPLES, RELEASE, WORKER, Published, Run

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = f"{RELEASE}-sowstream-spark"
SPARK_HOME = str(Path(pyspark.__file__).parent)
FILES = "/etc/submitted"
EVENTS = "/shared/events"

# What no chart adds here: each driver that is submitted has its own address, ports and name.
PIPELINE = {"settings": "/etc/sowstream/sowstream.yaml", "checkpoints": "file:///shared/submitted"}

# The tasks of each executor, from Spark's own log of events, which outlives the driver.
TASKS = f"""
import collections, json, pathlib
lines = [json.loads(line) for file in pathlib.Path("{EVENTS}").iterdir() for line in file.open()]
ends = [line for line in lines if line["Event"] == "SparkListenerTaskEnd"]
print(json.dumps(collections.Counter(end["Task Info"]["Executor ID"] for end in ends)))
"""


def submit_examples(run: Run, image: str) -> None:
    """Submit the examples, wait for their end, and compare what they print with the records published."""
    cluster = run.cluster
    with tempfile.TemporaryDirectory(prefix="sowstream-submit-") as directory:
        (pipeline := Path(directory, "pipeline.yaml")).write_text(yaml.safe_dump(PIPELINE), encoding="utf-8")
        cluster.kubectl("create", "configmap", "submitted", f"--from-file={EXAMPLES}", f"--from-file={pipeline}")
    began = time.monotonic()
    submit(run, image, "examples", f"{FILES}/{EXAMPLES.name}", "kafka:9092", "orders", "/shared/examples")
    log = cluster.kubectl("logs", "examples-driver")
    results = json.loads(next(line for line in log.splitlines() if line.startswith('{"master"')))
    records = run.published.records
    assert results["late_joiner"] == sorted(records), "late_joiner"
    assert sum(int(level[4]) for level in results["latest_order_book"]) == run.published.open, "latest_order_book"
    assert sum(int(row[1]) for row in results["dashboard"]) == len(records), "dashboard"
    assert sum(int(row[1]) for row in results["change_rate"]) == run.published.count, "change_rate"
    tasks = {executor: count for executor, count in results["tasks"].items() if count}
    assert set(tasks) == {"1", "2"}, tasks
    seconds = time.monotonic() - began
    run.report(f"examples by spark-submit in cluster mode: right after {seconds:.0f} s; tasks by executor {tasks}")


def merge_trades(run: Run, image: str, count: int) -> None:
    """Publish to a topic without workers, submit its merge, and wait for the SOW records that follow from it."""
    trades = Published(run.published.keys)
    run.sowstream("publish", "trades", text=trades.more(count))
    run.cluster.kubectl("exec", WORKER, "--", "mkdir", "-p", EVENTS)
    began = time.monotonic()
    program = "/opt/sowstream/sowstream_spark.py"
    submit(run, image, "merge", program, "merge", "trades", "-c", f"{FILES}/pipeline.yaml", is_endless=True)

    def merged() -> bool:
        lines = run.sowstream("sow", "trades", "--data").splitlines()
        return {record["id"]: record for record in map(json.loads, lines)} == trades.records

    run.cluster.wait_for("the merge of trades", merged)
    seconds = time.monotonic() - began
    tasks = run.cluster.python(WORKER, TASKS)
    assert set(tasks) == {"1", "2"}, tasks
    run.cluster.kubectl("delete", "pod", "merge-driver")
    run.cluster.wait_for("executors end with their driver", lambda: not run.cluster.pods("spark-app-name=merge"))
    run.report(
        f"merge by spark-submit in cluster mode: {count:,} records, {len(trades.records):,} SOW records, right after "
        f"{seconds:.0f} s; tasks by executor {tasks}"
    )


def submit(run: Run, image: str, name: str, *program: str, is_endless: bool = False) -> None:
    """Submit a program, and wait for its end unless it is endless.

    Raises:
        RuntimeError: it has failed.
    """
    cluster = run.cluster
    executor = yaml.safe_load(cluster.kubectl("get", "configmap", NAME, "-o", r"jsonpath={.data.executor\.yaml}"))
    master = cluster.kubectl("config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
    with tempfile.TemporaryDirectory(prefix="sowstream-submit-") as directory:
        for role, template in {"executor": executor, "driver": driver_template(executor)}.items():
            Path(directory, f"{role}.yaml").write_text(yaml.safe_dump(template), encoding="utf-8")
        command = [*command_line(directory, master, cluster.namespace, image, name), *program]
        if is_endless:
            command[1:1] = ["--conf", "spark.kubernetes.submission.waitAppCompletion=false"]
        command[-len(program)] = f"local://{program[0]}"
        environment = {**os.environ, "SPARK_HOME": SPARK_HOME}
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)
    phase = cluster.kubectl("get", "pod", f"{name}-driver", "-o", "jsonpath={.status.phase}", "--ignore-not-found")
    if done.returncode != 0 or not (is_endless or phase == "Succeeded"):
        log = cluster.kubectl("logs", f"{name}-driver", "--tail=60") if phase else ""
        raise RuntimeError(f"spark-submit: {phase}\n{done.stderr[-2000:]}\n{log}")


def driver_template(executor: dict[str, Any]) -> dict[str, Any]:
    """The pod of a driver: the chart's pod of an executor, with files, and a token to start executors with."""
    template: dict[str, Any] = json.loads(json.dumps(executor))
    # The chart's policy lets executors talk to it.
    template["metadata"]["labels"]["app.kubernetes.io/component"] = "spark-submitted"
    spec = template["spec"]
    spec["automountServiceAccountToken"] = True
    (container,) = spec["containers"]
    container["name"] = "driver"
    for volume, source, place in (
        ("submitted", "submitted", FILES),
        ("config", f"{RELEASE}-sowstream", "/etc/sowstream"),
    ):
        container["volumeMounts"].append({"name": volume, "mountPath": place, "readOnly": True})
        spec["volumes"].append({"name": volume, "configMap": {"name": source}})
    return template


def command_line(directory: str, master: str, namespace: str, image: str, name: str) -> Iterator[str]:
    """The words of `spark-submit`, of the PySpark that is installed here, up to the program."""
    conf = {
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.container.image.pullPolicy": "IfNotPresent",
        "spark.kubernetes.authenticate.driver.serviceAccountName": NAME,
        "spark.kubernetes.driver.podTemplateFile": f"{directory}/driver.yaml",
        "spark.kubernetes.driver.podTemplateContainerName": "driver",
        "spark.kubernetes.driver.pod.name": f"{name}-driver",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.executor.podTemplateFile": f"{directory}/executor.yaml",
        "spark.kubernetes.executor.podTemplateContainerName": "executor",
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        "spark.blockManager.port": "7079",
        "spark.authenticate": "true",
        "spark.authenticate.secret.file": "/etc/sowstream-spark-auth/secret",
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.saslFallback": "false",
        "spark.io.encryption.enabled": "true",
        "spark.kubernetes.driver.request.cores": "200m",
        "spark.kubernetes.executor.request.cores": "200m",
        "spark.executor.instances": "2",
        "spark.executor.memory": "768m",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "4",
        "spark.eventLog.enabled": str(name == "merge").lower(),
        "spark.eventLog.dir": f"file://{EVENTS}",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
    yield from (f"{SPARK_HOME}/bin/spark-submit", "--master", f"k8s://{master}")
    yield from ("--deploy-mode", "cluster", "--name", name)
    for setting, value in conf.items():
        yield from ("--conf", f"{setting}={value}")
