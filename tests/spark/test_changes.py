"""The changes between two states lead from one to the other; the record before a change is the one after the last."""

from __future__ import annotations

import datetime as dt
import json
import random

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from processor.errors import ConfigurationError
from processor.merge.delta import apply_delta

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.sql import functions as F  # noqa: N812

from spark_integration import read_changes, read_deltas, read_sow, stream_changes
from tests.codec.avro_world import file_codec, record
from tests.spark.conftest import PARTITIONS
from tests.spark.history import History
from tests.spark.merged_family import Merged

pytestmark = [pytest.mark.spark, pytest.mark.broker]

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
HOUR = dt.timedelta(hours=1)
DELETE = {"command": "sow_delete"}


@pytest.fixture
def history(bootstrap: str, unique: str) -> History:
    """A family of topics for one test, not yet created."""
    return History(unique, bootstrap)


@pytest.fixture
def orders(family):
    """A family whose records are merged as by workers."""
    family.create("sow", "delta")
    return Merged(family)


def ends(family, role):
    """The next offset of each partition."""
    consumer = Consumer({"bootstrap.servers": family.options["kafka.bootstrap.servers"], "group.id": family.name})
    try:
        return {
            number: consumer.get_watermark_offsets(TopicPartition(f"{family.name}.{role}", number), 30)[1]
            for number in range(PARTITIONS)
        }
    finally:
        consumer.close()


def commands(rng, count):
    """Deltas, full records, touches, removals and deletes of a few keys."""
    for _ in range(count):
        body = {"id": rng.choice("abcdef")}
        what = rng.random()
        if what < 0.2:
            yield body, DELETE
        elif what < 0.3:
            yield body, {}
        elif what < 0.4:
            yield body, {"remove": '["/to/zip"]'}
        elif what < 0.5:
            yield {**body, "n": rng.randrange(9)}, {"command": "publish"}
        else:
            yield {**body, "n": rng.choice([None, 1, 2]), "to": {rng.choice(["zip", "city"]): rng.randrange(9)}}, {}


def state(table):
    """The records of a table by key."""
    return {row["sow_key"]: json.loads(row["value"]) for row in table.select("_sow.sow_key", "value").collect()}


def ordered(changes):
    """The rows of changes in the order of the topic, a record before a change before the one after it."""
    rows = changes.select("value", "_sow.*").collect()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"], row["image"] == "post"))


def folded(before, rows):
    """The state that rows of images lead to; each record before a change must be the one that is there."""
    records = dict(before)
    for row in rows:
        key, is_gone = row["sow_key"], row["kind"] in ("delete", "expire")
        if row["image"] == "pre":
            assert json.loads(row["value"]) == records[key]
        if is_gone:
            records.pop(key, None)
        elif row["image"] == "post":
            records[key] = json.loads(row["value"])
    return records


@pytest.mark.long
def test_changes_lead_from_one_state_to_the_other(spark, family, orders, random_seed) -> None:
    """Folded from the state at `since`, records or deltas give the state at `until`; each one before is the last."""
    rng = random.Random(random_seed)
    orders.merge(*commands(rng, 30))
    since = {role: ends(family, role) for role in ("sow", "delta")}
    orders.merge(*commands(rng, 30))
    until = {role: ends(family, role) for role in ("sow", "delta")}
    orders.merge(*commands(rng, 5))

    def at(cut):
        return state(read_sow(spark, family.name, options=family.options, at=cut["sow"]))

    def between(images, role="sow", **more):
        bounds = {"since": since[role], "until": until[role]} | more
        return ordered(read_changes(spark, family.name, options=family.options, images=images, **bounds))

    before, after = at(since), at(until)
    rows = between("pre_post")
    assert folded(before, rows) == folded(before, between("post")) == after
    inserted = {(row["partition"], row["offset"]) for row in rows if row["kind"] == "insert"}
    assert [row["image"] for row in rows if (row["partition"], row["offset"]) in inserted] == ["post"] * len(inserted)
    assert {row["image"] for row in rows if row["kind"] == "delete"} == {"pre"}
    changes = {(row["partition"], row["offset"]) for row in rows}
    assert len(rows) == 2 * len(changes) - len(inserted) - sum(row["kind"] == "delete" for row in rows)
    assert between("pre_post", keys=["a"]) == [row for row in rows if row["sow_key"] == "a"]

    records = {key: json.loads(json.dumps(value)) for key, value in before.items()}
    for row in between("delta", "delta"):
        key = row["sow_key"]
        if row["kind"] == "delete":
            del records[key]
        else:
            records[key] = apply_delta(records.get(key), json.loads(row["value"]), row["removed"])
    assert records == after


