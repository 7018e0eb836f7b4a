from __future__ import annotations

import datetime as dt
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.errors import ConfigurationError, Stop
from processor.kafka.admin.admin import Admin
from processor.repair.adoption import Adoption
from processor.repair.worker_positions import WorkerPositions
from processor.store.marks import POSITION_NAME
from processor.testing import ProcessorTestDriver
from processor.wire.partition_marks import HALF_WRITTEN, InputPosition, first_version
from tests.endtoend.world import World, random_commands

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from spark_integration.foundation.options import sink_options
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.batch.base_state import PartitionMarks, begins_of_workers, refuse_uncommitted
from spark_integration.merge.batch.handover import _HandOver, hand_over
from spark_integration.merge.batch.merge_batch import merge_batch
from spark_integration.merge.topic_family import TopicFamily

pytestmark = [pytest.mark.spark, pytest.mark.broker]

PARTITIONS = 4


@pytest.fixture
def world(bootstrap, tmp_path, unique) -> Iterator[World]:
    """A family without workers."""
    world = World(bootstrap, tmp_path, unique, partitions=PARTITIONS)
    yield world
    world.close()


def _options(world: World) -> dict[str, str]:
    return {"kafka.bootstrap.servers": world.bootstrap}


def _numbered(commands, first: int = 1):
    """The commands of a publisher that numbers its records."""
    return [
        (key, value, {**headers, "client": "ann", "sequence": str(number)})
        for number, (key, value, headers) in enumerate(commands, first)
    ]


def _expected(world: World) -> dict[bytes, tuple[bytes, str]]:
    """Value and version of every live record, from one worker that merges the complete input."""
    history = defaultdict(list)
    for seen in world.read("publish"):
        history[seen.partition].append((seen.key, seen.value, seen.headers))
    state = {}
    for partition, commands in history.items():
        driver = ProcessorTestDriver(DeltaMerge, world.config.topics[world.name], name=world.name, partition=partition)
        for begin in range(0, len(commands), 500):
            driver.pipe_batch(commands[begin : begin + 500])
        driver.commit()
        for record in driver.read_output("sow"):
            state[record.key] = record.value, dict(record.headers)["version"].decode()
    return {key: found for key, found in state.items() if found[0] is not None}


def _sow(world: World) -> dict[bytes, tuple[bytes, str]]:
    """Value and version of every live record of the SOW topic."""
    state = {seen.key: (seen.value, seen.headers["version"]) for seen in world.read("sow")}
    return {key: found for key, found in state.items() if found[0] is not None}


def _offsets(world: World) -> dict[int, int]:
    """The committed offsets of the workers' group."""
    reader = Consumer({"bootstrap.servers": world.bootstrap, "group.id": f"app-{world.name}.{world.name}"})
    found = reader.committed([TopicPartition(f"{world.name}.publish", number) for number in range(PARTITIONS)], 10)
    reader.close()
    return {place.partition: place.offset for place in found if place.offset >= 0}


@contextmanager
def _publishing(world: World, commands) -> Iterator[None]:
    """Publish until the block ends, and at least all of these commands."""
    thread = threading.Thread(target=lambda: [world.publish(commands[i : i + 50]) for i in range(0, len(commands), 50)])
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.mark.long
def test_workers_go_on_where_the_merge_ended(spark, world) -> None:
    """While publishers continue, 20,000 commands are handed over; a worker merges the rest and drops duplicates.

    In the end every record has the value and the version that one worker would have written.
    """
    commands = _numbered(random_commands(5, 24_000, 2_000))
    rubbish = [
        (b"1", b"no json", {"client": "ben", "sequence": "7"}),
        (b"1", b'{"id":1,"n":7}', {"client": "ben", "sequence": "7"}),
    ]
    # With its headers it is above the default limit of Java's producer.
    large = (b"large", {"id": "large", "x": "y" * 1_048_500}, {})
    world.publish([*commands[:20_000], *rubbish, large])
    with (
        _publishing(world, commands[20_000:]),
        merge_batch(spark, world.name, config=world.file, options=_options(world)) as merged,
    ):
        hand_over(merged, options=_options(world))
    assert merged.counts["records"] >= 20_003
    assert merged.rejected_for == {"undecodable": 1}
    assert _offsets(world) == merged.cut
    world.publish(commands[19_000:20_500])  # After a lost connection, say.
    world.start()
    world.settle()
    assert _sow(world) == _expected(world)
    assert sum(seen.headers["dlq_reason"] == "undecodable" for seen in world.read("dlq")) == 1


