"""The image of the pipeline on Spark has the locked contents, and starts the processes that Spark's pods order."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from processor.trial.broker.jars import read_lock
from tests.deploy.test_image import ROOT, arguments, locked, package_folders

FILE = "Dockerfile.spark"
SPARK = ROOT / "deploy" / "spark"

EXECUTOR = {
    "SPARK_HOME": "/opt/spark",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "exec-1",
    **{f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number}" for number in range(12)},
}
"""The variables by which Spark 4.0 describes an executor to its container."""


def program(name: str):
    """A program of deploy/spark as a module."""
    spec = importlib.util.spec_from_file_location(name, SPARK / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def command():
    """The function `command` of the entry point."""
    return program("entrypoint").command


def test_the_archive_has_every_package_of_the_project(tmp_path) -> None:
    """The wheel in the archive is made of all packages that the project has, and of nothing compiled here."""
    source = program("archive").copy_source(tmp_path)
    assert all((source / folder).is_dir() for folder in package_folders())
    assert not [path for path in source.rglob("*") if path.suffix in (".so", ".c", ".pyc")]


def test_every_stage_has_the_base_of_the_other_image() -> None:
    """Both images start from BASE_IMAGE, with the same default."""
    assert arguments("ARG", FILE)[0] == arguments("ARG")[0]
    assert [stage.split()[0] for stage in arguments("FROM", FILE)] == ["${BASE_IMAGE}", "${BASE_IMAGE}"]


def test_process_is_not_root_and_gets_the_signals() -> None:
    """The process runs as a user other than root, and its entry point is a program and not a shell."""
    assert arguments("USER", FILE) == ["10001:10001"]
    (entry,) = arguments("ENTRYPOINT", FILE)
    assert json.loads(entry)[:2] == ["tini", "--"]
    assert not {"sh", "bash"} & {Path(word).name for word in json.loads(entry)}


def test_nothing_unlocked_is_installed() -> None:
    """Each `pip install` checks hashes, or takes the wheel just built and nothing else."""
    installs = re.findall(r"pip(?: --python \S+)? install [^&]*", " ".join(arguments("RUN", FILE)))
    assert len(installs) == 3
    for install in installs:
        assert "--require-hashes -r " in install or ("--no-deps" in install and "--no-index" in install), install


def test_the_jars_are_fetched_without_an_installed_sowstream() -> None:
    """The program that fetches the jars finds Sowstream by the build's PYTHONPATH: its Python has none installed."""
    (fetch,) = [argument for argument in arguments("RUN", FILE) if "fetch_jars.py" in argument]
    variables = dict(re.findall(r"(\w+)=(\S+) (?=[^&]*fetch_jars\.py)", fetch))
    assert variables["PYTHONPATH"] == arguments("WORKDIR", FILE)[0]


def test_spark_is_in_the_image_once() -> None:
    """/opt/spark is a link to the installed PySpark: a copy of it would make the image 500 MB larger."""
    copied = [argument for argument in arguments("COPY", FILE) if argument.startswith("--from")]
    assert copied == ["--from=build /opt/sowstream /opt/sowstream"]
    assert "ln -s sowstream/spark /opt/spark" in arguments("RUN", FILE)
    assert any('ln -s "$SPARK_HOME" /opt/sowstream/spark' in argument for argument in arguments("RUN", FILE))


def test_the_locks_have_the_tested_versions() -> None:
    """Executors have the versions that the tests run with; PySpark is in a lock of its own, as clusters bring it."""
    executors, pyspark, tested = locked("spark.txt"), locked("pyspark.txt"), locked("dev.txt")
    assert executors.items() <= tested.items()
    assert locked("image.txt").items() <= executors.items()
    assert {"pandas", "pyarrow", "protobuf"} <= set(executors)
    assert set(pyspark) == {"pyspark", "py4j"}
    assert pyspark.items() <= tested.items()
    assert not set(pyspark) & set(executors)


def test_the_connector_is_the_one_of_the_locked_spark() -> None:
    """The locked jars are the Kafka connector in the version of the locked PySpark, and the libraries it brings."""
    jars = {jar.name: jar.version for jar in read_lock(SPARK / "jars.lock")}
    version = locked("pyspark.txt")["pyspark"]
    assert jars["spark-sql-kafka-0-10_2.13"] == jars["spark-token-provider-kafka-0-10_2.13"] == version
    assert {"kafka-clients", "commons-pool2"} <= set(jars)


def test_a_driver_runs_in_the_container_that_spark_started(command) -> None:
    """The driver of cluster mode is submitted in client mode, at the address of its pod, with Spark's own arguments."""
    line = command(["driver", "--properties-file", "p", "x.py", "run"], {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.5"})
    assert line == [
        "/opt/spark/bin/spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.5", "--deploy-mode", "client",
        "--properties-file", "p", "x.py", "run",
    ]  # fmt: skip


def test_an_executor_is_a_java_process_with_its_options_in_order(command) -> None:
    """Java's options have the order of their numbers, and the class path Spark's settings and jars."""
    line = command(["executor"], EXECUTOR)
    assert line[:13] == ["java", *(f"-Dnumber={number}" for number in range(12))]
    assert line[line.index("-cp") + 1] == "/opt/spark/conf:/opt/spark/jars/*"
    assert "-Xmx1024m" in line


def test_other_arguments_are_commands(command) -> None:
    """`spark-submit` is Spark's program; everything else is for `sowstream-spark`."""
    assert command(["spark-submit", "--version"], {})[0] == "/opt/spark/bin/spark-submit"
    assert command(["run", "--once"], {}) == ["sowstream-spark", "run", "--once"]
    assert command([], {}) == ["sowstream-spark"]


def test_an_executor_that_lacks_a_variable_ends_with_its_name(command) -> None:
    """A container that Spark did not start as an executor names the missing variable."""
    with pytest.raises(KeyError, match="SPARK_EXECUTOR_MEMORY"):
        command(["executor"], {})


def test_spark_knows_each_option_of_an_executor(command) -> None:
    """Every option of the executor's command is among those that the tested Spark reads."""
    pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_2.13-*.jar")
    with zipfile.ZipFile(jar) as classes:
        backend = "org/apache/spark/scheduler/cluster/k8s/KubernetesExecutorBackend$.class"
        known = set(re.findall(rb"--[A-Za-z-]{3,}", classes.read(backend)))
    line = command(["executor"], EXECUTOR)
    options = [word for word in line if word.startswith("--")]
    assert len(options) == 7
    assert {option.encode() for option in options} <= known


def test_the_environment_reaches_the_process(tmp_path) -> None:
    """A variable whose name has a dot, as settings of Kafka have, is passed on, which a shell would not do."""
    program = tmp_path / "sowstream-spark"
    program.write_text(f"#!{sys.executable}\nimport os, sys\nprint(os.environ['SOWSTREAM_KAFKA__SASL.PASSWORD'])\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": str(tmp_path), "SOWSTREAM_KAFKA__SASL.PASSWORD": "secret"}
    done = subprocess.run(
        [sys.executable, str(SPARK / "entrypoint.py"), "status"],
        env=environment, capture_output=True, text=True, timeout=150, check=True,
    )  # fmt: skip
    assert done.stdout == "secret\n"
