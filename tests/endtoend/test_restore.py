"""Tests that a missing, stale, foreign or damaged store is restored from the SOW topic."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from rocksdict import Rdict

from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from processor.record import Stored
from processor.store import layout
from processor.store.contract import Progress
from processor.store.rocksdb import RocksStore
from processor.store.rocksdb_memory import RocksMemory
from tests.endtoend.test_exactly_once import check
from tests.endtoend.world import random_commands

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.endtoend.world import World

pytestmark = pytest.mark.broker


def remove_everything(partition: Path) -> None:
    """Delete all files."""
    shutil.rmtree(partition)


def truncate_tables(partition: Path) -> None:
    """Truncate every table file."""
    for table in (partition / layout.ROCKSDB_DIRECTORY).glob("*.sst"):
        with table.open("r+b") as file:
            file.truncate(table.stat().st_size // 2)


def remove_manifest(partition: Path) -> None:
    """Delete the manifest."""
    for manifest in (partition / layout.ROCKSDB_DIRECTORY).glob("MANIFEST-*"):
        manifest.unlink()


def run_ahead(partition: Path) -> None:
    """Move the state ahead of the SOW topic, as if the topic were recreated."""
    _tamper(partition, Progress(10**9, 2**52))


def fall_behind_the_horizon(partition: Path) -> None:
    """Date the last write back to 1970, when the topic had deletes that are gone now."""
    _tamper(partition, Progress(1, 1))


def _tamper(partition: Path, progress: Progress) -> None:
    memory = RocksMemory(1 << 20)
    database = Rdict(str(partition / layout.ROCKSDB_DIRECTORY), options=memory.options())
    identity = database.get(layout.IDENTITY_KEY).decode()
    database.close()
    store = RocksStore(partition, identity=identity, memory=memory)
    store.apply({b"ghost": Stored(1, b'{"id":"ghost"}')}, progress)
    store.close()


@pytest.mark.parametrize(
    "damage",
    [
        truncate_tables,
        *(
            pytest.param(damage, marks=pytest.mark.long)
            for damage in (remove_everything, remove_manifest, run_ahead, fall_behind_the_horizon)
        ),
    ],
)
def test_a_state_that_cannot_be_trusted_is_restored_from_the_sow_topic(
    world: World, damage: Callable[[Path], None]
) -> None:
    """Merging continues on every key, and no value of the old state is seen."""
    world.publish(random_commands(31, 2_000, 100))
    first = world.start()
    world.settle()
    assert first.stop() == 0, first.log()
    for partition in range(4):
        damage(world.config.state_dir / f"app-{world.name}" / world.name / str(partition))

    # The ghost of a tampered state would make this an update of something.
    world.publish([*random_commands(32, 2_000, 100), (b"ghost", {"id": "ghost", "n": 1}, {})])
    world.start()
    world.settle()
    check(world)


def test_a_recreated_sow_topic_is_not_taken_for_the_old_one(world: World) -> None:
    """The recreated topic has more records than the state, but not those of the state."""
    world.publish([(b"old", {"id": "old", "n": 1}, {})])
    first = world.start()
    world.settle()
    assert first.stop() == 0, first.log()
    admin = Admin(world.config.kafka)
    [spec] = [spec for spec in specs(world.config) if spec.name == f"{world.name}.sow"]
    admin.delete([spec.name])
    world.wait(lambda: spec.name not in admin.cluster().topics, "deleting the topic")
    world.wait(lambda: Admin(world.config.kafka).create([spec]) == [spec.name], "making it anew")
    world.publish([(b"%d" % n, {"id": str(n)}, {"version": "1"}) for n in range(100)], role="sow")

    world.publish([(b"old", {"id": "old", "m": 2}, {})])
    world.start()
    world.settle()
    [merged] = [record for record in world.read("sow") if record.key == b"old"]
    # An insert, not an update of version 1: at offset 1 of its partition, and so of version 2 · 1 + 1.
    assert merged.headers["kind"] == "insert"
    assert (json.loads(merged.value), merged.headers["version"]) == ({"id": "old", "m": 2}, "3")


def test_a_clean_restart_restores_no_record(world: World) -> None:
    """A worker that was stopped has left a complete state."""
    world.publish(random_commands(33, 2_000, 100))
    first = world.start()
    world.settle()
    assert first.stop() == 0, first.log()

    second = world.start()
    world.wait(lambda: second.log().count('"event": "restored"') >= 4, "restoring four partitions")
    assert second.stop() == 0, second.log()
    restored = [line for line in second.log().splitlines() if '"event": "restored"' in line]
    assert all('"read": 0' in line for line in restored), restored