@pytest.mark.long
def test_a_stream_has_the_same_changes_over_a_restart(spark, family, orders, random_seed, tmp_path) -> None:
    """A stream of records before and after begins with all records, and goes on after a restart with the right one."""
    rng = random.Random(random_seed)
    name = f"{family.name}_changes"

    def drain(images):
        stream = stream_changes(
            spark, family.name, options=family.options | ({} if images == "pre_post" else EARLIEST), images=images
        )
        writer = stream.select("value", "_sow.*").writeStream.format("parquet").option("path", str(tmp_path / images))
        writer = writer.option("checkpointLocation", str(tmp_path / f"{images}.state")).trigger(availableNow=True)
        writer.queryName(name).start().awaitTermination()
        rows = spark.read.parquet(str(tmp_path / images)).collect()
        return sorted(rows, key=lambda row: (row["partition"], row["offset"], row["image"] == "post"))

    for _ in range(2):
        orders.merge(*commands(rng, 20))
        after = state(read_sow(spark, family.name, options=family.options))
        rows = drain("pre_post")
        assert folded({}, rows) == after
        assert folded({}, drain("post")) == after
    batch = ordered(read_changes(spark, family.name, options=family.options, images="pre_post"))
    columns = ["sow_key", "kind", "image", "version", "timestamp", "partition", "offset", "value"]
    assert [[row[name] for name in columns] for row in rows] == [[row[name] for name in columns] for row in batch]
    with pytest.raises(ConfigurationError, match="option 'startingOffsets' cannot be given with images='pre_post'"):
        stream_changes(spark, family.name, options=family.options | EARLIEST, images="pre_post")


EARLIEST = {"startingOffsets": "earliest"}


@pytest.mark.long
def test_images_of_avro_are_decoded_by_their_own_schema(spark, history, tmp_path) -> None:
    """The record before a change is decoded by the headers that it was written with, not by those of the change."""
    history.create("sow")
    codec = file_codec(record(("id", "long"), ("qty", ["null", "int"], None)), tmp_path)
    config = {"message_type": "avro", "schema": str(tmp_path / "schema.avsc")}
    for qty in (1, 2):
        history.write("sow", ("1", codec.encode({"id": 1, "qty": qty})), headers={"version": str(qty)})
    history.write("sow", ("1", None), headers={"version": "3", "kind": "delete", "fields": "rubbish"})
    changes = read_changes(spark, history.name, options=history.options, images="pre_post", config=config)
    rows = changes.select("qty", "_sow.image", "_sow.kind", "_sow.version").collect()
    assert sorted(map(tuple, rows), key=lambda row: (row[3], row[1] == "post")) == [
        (1, "post", "update", 1), (1, "pre", "update", 2), (2, "post", "update", 2), (2, "pre", "delete", 3),
    ]  # fmt: skip