@pytest.mark.long
def test_a_failed_hand_over_can_be_repeated(spark, world) -> None:
    """A hand-over that failed at any point is completed by the next one, and a third one writes nothing."""
    lives = [(b"twin", {"id": "twin"}, {}), (b"twin", None, {})] * 3
    world.publish([*_numbered(random_commands(6, 600, 60)), (b"1", b"no", {}), *lives])
    as_of = dt.datetime.now(dt.UTC)
    with merge_batch(spark, world.name, config=world.file, options=_options(world), deltas=True, as_of=as_of) as merged:
        deltas = merged.deltas.where("key < '3'").unionByName(merged.deltas.where("key = 'twin'").limit(3))
        for role, part in (("delta", deltas), ("sow", merged.records.where("key < '4'"))):
            part.write.format("kafka").options(**sink_options(world.name, role, _options(world))).save()
        cut = merged.cut
    assert not _offsets(world)
    with merge_batch(
        spark, world.name, config=world.file, options=_options(world), deltas=True, as_of=as_of, until=cut
    ) as merged:
        hand_over(merged, options=_options(world), deltas=True)
        first = {role: world.read(role) for role in ("sow", "delta", "dlq", "mark")}
        hand_over(merged, options=_options(world), deltas=True)
        assert {role: world.read(role) for role in first} == first
    assert _sow(world) == _expected(world)
    assert len(first["sow"]) == len(_sow(world))
    assert len(first["dlq"]) == 1
    versions = defaultdict(list)
    for seen in first["delta"]:
        versions[seen.key].append((int(seen.headers["version"]), seen.headers.get("kind", "update")))
    for told in versions.values():
        for (before, kind), (after, _) in pairwise(told):
            assert after > before if kind == "delete" else after == before + 1
    begins = [first_version(0, seen.offset) for seen in world.read("publish") if seen.key == b"twin" and seen.value]
    assert [version for version, _ in versions[b"twin"]] == [begin + n for begin in begins for n in (0, 1)]
    assert _offsets(world) == cut


@pytest.mark.long
def test_history_from_elsewhere_is_handed_over_at_a_cut(spark, world) -> None:
    """The hand-over of an archive needs the caller's cut; a missing cut, or a second one for a topic, is refused."""
    old, new = random_commands(8, 600, 60), random_commands(9, 200, 60)
    world.publish(old)
    archive = spark.read.format("kafka").options(
        subscribe=f"{world.name}.publish", includeHeaders="true", **_options(world)
    )
    history = archive.load().localCheckpoint()
    cut = dict.fromkeys(range(PARTITIONS), 0) | _ends(world)
    world.publish(new)
    with merge_batch(spark, world.name, config=world.file, history=history) as merged:
        with pytest.raises(ConfigurationError, match="say with `cut` where the workers begin"):
            hand_over(merged, options=_options(world))
        with pytest.raises(ConfigurationError, match="so it is of another topic; merge again"):
            hand_over(merged, options=_options(world), cut=dict.fromkeys(cut, 10**6))
        with pytest.raises(ConfigurationError, match=r"cut has the partitions \[0\]"):
            hand_over(merged, options=_options(world), cut={0: 0})
        hand_over(merged, options=_options(world), cut=cut)
    assert _offsets(world) == cut
    world.start()
    world.settle()
    assert _sow(world) == _expected(world)


def _ends(world: World) -> dict[int, int]:
    ends: dict[int, int] = {}
    for seen in world.read("publish"):
        ends[seen.partition] = max(ends.get(seen.partition, 0), seen.offset + 1)
    return ends


