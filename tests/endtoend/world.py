"""A family of topics on a real broker, worker processes on it, and an independent reader."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from processor.config import Config, load
from processor.errors import Stop
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from tests.endtoend.oracle import Seen
from tests.forked import COMMAND, Forked
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_MARKER_S = 2.0
"""A transaction that is open for longer is not on its way to its end: its records are left out."""
_PYTHONPATH = os.environ.get("PYTHONPATH")
_CLIENT_FAULT = "rd_kafka_txn_handle_AddPartitionsToTxn: Assertion"
"""librdkafka 2.16.1 ends its process by this, rarely: where it rolls back while a transaction gets its partitions."""
_COORDINATOR_MOVES = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._TIMED_OUT,
}
"""Answers of a broker that has just been started again, and none in time from a busy one: the next request gets
another one."""


class World:
    """A configured family, `name`, with a conflated copy, `conflated`; `others` are more topics of the same workers.

    `sections` are more conflated topics and processors, as the settings have them; `more` are settings at the top.
    With `creates_topics=False` the test creates the topics.
    """

    def __init__(
        self,
        bootstrap: str,
        directory: Path,
        name: str,
        *,
        interval: str = "500ms",
        others: Mapping[str, Any] | None = None,
        sections: Mapping[str, Mapping[str, Any]] | None = None,
        runtime: Mapping[str, Any] | None = None,
        kafka: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
        creates_topics: bool = True,
        **topic: Any,
    ) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.names = [name, *(others or ())]
        self.conflated = f"{name}_slow"
        self.directory = directory
        self.file = directory / "sowstream.yaml"
        self.workers: list[Worker] = []
        tree: dict[str, Any] = {
            "application_id": f"app-{name}",
            "kafka": {"bootstrap.servers": bootstrap, **(kafka or {})},
            "state_dir": str(directory / "state"),
            "topics": {name: {"key": ["/id"], "partitions": 4, **topic}, **(others or {})},
            "conflated": {self.conflated: {"underlying": name, "interval": interval}},
            # A dead worker is to be noticed within a test.
            "runtime": {"session_timeout_s": 3, "transaction_timeout_s": 5, **(runtime or {})}
            | {"internal": {"write_back_interval_s": 0.5, **(runtime or {}).get("internal", {})}},
        }
        for section, entries in (sections or {}).items():
            tree[section] = {**tree.get(section, {}), **entries}
        self.file.write_text(yaml.safe_dump(tree | dict(more or {})))
        self.config: Config = load(self.file)
        if creates_topics:
            Admin(self.config.kafka).create(specs(self.config))

    def publish(
        self,
        records: Sequence[tuple[bytes | None, Any, dict[str, str]]],
        role: str = "publish",
        *,
        name: str | None = None,
    ) -> None:
        """Send records: key, value (bytes as they are, None a tombstone, else JSON) and headers."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random", "linger.ms": 5,
                             "message.max.bytes": 20_000_000})  # fmt: skip
        for key, value, headers in records:
            data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            producer.produce(self.config.kafka_names.topic(name or self.name, role), data, key, headers=headers or None)
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0

    def start(
        self,
        command: str = "worker",
        name: str | Sequence[str] | None = None,
        *,
        crash: tuple[str, int] | None = None,
        program: Sequence[str] | None = None,
        state_dir: Path | None = None,
        installed: Path | None = None,
        env: Mapping[str, str] | None = None,
        is_forked: bool = True,
    ) -> Worker:
        """Start a worker process.

        Args:
            command: the command to run.
            name: the topic or topics; None: all of this world.
            crash: a point of `crashing_worker`, and the number of the pass at which it fails.
            program: the module to run instead of the command line's, and its arguments before `command`.
            state_dir: a directory of its own, as on another machine; None: the shared one.
            installed: the directory in which another version of Sowstream is installed; None: this checkout.
            env: more variables of its environment.
            is_forked: False for a process of its own from the beginning, whose memory or time is measured.
        """
        if crash is not None:
            program = ["tests.endtoend.crashing_worker", crash[0], str(crash[1])]
        own = {} if state_dir is None else {"SOWSTREAM_STATE_DIR": str(state_dir)}
        names = self.names if name is None else [name] if isinstance(name, str) else [*name]
        worker = Worker(self, command, names, program, own | dict(env or {}), installed, is_forked)
        worker.is_expected_to_end = crash is not None
        self.workers.append(worker)
        return worker

    def forget_state(self) -> None:
        """Delete the state directory."""
        shutil.rmtree(self.config.state_dir)

    def read(self, role: str, name: str | None = None) -> list[Seen]:
        """Read every committed record of a topic, partition by partition, up to its current end.

        The marker of a transaction comes after its commit: a reader that is stopped by one waits for it a moment.
        """
        topic = self.config.kafka_names.topic(name or self.name, role)
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "reader", "enable.auto.commit": False,
                             "auto.offset.reset": "earliest", "isolation.level": "read_committed",
                             "enable.partition.eof": True, "fetch.message.max.bytes": 20_000_000})  # fmt: skip
        partitions = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        seen, unread, stopped = [], set(partitions), set[int]()
        until_s = time.monotonic() + _MARKER_S
        while unread and (unread != stopped or time.monotonic() < until_s):
            for message in consumer.consume(10_000, 0.1):  # It waits to fill.
                if (error := message.error()) is not None:
                    place = TopicPartition(topic, message.partition())
                    is_end = error.code() == KafkaError._PARTITION_EOF
                    if is_end and message.offset() < consumer.get_watermark_offsets(place, cached=True)[1]:
                        stopped.add(place.partition)
                    else:
                        unread.discard(place.partition)
                        stopped.discard(place.partition)
                    continue
                headers = {name: (value or b"").decode(errors="replace") for name, value in message.headers() or ()}
                timestamp_ms = message.timestamp()[1]
                stopped.discard(message.partition())
                at = message.partition(), message.offset()
                seen.append(Seen(*at, message.key(), message.value(), headers, timestamp_ms))
        consumer.close()
        return sorted(seen, key=lambda record: (record.partition, record.offset))

    def processed(self, name: str | None = None, source: str | None = None) -> bool:
        """Return True if the group of `name` has committed the end of its input."""
        topic = source or self.config.kafka_names.topic(self.name, "publish")
        group = f"{self.config.group_prefix}.{name or self.name}"
        partitions = range(self.config.topics[self.name].partitions)
        reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, "enable.auto.commit": False,
                           "isolation.level": "read_committed", "enable.partition.eof": True})  # fmt: skip
        try:
            places = reader.committed([TopicPartition(topic, number) for number in partitions], timeout=10)
        except KafkaException as error:
            reader.close()
            if error.args[0].code() not in _COORDINATOR_MOVES:
                raise
            return False
        # Only then: what was committed may have moved records to other partitions, and these are behind their ends.
        ends = Admin(self.config.kafka).end_offsets(topic, partitions)
        left = [place for place in places if max(0, place.offset) < ends[place.partition]]
        # What lies behind may be no record: the markers of transactions, and what was rolled back.
        is_over = all(place.offset >= 0 and _is_bare(reader, place, ends[place.partition]) for place in left)
        reader.close()
        return is_over and self._is_stable(name or self.name)

    def _is_stable(self, name: str) -> bool:
        """Return True if no transaction is open in an output.

        The markers of a commit come one after the other. What a killed worker has left open hides all that follows,
        until the broker rolls it back.
        """
        admin = Admin(self.config.kafka)
        for spec in specs(self.config):
            if spec.name.startswith(self.config.kafka_names.topic(name, "")):
                stable = admin.ask_offsets(spec.name, range(spec.partitions), "stable_end")
                try:
                    if {at: each.answer() for at, each in stable.items()} != admin.end_offsets(spec.name, [*stable]):
                        return False
                except Stop:
                    return False
        return True

    def wait(self, reached: Callable[[], bool], what: str, *, patience_s: float = 0.0) -> None:
        """Wait for a condition as `until` does; a worker that ended unexpectedly is an error at once."""

        def is_reached() -> bool:
            if reached():
                return True
            for worker in self.workers:
                assert worker.is_expected_to_end or worker.process.poll() is None, worker.log()
            return False

        until(is_reached, lambda: f"{what}\n{self.workers[-1].log()}", pause_s=0.1, patience_s=patience_s)

    def outlive(self, victim: Worker, is_over: Callable[[], bool], *, dies: bool, **another: Any) -> None:
        """Wait until a worker has died of a failure, and start another one; or until it goes on to the end by itself.

        Args:
            victim: the worker.
            is_over: returns whether all input is processed.
            dies: whether the failure is a death.
            another: the arguments of `start`.
        """
        victim.is_expected_to_end = True
        self.wait(lambda: victim.process.poll() is not None or (not dies and is_over()), "the end of a failure")
        if victim.process.poll() is not None:
            assert dies or _CLIENT_FAULT in victim.log(), victim.log()
            self.start(**another)

    def settle(self) -> None:
        """Wait until all published records are merged."""
        self.wait(self.processed, "processing all input")

    def close(self) -> None:
        """End every worker and delete the topics."""
        for worker in self.workers:
            worker.kill()
        Admin(self.config.kafka).delete([spec.name for spec in specs(self.config)])


