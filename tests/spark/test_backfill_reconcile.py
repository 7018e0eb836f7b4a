"""Backfills a family from an archive, and reconciles it: on a real Kafka, with workers and with damage."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from processor.errors import ConfigurationError, Stop
from processor.kafka.admin.admin import Admin
from processor.kafka.partitioner import partition_for
from processor.topics.family import control_spec
from tests.endtoend.world import World, random_commands
from tests.spark.test_handover import _die, _ends, _expected, _offsets, _sow

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")

from pyspark.sql import functions as F  # noqa: N812

from spark_integration.merge.batch.handover import _HandOver
from spark_integration.merge.moves.backfill import backfill
from spark_integration.merge.moves.reconcile import reconcile

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

PARTITIONS = 4


@pytest.fixture
def world(bootstrap, unique, tmp_path) -> Iterator[World]:
    """A family and the control topic."""
    Admin({"bootstrap.servers": bootstrap}).create([control_spec()])
    world = World(bootstrap, tmp_path, unique, partitions=PARTITIONS)
    yield world
    world.close()


def settings(world: World):
    """The arguments of each command."""
    return {"config": str(world.file), "options": {"kafka.bootstrap.servers": world.bootstrap}}


def write_archive(spark, world: World, path: str) -> None:
    """Archive the publish and delta topics as they are, in the columns of Spark's Kafka source."""
    topics = ",".join(f"{world.name}.{role}" for role in ("publish", "delta"))
    rows = spark.read.format("kafka").options(
        subscribe=topics, includeHeaders="true", **settings(world)["options"],
        **{"kafka.isolation.level": "read_committed"},
    )  # fmt: skip
    rows.load().withColumn("date", F.to_date("timestamp")).write.partitionBy("date").parquet(path)


def merged_by_worker(world: World, commands) -> None:
    """Publish commands, and have a worker merge them."""
    world.publish(commands)
    worker = world.start(name=world.name)
    world.settle()
    assert worker.stop() == 0


def test_an_archive_fills_an_empty_family_and_workers_go_on(spark, world, tmp_path) -> None:
    """An archive and the topic behind it fill an empty family; all checks hold, also after workers went on."""
    world.publish(random_commands(5, 900, 80))
    archive = str(tmp_path / "archive")
    write_archive(spark, world, archive)
    world.publish(random_commands(6, 300, 80))
    dry = backfill(spark, world.name, **settings(world), archive=archive, dry_run=True)
    assert dry.is_new
    assert world.read("sow") == []
    report = backfill(spark, world.name, **settings(world), archive=archive)
    assert dry.changes == report.changes == {"insert": len(_expected(world))}
    assert report.merged["records"] == 1200
    assert _sow(world) == _expected(world)
    assert sum(_offsets(world).values()) == 1200
    assert str(reconcile(spark, world.name, **settings(world), archive=archive)).count("yes") == 2
    world.publish(random_commands(7, 200, 80))
    worker = world.start(name=world.name)
    world.settle()
    assert _sow(world) == _expected(world)
    report = reconcile(spark, world.name, **settings(world), archive=archive)
    assert report.is_equal, str(report)
    assert report.checks[0].counts.keys() == report.checks[1].counts.keys() == {"same"}
    assert worker.stop() == 0


def test_damage_is_reported_and_repaired(spark, world, tmp_path) -> None:
    """Wrong, missing and surplus records are differences of both replays; a backfill repairs them under workers."""
    merged_by_worker(world, random_commands(8, 600, 50))
    archive = str(tmp_path / "archive")
    write_archive(spark, world, archive)
    world.start(name=world.name)
    good = _sow(world)
    wrong, missing = sorted(good)[:2]
    damage = [
        (wrong, b'{"id":1,"wrong":true}', {"version": good[wrong][1]}),
        (missing, None, {"version": "99", "kind": "delete"}),
        (b"999", b'{"id":999}', {"version": "1"}),
    ]
    world.publish(damage, role="sow")
    report = reconcile(spark, world.name, **settings(world), archive=archive)
    for check in report.checks:
        found = {difference.kind: difference.key for difference in check.differences}
        assert found == {"value": wrong, "missing": missing, "surplus": b"999"}, str(report)
    dry = backfill(spark, world.name, **settings(world), archive=archive, dry_run=True)
    assert {kind: count for kind, count in dry.changes.items() if kind != "same"} == {
        "update": 1, "insert": 1, "delete": 1,
    }  # fmt: skip
    assert sorted(each.key for each in dry.examples) == sorted([wrong, missing, b"999"])
    backfill(spark, world.name, **settings(world), archive=archive)
    assert {key: value for key, (value, _) in _sow(world).items()} == {key: value for key, (value, _) in good.items()}
    again = backfill(spark, world.name, **settings(world), archive=archive, dry_run=True)
    assert again.changes == {"same": len(good)}
    world.publish([(wrong, {"id": int(wrong), "later": 1}, {})])
    world.settle()
    assert int(_sow(world)[wrong][1]) == int(good[wrong][1]) + 2


