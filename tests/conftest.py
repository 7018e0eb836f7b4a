"""Fixtures of all tests: a real broker, unique names, and skips with their reasons."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import os
import random
import re
import shutil
import signal
import tempfile
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures.thread import _worker as _executor_thread
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
from hypothesis import is_hypothesis_test, settings
from hypothesis.internal.conjecture import providers

from processor.trial.broker import EmbeddedBroker
from processor.trial.broker.java import installed_java_major

# A shell starts what it runs in the background with SIGINT ignored, and children inherit that: Ctrl-C would do nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)

# One answer on every machine: neither the host's terminal nor its colours decide how a command's text is broken and
# drawn. A test of those sets them itself. The host's zone and locale stay, as no output may follow them.
for _name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(_name, None)
os.environ |= {"COLUMNS": "100", "TERM": "xterm-256color"}

# Next to another process an example may take any time. `make test` tries the same examples each time, and
# `make test-random` (`--hypothesis-profile random`) tries others. A failing example is added to its test as a fixed
# one, so none is kept in a database.
settings.register_profile("repeatable", deadline=None, print_blob=True, derandomize=True, database=None)
settings.register_profile("random", deadline=None, print_blob=True, derandomize=False, database=None)
settings.load_profile("repeatable")
# Hypothesis also draws the constants of the project's modules that are loaded, which are others in each process of a
# run: the same test would have other examples.
assert callable(providers._get_local_constants)
providers._get_local_constants = lambda: providers._local_constants

_NO_CACHE: Final = {"cache_logger_on_first_use": False}
# A broker starts in seconds, on a machine that is busy with other runs in minutes.
assert EmbeddedBroker.__init__.__kwdefaults__ is not None
EmbeddedBroker.__init__.__kwdefaults__["start_timeout_s"] = 300.0
_ENDING_S: Final = 60.0
"""Longest time in which a thread that was told to end does so."""
_MEMORY: Final = Path("/dev/shm")
"""A file system in memory, for the broker of a run: there a first commit to a topic takes a tenth of the time."""
_MEMORY_MIN_BYTES: Final = 2 << 30
"""Room without which the broker's files are on disk; 1,200 partitions take 13 MB."""
_HIDDEN: Final = pytest.StashKey[set[Path]]()
_SHARED: Final = pytest.StashKey[Any]()
"""The broker of several processes, in the one that distributes the tests."""
_BROKER: Final = "sowstream_broker"


@pytest.fixture(scope="session")
def bootstrap(pytestconfig: pytest.Config) -> Iterator[str]:
    """The address of a real Kafka: an embedded one for this run, or the one that SOWSTREAM_TEST_BOOTSTRAP names."""
    with contextlib.ExitStack() as stack:
        if address := os.environ.get("SOWSTREAM_TEST_BOOTSTRAP"):
            yield address
        elif hasattr(pytestconfig, "workerinput"):
            from tests.processes import shared_bootstrap

            yield shared_bootstrap(pytestconfig.workerinput[_BROKER])
        else:
            # Nobody reads its thousands of files again: it is killed at the end.
            broker = EmbeddedBroker(stop_timeout_s=0.0)
            stack.callback(broker.stop)
            _start_in_memory(broker)
            yield broker.bootstrap
        # A client that a test left in a circle of objects would live on, and write to stderr that its broker is down.
        gc.collect()


def _start_in_memory(broker: EmbeddedBroker) -> None:
    """Start a broker whose files are in memory, if there is room."""
    with pytest.MonkeyPatch.context() as patch:
        if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _MEMORY_MIN_BYTES:
            patch.setattr(tempfile, "tempdir", str(_MEMORY))
        broker.start()


@pytest.fixture(autouse=True, scope="session")
def _loggers_are_not_cached() -> Iterator[None]:
    """Let `capture_logs` see each line: a logger cached by a command in this process keeps the command's processors."""
    configure = structlog.configure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", lambda **settings: configure(**settings | _NO_CACHE))
        yield


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left() -> Iterator[None]:
    """A module whose tests leave a socket, an event loop, a process, a directory or a thread behind fails itself.

    Python warns of an object that was not closed when it is collected, and a warning is an error of the test that runs
    then: without the collection here of an innocent one.
    """
    threads = set(threading.enumerate())
    yield
    gc.collect()
    # Those of an executor are its own affair: they wait idly, and end with the process.
    left = [
        thread
        for thread in set(threading.enumerate()) - threads
        if not thread.daemon and getattr(thread, "_target", None) is not _executor_thread
    ]
    for thread in left:
        thread.join(_ENDING_S)
    assert not any(thread.is_alive() for thread in left), f"threads that run on: {left}"


