"""A transaction that Kafka ended in its books and left open in a partition: its effects, and its end.

One broker for all tests: workers of four families merge, end, and the broker is stopped. The last markers of some
partitions are removed from its files, as in KAFKA-20734, and it is started again.
"""

from __future__ import annotations

import struct
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from processor.cli import transactions
from processor.kafka.admin.admin import Admin
from processor.operate.doctor import check_kafka
from processor.repair.transactions.open_transactions import standing
from processor.repair.transactions.transaction_log import partition_of
from processor.trial.broker.jars import class_path
from processor.trial.broker.java import find_java
from tests.endtoend.oracle import fold, last_per_key, replay
from tests.endtoend.world import World
from tests.programs.faults.broker.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result


pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

_PARTITION = 1
_FIRST, _LAST = 200, 40  # Updates that are committed for good, and those of the last transactions.
_KEYS = 20


class Stage(NamedTuple):
    """The broker and the families on it."""

    broker: Broker
    worlds: dict[str, World]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Families whose last transactions lack markers in partition 1."""
    directory = tmp_path_factory.mktemp("open")
    with Broker(directory / "broker") as broker:
        worlds = {name: _world(broker, directory / name, name) for name in ("running", "aborted", "offsets", "other")}
        for world in worlds.values():
            world.settle()
            world.publish(_updates(_FIRST, _LAST))
        for world in worlds.values():
            world.settle()
        for world in worlds.values():
            assert world.workers[0].stop() == 0
            world.forget_state()  # The local store must not hide a gap in SOW.
        broker.stop()
        _leave_open(directory / "broker" / "records", worlds)
        broker.start()
        yield Stage(broker, worlds)
        for world in worlds.values():
            for worker in world.workers:
                worker.kill()


def _world(broker: Broker, directory: Path, name: str) -> World:
    """A family with a running worker."""
    directory.mkdir()
    runtime = {"transaction_timeout_s": 5, "commit_interval_s": 0.1}
    # Few partitions: the broker checks the logs of all when it starts again.
    world = World(broker.bootstrap, directory, name, runtime=runtime, partitions=2, more={"conflated": {}})
    world.start("worker", name)
    world.publish(_updates(0, _FIRST))
    return world


def _updates(first: int, count: int) -> list[tuple[bytes | None, object, dict[str, str]]]:
    """Deltas, each with a field of its own number: a lost one is missing in SOW."""
    return [
        (b"%d" % (number % _KEYS), {"id": number % _KEYS, f"n{number}": number}, {})
        for number in range(first, first + count)
    ]


def _leave_open(records: Path, worlds: dict[str, World]) -> None:
    for name in ("running", "aborted", "other"):
        for role in ("sow", "delta"):
            topic = f"{name}.{role}"
            remove_last_marker(records, topic, _PARTITION, last_producer(records, topic, _PARTITION))
    producer_id = last_producer(records, "offsets.sow", _PARTITION)
    partition = partition_of("app-offsets.offsets", 4)
    remove_last_marker(records, "__consumer_offsets", partition, producer_id)


def _transactions(world: World, *arguments: str) -> Result:
    """Run a command of `sowstream transactions` with this family's settings."""
    done = CliRunner().invoke(transactions.app, [*arguments, "-c", str(world.file)])
    print(done.stdout, done.stderr)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def _await_standing(world: World) -> None:
    """Wait until the transaction is older than the timeout."""
    cluster = Admin(world.config.kafka).cluster()
    world.wait(lambda: bool(standing(world.config, cluster, [world.name])[world.name]), "an open transaction's age")


def _is_over(world: World) -> bool:
    """Return whether readers of committed records get every record."""
    return not standing(world.config, Admin(world.config.kafka).cluster(), [world.name])[world.name]


def _numbers(world: dict[str, dict[str, int]]) -> set[int]:
    """The numbers of the updates in these records."""
    return {value for record in world.values() for name, value in record.items() if name != "id"}


