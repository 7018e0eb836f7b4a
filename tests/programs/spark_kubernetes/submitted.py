"""Runs the examples by `spark-submit` from outside the cluster, in cluster mode, with two executors of their own."""

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

from tests.programs.spark_kubernetes.checks import EXAMPLES, RELEASE, Run

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = f"{RELEASE}-sowstream-spark"
SPARK_HOME = str(Path(pyspark.__file__).parent)
PROGRAM = "/etc/examples/spark_examples.py"


def submit_examples(run: Run, image: str) -> None:
    """Submit the examples, wait for their end, and compare what they print with the records published.

    Raises:
        RuntimeError: `spark-submit` has failed.
    """
    cluster = run.cluster
    cluster.kubectl("create", "configmap", "examples", f"--from-file={EXAMPLES}")
    executor = yaml.safe_load(cluster.kubectl("get", "configmap", NAME, "-o", r"jsonpath={.data.executor\.yaml}"))
    with tempfile.TemporaryDirectory(prefix="sowstream-submit-") as directory:
        templates = {"executor": executor, "driver": driver_template(executor)}
        for role, template in templates.items():
            Path(directory, f"{role}.yaml").write_text(yaml.safe_dump(template), encoding="utf-8")
        master = cluster.kubectl("config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
        began = time.monotonic()
        command = list(command_line(directory, master, cluster.namespace, image))
        environment = {**os.environ, "SPARK_HOME": SPARK_HOME}
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"spark-submit: {done.stderr[-4000:]}")
    log = cluster.kubectl("logs", "examples-driver")
    results = json.loads(next(line for line in log.splitlines() if line.startswith("{")))
    records = run.published.records
    assert results["late_joiner"] == sorted(records), "late_joiner"
    assert sum(int(level[4]) for level in results["latest_order_book"]) == run.published.open, "latest_order_book"
    assert sum(int(row[1]) for row in results["dashboard"]) == len(records), "dashboard"
    assert sum(int(row[1]) for row in results["change_rate"]) == run.published.count, "change_rate"
    tasks = {executor: count for executor, count in results["tasks"].items() if count}
    assert set(tasks) == {"1", "2"}, tasks
    seconds = time.monotonic() - began
    run.report(f"examples by spark-submit in cluster mode: right after {seconds:.0f} s; tasks by executor {tasks}")


def driver_template(executor: dict[str, Any]) -> dict[str, Any]:
    """The pod of the driver: the chart's pod of an executor, with the program, and a token to start executors with."""
    template = json.loads(json.dumps(executor))
    template["metadata"]["labels"] = {"app": "examples"}
    spec = template["spec"]
    spec["automountServiceAccountToken"] = True
    (container,) = spec["containers"]
    container["name"] = "driver"
    container["volumeMounts"].append({"name": "examples", "mountPath": str(Path(PROGRAM).parent)})
    spec["volumes"].append({"name": "examples", "configMap": {"name": "examples"}})
    return template


def command_line(directory: str, master: str, namespace: str, image: str) -> Iterator[str]:
    """The words of `spark-submit`, of the PySpark that is installed here."""
    conf = {
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.container.image.pullPolicy": "IfNotPresent",
        "spark.kubernetes.authenticate.driver.serviceAccountName": NAME,
        "spark.kubernetes.driver.podTemplateFile": f"{directory}/driver.yaml",
        "spark.kubernetes.driver.podTemplateContainerName": "driver",
        "spark.kubernetes.driver.pod.name": "examples-driver",
        "spark.kubernetes.executor.podTemplateFile": f"{directory}/executor.yaml",
        "spark.kubernetes.executor.podTemplateContainerName": "executor",
        "spark.kubernetes.driver.request.cores": "200m",
        "spark.kubernetes.executor.request.cores": "200m",
        "spark.executor.instances": "2",
        "spark.executor.memory": "768m",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "4",
    }
    yield from (f"{SPARK_HOME}/bin/spark-submit", "--master", f"k8s://{master}")
    yield from ("--deploy-mode", "cluster", "--name", "examples")
    for name, value in conf.items():
        yield from ("--conf", f"{name}={value}")
    yield from (f"local://{PROGRAM}", "kafka:9092", "orders", "/shared/examples")
