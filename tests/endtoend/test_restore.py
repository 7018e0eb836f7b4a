"""A missing, stale, foreign or damaged store is restored from the SOW topic, up to its true end."""

from __future__ import annotations

import json
import random
import shutil
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from rocksdict import Rdict

from processor.codec import load_codec
from processor.installation.configured_pipelines import pipelines, specs
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import LogReader
from processor.record import Record, Stored
from processor.runtime.recovery import log_replay
from processor.runtime.recovery.restorer import Restorer
from processor.runtime.task import Task
from processor.store import layout
from processor.store.contract import Progress
from processor.store.layered_state import LayeredState
from processor.store.rocksdb import RocksStore
from processor.store.rocksdb_memory import RocksMemory
from processor.wire.record_headers import stored_from
from tests.endtoend.test_exactly_once import check
from tests.endtoend.world import random_commands
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from processor.record import Headers
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


_TURN_S = 0.02
Row = tuple[bytes, bytes | None, "Headers"]


def rows_of(seed: int, count: int, keys: int) -> list[Row]:
    """Build SOW records, with deletes and records with more headers than the version."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    rows: list[Row] = []
    for number in range(count):
        headers: Headers = [("version", b"%d" % rng.randrange(1, 9))]
        if rng.random() < 0.2:
            headers.append(("source", b"topic/0/%d" % number))
        value = None if rng.random() < 0.1 else b'{"n":%d}' % number
        rows.append((b"%d" % rng.randrange(keys), value, headers))
    return rows


@pytest.fixture
def writer(world: World) -> Producer:
    """Create a writer of transactions to partition 0 of the SOW topic."""
    made = Producer({"bootstrap.servers": world.bootstrap, "transactional.id": world.name})
    made.init_transactions(120)
    return made


@pytest.fixture
def restoring(world: World, tmp_path: Path) -> Iterator[Callable[[], tuple[Restorer, Task]]]:
    """Create restorers of partition 0 into RocksDB, each in an empty directory."""
    made: list[tuple[Restorer, Task]] = []
    memory = RocksMemory(8 << 20)
    [pipeline] = pipelines(world.config, [world.name])

    def open_state(partition: int) -> LayeredState:
        directory = tmp_path / f"restored{len(made)}"
        return LayeredState(RocksStore(directory, identity="here", memory=memory), cache_bytes=1 << 20)

    def begin() -> tuple[Restorer, Task]:
        restorer = Restorer(
            reader=LogReader(world.config.kafka, group=f"app-{world.name}.{world.name}"),
            admin=Admin(world.config.kafka),
            source=f"{world.name}.publish",
            sow=f"{world.name}.sow",
            mark=f"{world.name}.mark",
            open_state=open_state,
            stall_timeout_s=PATIENCE_S,
        )
        task = Task(pipeline, 0, load_codec("json"))
        restorer.add(task)
        made.append((restorer, task))
        return restorer, task

    yield begin
    for restorer, task in made:
        restorer.close()
        task.close()


def write(writer: Producer, world: World, rows: list[Row]) -> None:
    """Send records within a transaction, until the broker has them."""
    writer.begin_transaction()
    for key, value, headers in rows:
        writer.produce(f"{world.name}.sow", value, key, 0, headers=headers)
    assert writer.flush(120) == 0


def fold(rows: list[Row]) -> dict[bytes, Stored]:
    """Compute the last record of each key."""
    last = {key: stored_from(Record(key, value, headers, 0, 0)) for key, value, headers in rows}
    return {key: stored for key, stored in last.items() if stored is not None}


def until_ready(restorer: Restorer) -> None:
    """Advance until the partition is ready; a stall raises."""
    until(lambda: restorer.advance(_TURN_S), "a restore", pause_s=0)


@pytest.mark.parametrize("many", [0, 100_000])
def test_a_topic_that_ends_with_an_aborted_transaction_is_restored(
    world: World, writer: Producer, restoring: Callable[..., tuple[Restorer, Task]], monkeypatch, many: int
) -> None:
    """No record has the last offset, which is the marker of the abort; with bulk load and without."""
    monkeypatch.setattr(log_replay, "_MANY", many)
    rows = rows_of(41, 12_000, 3_000)
    for begin in range(0, len(rows), 4_000):
        write(writer, world, rows[begin : begin + 4_000])
        writer.commit_transaction(120)
    write(writer, world, rows_of(42, 500, 3_000))
    writer.abort_transaction(120)
    restorer, task = restoring()
    until_ready(restorer)
    assert dict(task.state.store.scan()) == fold(rows)
    assert task.state.position == Admin(world.config.kafka).end_offsets(f"{world.name}.sow", [0])[0]


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_open_transaction_is_waited_for_and_then_taken_or_not(
    world: World, writer: Producer, restoring: Callable[..., tuple[Restorer, Task]], *, is_committed: bool
) -> None:
    """The committed input offset may include a transaction that was open when the restore began."""
    rows, late = rows_of(43, 200, 50), rows_of(44, 100, 50)
    write(writer, world, rows)
    writer.commit_transaction(120)
    write(writer, world, late)
    restorer, task = restoring()
    turns = 0
    while turns < 20:  # All the rest is there, and it looks again and again.
        assert restorer.advance(_TURN_S) == []
        turns += restorer.remaining.get(0, 0) == len(late) + 1
    if is_committed:
        writer.commit_transaction(120)
    else:
        writer.abort_transaction(120)
    until_ready(restorer)
    assert dict(task.state.store.scan()) == fold([*rows, *late] if is_committed else rows)
