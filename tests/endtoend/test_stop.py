"""The start and end of a worker: signals, missing topics, deleted input, and a broker that is away for long."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from processor.kafka.admin.admin import Admin
from processor.kafka.clients.group_consumer import GroupConsumer
from processor.trial.broker import EmbeddedBroker
from tests.endtoend.test_exactly_once import check
from tests.endtoend.world import World, random_commands
from tests.runtime.loop.turned_thread import Assigned
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.broker


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_signal_commits_and_ends_with_exit_code_0(world: World, number: signal.Signals) -> None:
    """A worker in the middle of a backlog commits, and the next one needs no rollback."""
    world.publish(random_commands(61, 20_000, 500))
    worker = world.start()
    world.wait(lambda: '"event": "restored"' in worker.log(), "the worker starting")
    worker.is_expected_to_end = True
    worker.process.send_signal(number)
    assert worker.process.wait(timeout=PATIENCE_S) == 0, worker.log()

    world.start()
    world.settle()
    check(world)


def test_a_missing_topic_is_refused_with_the_remedy(world: World) -> None:
    """The exit code is 2, and the error has the command that creates it."""
    Admin(world.config.kafka).delete([f"{world.name}.delta"])
    worker = world.start()
    worker.is_expected_to_end = True
    assert worker.process.wait(timeout=PATIENCE_S) == 2
    assert f"{world.name}.delta does not exist" in worker.log()
    assert "sowstream topics apply" in worker.log()


def test_unequal_partition_counts_are_refused(world: World) -> None:
    """Output goes to the partition number of the input, which must exist."""
    Admin(world.config.kafka).delete([f"{world.name}.delta"])
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    wanted = NewTopic(f"{world.name}.delta", num_partitions=3, replication_factor=1)

    def created() -> bool:
        (future,) = admin.create_topics([wanted]).values()
        return future.exception() is None  # Deleting goes on for a moment.

    world.wait(created, "making a topic of three partitions")
    worker = world.start()
    worker.is_expected_to_end = True
    assert worker.process.wait(timeout=PATIENCE_S) == 2
    assert "has 3 partitions" in worker.log()


@pytest.mark.long
def test_a_worker_outlives_a_broker_that_is_away_for_longer_than_its_session(tmp_path: Path, unique: str) -> None:
    """The broker stops in the middle of a backlog, and restarts with its port and data."""
    with EmbeddedBroker(data_dir=tmp_path / "broker") as broker:
        bootstrap, port = broker.bootstrap, int(broker.bootstrap.rpartition(":")[2])
        world = World(bootstrap, tmp_path, unique)
        world.publish(random_commands(91, 20_000, 100))
        worker = world.start()
        world.wait(lambda: '"event": "restored"' in worker.log(), "the worker starting")
    time.sleep(6)  # The session is 3 s: its end is the fact waited for, and nobody is there to tell it.
    with EmbeddedBroker(data_dir=tmp_path / "broker", port=port):
        world.publish(random_commands(92, 1_000, 100))
        world.settle()
        check(world)
        assert worker.stop() == 0, worker.log()
        world.close()


_JOINS = 6  # Each one alone may be lucky: a fetch of offset 0 had to leave before the pause.
_PAUSED_S = 0.3


def test_a_partition_that_waits_for_its_start_asks_for_no_deleted_offset(world: World) -> None:
    """While a partition is restored its input is not read; then reading begins at the given offset."""
    topic = f"{world.name}.publish"
    for _ in range(2):
        world.publish([(b"%d" % number, {"id": number}, {}) for number in range(40)])
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, number, 1) for number in range(4)]).values():
        future.result()
    for joined in range(_JOINS):
        read_from_two(world, topic, f"{world.name}-{joined}")


def read_from_two(world: World, topic: str, group: str) -> None:
    """Join a group, wait a moment, and read each partition from offset 2 on."""
    listener = Assigned()
    consumer = GroupConsumer(world.config.kafka, group=group, topic=topic, session_timeout_s=6, listener=listener)
    read: dict[int, int | None] = {}

    def reads_all() -> bool:
        for message in consumer.poll(100, 0.02):
            read.setdefault(message.partition() or 0, message.offset())
        return len(read) == len(listener.partitions)

    try:
        until(lambda: consumer.poll(100, 0.02) == [] and listener.partitions, "an assignment", pause_s=0)
        paused_until_s = time.monotonic() + _PAUSED_S
        while time.monotonic() < paused_until_s:
            assert consumer.poll(100, 0.02) == []
        for partition in listener.partitions:
            consumer.begin(partition, 2)
        until(reads_all, lambda: read, pause_s=0)
        assert read == dict.fromkeys(range(4), 2)
        assert consumer.unreadable == {}
    finally:
        consumer.close()
