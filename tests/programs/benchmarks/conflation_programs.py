"""The two programs of the conflation benchmark, started on the same topic, each with an output of its own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import yaml
from confluent_kafka.admin import AdminClient

from processor.config import load as load_settings
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from processor.runtime.worker import os_process
from processor.topics.family import family_specs
from processor.trial.broker.java import find_java
from tests.programs.benchmarks.throughput import PARTITIONS, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

PEER = "KafkaStreamsSuppress"


class Underlying(NamedTuple):
    """The topic that both programs conflate."""

    bootstrap: str
    directory: Path
    """The directory of settings, logs and states."""
    name: str
    """The name of the family, whose SOW topic is the input."""
    interval_s: float


class Running(NamedTuple):
    """A running program."""

    process: subprocess.Popen[bytes]
    log: Path
    """Its standard error, and for our worker also its standard output."""
    output: str
    """The family of its output: `.sow`, and for our worker also `.delta`."""
    metrics_port: int
    """The port of our worker's metrics; 0: none."""


@contextlib.contextmanager
def underlying(bootstrap: str, directory: Path, interval_s: float) -> Iterator[Underlying]:
    """Create an empty SOW topic."""
    family = Underlying(bootstrap, directory, f"bench{uuid.uuid4().hex[:8]}", interval_s)
    topics = family_specs(family.name, ["sow"], partitions=PARTITIONS)
    admin = Admin({"bootstrap.servers": bootstrap})
    admin.create(topics)
    try:
        yield family
    finally:
        admin.delete([topic.name for topic in topics])


@contextlib.contextmanager
def sowstream(family: Underlying) -> Iterator[Running]:
    """Start one conflate worker with an empty state; all other settings have their defaults."""
    name, port = f"copy{uuid.uuid4().hex[:8]}", free_port()
    tree = {
        "application_id": name,
        "kafka": {"bootstrap.servers": family.bootstrap},
        "state_dir": str(family.directory / name),
        "topics": {family.name: {"partitions": PARTITIONS}},
        "conflated": {name: {"underlying": family.name, "interval": f"{round(family.interval_s * 1000)}ms"}},
        "runtime": {"metrics_port": port},
    }
    file, log = family.directory / f"{name}.yaml", family.directory / f"{name}.log"
    file.write_text(yaml.safe_dump(tree))
    topics = [topic for topic in specs(load_settings(file)) if topic.name.startswith(name)]
    admin = Admin({"bootstrap.servers": family.bootstrap})
    admin.create(topics)
    order = [sys.executable, "-m", "processor.cli.main", "conflate", name, "-c", str(file)]
    with log.open("wb") as log_file:
        process = subprocess.Popen(order, stdout=log_file, stderr=log_file, env=os_process.whole_environment())
    try:
        yield Running(process, log, name, port)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        admin.delete([topic.name for topic in topics])


@contextlib.contextmanager
def suppress(class_path: str, family: Underlying, count: int) -> Iterator[Running]:
    """Start Kafka Streams with an empty state; it prints a line when it has processed the given number of records."""
    name = f"copy{uuid.uuid4().hex[:8]}"
    log, state = family.directory / f"{name}.log", family.directory / name
    topics = family_specs(name, ["sow"], partitions=PARTITIONS)
    Admin({"bootstrap.servers": family.bootstrap}).create(topics)
    order = [find_java(), "-Xmx2G", "-cp", class_path, PEER, family.bootstrap, f"{family.name}.sow", f"{name}.sow",
             str(round(family.interval_s * 1000)), str(count), str(state)]  # fmt: skip
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            order, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log_file, env=os_process.whole_environment()
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Running(process, log, name, 0)
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()
        _delete_all(family.bootstrap, f"{name}.sow")


def _delete_all(bootstrap: str, begin: str) -> None:
    """Delete a topic, and those that Kafka Streams named after it."""
    names = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
    Admin({"bootstrap.servers": bootstrap}).delete([name for name in names if name.startswith(begin)])
