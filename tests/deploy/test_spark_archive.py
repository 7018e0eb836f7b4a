"""The archive for `spark.archives` runs from any directory, without any Python of its machine, on executors."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Message

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

import pyspark

from processor.trial.broker.directories import cache_dir
from tests.spark.conftest import Family
from tests.spark.merged_family import Merged

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="the archive is made of Linux's shared libraries"),
    pytest.mark.timeout(1800),
]

MASTER = "local-cluster[2,1,1024]"

# glibc, and the libraries of its compiler.
SYSTEM = re.compile(r"(ld-|lib(c|m|dl|pthread|rt|util|resolv|gcc_s|stdc\+\+)[.-])")
# Modules of the standard library that load shared libraries, and the packages that a merge uses.
IMPORTS = "ssl, ctypes, zlib, bz2, lzma, hashlib, uuid, confluent_kafka, rocksdict, orjson, re2, pyarrow, pandas, numpy"


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """The archive: the one that SOWSTREAM_SPARK_ARCHIVE names, else built now."""
    if named := os.environ.get("SOWSTREAM_SPARK_ARCHIVE"):
        return Path(named)
    target = tmp_path_factory.mktemp("archive") / "sowstream-spark.tar.gz"
    subprocess.run([sys.executable, str(ROOT / "deploy" / "spark" / "archive.py"), str(target)], check=True)
    return target


@pytest.fixture(scope="module")
def home(archive, tmp_path_factory) -> Path:
    """A directory with the archive unpacked in `environment`, as Spark unpacks it for an executor."""
    directory = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as tar:
        tar.extractall(directory / "environment", filter="data")
    return directory


def bare(**more: str) -> dict[str, str]:
    """An environment without a variable that leads to this process' Python."""
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME", "JAVA_TOOL_OPTIONS") if name in os.environ}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin"} | kept | more


def output(command: list[str], **options) -> str:
    """The output of a command; its errors are in the failure."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, **options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def submit(archive: Path, *more: str) -> list[str]:
    """The command that submits a program to a master with two executors, which run the Python of the archive."""
    return [
        str(SPARK_HOME / "bin/spark-submit"), "--master", MASTER, "--archives", f"{archive}#environment",
        "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1",
        "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2",
        "--conf", "spark.executor.memory=512m", "--driver-memory", "512m", *more,
    ]  # fmt: skip


def on_executors(directory: Path) -> dict[str, str]:
    """The environment of that command; the executors work below a directory, and not in Spark's own."""
    home = directory / "spark"
    home.mkdir()
    for path in SPARK_HOME.iterdir():
        if path.name != "work":
            (home / path.name).symlink_to(path)
    places = {"SPARK_HOME": str(home), "SPARK_LOCAL_DIRS": str(directory / "local")}
    return bare(PYSPARK_PYTHON="./environment/bin/python", SPARK_LOCAL_IP="127.0.0.1", **places)


def test_the_interpreter_uses_nothing_but_its_directory_and_glibc(home) -> None:
    """All modules and shared libraries are below the directory, but for those that all wheels leave to the system."""
    program = f"import {IMPORTS}, sys; print(*(m.__file__ for m in sys.modules.values() if getattr(m, '__file__', 0)))"
    program += "; print(open('/proc/self/maps').read())"
    files, _, maps = output([str(home / "environment/bin/python"), "-c", program], env=bare(), cwd=home).partition("\n")
    assert [file for file in files.split() if not file.startswith(str(home))] == []
    mapped = {line.split(maxsplit=5)[5] for line in maps.splitlines() if ".so" in line}
    foreign = {Path(path).name for path in mapped if not path.startswith(str(home))}
    assert {name for name in foreign if not SYSTEM.match(name)} == set()
    assert len(mapped) > len(foreign) + 20


def test_its_commands_run_from_any_directory(home, tmp_path) -> None:
    """The commands find their interpreter after a move, and through a link."""
    shutil.copytree(home / "environment/bin", tmp_path / "moved/bin", symlinks=True)
    (tmp_path / "moved/lib").symlink_to(home / "environment/lib")
    (tmp_path / "link").symlink_to(tmp_path / "moved/bin/sowstream")
    assert output([str(tmp_path / "link"), "--version"], env=bare(), cwd=tmp_path) == output(
        [str(home / "environment/bin/sowstream"), "--version"], env=bare(), cwd=tmp_path
    )


