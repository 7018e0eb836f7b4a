"""A topic moves to another number of partitions while publishers go on: nothing is lost, doubled or out of order."""

from __future__ import annotations

import json
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from processor.cli.main import run
from processor.client import Client
from processor.errors import ConfigurationError, Stop, TopicMoved
from processor.kafka.admin.admin import Admin
from processor.kafka.partitioner import partition_for
from processor.tools.resharding import STEPS, Reshard
from tests.endtoend.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

OLD, NEW = 3, 7
KEYS = 40


class MovingWorld(World):
    """A topic of three partitions, and one of seven that is to take its place; each command adds one to its record."""

    def __init__(self, bootstrap: str, directory: Path, name: str) -> None:
        self.new = f"{name}_7"
        own = {"key": ["/id"], "merge_rules": {"/total": "sum"}}
        super().__init__(
            bootstrap, directory, name, partitions=OLD, **own,
            others={self.new: {"partitions": NEW, "moved_from": name, **own}}, creates_topics=False,
        )  # fmt: skip
        assert run(["topics", "apply", "-c", str(self.file)]) == 0
        self.totals: dict[str, int] = {}
        self.newest: dict[str, int] = {}
        self._numbers: dict[str, int] = {}

    def feed(self, seed: int, count: int, stop: threading.Event | None = None) -> None:
        """Publish commands, some of them twice, with a publisher's own numbers; returns early when `stop` is set."""
        rng = random.Random(seed)
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random", "linger.ms": 2,
             "topic.metadata.refresh.interval.ms": 500}
        )  # fmt: skip
        for _ in range(count):
            if stop is not None and stop.wait(0.005):
                break
            key = f"k{rng.randrange(KEYS)}"
            self.totals[key] = self.totals.get(key, 0) + 1
            self.newest[key] = number = self._numbers[key] = self._numbers.get(key, 0) + 1
            headers: dict[str, str | bytes] = {}
            if rng.random() < 0.3:  # A publisher for each key: its numbers are in order wherever the key is.
                headers = {"client": f"desk-{key}", "sequence": str(number)}
            value = f'{{"id": "{key}", "total": 1, "n": {number}}}'.encode()
            for _ in range(2 if headers and rng.random() < 0.3 else 1):
                producer.produce(self.config.kafka_names.topic(self.name, "publish"), value, key, headers=headers)
            producer.poll(0)
        assert producer.flush(30) == 0

    def last(self) -> dict[str, Any]:
        """The records of the new topic, by key; each is in the partition of its key alone."""
        records: dict[bytes, Any] = {}
        versions: dict[bytes, int] = {}
        for seen in self.read("sow", self.new):
            assert seen.key is not None
            assert seen.partition == partition_for(seen.key, NEW)
            version = int(seen.headers["version"])
            # A copy that died is made again, of the same versions.
            assert version - versions.get(seen.key, version) in (0, 1), "versions have no gap"
            versions[seen.key] = version
            records[seen.key] = None if seen.value is None else json.loads(seen.value)
        return {key.decode(): record for key, record in records.items()}

    def is_right(self) -> bool:
        """Return True once each record has every command of its key, once."""
        found = {key: (record["total"], record["n"]) for key, record in self.last().items()}
        return found == {key: (total, self.newest[key]) for key, total in self.totals.items()}

    def reshard(self, *words: str) -> int:
        """Run the command; returns its exit code."""
        return run(["reshard", self.name, "-c", str(self.file), *words])


