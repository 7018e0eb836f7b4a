"""Kafka Streams at the benchmark's job: `groupBy().aggregate()`, exactly once, over the same SOW topic."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import uuid
from pathlib import Path

from confluent_kafka.admin import AdminClient

from processor.kafka.admin.admin import Admin
from processor.runtime.worker import os_process
from processor.topics.family import family_specs
from processor.trial.broker.java import find_java
from tests.programs.benchmarks import peers
from tests.programs.benchmarks.restore import streams_jars
from tests.programs.benchmarks.throughput import TIMEOUT_S

_PROGRAM = Path(peers.__file__).with_name("KafkaStreamsAggregate.java")


def aggregate_seconds(
    bootstrap: str, directory: Path, name: str, records: int, totals: tuple[int, int]
) -> tuple[float, float] | None:
    """Return the seconds and the processor time from the first record until all groups are right.

    Args:
        bootstrap: the broker.
        directory: for the program and its state.
        name: the family whose SOW topic is read.
        records: the number of its records.
        totals: the count and the sum that all groups have together at the end.

    Returns:
        None if there is no Java compiler.
    """
    if (compiler := shutil.which("javac")) is None:
        return None
    jars = streams_jars()
    subprocess.run([compiler, "-cp", jars, "-d", directory, _PROGRAM], check=True)
    family = f"{name}_{uuid.uuid4().hex[:4]}"
    admin = Admin({"bootstrap.servers": bootstrap})
    admin.create(family_specs(family, ["sow"], partitions=4))
    state, log = directory / f"{family}.state", directory / f"{family}.log"
    order = [str(find_java()), "-Xmx2G", "-cp", f"{directory}:{jars}", _PROGRAM.stem, bootstrap, f"{name}.sow"]
    order += [f"{family}.sow", str(records), *map(str, totals), str(state)]
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            order, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log_file, env=os_process.whole_environment()
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not (line := process.stdout.readline()):
            raise SystemExit(f"Kafka Streams ended:\n{log.read_text()[-3000:]}")
        result = json.loads(line)
        return result["seconds"], result["cpu_s"]
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(timeout=TIMEOUT_S)
        process.stdout.close()
        # The topics of its stores and its repartitioning begin with its application's name, too.
        names = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
        admin.delete([topic for topic in names if family in topic])
        shutil.rmtree(state, ignore_errors=True)