@pytest.mark.long
def test_a_hand_over_that_would_lose_records_is_refused(spark, world) -> None:
    """Running workers, other offsets, other records in SOW, and missing input are errors, and nothing is written."""
    world.publish([(b"%d" % n, {"id": n, "a": n}, {}) for n in range(20)])
    with merge_batch(spark, world.name, config=world.file, options=_options(world)) as merged:
        world.publish([(b"99", {"id": 99}, {"version": "1"})], role="sow")
        with pytest.raises(ConfigurationError, match=r"not empty, and has other records .* b'99'.*mode='repair'"):
            hand_over(merged, options=_options(world))
        assert len(world.read("sow")) == 1
        member = Consumer({"bootstrap.servers": world.bootstrap, "group.id": f"app-{world.name}.{world.name}"})
        member.subscribe([f"{world.name}.publish"])
        world.wait(lambda: member.poll(0.1) is not None or bool(member.assignment()), "joining the group")
        with pytest.raises(ConfigurationError, match=r"1 living members, such as one at .*stop the workers first"):
            hand_over(merged, options=_options(world), mode="repair")
        member.close()
        partition = next(number for number, end in merged.cut.items() if end)
        admin = AdminClient({"bootstrap.servers": world.bootstrap})
        world.publish([(b"%d" % n, {"id": n, "a": n}, {}) for n in range(20)])
        place = TopicPartition(f"{world.name}.publish", partition, merged.cut[partition] + 1)
        admin.delete_records([place])[TopicPartition(place.topic, partition)].result(120)
        with pytest.raises(
            ConfigurationError, match=rf"partition {partition}: the cut is at offset .* lies between is gone"
        ):
            hand_over(merged, options=_options(world), mode="repair")
    assert not _offsets(world)


def _repaired(world: World) -> dict[bytes, str]:
    """The version that a repair gives each key, of one insert each, before it.

    A record on the topic gets one more, or that of the merge if it is higher. A missing one begins above all versions
    of its partition, with those that the ends of its live records will take; in a partition without records it has the
    version of the merge.
    """
    there = {seen.key: int(seen.headers["version"]) for seen in world.read("sow")}
    inserts = [seen for seen in world.read("publish") if seen.value is not None]
    used: dict[int, int] = defaultdict(int)
    for seen in world.read("sow"):
        used[seen.partition] = max(used[seen.partition], there[seen.key] + 1)
    for seen in inserts:
        if seen.partition in used:
            used[seen.partition] = max(used[seen.partition], first_version(0, seen.offset) + 1)
    deleted = {seen.key for seen in world.read("publish") if seen.value is None}
    merged = {seen.key: first_version(0, seen.offset) + (seen.key in deleted) for seen in inserts}
    missing = {seen.key: used[seen.partition] + 1 for seen in inserts if seen.partition in used}
    return {
        key: str(max(version, there[key] + 1) if key in there else missing.get(key, version))
        for key, version in merged.items()
    }


