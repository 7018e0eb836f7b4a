from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from processor.errors import ConfigurationError
from processor.store.file_lock import lock_file
from processor.trial.broker.directories import cache_dir

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

import pyspark

from spark_integration import session

ROOT = Path(session.__file__).parents[1]

APP = """
from spark_integration import spark_session
spark = spark_session("submitted"{more})
conf = spark.sparkContext.getConf()
print("RESULT", spark.sparkContext.master, conf.get("spark.driver.host"), conf.get("spark.driver.bindAddress"))
import os
numbers = spark.sparkContext.parallelize(range(4), 4)
executors = numbers.map(lambda _: os.environ.get("SPARK_EXECUTOR_DIRS", "")).collect()
print("EXECUTORS", len(set(executors)))
spark.read.format("kafka").option("subscribe", "x").option("kafka.bootstrap.servers", "localhost:1")
"""
"""A program that prints its master, and the number of executors with directories of their own."""


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch, tmp_path: Path) -> None:
    """The environment names nothing that a session is started with; Spark's home has no jar of the connector."""
    for name in (
        "PYSPARK_SUBMIT_ARGS",
        "SPARK_CONF_DIR",
        "SPARK_LOCAL_IP",
        "SPARK_LOCAL_HOSTNAME",
        "SPARK_REMOTE",
        "MASTER",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def home(monkeypatch, tmp_path: Path) -> Path:
    """A home of Spark without the connector."""
    (tmp_path / "jars").mkdir()
    (tmp_path / "conf").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    return tmp_path


def test_the_connector_is_added_to_the_packages_of_the_user(home: Path) -> None:
    """The connector comes first, then the user's packages, also those of `spark-defaults.conf`; a version is kept."""
    assert session._with_connector({})["spark.jars.packages"] == f"{session._CONNECTOR}:{pyspark.__version__}"
    (home / "conf" / "spark-defaults.conf").write_text(
        "# mine\nspark.jars.packages   a:b:1,c:d:2\nspark.jars.ivy=/ivy\n"
    )
    found = session._with_connector({})
    assert found["spark.jars.packages"] == f"{session._CONNECTOR}:{pyspark.__version__},a:b:1,c:d:2"
    assert "spark.jars.ivy" not in found, "the file names it"
    own = {"spark.jars.packages": f"{session._CONNECTOR}:4.0.9"}
    assert session._with_connector(own)["spark.jars.packages"] == own["spark.jars.packages"]


def test_a_pyspark_that_was_not_tested_is_refused_by_its_versions(home: Path, monkeypatch) -> None:
    """A later PySpark is refused before its connector is looked for, unless one is named; an earlier one at once."""
    for version in ("4.3.0", "4.2.1"):
        monkeypatch.setattr(pyspark, "__version__", version)
        with pytest.raises(ConfigurationError, match=rf"PySpark {version} .* pip install 'pyspark>=4\.0,<=4\.2\.0'"):
            session._with_connector({})
    own = {"spark.jars.packages": f"{session._CONNECTOR}:4.3.0"}
    assert session._with_connector(own)["spark.jars.packages"] == own["spark.jars.packages"]
    monkeypatch.setattr(pyspark, "__version__", "4.2.0")
    assert session.connector_problem() is None
    monkeypatch.setattr(pyspark, "__version__", "3.5.8")
    with pytest.raises(ImportError, match=r"4\.0, 4\.1 and 4\.2, and this is 3\.5\.8"):
        runpy.run_path(str(ROOT / "spark_integration" / "__init__.py"))


@pytest.mark.parametrize(
    ("conf", "environment"),
    [
        ({"spark.jars": "/opt/a.jar,/opt/spark-sql-kafka-0-10_2.13-4.0.0.jar"}, {}),
        ({"spark.driver.extraClassPath": "/opt/a.jar:{home}/more/*"}, {}),
        ({}, {"PYSPARK_SUBMIT_ARGS": "--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 pyspark-shell"}),
    ],
)
def test_a_connector_on_the_class_path_is_not_downloaded(home: Path, monkeypatch, conf, environment) -> None:
    """No package is asked for where the connector's jar is named, or stands in a folder of the class path."""
    (home / "more").mkdir()
    (home / "more" / "spark-sql-kafka-0-10_2.13-4.0.0.jar").touch()
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    conf = {name: text.format(home=home) for name, text in conf.items()}
    assert session._with_connector(conf) == conf


def test_a_connector_among_sparks_own_jars_is_not_downloaded(home: Path) -> None:
    """No package is asked for where Spark's folder of jars has the connector, as in an image."""
    assert "spark.jars.packages" in session._with_connector({})
    (home / "jars" / "spark-sql-kafka-0-10_2.13-4.0.0.jar").touch()
    assert session._with_connector({"spark.x": "1"}) == {"spark.x": "1"}


def test_one_process_at_a_time_fetches_packages(tmp_path: Path) -> None:
    """Two jobs that start with an empty cache of Ivy wait for each other; with its jars there, both start at once."""
    conf = {"spark.jars.ivy": str(tmp_path), "spark.jars.packages": "org.a:one:1,org.a:two:2"}
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "org.a_one-1.jar").touch()
    flock = tmp_path / "sowstream.flock"
    with session._download(conf), flock.open("w") as second, pytest.raises(BlockingIOError):
        lock_file(second)
    (tmp_path / "jars" / "org.a_two-2.jar").touch()
    with session._download(conf), flock.open("w") as second:
        lock_file(second)
    with session._download({"spark.x": "1"}):
        pass


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://h:6443", "local-cluster[2,1,1024]"])
def test_executors_elsewhere_are_given_the_drivers_real_address(master) -> None:
    """The address of the driver is left to Spark where executors are processes of their own."""
    assert not session._defaults({"spark.master": master}).keys() & set(session._ADDRESSES)