@pytest.fixture
def moving(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[MovingWorld]:
    """The world, with nothing in it."""
    world = MovingWorld(bootstrap, tmp_path, unique)
    yield world
    world.close()


def test_a_topic_moves_under_load(moving: MovingWorld, capsys: pytest.CaptureFixture[str]) -> None:
    """Workers and publishers run all the time; a worker dies while it forwards, and readers are told."""
    moving.start()
    moving.feed(1, 300)
    moving.settle()
    stop = threading.Event()
    feeding = threading.Thread(target=moving.feed, args=(2, 100_000, stop))
    feeding.start()
    try:
        assert moving.reshard() == 0
        assert "Nothing was changed" in capsys.readouterr().err
        assert moving.reshard("--yes") == 0
        moving.wait(lambda: bool(moving.read("publish", moving.new)), "forwarding")
        moving.workers[-1].kill()
        moving.start(state_dir=moving.directory / "other")
    finally:
        stop.set()
        feeding.join()
    moving.feed(3, 50)
    moving.wait(moving.is_right, "merging what was published to the old topic")
    with Client("reader", moving.config) as client:
        with pytest.raises(TopicMoved, match=moving.new):
            list(client.sow(moving.name))
        rows = [message.data for message in client.sow(moving.new) if message.command == "sow"]
        assert {row["id"] for row in rows} == set(moving.totals)
    assert moving.reshard("--yes") == 0, "a second time it has nothing to do"


def test_publishers_and_readers_of_before_go_on(moving: MovingWorld) -> None:
    """A publisher that waits for acks gets them on the old topic; a live reader gets all updates, then the news."""
    moving.start()
    client = Client("old hand", moving.config)
    told: list[Any] = []
    news: list[TopicMoved] = []
    with client:
        assert client.publish(moving.name, {"id": "a", "total": 1}, ack="persisted").result(60).status == "success"
        updates = client.sow_and_subscribe(moving.name)

        def read() -> None:
            try:
                told.extend(message.data for message in updates if message.command == "publish")
            except TopicMoved as error:
                news.append(error)

        reading = threading.Thread(target=read)
        reading.start()
        assert client.publish(moving.name, {"id": "a", "total": 2}, ack="persisted").result(60).status == "success"
        assert moving.reshard("--yes") == 0
        assert client.publish(moving.name, {"id": "a", "total": 3}, ack="persisted").result(60).status == "success"
        reading.join(30)
        assert news
        assert news[0].moved_to == moving.new
        assert told[-1]["total"] == 2
    assert moving.last()["a"]["total"] == 3


def test_an_input_that_grew_moves_in_order(moving: MovingWorld) -> None:
    """After partitions were added to the input, keys are in two of them; the later commands are merged later."""
    worker = moving.start()
    moving.feed(1, 200)
    moving.settle()
    worker.stop()
    moving.feed(2, 200)  # Waits in the old partitions.
    admin = AdminClient({"bootstrap.servers": moving.bootstrap})
    topic = moving.config.kafka_names.topic(moving.name, "publish")
    admin.create_partitions([NewPartitions(topic, NEW)])[topic].result(30)
    moving.feed(3, 300)
    assert {seen.partition for seen in moving.read("publish")} == set(range(NEW))
    moving.start()
    assert moving.reshard("--yes") == 0
    moving.feed(4, 100)
    moving.wait(moving.is_right, "merging what was published to the old topic")


def test_a_worker_that_does_not_heed_the_fence_is_found(moving: MovingWorld) -> None:
    """What it has merged during the copy may be missing there: nothing is moved, and the command is run again."""
    moving.start()
    moving.feed(1, 100)
    moving.settle()
    admin = Admin(moving.config.kafka)
    group, topic = f"{moving.config.group_prefix}.{moving.name}", f"{moving.name}.publish"

    def merge(_copied: int) -> None:
        admin.set_offsets(group, topic, {0: 0})  # As a commit of that worker.

    with (
        Reshard(moving.config, moving.name, timeout_s=60, on_copied=merge) as move,
        pytest.raises(Stop, match="does not heed the fence"),
    ):
        move.run()
    assert not moving.read("publish", moving.new)
    assert moving.reshard("--cancel") == 0
    moving.wait(lambda: moving.last() != {}, "the copy is there")
    with Reshard(moving.config, moving.name, timeout_s=60) as move, pytest.raises(ConfigurationError, match="empty"):
        move.check()


class _Dead(BaseException):
    """The death of the command."""


@pytest.mark.long
@pytest.mark.parametrize("step", [*STEPS[1:5], "in the copy"])
def test_a_command_that_died_goes_on(moving: MovingWorld, step: str) -> None:
    """At whichever step it dies, the same command ends the move; meanwhile nothing is lost."""
    moving.start()
    moving.feed(1, 100)
    moving.settle()

    def die(now: object) -> None:
        if now == step or (step == "in the copy" and type(now) is int):
            raise _Dead

    with (
        pytest.raises(_Dead),
        Reshard(moving.config, moving.name, timeout_s=60, on_step=die, on_copied=die) as move,
    ):
        move.run()
    moving.feed(2, 100)
    assert moving.reshard("--yes") == 0
    moving.wait(moving.is_right, "merging what was published to the old topic")