@pytest.mark.long
def test_a_repair_writes_the_differences(spark, world, monkeypatch) -> None:
    """A repair corrects wrong records with higher versions, writes missing ones, deletes others, publishes deltas.

    One that dies leaves positions of Spark, which hold the workers, also where they stood at the cut before.
    """
    world.publish([(b"%d" % n, {"id": n, "a": {"b": n}}, {}) for n in range(6)])
    world.publish([(b"5", None, {})])
    there = [
        (b"0", b'{"id":0,"a":{"b":0}}', {"version": "4"}),  # As it should be.
        (b"1", b'{"id":1,"a":{"b":7,"c":8}}', {"version": "9"}),
        (b"5", b'{"id":5,"a":1}', {"version": "2"}),
        (b"7", b'{"id":7}', {"version": "3"}),
    ]
    world.publish(there, role="sow")
    before = len(world.read("sow"))
    versions = _repaired(world)
    with merge_batch(spark, world.name, config=world.file, options=_options(world)) as merged:
        hand_over(merged, options=_options(world), mode="repair")
        written = len(world.read("sow"))
        hand_over(merged, options=_options(world), mode="repair")
    assert len(world.read("sow")) == written == before + 6
    assert _sow(world) == {
        b"0": (b'{"id":0,"a":{"b":0}}', "4"),
        b"1": (b'{"id":1,"a":{"b":1}}', versions[b"1"]),
        **{b"%d" % n: (b'{"id":%d,"a":{"b":%d}}' % (n, n), versions[b"%d" % n]) for n in (2, 3, 4)},
    }
    deltas = {seen.key: (seen.value, seen.headers) for seen in world.read("delta")}
    assert deltas == {
        b"1": (b'{"id":1,"a":{"b":1}}', {"version": versions[b"1"], "removed": '["/a/c"]'}),
        **{
            b"%d" % n: (b'{"id":%d,"a":{"b":%d}}' % (n, n), {"version": versions[b"%d" % n], "kind": "insert"})
            for n in (2, 3, 4)
        },
        b"5": (b'{"id":5}', {"version": versions[b"5"], "kind": "delete"}),
        b"7": (b'{"id":7}', {"version": "4", "kind": "delete"}),
    }
    assert _offsets(world) == merged.cut
    world.publish([(b"7", b'{"id":7}', {"version": "5"})], role="sow")
    with merge_batch(spark, world.name, config=world.file, options=_options(world)) as merged:
        for part, writers in (("_marks", f"app-{world.name}@spark"), (None, f"app-{world.name}")):
            with monkeypatch.context() as patch, pytest.raises(Stop) if part else nullcontext():
                if part:
                    patch.setattr(_HandOver, part, _die)
                hand_over(merged, options=_options(world), mode="repair")
            found = {seen.partition: seen.value for seen in world.read("mark") if seen.key == POSITION_NAME}
            assert {InputPosition.read(value).application_id for value in found.values()} == {writers}
            assert len(found) == PARTITIONS


@pytest.mark.long
def test_base_is_where_the_workers_stopped(spark, world) -> None:
    """A merge with `base="sow"` continues from stopped workers: with their records, versions, marks and offsets."""
    commands = _numbered(random_commands(8, 900, 50))
    world.publish(commands[:500])
    worker = world.start(name=world.name)
    world.settle()
    assert worker.stop() == 0
    world.publish(commands[400:])
    with merge_batch(spark, world.name, config=world.file, options=_options(world), base="sow", deltas=True) as merged:
        assert merged.counts["records"] == 500
        assert merged.counts["duplicate"] == 100
        hand_over(merged, options=_options(world), mode="continue", deltas=True)
    assert _sow(world) == _expected(world)
    assert _offsets(world) == merged.cut
    told = {seen.key: seen for seen in world.read("delta")}
    assert {key: told[key].headers["version"] for key in _sow(world)} == {
        key: version for key, (_, version) in _sow(world).items()
    }
    world.publish([(b"1", {"id": 1}, {})])
    world.start(name=world.name)
    world.settle()
    with pytest.raises(ConfigurationError, match="living members"):
        hand_over(merged, options=_options(world), mode="continue")