def test_a_state_of_the_past_undoes_later_changes(spark, world, tmp_path) -> None:
    """With `as_of` the records are those of that time, and the workers go on behind the input that was undone."""
    before = random_commands(9, 300, 30)
    merged_by_worker(world, before)
    good = _sow(world)
    ends = _offsets(world)
    time.sleep(1.1)  # Times of records and of the cut have milliseconds; this is a second to tell them apart.
    as_of = dt.datetime.now(dt.UTC)
    time.sleep(0.1)
    merged_by_worker(world, random_commands(10, 200, 30))
    archive = str(tmp_path / "archive")
    write_archive(spark, world, archive)
    report = backfill(spark, world.name, **settings(world), archive=archive, as_of=as_of)
    assert report.ends == ends
    assert report.cut == _offsets(world)
    assert "200 offsets after the time of --as-of were merged before, and are undone" in str(report)
    assert {key: value for key, (value, _) in _sow(world).items()} == {key: value for key, (value, _) in good.items()}
    deltas = reconcile(spark, world.name, **settings(world)).checks[0]
    assert deltas.is_equal, str(deltas)


def test_an_empty_family_is_filled_up_to_a_time_also_at_the_second_attempt(spark, world, tmp_path, monkeypatch) -> None:
    """A backfill of an empty family that died is repeated, and the workers merge what came after `as_of`.

    Records without a Kafka key are an error, also once the first backfill has written offsets: no worker has forwarded
    them.
    """
    world.publish([*random_commands(11, 300, 30), (None, {"id": 5000}, {})])
    ends = dict.fromkeys(range(PARTITIONS), 0) | _ends(world)
    time.sleep(1.1)
    as_of = dt.datetime.now(dt.UTC)
    time.sleep(0.1)
    world.publish(random_commands(12, 200, 30))
    archive, own = str(tmp_path / "archive"), settings(world)
    write_archive(spark, world, archive)
    with pytest.raises(ConfigurationError, match="1 records have no Kafka key"):
        backfill(spark, world.name, **own, archive=archive, as_of=as_of)
    dry = backfill(spark, world.name, **own, archive=archive, as_of=as_of, keyless="skip", dry_run=True)
    assert "left out: 1 without a key, 0 outside" in str(dry)
    with monkeypatch.context() as patch:
        patch.setattr(_HandOver, "_marks", _die)
        with pytest.raises(Stop, match="died"):
            backfill(spark, world.name, **own, archive=archive, as_of=as_of, keyless="merge")
    assert world.read("sow")
    for is_dry in (True, False):
        report = backfill(spark, world.name, **own, archive=archive, as_of=as_of, keyless="merge", dry_run=is_dry)
        assert (report.is_new, report.ends, report.cut) == (True, ends, ends)
    assert _offsets(world) == ends
    with pytest.raises(ConfigurationError, match="1 records have no Kafka key"):
        backfill(spark, world.name, **own, archive=archive, dry_run=True)
    worker = world.start(name=world.name)
    world.settle()
    assert worker.stop() == 0
    records = _sow(world)
    assert records.pop(b"5000")[0] == b'{"id":5000}'
    assert records == _expected(world)


def test_an_archive_with_a_gap_before_the_topic_is_refused(spark, world, tmp_path) -> None:
    """An archive with a gap before the topic, and files without offsets, are refused; workers go on."""
    world.publish([(b"1", {"id": 1, "n": n}, {}) for n in range(20)])
    archive = str(tmp_path / "archive")
    write_archive(spark, world, archive)
    merged_by_worker(world, [(b"1", {"id": 1, "n": n}, {}) for n in range(20)])
    partition = next(number for number, end in _offsets(world).items() if end)
    for begin in (30, 40):  # Also where no record is left.
        assert _gone(world, partition, begin)
        said = f"the archive ends before offset 20, and the topic begins at {begin}"
        with pytest.raises(ConfigurationError, match=said):
            backfill(spark, world.name, **settings(world), archive=archive)
    # Of the empty partition, the offsets may have been transaction markers.
    assert backfill(spark, world.name, **settings(world), archive=archive, dry_run=True).changes == {"same": 1}
    spark.range(3).write.parquet(str(tmp_path / "plain"))
    with pytest.raises(ConfigurationError, match="has no column 'key'"):
        backfill(spark, world.name, **settings(world), archive=str(tmp_path / "plain"))
    merged_by_worker(world, [(b"2", {"id": 2}, {})])
    assert b"2" in _sow(world)


def test_a_history_without_its_first_records_is_refused(spark, world, tmp_path) -> None:
    """Records whose history is in no archive are not deleted, unless that is allowed; a dry run shows them."""
    merged_by_worker(world, [(b"1", {"id": 1, "a": 1}, {}), (b"1", {"id": 1, "n": 2}, {})])
    partition = next(number for number, end in _offsets(world).items() if end)
    assert _gone(world, partition, 2)
    later = next(number for number in range(2, 99) if partition_for(b"%d" % number, PARTITIONS) == partition)
    merged_by_worker(world, [(b"%d" % later, {"id": later}, {})])
    archive, own = str(tmp_path / "archive"), settings(world)
    write_archive(spark, world, archive)
    assert backfill(spark, world.name, **own, archive=archive, dry_run=True).changes == {"delete": 1, "same": 1}
    with pytest.raises(ConfigurationError, match=rf"begins at offset \d+ in partition {partition}: .*--allow-partial"):
        backfill(spark, world.name, **own, archive=archive)
    assert _sow(world).keys() == {b"1", b"%d" % later}
    merged_by_worker(world, [(b"1", {"id": 1, "n": 3}, {})])
    report = backfill(spark, world.name, **own, archive=archive, allow_partial=True)
    assert report.changes == {"update": 1, "same": 1}


def _gone(world: World, partition: int, offset: int):
    """Delete the records of the publish topic before an offset."""
    from confluent_kafka import TopicPartition

    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    place = TopicPartition(f"{world.name}.publish", partition, offset)
    return [future.result(120) for future in admin.delete_records([place]).values()]