@pytest.mark.long
def test_an_open_transaction_is_found_and_committed_while_the_workers_run(stage: Stage):
    """An open transaction stops its partition only; doctor and `list` report it, and `settle` commits it."""
    world = stage.worlds["running"]
    visible = _numbers(last_per_key(world.read("sow")))
    assert len(visible) < _FIRST + _LAST, "the last transaction is hidden from readers"
    world.start("worker", world.name)
    world.publish(_updates(_FIRST + _LAST, _LAST))
    elsewhere = _numbers(fold([record for record in world.read("publish") if record.partition != _PARTITION]))
    world.wait(lambda: elsewhere <= _numbers(last_per_key(world.read("sow"))), "merging in the other partitions")
    _await_standing(world)

    failed = {finding.subject: finding for finding in check_kafka(world.config) if finding.level == "fail"}
    assert set(failed) == {f"running.{role} partition 1" for role in ("sow", "delta")}
    assert "a transaction has been open for" in failed["running.sow partition 1"].found
    assert "sowstream transactions list running" in failed["running.sow partition 1"].to_do
    listed = _transactions(world, "list", world.name)
    assert listed.exit_code == 1
    rows = [line.split("\t") for line in listed.stdout.splitlines()]
    assert {(row[0], row[6]) for row in rows} == {
        (f"running.{role} partition 1", "commit") for role in ("sow", "delta")
    }
    tried = _transactions(world, "settle", world.name)
    assert (tried.exit_code, tried.stdout.count("\tcommit\t")) == (1, 2)
    assert _transactions(world, "settle", world.name, "--partition", "0").stdout == ""
    assert _numbers(last_per_key(world.read("sow"))) >= elsewhere
    assert not _is_over(world), "nothing was done without --yes"

    done = _transactions(world, "settle", world.name, "--yes")
    assert done.exit_code == 0, done.stderr
    assert "2 transactions committed" in done.stderr
    assert "SOW and deltas agree on each of them" in done.stderr
    world.settle()
    expected = fold(world.read("publish"))
    assert len(_numbers(expected)) == _FIRST + 2 * _LAST
    assert last_per_key(world.read("sow")) == expected
    assert replay(world.read("delta")) == expected
    assert _transactions(world, "list").stdout == ""


@pytest.mark.long
def test_aborting_it_with_kafkas_own_tool_loses_updates(stage: Stage):
    """Aborting with Kafka's own tool, as its documentation advises, loses updates: their input is committed."""
    world = stage.worlds["aborted"]
    _await_standing(world)
    opened = standing(world.config, Admin(world.config.kafka).cluster(), [world.name])[world.name]
    assert {open_range.topic for open_range in opened} == {"aborted.sow", "aborted.delta"}
    for open_range in opened:
        _java_abort(stage.broker, open_range.topic, open_range.begin)
    world.start("worker", world.name)
    world.publish(_updates(_FIRST + _LAST, _LAST))
    world.settle()
    expected = fold(world.read("publish"))
    lost = _numbers(expected) - _numbers(last_per_key(world.read("sow")))
    print(f"lost {len(lost)} of {len(_numbers(expected))} updates")
    assert lost
    assert lost <= set(range(_FIRST + _LAST))


