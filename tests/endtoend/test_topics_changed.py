"""Tests of topics that change under a running worker: it ends before harm is done, with the remedy."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewPartitions

from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from tests.endtoend.world import Worker
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.endtoend.world import World

pytestmark = pytest.mark.broker

_OFTEN = 0.2
_ONCE = 3600.0
"""Seconds between two looks of the watch: the second one is never taken, so that something else has to notice."""


class Watched(Worker):
    """A worker that must end by itself, but not before the change."""

    def __init__(self, world: World, interval_s: float, *command: str) -> None:
        program = (
            "from processor.runtime.worker import watcher; from processor.cli.main import main; "
            f"watcher.INTERVAL_S, watcher._AGAIN_S = {interval_s}, {min(interval_s, 1.0)}; main()"
        )
        self.file = world.directory / f"watched-{len(world.workers)}.log"
        self.is_expected_to_end = False
        with self.file.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, *command, "-c", str(world.file)], stdout=log, stderr=log
            )

    def ended(self) -> tuple[int, str]:
        """Return exit code and log."""
        self.is_expected_to_end = True
        code = self.process.wait(timeout=PATIENCE_S)
        return code, " ".join(self.file.read_text().split())


def watched(world: World, interval_s: float, command: str = "worker", name: str | None = None) -> Watched:
    """Start a worker, which is ended after the test."""
    worker = Watched(world, interval_s, command, name or world.name)
    world.workers.append(worker)
    return worker


def published(world: World, count: int = 40) -> None:
    """Publish a record of each of so many keys."""
    world.publish([(b"%d" % number, {"id": number}, {}) for number in range(count)])


def grow(world: World, role: str, partitions: int) -> None:
    """Add partitions as an operator does."""
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    for future in admin.create_partitions([NewPartitions(f"{world.name}.{role}", partitions)]).values():
        future.result()


def recreate(world: World, role: str) -> None:
    """Delete a topic, and create an empty one of its name."""
    admin, name = Admin(world.config.kafka), f"{world.name}.{role}"
    admin.delete([name])
    world.wait(lambda: name not in admin.cluster().topics, "the deletion")
    # Another client: what this one knows of the old topic's leaders is newer, to its mind, than what it would hear.
    Admin(world.config.kafka).create([spec for spec in specs(world.config) if spec.name == name])


@pytest.mark.long
def test_an_input_that_grows_ends_the_worker_before_a_new_partition_is_read(world: World):
    """No record is lost, none of the new partition is merged, and a restart refuses with the same advice."""
    worker = watched(world, _OFTEN)
    published(world)
    world.settle()
    grow(world, "publish", 5)
    code, said = worker.ended()
    assert code == 1
    advice = "has 5 partitions where the family"
    assert advice in said
    assert f"(3) sowstream reshard {world.name} --yes: publishers may go on" in said
    published(world, 400)
    again, refusal = watched(world, _ONCE).ended()
    assert (again, advice in refusal, "sowstream reshard" in refusal) == (2, True, True)
    merged = world.read("sow")
    assert len(merged) == 40
    assert {record.partition for record in merged} <= {0, 1, 2, 3}
    assert world.read("dlq") == []


def test_a_new_partition_that_the_group_assigns_first_is_not_taken(world: World):
    """The group may learn of a new partition before the next look at the topic."""
    tree = yaml.safe_load(world.file.read_text())
    tree["kafka"]["topic.metadata.refresh.interval.ms"] = "300"
    world.file.write_text(yaml.safe_dump(tree))
    worker = watched(world, _ONCE)
    published(world)
    world.settle()
    grow(world, "publish", 5)
    code, said = worker.ended()
    assert (code, "has 5 partitions where the family" in said) == (1, True)


@pytest.mark.long
def test_a_sow_topic_recreated_under_an_idle_worker_ends_it(world: World):
    """The store has records that Kafka has lost: the worker reports how to rebuild the topic, and writes nothing."""
    worker = watched(world, _OFTEN)
    published(world)
    world.settle()
    recreate(world, "sow")
    code, said = worker.ended()
    assert code == 1
    assert "was deleted" in said
    assert "--from earliest" in said
    assert world.read("sow") == []


def test_a_recreated_sow_topic_ends_the_worker_with_the_next_commit(world: World):
    """While records flow their offsets reveal the change before the next look."""
    worker = watched(world, _ONCE)
    published(world)
    world.settle()
    recreate(world, "sow")
    world.publish([(b"1", {"id": 1, "again": True}, {})])
    code, said = worker.ended()
    assert code == 1
    assert "took a record at offset 0, but the state knows it up to" in said
    assert "was deleted and made anew: the records it had are gone" in said
    assert len(world.read("sow")) == 1
