"""A topic moves to another number of partitions while publishers go on: nothing is lost, doubled or out of order."""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

import processor.repair.record_copy
from processor.cli.main import run
from processor.client import Client
from processor.errors import ConfigurationError, Stop, TopicMoved
from processor.installation.control_topic import ControlTopic
from processor.kafka.admin.admin import Admin
from processor.kafka.partitioner import partition_for
from processor.repair.record_copy import RecordCopy
from processor.repair.reshard import STEPS, Reshard
from processor.repair.worker_positions import WorkerPositions
from processor.store.marks import TransactionalMarks
from processor.topics.family import control_topic
from tests.endtoend.moving_world import NEW, OLD, MovingWorld
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.broker


class _Dead(BaseException):
    """The death of the command."""


def _die(at: str, step: str) -> None:
    if step == at:
        raise _Dead


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
        assert client.publish(moving.name, {"id": "a", "total": 1}, ack="persisted").result(120).status == "success"
        updates = client.sow_and_subscribe(moving.name)

        def read() -> None:
            try:
                told.extend(message.data for message in updates if message.command == "publish")
            except TopicMoved as error:
                news.append(error)

        reading = threading.Thread(target=read)
        reading.start()
        assert client.publish(moving.name, {"id": "a", "total": 2}, ack="persisted").result(120).status == "success"
        assert moving.reshard("--yes") == 0
        assert client.publish(moving.name, {"id": "a", "total": 3}, ack="persisted").result(120).status == "success"
        reading.join(PATIENCE_S)
        assert news
        assert news[0].moved_to == moving.new
        assert told[-1]["total"] == 2
    assert moving.last()["a"]["total"] == 3


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_the_copy_takes_the_last_record_of_each_partition(moving: MovingWorld, seed: int) -> None:
    """Of a key in several partitions the last records by offset are compared, however close in time they were written.

    As `topics heal` decides: the record in the key's own partition stays, unless a live one is newer.
    """
    print("seed", seed)
    rng = random.Random(seed)
    producer = Producer({"bootstrap.servers": moving.bootstrap})
    last: dict[str, dict[int, tuple[int, int, int | None]]] = {}
    now_ms = int(time.time() * 1000)
    for number in range(4_000):
        key, partition = f"k{rng.randrange(300)}", rng.randrange(OLD)
        places = last.setdefault(key, {})
        version = places[partition][1] + 1 if partition in places else 1
        is_deleted, at_ms = rng.random() < 0.2, now_ms + number // rng.choice([1, 50, 400])
        places[partition] = at_ms, version, None if is_deleted else number
        headers = {"version": str(version), **({"kind": "delete"} if is_deleted else {})}
        value = None if is_deleted else json.dumps({"id": key, "n": number}).encode()
        producer.produce(f"{moving.name}.sow", value, key, partition, headers=headers, timestamp=at_ms)
    assert producer.flush(120) == 0
    with WorkerPositions(moving.config, moving.name) as workers:
        copy = RecordCopy(
            moving.config.kafka, workers.cut, partitions=OLD, new_partitions=NEW, on_copied=lambda _: None
        )
        copy.copy_records(f"{moving.name}.sow", f"{moving.new}.sow")
    copied = {(seen.key or b"").decode(): seen for seen in moving.read("sow", moving.new)}
    for key, places in last.items():
        home = partition_for(key.encode(), OLD)
        live = [(at_ms, place == home, -place) for place, (at_ms, _, number) in places.items() if number is not None]
        seen = copied.get(key)
        if not live:
            assert seen is None or seen.value is None, f"{key} was deleted everywhere"
            continue
        place = -max(live)[2]
        assert seen is not None
        assert json.loads(seen.value or b"null")["n"] == places[place][2], key
        others = {version for other, (_, version, _) in places.items() if other != place}
        assert int(seen.headers["version"]) >= places[place][1]
        assert int(seen.headers["version"]) not in others, "no version of a key comes twice"


def test_a_copy_of_a_topic_that_has_moved_is_held(moving: MovingWorld) -> None:
    """A conflated topic delivers all updates up to the move; then its partitions are held, with the new name."""
    moving.start()
    moving.start("conflate", moving.conflated)
    moving.feed(1, 200)
    moving.settle()
    assert moving.reshard("--yes") == 0
    control = ControlTopic(moving.config.kafka, Admin(moving.config.kafka))

    def held() -> bool:
        entries = control.read(moving.config.application_id)
        notices = {} if entries is None else entries.held.get(moving.conflated, {})
        return len(notices) == OLD and all(
            one.reason == "fenced" and repr(moving.new) in one.message for one in notices.values()
        )

    moving.wait(held, "holding the conflated topic")
    last = {seen.key: json.loads(seen.value or b"null") for seen in moving.read("sow", moving.conflated)}
    assert {(key or b"").decode(): record["total"] for key, record in last.items()} == moving.totals


