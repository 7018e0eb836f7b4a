"""The rivals, with their installation; one that cannot be installed is left out, with a message."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import uuid
import venv
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from confluent_kafka.admin import AdminClient

from processor.kafka.admin.admin import Admin
from processor.runtime.worker import os_process
from processor.topics.family import family_specs
from processor.trial.broker.directories import cache_dir
from processor.trial.broker.java import find_java
from tests.programs.benchmarks.restore import streams_jars
from tests.programs.benchmarks.throughput import PARTITIONS, TIMEOUT_S, Figure, Run, print_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

QUIX = "3.28.0"
_QUIX_PART = 10
"""Quix Streams gets one record in so many: all of them would take most of the time."""


class Rival(NamedTuple):
    """A rival that runs."""

    figure: Callable[[], Figure]
    """Waits for its next figure."""
    process_id: int


def kafka_streams(directory: Path, guarantee: str = "exactly_once_v2", options: Sequence[str] = ()) -> Run | None:
    """A run of Kafka Streams, one thread, with these options for Java; None if there is no Java compiler."""
    if (order := _java_order(directory, "KafkaStreamsMerge", options)) is None:
        return None
    return partial(_run, directory, order, guarantee, 1)


@contextlib.contextmanager
def kafka_streams_view(
    bootstrap: str,
    directory: Path,
    kind: str,
    sources: Sequence[str],
    *,
    commit_ms: int = 200,
    linger_ms: int = 25,
) -> Iterator[tuple[str, int] | None]:
    """Run a view of Kafka Streams with one thread; gives the topic of its rows and its process id.

    Args:
        bootstrap: the broker.
        directory: for the program and its state.
        kind: the view, of those in `KafkaStreamsView.java`.
        sources: the topic of the records, and that of the records to join with.
        commit_ms: time between commits, milliseconds.
        linger_ms: of its producer, milliseconds.

    Yields:
        None if there is no Java compiler.
    """
    if (order := _java_order(directory, "KafkaStreamsView")) is None:
        yield None
        return
    output = f"streams_{uuid.uuid4().hex[:6]}"
    admin = Admin({"bootstrap.servers": bootstrap})
    admin.create(family_specs(output, ["sow"], partitions=PARTITIONS))
    state, log = directory / f"{output}.state", directory / f"{output}.log"
    order += [kind, bootstrap, sources[0], f"{output}.sow", str(state), str(commit_ms), str(linger_ms), *sources[1:]]
    with log.open("wb") as file, _program(order, file, bootstrap, admin, output, state) as process:
        yield f"{output}.sow", process.pid
        if process.poll() is not None:
            raise SystemExit(f"Kafka Streams ended:\n{log.read_text()[-3000:]}")


def quix_streams(directory: Path, guarantee: str = "exactly-once") -> Run | None:
    """A run of Quix Streams, in a virtual environment that is kept; None if it cannot be installed."""
    place = cache_dir() / f"quix-{QUIX}"
    python = place / "bin" / "python"
    if not (place / "installed").exists():
        print_progress(f"installing Quix Streams {QUIX}")
        venv.create(place, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"quixstreams=={QUIX}"]
        try:
            subprocess.run(pip, check=True, stdout=sys.stderr, timeout=300)
        except (subprocess.SubprocessError, OSError) as error:
            print_progress(f"without Quix Streams, which cannot be installed: {error}")
            shutil.rmtree(place, ignore_errors=True)
            return None
        (place / "installed").touch()
    program = Path(__file__).with_name("quix_merge.py")
    return partial(_run, directory, [str(python), str(program)], guarantee, _QUIX_PART)


def _run(
    directory: Path, order: Sequence[str], guarantee: str, part: int, bootstrap: str, name: str, count: int
) -> Figure:
    """Run a program on the topic `<name>.publish`, from the first record consumed until all are processed."""
    with _rival(directory, order, guarantee, part, bootstrap, name, count) as rival:
        return rival.figure()


@contextlib.contextmanager
def kafka_streams_loads(
    directory: Path, bootstrap: str, name: str, first: int, loads: int, count: int
) -> Iterator[Rival | None]:
    """Run Kafka Streams, exactly once, on `<name>.publish`: records that fill its store, and loads measured one by one.

    Yields:
        None if there is no Java compiler.
    """
    if (order := _java_order(directory, "KafkaStreamsMerge", [f"-Dfirst={first}", f"-Dloads={loads}"])) is None:
        yield None
        return
    with _rival(directory, order, "exactly_once_v2", 1, bootstrap, name, count) as rival:
        yield rival


@contextlib.contextmanager
def _rival(
    directory: Path, order: Sequence[str], guarantee: str, part: int, bootstrap: str, name: str, count: int
) -> Iterator[Rival]:
    """Run a program on the topic `<name>.publish`."""
    family, count = f"{name}_{uuid.uuid4().hex[:4]}", count // part
    admin = Admin({"bootstrap.servers": bootstrap})
    admin.create(family_specs(family, ["sow", "delta"], partitions=PARTITIONS))
    state, log = directory / f"{family}.state", directory / f"{family}.log"
    topics = [f"{name}.publish", f"{family}.sow", f"{family}.delta"]
    order = [*order, bootstrap, *topics, guarantee, str(count), str(state)]
    with log.open("wb") as file, _program(order, file, bootstrap, admin, family, state) as process:

        def figure() -> Figure:
            assert process.stdout is not None
            if not (line := process.stdout.readline()):
                raise SystemExit(f"a rival ended:\n{log.read_text()[-3000:]}")
            result = json.loads(line)
            return Figure(count / result["seconds"], result["cpu_s"] / count * 1e6)

        yield Rival(figure, process.pid)


def compiled(directory: Path, program: str) -> str | None:
    """Compile a program of Kafka Streams; returns its class path, None, after a message, if there is no compiler."""
    if (compiler := shutil.which("javac")) is None:
        print_progress("no javac here: without Kafka Streams")
        return None
    jars = streams_jars()
    source = Path(__file__).with_name(f"{program}.java")
    subprocess.run([compiler, "-cp", jars, "-d", directory, source], check=True)
    return f"{directory}:{jars}"


def _java_order(directory: Path, program: str, options: Sequence[str] = ()) -> list[str] | None:
    """Compile a program of Kafka Streams; returns how to run it, None if there is no Java compiler."""
    if (class_path := compiled(directory, program)) is None:
        return None
    return [str(find_java()), "-Xmx2G", *options, "-cp", class_path, program]


@contextlib.contextmanager
def _program(
    order: Sequence[str], log: IO[bytes], bootstrap: str, admin: Admin, name: str, state: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that ends with its standard input; its topics, which have this name in theirs, go with it."""
    process = subprocess.Popen(
        order, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=os_process.whole_environment()
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(timeout=TIMEOUT_S)
        process.stdout.close()
        # Changelogs and topics for repartitioning begin with the application's name, too.
        names = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
        admin.delete([topic for topic in names if name in topic])
        shutil.rmtree(state, ignore_errors=True)
