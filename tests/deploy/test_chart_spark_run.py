"""Spark's own driver and executors run with the settings, the rights and the Secret of the chart."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kubernetes_api import KubernetesApi, kubernetes_api
from tests.deploy.test_chart import FULL, needs_helm, one, render
from tests.deploy.test_chart_spark import SPARK

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

pytestmark = [needs_helm, pytest.mark.long]

SECRET = "the key of driver and executors"
HOME = str(Path(pyspark.__file__).parent)
IMAGE = {"SPARK_HOME": HOME, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
"""The variables of the image, with the places of this machine."""
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.appName("desk")
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
groups = session.sparkContext.parallelize(range(100_000), 4).map(lambda n: (n % 100, "x" * 50)).groupByKey(3)
print("groups", sorted(groups.mapValues(len).values().distinct().collect()), flush=True)
session.stop()
"""
"""A driver whose tasks exchange 5 MB."""


class Run:
    """One run of a driver, whose first executor has another secret."""

    def __init__(self, directory: Path) -> None:
        manifests = render("-f", str(FULL), "-f", str(SPARK))
        files = one(manifests, "ConfigMap", "spark")["data"]
        self.conf = yaml.safe_load(files["pipeline.yaml"])["spark"]
        """The settings of the session."""
        self._directory = directory
        self._begun = 0
        (directory / "executor.yaml").write_text(files["executor.yaml"])
        (directory / "secret").write_text(SECRET)
        (directory / "other").write_text("another key")
        with kubernetes_api(one(manifests, "Role", "spark")["rules"], directory, self._environment) as (api, address):
            self.api: KubernetesApi = api
            """The API after the run."""
            name = self.conf["spark.kubernetes.driver.pod.name"]
            ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            pod = {"kind": "Pod", "apiVersion": "v1", "spec": {"containers": []}, "status": ready}
            api.add(pod | {"metadata": {"name": name, "namespace": "default"}}, "ADDED")
            self.output = self._drive(address)
            """The output of the driver."""
            self.codes = [process.wait(120) for process in api.processes.values()]
            """The exit code of each executor, in the order of their starts."""

    def _environment(self, variables: dict[str, str]) -> dict[str, str]:
        """The environment of an executor; the first reads the other secret."""
        self._begun += 1
        if self._begun == 1:
            variables = {name: text.replace("/secret", "/other") for name, text in variables.items()}
        return variables | IMAGE

    def _drive(self, address: str) -> str:
        here = {
            "spark.master": f"k8s://{address}",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.port": "0",
            "spark.driver.blockManager.port": "0",
            "spark.blockManager.port": "0",
            "spark.executor.instances": "1",
            "spark.executor.memory": "512m",
            "spark.ui.enabled": "false",
            "spark.kubernetes.executor.podTemplateFile": str(self._directory / "executor.yaml"),
            "spark.authenticate.secret.file": str(self._directory / "secret"),
        }
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(self.conf | here)],
            capture_output=True, text=True, check=False, env={**os.environ, **IMAGE}, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-5000:]
        return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """The run, when it has ended."""
    return Run(tmp_path_factory.mktemp("run"))


@pytest.mark.timeout(1000)
def test_the_driver_works_with_executors_that_have_its_secret(run) -> None:
    """Tasks run on the executor with the driver's secret; the one with another secret ends before it has a task."""
    assert run.output.strip().endswith("groups [1000]")
    stranger, *others = run.codes
    assert stranger == 1
    assert others
    names = list(run.api.processes)
    assert "Running task" not in run.api.log(names[0])
    assert any("Running task" in run.api.log(name) for name in names[1:])


def test_the_driver_has_the_rights_that_spark_needs_and_no_others(run) -> None:
    """Spark uses each right of the role from the first executor to the end, and asks for nothing else."""
    assert run.api.refused == set()
    verbs = {"create", "get", "list", "watch", "delete", "deletecollection"}
    assert run.api.used == {("pods", verb) for verb in verbs}


def test_no_pod_and_no_setting_has_the_secret(run) -> None:
    """The secret is in its file alone: in no variable, argument or label of an executor's pod, as text or as base64."""
    pods: list[dict[str, Any]] = run.api.created
    assert pods
    text = json.dumps(pods) + json.dumps(run.conf)
    assert SECRET not in text
    assert base64.b64encode(SECRET.encode()).decode() not in text
    for pod in pods:
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["serviceAccountName"].endswith("-spark-executor")