def test_the_archive_has_no_pyspark_and_no_absolute_path(archive, home) -> None:
    """Spark brings PySpark itself; no script begins with a path of the machine that built the archive."""
    with tarfile.open(archive) as tar:
        names = tar.getnames()
        owners = {(member.uid, member.gid, member.mtime) for member in tar.getmembers()}
    assert owners == {(0, 0, 0)}
    assert [name for name in names if "/pyspark/" in name or name.startswith("/")] == []
    for script in (home / "environment/bin").glob("sowstream*"):
        assert str(Path(sys.prefix)) not in script.read_text()


@pytest.fixture(scope="module")
def connector_jars() -> str:
    """The jars of Spark's Kafka connector; a session fetches them, if none has done it on this machine."""
    directory = cache_dir() / "ivy" / "jars"
    if not any(directory.glob("*kafka*.jar")):
        fetch = "from spark_integration import spark_session; spark_session('jars').stop()"
        output([sys.executable, "-c", fetch], cwd=ROOT)
    return ",".join(str(jar) for jar in sorted(directory.glob("*.jar")))


HISTORY = [{"id": number % 5, f"f{number % 2}": number} for number in range(40)]


class Submitted(NamedTuple):
    """The end of a program on two executors."""

    directory: Path
    """The directory of Spark and the results."""
    copies: list[Message]
    """The records that an example has copied."""


@pytest.fixture(scope="module")
def submitted(archive, home, connector_jars, bootstrap, tmp_path_factory) -> Submitted:
    """The program, submitted once: each start unpacks the archive for either executor."""
    directory = tmp_path_factory.mktemp("submitted")
    (directory / "history").mkdir()
    (directory / "history/a.json").write_text("".join(f"{json.dumps(line)}\n" for line in HISTORY))
    family = Family(f"t{uuid.uuid4().hex[:8]}", bootstrap)
    family.create("sow", "delta", "publish")
    copies = Family(f"{family.name}_copy", bootstrap)
    copies.create("publish")
    order = {"instrument": "XYZ", "side": "buy", "state": "working", "customer": "ann", "balance": 3.5}
    Merged(family).merge(*(order | {"id": f"{number}", "price": 10.5, "open": 5} for number in range(8)))
    program = [str(ROOT / "tests/deploy/spark_program.py"), str(directory / "history"), bootstrap, family.name]
    command = [*submit(archive, "--jars", connector_jars), *program, str(directory)]
    output(command, env=on_executors(directory), cwd=home)
    return Submitted(directory, copies.read("publish"))


@pytest.mark.broker
def test_executors_merge_with_the_archives_python(submitted) -> None:
    """On the master that `spark-submit` names, each of two executors runs the Python of its own copy of the archive."""
    result = json.loads((submitted.directory / "merged.json").read_text())
    assert result["master"] == MASTER
    expected: dict[str, dict[str, int]] = {}
    for line in HISTORY:
        expected.setdefault(str(line["id"]), {}).update(line)
    assert result["records"] == expected
    directories = {executor["directory"] for executor in result["executors"]}
    assert len(directories) == 2
    for executor in result["executors"]:
        assert executor["directory"].startswith(str(submitted.directory / "spark" / "work"))
        own = os.path.realpath(f"{executor['directory']}/environment")
        assert own.startswith(str(submitted.directory))
        assert all(path.startswith(own) for path in [executor["interpreter"], *executor["modules"]])


@pytest.mark.broker
def test_the_examples_run_on_executors(submitted) -> None:
    """Every example gives its result on a topic in Kafka, and both executors have done tasks for it."""
    result = json.loads((submitted.directory / "results.json").read_text())
    print(result)
    assert result["master"] == MASTER
    assert result["latest_order_book"] == [["XYZ", "buy", "10.500000", "8", "40"]]
    assert result["late_joiner"] == [f"{number}" for number in range(8)]
    assert result["dashboard"] == [["ann", "8", "0", "28.00"]]
    assert result["change_rate"] == [[f"{number}", "1"] for number in range(8)]
    assert sorted(message.key() for message in submitted.copies) == [b"%d" % number for number in range(8)]
    assert {executor for executor, count in result["tasks"].items() if count} == {"0", "1"}
