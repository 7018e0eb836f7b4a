"""Tests of a worker's start and end."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from processor.kafka.admin.admin import Admin
from tests.endtoend.test_exactly_once import check
from tests.endtoend.world import random_commands
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.endtoend.world import World

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