@pytest.mark.parametrize(
    ("is_cancelled", "guarantee"),
    [(True, "exactly_once"), (False, "exactly_once"), (True, "at_least_once"), (False, "at_least_once")],
)
@pytest.mark.long
def test_a_worker_that_cannot_read_the_control_topic_heeds_the_marks(
    bootstrap: str, tmp_path: Path, unique: str, is_cancelled: bool, guarantee: str
) -> None:
    """It merges nothing while the topic moves, forwards once it has moved, and merges again where that was given up."""
    world = MovingWorld(bootstrap, tmp_path, unique, more={"topic_prefix": f"{unique}.", "guarantee": guarantee})
    admin = Admin(world.config.kafka)
    try:
        world.start().is_expected_to_end = True
        world.feed(1, 100)
        world.settle()
        step = "copy" if is_cancelled else "settle"
        with (
            suppress(_Dead),
            Reshard(world.config, world.name, timeout_s=60, on_step=partial(_die, step)) as move,
        ):
            move.run()
        world.workers[-1].stop()
        before = world.read("sow")
        world.feed(2, 100)
        admin.delete([control_topic(f"{unique}.")])
        world.start()
        if is_cancelled:
            world.wait(lambda: "its records are being copied" in world.workers[-1].log(), "holding the partitions")
            assert world.read("sow") == before
            world.workers[-1].stop()
            assert run(["topics", "apply", "-c", str(world.file)]) == 0
            assert world.reshard("--cancel") == 0, "the marks have the fence that the control topic has lost"
            world.start()
            world.settle()
            assert {(seen.key or b"").decode() for seen in world.read("sow")} == set(world.totals)
        else:
            world.wait(world.is_right, "merging in the new topic")
            assert world.read("sow") == before
    finally:
        world.close()


@pytest.mark.long
def test_an_input_that_grew_moves_in_order(moving: MovingWorld) -> None:
    """After partitions were added to the input, keys are in two of them; the later commands are merged later."""
    worker = moving.start()
    moving.feed(1, 200)
    moving.settle()
    worker.stop()
    moving.feed(2, 200)  # Waits in the old partitions.
    admin = AdminClient({"bootstrap.servers": moving.bootstrap})
    topic = moving.config.kafka_names.topic(moving.name, "publish")
    admin.create_partitions([NewPartitions(topic, NEW)])[topic].result(120)
    # A busy broker shows them later; a publisher that saw them in the middle would have no order of its own.
    moving.wait(lambda: len(admin.list_topics(topic).topics[topic].partitions) == NEW, "the new partitions")
    moving.feed(3, 300)
    assert {seen.partition for seen in moving.read("publish")} == set(range(NEW))
    moving.start()
    assert moving.reshard("--yes") == 0
    moving.feed(4, 100)
    moving.wait(moving.is_right, "merging what was published to the old topic")


def test_a_worker_that_does_not_heed_the_fence_is_found(moving: MovingWorld) -> None:
    """A reshard ends without a move if a worker has merged records during the copy, and is run again."""
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


def test_a_topic_with_keys_in_any_partition_does_not_move(moving: MovingWorld) -> None:
    """A move chooses partitions by the keys' hashes, and publishers of such a topic do not: keys would be in two."""
    for name in (moving.name, moving.new):
        accepting = moving.config.topics[name].model_copy(update={"foreign_partition": "accept"})
        config = moving.config.model_copy(update={"topics": {**moving.config.topics, name: accepting}})
        with (
            Reshard(config, moving.name, timeout_s=60) as move,
            pytest.raises(ConfigurationError, match=f"{name} has foreign_partition: accept"),
        ):
            move.check()


def test_marks_without_room_are_counted_and_the_oldest_are_dropped(
    moving: MovingWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each new partition gets the marks of all old ones, the newest last; the command prints how many do not fit."""
    monkeypatch.setattr(processor.repair.record_copy, "TransactionalMarks", partial(TransactionalMarks, names_max=4))
    producer = Producer({"bootstrap.servers": moving.direct})
    now_ms = int(time.time() * 1000)
    for number, (partition, age_ms) in enumerate([(0, 1_000), (0, 5_000), (1, 3_000), (1, 4_000), (2, 0), (2, 6_000)]):
        producer.produce(
            f"{moving.name}.mark", b"5", b"sequence//desk%d" % number, partition, timestamp=now_ms - age_ms
        )
    assert producer.flush(PATIENCE_S) == 0
    assert moving.reshard("--yes") == 0
    assert "has no room for 2 of them" in " ".join(capsys.readouterr().err.split())
    names = [seen.key for seen in moving.read("mark", moving.new) if (seen.key or b"").startswith(b"sequence/")]
    own = [b"sequence/moved-%d/desk%d" % place for place in ((2, 5), (0, 1), (1, 3), (1, 2), (0, 0), (2, 4))]
    assert names == [name for _ in range(NEW) for name in own]


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