@pytest.mark.parametrize(
    ("named", "environment", "is_set"),
    [
        ({}, {}, True),
        ({"spark.driver.host": "10.0.0.1"}, {}, False),
        ({"spark.driver.bindAddress": "0.0.0.0"}, {}, False),
        ({}, {"SPARK_LOCAL_IP": "10.0.0.1"}, False),
        ({}, {"SPARK_LOCAL_HOSTNAME": "here"}, False),
    ],
)
def test_an_address_that_is_named_is_kept(monkeypatch, named, environment, is_set) -> None:
    """A local session listens on 127.0.0.1, unless a setting or the environment names the driver's address."""
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    found = session._defaults({"spark.master": "local[*]"} | named)
    assert (found.get("spark.driver.host") == "127.0.0.1") is is_set
    assert (found.get("spark.driver.bindAddress") == "127.0.0.1") is is_set


def test_a_state_store_that_is_named_is_kept() -> None:
    """RocksDB keeps the state of streams, unless another provider is named."""
    assert session._defaults({})[session._STATE_STORE] == session._ROCKSDB
    assert session._STATE_STORE not in session._defaults({session._STATE_STORE: "mine"})


def _submitted(
    tmp_path: Path, *arguments: str, more: str = "", jars: bool = True, text: str = APP
) -> subprocess.CompletedProcess[str]:
    """Run the program under Spark's own `spark-submit`, with the downloaded connector on its class path."""
    app = tmp_path / "app.py"
    app.write_text(text.format(more=more))
    class_path = f"{cache_dir() / 'ivy' / 'jars'}/*"
    paths = ("spark.driver.extraClassPath", "spark.executor.extraClassPath")
    conf = [argument for name in paths for argument in ("--conf", f"{name}={class_path}")] if jars else []
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), *arguments, *conf, str(app)]
    own = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "SPARK_LOG_LEVEL": "ERROR"}
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK_")} | own
    return subprocess.run(
        [*command], env=environment, capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL
    )


def _result(done: subprocess.CompletedProcess[str], word: str = "RESULT") -> list[str]:
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith(word)]
    assert len(lines) == 1, done.stdout + done.stderr
    return lines[0]


@pytest.mark.long
@pytest.mark.spark
def test_the_master_of_spark_submit_is_the_master(spark, tmp_path: Path) -> None:
    """A program under `spark-submit --master local[1]` runs on `local[1]`, and listens on 127.0.0.1."""
    done = _submitted(tmp_path, "--master", "local[1]")
    assert _result(done) == ["local[1]", "127.0.0.1", "127.0.0.1"]


@pytest.mark.spark
@pytest.mark.long
def test_executors_are_those_of_the_master_of_spark_submit(spark, tmp_path: Path) -> None:
    """Under `--master local-cluster[2,1,1024]`, two executors run the tasks, and the driver's address is Spark's."""
    master = "local-cluster[2,1,1024]"
    done = _submitted(tmp_path, "--master", master, "--conf", "spark.driver.host=localhost")
    assert _result(done) == [master, "localhost", "None"]
    assert _result(done, "EXECUTORS") == ["2"]


@pytest.mark.spark
@pytest.mark.long
def test_an_explicit_argument_wins_over_spark_submit(spark, tmp_path: Path) -> None:
    """A master among the arguments of `spark_session` is used, and not that of `spark-submit`."""
    more = ', **{"spark.master": "local[2]", "spark.driver.bindAddress": "127.0.0.2"}'
    done = _submitted(tmp_path, "--master", "local[1]", more=more)
    assert _result(done)[::2] == ["local[2]", "127.0.0.2"]


@pytest.mark.spark
@pytest.mark.long
def test_spark_submit_without_the_connector_is_an_error(tmp_path: Path) -> None:
    """The error names the argument to add, if `spark-submit` has started Spark without the connector."""
    # `spark-submit` passes the program's output on, and may end before it has read the last of it.
    file = tmp_path / "error"
    lines = APP.strip().replace("\n", "\n    ")
    caught = (
        f"try:\n    {lines}\nexcept Exception as error:\n    open({str(file)!r}, 'w').write(str(error))\n    raise\n"
    )
    done = _submitted(tmp_path, "--master", "local[1]", jars=False, text=caught)
    assert done.returncode != 0
    assert f"--packages {session._CONNECTOR}:{pyspark.__version__}" in file.read_text()


@pytest.mark.spark
@pytest.mark.long
def test_spark_defaults_name_the_master(spark, tmp_path: Path) -> None:
    """The master of `spark-defaults.conf` is used by a program that Python itself runs, and its jars are found."""
    (tmp_path / "spark-defaults.conf").write_text(
        f"spark.master local[1]\nspark.driver.host localhost\nspark.driver.extraClassPath {cache_dir()}/ivy/jars/*\n"
    )
    app = tmp_path / "app.py"
    app.write_text(APP.format(more=""))
    environment = os.environ | {"SPARK_CONF_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(app)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert _result(done)[:2] == ["local[1]", "localhost"]