def _is_bare(reader: Consumer, place: TopicPartition, end: int) -> bool:
    """Return True if no committed record lies between an offset and the true end of its partition."""
    reader.assign([place])
    message = reader.poll(2)
    return message is not None and message.error() is not None and message.offset() >= end


class Worker:
    """A worker in a process of its own."""

    def __init__(
        self,
        world: World,
        command: str,
        names: list[str],
        program: Sequence[str] | None,
        env: Mapping[str, str],
        installed: Path | None = None,
        is_forked: bool = True,
    ) -> None:
        self.file = world.directory / f"{command}-{len(world.workers)}.log"
        self.is_expected_to_end = False
        module, *words = [*(program or [COMMAND]), command, *names, "-c", str(world.file)]
        is_plain = installed is None and os.environ.get("PYTHONPATH") == _PYTHONPATH and "--processes" not in names
        if is_forked and is_plain and all(variable.startswith("SOWSTREAM_") for variable in env):
            environment = {"NO_COLOR": "1", **env}
            self.process: subprocess.Popen[bytes] | Forked = Forked(
                words, self.file, module=module, environment=environment
            )
            return
        with self.file.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *words],
                stdout=log,
                stderr=log,
                env={**os.environ, "NO_COLOR": "1", **env},
                cwd=installed,  # With `-m`, Python looks there first.
            )

    def log(self) -> str:
        """Return its log, of a long one the end: what a test waits for must not be gone before it looks."""
        return self.file.read_text(errors="replace")[-1_000_000:]

    def kill(self) -> None:
        """Kill it as a power cut would: SIGKILL."""
        self.is_expected_to_end = True
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code."""
        self.is_expected_to_end = True
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE_S)


def random_commands(seed: int, count: int, keys: int) -> list[tuple[bytes | None, Any, dict[str, str]]]:
    """Generate commands of every kind over a few keys; the seed is printed for failures."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    commands: list[tuple[bytes | None, Any, dict[str, str]]] = []
    for number in range(count):
        key = rng.randrange(keys)
        what = rng.random()
        if what < 0.05:
            commands.append((b"%d" % key, None, {}))
        elif what < 0.2:
            body = {"id": key, "n": number, "a": {"x": rng.randrange(3), "y": {"z": number}}, "tags": [number]}
            commands.append((b"%d" % key, body, {"command": "publish"}))
        else:
            change = rng.choice(
                [
                    {"n": number},
                    {"a": {"x": rng.choice([1, 1.0, True, "1", None])}},
                    {"a": rng.choice([1, {}, {"y": {"w": number}}, [number]])},
                    {"tags": [number, {"t": None}]},
                    {"note": rng.choice(["", None, "é", {"deep": {"er": number}}])},
                ]
            )
            commands.append((b"%d" % key, {"id": key, **change}, {}))
    return commands
