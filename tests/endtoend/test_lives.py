"""Versions of a key grow over its lives, also through a restore, an adoption, a new input topic and a move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from processor.cli.main import run
from processor.client import Client
from processor.errors import VersionConflict
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from tests.endtoend.moving_world import MovingWorld
from tests.endtoend.world import World
from tests.programs.lives.checks import repeated_versions
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.broker

LIVES: list[tuple[bytes | None, Any, dict[str, str]]] = [
    (b"1", {"id": "1"}, {}), (b"1", {"a": 1}, {}), (b"1", None, {}), (b"2", {"id": "2"}, {}), (b"1", {"id": "1"}, {}),
    (b"2", {"b": 1}, {"expiration": "0.01"}), (b"1", None, {}), (b"2", {"id": "2"}, {}),
]  # fmt: skip


@pytest.fixture
def world(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[World]:
    """A topic of one partition, so that all keys share the input offsets."""
    made = World(bootstrap, tmp_path, unique, partitions=1)
    yield made
    made.close()


def live(world: World) -> None:
    """Merge lives of two keys, then stop."""
    worker = world.start()
    world.publish(LIVES)
    world.settle()
    assert worker.stop() == 0, worker.log()


def adopt(world: World, origin: str) -> None:
    """Set the place where workers begin."""
    assert run(["offsets", "adopt", world.name, "--from", origin, "--yes", "-c", str(world.file)]) == 0


def expect_growth(world: World, lives_min: int) -> None:
    """Check both topics, and that so many lives began at least: whether a record expires in time, its clock decides."""
    deltas = world.read("delta")
    assert repeated_versions(deltas) == []
    assert repeated_versions(world.read("sow")) == []
    assert [delta.headers.get("kind") for delta in deltas].count("insert") >= lives_min
    assert not any("delta_base" in delta.headers for delta in deltas)


def test_the_holder_of_an_expired_lock_cannot_delete_its_successors(world: World) -> None:
    """After the end of a lock another client takes it, and the delete of the first one is a conflict."""
    world.start()
    with Client("first", world.config) as first, Client("second", world.config) as second:
        taken = first.publish(world.name, {"id": "lock", "owner": "first"}, expect_version=0, expiration=1)
        assert taken is not None
        # Of the ack: the lock may be over before it can be read.
        held = taken.result(PATIENCE_S).version
        assert held is not None
        world.wait(lambda: second.get(world.name, "lock") is None, "the end of the lock")
        taken = second.publish(world.name, {"id": "lock", "owner": "second"}, expect_version=0, expiration=300)
        assert taken is not None
        taken.result(PATIENCE_S)
        for version in (held, 1):
            late = first.sow_delete(world.name, key="lock", expect_version=version, ack="processed")
            assert late is not None
            with pytest.raises(VersionConflict):
                late.result(PATIENCE_S)
        now = second.get(world.name, "lock")
        assert now is not None
        assert now.data["owner"] == "second"
        assert now.version is not None
        assert now.version > held + 1


def test_lives_go_on_after_a_restore_from_nothing(world: World) -> None:
    """A worker without a state directory begins lives above those that the topic has no record of any more."""
    live(world)
    world.forget_state()
    live(world)
    expect_growth(world, 5)


@pytest.mark.long
def test_lives_begin_above_those_that_are_merged_again(world: World) -> None:
    """After `offsets adopt --from earliest` the same input begins lives above the ones that it began before."""
    live(world)
    adopt(world, "earliest")
    worker = world.start()
    world.wait(lambda: len(world.read("delta")) > len(LIVES) + 4, "the input is merged again")
    world.settle()
    assert worker.stop() == 0, worker.log()
    assert repeated_versions(world.read("delta")) == []


@pytest.mark.long
def test_lives_begin_above_those_of_an_input_topic_that_was_created_again(world: World) -> None:
    """Its offsets begin from 0; the mark that the outputs have of the former topic says above which version."""
    live(world)
    admin = Admin(world.config.kafka)
    admin.delete([f"{world.name}.publish"])
    world.wait(lambda: f"{world.name}.publish" not in admin.cluster().topics, "the topic is deleted")
    admin.create([spec for spec in specs(world.config) if spec.name == f"{world.name}.publish"])
    adopt(world, "earliest")
    live(world)
    live(world)
    expect_growth(world, 7)


@pytest.mark.long
def test_lives_go_on_in_a_topic_that_takes_the_place(bootstrap: str, tmp_path: Path, unique: str) -> None:
    """The versions of the new topic are above those of the old one, also of keys that had no record when it moved."""
    world = MovingWorld(bootstrap, tmp_path, unique)
    try:
        world.start()
        world.publish(LIVES)
        world.settle()
        assert world.reshard("--yes") == 0
        world.publish(LIVES)
        world.wait(lambda: len(world.read("delta", world.new)) >= len(LIVES) - 1, "the new topic has the lives")
        last: dict[bytes | None, int] = {}
        for name in (world.name, world.new):
            for delta in world.read("delta", name):
                if delta.key in (b"1", b"2"):
                    version = int(delta.headers["version"])
                    assert version > last.get(delta.key, 0), (name, delta)
                    last[delta.key] = version
    finally:
        world.close()
