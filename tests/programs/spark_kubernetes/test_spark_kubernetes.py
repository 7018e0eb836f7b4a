"""The parts of the run in a cluster that need none: the pods of `spark-submit`, the counts, the size of the release."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
import yaml

from tests.deploy.test_chart import needs_helm, one, render
from tests.deploy.test_chart_spark import violations
from tests.programs.spark_kubernetes import counted
from tests.programs.spark_kubernetes.checks import DRIVER, HERE, WORKER, Published


def cores(quantity: str) -> Decimal:
    """A quantity of CPU as a number of cores."""
    return Decimal(quantity[:-1]) / 1000 if quantity.endswith("m") else Decimal(quantity)


@pytest.fixture(scope="module")
def release() -> list[dict[str, Any]]:
    """The manifests of the release that the run installs."""
    return render("-f", str(HERE / "values.yaml"), "--set", "spark.enabled=true")


@needs_helm
def test_the_release_has_the_pods_that_the_run_asks_for(release) -> None:
    """The names of the driver's and the worker's pod are those of the chart."""
    assert one(release, "StatefulSet", "spark")["metadata"]["name"] + "-0" == DRIVER
    assert one(release, "StatefulSet", "worker")["metadata"]["name"] + "-0" == WORKER


@needs_helm
def test_the_release_and_the_examples_fit_on_two_cores(release) -> None:
    """Broker, worker, driver, executors, and driver and executors of the examples ask for less than two cores."""
    pods = [m["spec"]["template"]["spec"] for m in release if m["kind"] == "StatefulSet"]
    pods += [m["spec"]["template"]["spec"] for m in yaml.safe_load_all(kafka()) if m["kind"] == "StatefulSet"]
    requests = [cores(container["resources"]["requests"]["cpu"]) for pod in pods for container in pod["containers"]]
    pipeline = yaml.safe_load(one(release, "ConfigMap", "spark")["data"]["pipeline.yaml"])
    executor = cores(pipeline["spark"]["spark.kubernetes.executor.request.cores"])
    assert len(requests) == 3
    assert sum(requests) + 5 * executor < 2


def kafka() -> str:
    """The manifests of the broker."""
    return (HERE / "kafka.yaml").read_text(encoding="utf-8")


def test_the_broker_is_restricted() -> None:
    """The broker's pod keeps the Pod Security Standard that the namespace enforces."""
    (broker,) = [m["spec"]["template"]["spec"] for m in yaml.safe_load_all(kafka()) if m["kind"] == "StatefulSet"]
    assert violations(broker) == []


@needs_helm
def test_the_driver_of_the_examples_is_restricted_and_has_a_token(release) -> None:
    """The driver's template differs from the executors' by its program, its token, and its component."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")
    from tests.programs.spark_kubernetes.submitted import FILES, driver_template

    executor = yaml.safe_load(one(release, "ConfigMap", "spark")["data"]["executor.yaml"])
    driver = driver_template(executor)
    assert violations(driver["spec"]) == []
    assert driver["spec"]["automountServiceAccountToken"] is True
    assert executor["spec"]["automountServiceAccountToken"] is False
    selector = one(release, "Service", "spark")["spec"]["selector"]
    assert not selector.items() <= driver["metadata"]["labels"].items()
    (container,) = driver["spec"]["containers"]
    assert FILES in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_published_records_differ_from_the_ones_before() -> None:
    """Each record has another `open` than all before it, so that each makes a delta; the last of each key counts."""
    published = Published(keys=3)
    lines = [json.loads(line) for text in (published.more(4), published.more(2)) for line in text.splitlines()]
    assert [line["open"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert published.count == 6
    assert published.open == 4 + 5 + 6


def test_rows_that_come_twice_are_counted(tmp_path, monkeypatch) -> None:
    """The archive's rows are counted apart from its offsets, and the table's latest snapshot alone."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(counted, "SHARED", tmp_path)
    assert (counted.archived(), counted.book()) == ({}, {"records": 0, "open": 0})
    for batch, offsets in enumerate(([0, 1], [1, 2])):
        directory = tmp_path / f"archive/topic=orders.publish/date=2026-01-01/batch=c-{batch}"
        directory.mkdir(parents=True)
        pq.write_table(pa.table({"partition": [0, 0], "offset": offsets}), directory / "part.parquet")
    assert counted.archived() == {"orders.publish": {"rows": 4, "offsets": 3}}
    (tmp_path / "book/_snapshots").mkdir(parents=True)
    for number in (9, 10):
        directory = tmp_path / f"book/data/{number}-x"
        directory.mkdir(parents=True)
        pq.write_table(pa.table({"value": [f'{{"open": {number}}}']}), directory / "part.parquet")
        (tmp_path / f"book/_snapshots/{number}.json").write_text(json.dumps({"directory": f"{number}-x"}))
    assert counted.book() == {"records": 1, "open": 10}