def test_deltas_between_two_moments(spark, history) -> None:
    """`read_deltas` gives the deltas from the first one at `since` to the last one before `until`, with columns."""
    history.create("delta", 2)
    for hour in range(4):
        partition = hour % 2
        history.write("delta", ("1", f'{{"id":1,"n":{hour}}}'), at=NOW - (4 - hour) * HOUR, partition=partition)

    def values(**bounds):
        table = read_deltas(spark, history.name, "id LONG, n LONG", options=history.options, **bounds)
        return sorted((row["n"], tuple(row["changed"])) for row in table.select("n", "_sow.changed").collect())

    paths = ("/id", "/n")
    assert values() == [(n, paths) for n in range(4)]
    assert values(since=NOW - 3 * HOUR) == [(n, paths) for n in (1, 2, 3)]
    assert values(since=NOW - 3 * HOUR, until=NOW - HOUR) == [(n, paths) for n in (1, 2)]
    assert values(since={0: 1, 1: 0}, until={0: 2, 1: 1}) == [(n, paths) for n in (1, 2)]
    with pytest.raises(ConfigurationError, match=r"since is after until: partition 0 of .*\.delta"):
        values(since={0: 2, 1: 0}, until={0: 1, 1: 1})
    with pytest.raises(ConfigurationError, match=r"since=.* has no time zone"):
        values(since=dt.datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(ConfigurationError, match="images='both': say one of delta, post, pre_post"):
        read_changes(spark, history.name, options=history.options, images="both")


@pytest.mark.long
def test_changes_that_are_gone_are_refused(spark, history) -> None:
    """A begin before which retention or compaction may have removed changes is refused, unless gaps are allowed."""
    history.create("delta", retention__bytes="1000000000")
    history.write("delta", *((str(n), "{}") for n in range(4)), at=NOW - 2 * HOUR)
    admin = AdminClient(history.client)
    for done in admin.delete_records([TopicPartition(f"{history.name}.delta", 0, 2)]).values():
        done.result(120)
    said = r"since is further back than .*\.delta is sure to be whole: partition 0 begins at offset 2.*allow_gaps=True"
    for since in ({0: 1}, NOW - 3 * HOUR):
        with pytest.raises(ConfigurationError, match=said):
            read_deltas(spark, history.name, options=history.options, since=since)
    for bounds in ({}, {"since": {0: 1}, "allow_gaps": True}):
        table = read_deltas(spark, history.name, options=history.options, **bounds)
        assert sorted(row["sow_key"] for row in table.select("_sow.sow_key").collect()) == ["2", "3"]

    history.create("sow", cleanup__policy="compact", min__compaction__lag__ms="5400000")
    for hours, value in ((3, "1"), (2, "2"), (1, "3")):
        history.write("sow", ("a", value), at=NOW - hours * HOUR)

    def images(**bounds):
        changes = read_changes(spark, history.name, options=history.options, images="pre_post", **bounds)
        return [(row["image"], row["value"]) for row in ordered(changes)]

    with pytest.raises(ConfigurationError, match=r"since is further back than .*min\.compaction\.lag\.ms.*allow_gaps"):
        images(since={0: 1})
    assert images(since={0: 1}, allow_gaps=True) == [("pre", "1"), ("post", "2"), ("pre", "2"), ("post", "3")]
    assert images(since=NOW - HOUR) == [("pre", "2"), ("post", "3")]
    assert images(until=NOW - HOUR) == [("post", "1"), ("pre", "1"), ("post", "2")]


def test_keys_are_read_from_their_partitions_only(spark, family, orders) -> None:
    """A read of some keys assigns only their partitions, and gives the same rows as a filter."""
    orders.merge(*({"id": key, "n": 1} for key in "abcdefgh"))
    table = read_sow(spark, family.name, options=family.options, keys=["a", "b", "none"])
    every = read_sow(spark, family.name, options=family.options)
    wanted = every.where(F.col("_sow.sow_key").isin("a", "b"))
    assert sorted(map(str, table.collect())) == sorted(map(str, wanted.collect()))
    one = read_sow(spark, family.name, options=family.options, keys=["a"], at=ends(family, "sow"))
    assert state(one) == {"a": {"id": "a", "n": 1}}
    deltas = read_deltas(spark, family.name, options=family.options, keys=["a"])
    assert deltas.rdd.getNumPartitions() == 1
    with pytest.raises(ConfigurationError, match="keys names no key"):
        read_sow(spark, family.name, options=family.options, keys=[])
    accepting = {"foreign_partition": "accept"}
    deltas = read_deltas(spark, family.name, options=family.options, keys=["a"], config=accepting)
    # Spark has no task for a partition without records.
    assert deltas.rdd.getNumPartitions() > 1