def test_the_base_begins_where_workers_would(world, monkeypatch) -> None:
    """The position counts where the group has no offset; a partition that workers would hold is refused."""
    settings = topic_settings(world.name, world.file, options=_options(world))
    with TopicFamily(settings, world.config.kafka) as family:
        own = InputPosition(settings.application_id, family.admin.topic_id(family.source), 7)

        def begins(**changes: object) -> dict[int, int]:
            positions = dict.fromkeys(range(PARTITIONS), own._replace(**changes))
            return begins_of_workers(settings, family, PartitionMarks({}, positions))

        assert begins() == dict.fromkeys(range(PARTITIONS), 7)
        assert begins_of_workers(settings, family, PartitionMarks({}, {})) == dict.fromkeys(range(PARTITIONS), 0)
        spark = f"{settings.application_id}@spark"
        for changes, said in (
            ({"topic_id": "other"}, "outputs are of another input topic, so workers hold it"),
            ({"application_id": spark}, f"outputs are of application_id {spark}, so workers hold it"),
            ({"application_id": spark, "note": HALF_WRITTEN}, "If it has died: repeat it"),
        ):
            with pytest.raises(ConfigurationError, match=said):
                begins(**changes)
        world.publish([(b"1", {"id": 1}, {"version": "1"})], role="sow")
        with pytest.raises(ConfigurationError, match="no offset and no position, so workers hold it"):
            begins_of_workers(settings, family, PartitionMarks({}, {}))
        with monkeypatch.context() as patch:
            for note in ("sow 1 mark 0", None):
                patch.setattr(
                    family, "committed_with_notes", lambda count, note=note: dict.fromkeys(range(count), (6, note))
                )
                refuse_uncommitted(settings, family)
            patch.setattr(
                family, "committed_with_notes", lambda count: dict.fromkeys(range(count), (6, "sow 0 mark 0"))
            )
            with pytest.raises(ConfigurationError, match=r"partition \d: a worker without transactions [^\0]*twice"):
                refuse_uncommitted(settings, family)
        family.admin.set_offsets(family.group, family.source, {0: 6})
        with pytest.raises(ConfigurationError, match="group was set back, so workers hold it"):
            begins()
        with WorkerPositions(world.config, world.name) as workers:
            mark = POSITION_NAME, bytes(own._replace(application_id=spark, note=HALF_WRITTEN)), {}
            world.publish([mark], role="mark")
            with pytest.raises(Stop, match="If it has died: repeat it"):
                Adoption(world.config, workers, "sow")


@pytest.mark.long
def test_a_hand_over_on_workers_records_that_died_is_repeated_with_the_same_merge(spark, world, monkeypatch) -> None:
    """Once such a hand-over has begun, workers hold, and no merge begins with the half-written records.

    The same result is handed over again, and no version of a key comes twice, also of one that was deleted before and
    is inserted by a record without a Kafka key.
    """
    own = {"config": world.file, "options": _options(world)}
    world.publish([*random_commands(11, 300, 20), (b"back", {"id": "back"}, {}), (b"back", None, {})])
    worker = world.start(name=world.name)
    world.settle()
    assert worker.stop() == 0
    stood = _offsets(world)
    world.publish([*random_commands(12, 200, 20), (None, {"id": "back", "n": 2}, {})])
    with merge_batch(spark, world.name, **own, base="sow", deltas=True, keyless="merge") as merged:
        for part, name in ((_HandOver, "_marks"), (Admin, "set_offsets")):
            with monkeypatch.context() as patch:
                patch.setattr(part, name, _die)
                with pytest.raises(Stop, match="died"):
                    hand_over(merged, options=_options(world), mode="continue", deltas=True)
            assert _offsets(world) == stood
            with pytest.raises(
                ConfigurationError, match=r"topic is half written. If it has died|group was set back, so workers"
            ):
                merge_batch(spark, world.name, **own, base="sow", keyless="merge")
            worker = world.start(name=world.name)
            world.wait(lambda log=worker.log: "offsets_lost" in log(), "holding the partitions")
            assert worker.stop() == 0
        hand_over(merged, options=_options(world), mode="continue", deltas=True)
        first = {role: world.read(role) for role in ("sow", "delta", "mark")}
        hand_over(merged, options=_options(world), mode="continue", deltas=True)
        assert {role: world.read(role) for role in first} == first
    for role in ("sow", "delta"):
        versions = [(seen.key, seen.headers["version"]) for seen in first[role]]
        assert len(set(versions)) == len(versions)
    records = _sow(world)
    assert records.pop(b"back")[0] == b'{"id":"back","n":2}'
    assert records == _expected(world)
    worker = world.start(name=world.name)
    world.publish([(b"back", {"id": "back", "n": 3}, {})])
    world.settle()
    assert worker.stop() == 0


def _die(*_: object, **__: object) -> None:
    raise Stop("died")