@pytest.fixture
def failed_connections() -> Iterator[None]:
    """The test makes connections that fail, whose sockets kafka-python leaves to Python: they end with the test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def unique() -> str:
    """A short prefix for the names of topics and applications, since tests share a broker and never a topic."""
    return f"t{uuid.uuid4().hex[:8]}"


@pytest.fixture
def random_seed(request: pytest.FixtureRequest) -> int:
    """The seed of a test's own random generator: the same in each run, except with `--hypothesis-seed SEED`."""
    run_seed = request.config.getoption("--hypothesis-seed") or "0"
    seed = random.Random(f"{run_seed}/{request.node.nodeid}").getrandbits(32)
    print(f"seed {seed}, by --hypothesis-seed {run_seed}")
    return seed


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for long random tests at their full length."""
    parser.addoption("--full", action="store_true", help="run long random tests at their full length, not a tenth")


@pytest.fixture
def hidden_long_files(pytestconfig: pytest.Config) -> set[Path]:
    """The collected files with long tests that a run of these alone would not import."""
    return pytestconfig.stash[_HIDDEN]


@pytest.fixture
def steps(request: pytest.FixtureRequest) -> Callable[[int], int]:
    """The number of steps of a long random test: of the full length a tenth, or all with `--full`."""
    return lambda full: full if request.config.getoption("--full") else full // 10


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute the tests with the scheduler of `tests.processes`, if they are distributed by file."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.processes import Shares

    return Shares(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each process of several where to ask for the run's broker."""
    from tests.processes import SharedBroker

    stash = node.config.stash
    if _SHARED not in stash:
        # Four times the topics of a broker for one process.
        stash[_SHARED] = SharedBroker(EmbeddedBroker(heap="1500m", stop_timeout_s=0.0), _start_in_memory)
    node.workerinput[_BROKER] = stash[_SHARED].door


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the broker of several processes after the last one of them."""
    if (shared := config.stash.get(_SHARED, None)) is not None:
        shared.stop()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the collector from what imports make: it is no garbage, and a third of the time of the collection of tests.

    It is never looked at again, so that a collection after each module takes milliseconds.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of random input; with several processes, run the tests that wait first."""
    long_files = {item.path for item in items if item.get_closest_marker("long")}
    config.stash[_HIDDEN] = {path for path in long_files if not _may_have_long_tests(path)}
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)) or "random_seed" in getattr(item, "fixturenames", ()):
            item.add_marker("random")
    if hasattr(config, "workerinput"):
        from tests.processes import waiting_first

        items[:] = waiting_first(items)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files without a long test if no other ones are asked for.

    They are two of three, and each of several processes would import them.
    """
    named = (Path(word.partition("::")[0]).resolve() for word in config.args)
    if config.option.markexpr != "long" or not collection_path.match("test_*.py") or collection_path in named:
        return None
    return None if _may_have_long_tests(collection_path) else True


@functools.cache
def _may_have_long_tests(path: Path) -> bool:
    """Return whether a file, or the `conftest.py` next to it, names the marker, or has its markers from elsewhere."""
    files = (path, path.with_name("conftest.py"))
    names = re.compile(rb"mark\.long|[ ]pytestmark\b|^pytestmark = (?!\[?pytest\.mark)", re.MULTILINE)
    return any(names.search(file.read_bytes()) for file in files if file.is_file())


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that this machine cannot run, with the missing requirement."""
    if item.get_closest_marker("spark") and (reason := _spark_lacks()):
        pytest.skip(reason)
    if item.get_closest_marker("docker") and (reason := _docker_lacks()):
        pytest.skip(reason)


@functools.cache
def _spark_lacks() -> str | None:
    """The reason for which Spark cannot run; it needs an installed Java, since a packaged one lacks a module."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'sowstream[spark]'"
    major = installed_java_major()
    if major is None or major < 17:
        return f"Spark needs an installed Java 17 or 21; JAVA_HOME and PATH have {f'Java {major}' if major else 'none'}"
    return None


@functools.cache
def _docker_lacks() -> str | None:
    if importlib.util.find_spec("docker") is None:
        return "the container engine's client is not installed: pip install docker"
    # If no engine answers, the client leaves a socket in a circle of objects, which must not fail a later test.
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        reason = _engine_problem()
        gc.collect()
    return reason


def _engine_problem() -> str | None:
    import docker

    try:
        with contextlib.closing(docker.from_env(timeout=5)) as client:
            client.ping()
    except docker.errors.DockerException as error:
        return f"no container engine answers: {error}"
    return None
