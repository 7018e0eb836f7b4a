"""The rivals at the merge job, with their installation; one that cannot be installed is left out, with a message."""

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
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from processor.kafka.admin.admin import Admin
from processor.runtime.worker import os_process
from processor.topics.family import family_specs
from processor.trial.broker.directories import cache_dir
from processor.trial.broker.java import find_java
from tests.programs.benchmarks.restore import streams_jars
from tests.programs.benchmarks.throughput import PARTITIONS, TIMEOUT_S, Figure, Run, print_progress

if TYPE_CHECKING:
    from collections.abc import Sequence

QUIX = "3.28.0"
_QUIX_PART = 10
"""Quix Streams gets one record in so many: all of them would take most of the time."""


def kafka_streams(directory: Path, guarantee: str = "exactly_once_v2", options: Sequence[str] = ()) -> Run | None:
    """A run of Kafka Streams, one thread, with these options for Java; None if there is no Java compiler."""
    if (compiler := shutil.which("javac")) is None:
        print_progress("no javac here: without Kafka Streams")
        return None
    jars = streams_jars()
    program = Path(__file__).with_name("KafkaStreamsMerge.java")
    subprocess.run([compiler, "-cp", jars, "-d", directory, program], check=True)
    order = [str(find_java()), "-Xmx2G", *options, "-cp", f"{directory}:{jars}", program.stem]
    return partial(_run, directory, order, guarantee, 1)


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
    family, count = f"{name}_{uuid.uuid4().hex[:4]}", count // part
    admin = Admin({"bootstrap.servers": bootstrap})
    admin.create(family_specs(family, ["sow", "delta"], partitions=PARTITIONS))
    state, log = directory / f"{family}.state", directory / f"{family}.log"
    topics = [f"{name}.publish", f"{family}.sow", f"{family}.delta"]
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            [*order, bootstrap, *topics, guarantee, str(count), str(state)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log_file, env=os_process.whole_environment(),
        )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not (line := process.stdout.readline()):
            raise SystemExit(f"a rival ended:\n{log.read_text()[-3000:]}")
        result = json.loads(line)
        return Figure(count / result["seconds"], result["cpu_s"] / count * 1e6)
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(timeout=TIMEOUT_S)
        process.stdout.close()
        # The changelog topic begins with its application's name, too.
        names = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
        admin.delete([topic for topic in names if family in topic])
        shutil.rmtree(state, ignore_errors=True)