def _java_abort(broker: Broker, topic: str, begin: int) -> None:
    tool = ["org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", broker.bootstrap, "abort"]
    where = ["--topic", topic, "--partition", str(_PARTITION), "--start-offset", str(begin)]
    done = subprocess.run(
        [str(find_java()), "-Xmx128m", "-cp", class_path(), *tool, *where],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_positions_of_the_group_that_stand_open_are_committed(stage: Stage):
    """Group offsets in an open transaction are committed: without them no worker knows its start."""
    world = stage.worlds["offsets"]
    _await_standing(world)
    done = _transactions(world, "settle", world.name, "--yes")
    assert done.exit_code == 0, done.stderr
    assert "__consumer_offsets partition" in done.stdout
    world.start("worker", world.name)
    world.publish(_updates(_FIRST + _LAST, _LAST))
    world.settle()
    expected = fold(world.read("publish"))
    assert last_per_key(world.read("sow")) == expected
    assert replay(world.read("delta")) == expected


@pytest.mark.long
def test_while_its_worker_may_run_it_is_left_alone(stage: Stage, tmp_path: Path):
    """A transaction whose worker may be running is left alone: no later incarnation has fenced it."""
    world = stage.worlds["other"]
    _await_standing(world)
    world.start("worker", world.name, state_dir=tmp_path / "elsewhere")
    world.wait(
        lambda: '"partition": 0' in world.workers[-1].log() or "partition=0" in world.workers[-1].log(), "a start"
    )
    refused = _transactions(world, "settle", world.name, "--yes")
    assert refused.exit_code == 1
    assert "may still run the partition" in refused.stdout
    assert not _is_over(world)
    world.publish(_updates(_FIRST + _LAST, _LAST))
    # Input that is not processed shows that no worker runs the partition.
    done = _transactions(world, "settle", world.name, "--yes")
    assert done.exit_code == 0, done.stdout + done.stderr
    world.settle()
    assert last_per_key(world.read("sow")) == fold(world.read("publish"))


def test_a_transaction_that_may_yet_be_rolled_back_is_left_alone(bootstrap: str, tmp_path: Path, unique: str):
    """A transaction that the coordinator calls ongoing is left alone, as it may be rolled back."""
    world = World(bootstrap, tmp_path, unique, runtime={"transaction_timeout_s": 1, "commit_interval_s": 0.1})
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"app-{unique}.{unique}.mine",
            "transaction.timeout.ms": 60_000,
        }
    )
    producer.init_transactions(120)
    producer.begin_transaction()
    minute_ago_ms = int(time.time() * 1000) - 60_000
    producer.produce(f"{unique}.sow", b"{}", b"1", _PARTITION, timestamp=minute_ago_ms)
    assert producer.flush(120) == 0
    listed = _transactions(world, "list", unique)
    assert listed.exit_code == 1
    assert "\tOngoing, epoch 0\tunknown\t" in listed.stdout
    refused = _transactions(world, "settle", unique, "--yes")
    assert refused.exit_code == 1
    assert "Kafka ends it within 60 s" in refused.stdout
    assert not _is_over(world)
    producer.abort_transaction(120)
    world.wait(lambda: _is_over(world), "the marker, which Kafka writes after its answer")
    world.close()


_HEAD = 61  # Of a record batch of format 2.
_CONTROL = 0x20  # Its bit in a batch's attributes.


class Batch(NamedTuple):
    """One batch of a segment."""

    at: int
    size: int
    base_offset: int
    is_control: bool
    producer_id: int


def batches(data: bytes) -> Iterator[Batch]:
    """The batches of a segment, in order."""
    at = 0
    while at + _HEAD <= len(data):
        base_offset, length = struct.unpack_from(">qi", data, at)
        (attributes,) = struct.unpack_from(">h", data, at + 21)
        (producer_id,) = struct.unpack_from(">q", data, at + 43)
        yield Batch(at, 12 + length, base_offset, bool(attributes & _CONTROL), producer_id)
        at += 12 + length


def remove_last_marker(records: Path, topic: str, partition: int, producer_id: int) -> int:
    """Remove a producer's last marker from a partition of a stopped broker; returns the marker's offset.

    Compaction leaves such gaps between offsets as well. The files that Kafka derives from the log are deleted, so that
    they are rebuilt from it.
    """
    directory = records / f"{topic}-{partition}"
    (segment,) = directory.glob("*.log")
    data = segment.read_bytes()
    marker = [one for one in batches(data) if one.is_control and one.producer_id == producer_id][-1]
    segment.write_bytes(data[: marker.at] + data[marker.at + marker.size :])
    for file in directory.iterdir():
        if file.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
            file.unlink()
    (records / ".kafka_cleanshutdown").unlink(missing_ok=True)
    return marker.base_offset


def last_producer(records: Path, topic: str, partition: int) -> int:
    """The producer of the last marker of a partition."""
    (segment,) = (records / f"{topic}-{partition}").glob("*.log")
    return [one for one in batches(segment.read_bytes()) if one.is_control][-1].producer_id
