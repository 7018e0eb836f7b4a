"""Spark's functions on an installation with a prefix and a mapped input, and on a topic that has moved."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer

from processor.config import Config
from processor.errors import ConfigurationError
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from processor.errors import TopicMoved
from processor.wire.forwarding import MOVED_RETENTION_MS, moved_record
from spark_integration import (
    merge_batch,
    publish_deltas,
    read_changes,
    read_deltas,
    read_sow,
    stream_changes,
    stream_deltas,
    stream_sow,
)
from spark_integration.foundation.options import sink_options, source_options
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.batch.handover import hand_over
from spark_integration.read.source.source_options import parse_source_options
from tests.spark.history import History

pytestmark = pytest.mark.spark

SERVERS = {"kafka.bootstrap.servers": "h:1"}


def test_the_option_sets_the_prefix():
    """The option `topicPrefix`, in any case and as `topic_prefix`, prefixes topic names; Spark does not get it."""
    chosen = source_options("orders", "sow", {**SERVERS, "Topic_Prefix": "acme."})
    assert (chosen["subscribe"], "Topic_Prefix" in chosen) == ("acme.orders.sow", False)
    assert sink_options("orders", "publish", {**SERVERS, "topic_prefix": "acme."})["topic"] == "acme.orders.publish"
    source = parse_source_options({**SERVERS, "topic": "orders", "topicPrefix": "acme."})
    assert source.settings.kafka_topic("sow") == "acme.orders.sow"


def test_settings_and_option_are_not_to_differ():
    """Two different prefixes in the settings and the option are an error; explicitly mapped names keep their form."""
    config = {"topic_prefix": "acme.", "kafka_topics": {"publish": "legacy.in"}}
    settings = topic_settings("orders", config, options={"topic_prefix": "acme."})
    assert (settings.kafka_topic("publish"), settings.kafka_topic("sow")) == ("legacy.in", "acme.orders.sow")
    assert settings.group_prefix == "acme.sowstream"
    with pytest.raises(ConfigurationError, match=r"option 'topicPrefix' is 'b\.', and the settings say 'acme\.'"):
        topic_settings("orders", config, options={"topic_prefix": "b."})
    with pytest.raises(ConfigurationError, match="Kafka's names have letters"):
        topic_settings("orders", {"kafka_topics": {"sow": "ü"}})


def test_a_copy_is_read_from_its_own_topic():
    """A copy is read from its own Kafka topic, with the settings of the original topic."""
    config = Config(topic_prefix="a.", topics={"orders": {}}, conflated={"slow": {"underlying": "orders"}})
    settings = topic_settings("slow", config)
    assert (settings.name, settings.kafka_topic("sow")) == ("orders", "a.slow.sow")


@pytest.mark.long
@pytest.mark.broker
def test_records_are_published_merged_handed_over_and_read(spark, bootstrap: str, unique: str):
    """Rows are published to the mapped input, merged in a batch, handed over to the workers' topics, and read."""
    section = {"partitions": 2, "kafka_topics": {"publish": f"legacy.{unique}"}, "source_header": True}
    config = Config(topic_prefix=f"{unique}.desk.", kafka={"bootstrap.servers": bootstrap}, topics={"orders": section})
    admin = Admin(config.kafka)
    admin.create(specs(config))
    rows = spark.createDataFrame([(1, 5), (2, 6)], "id long, qty long")
    publish_deltas(rows, "orders", ["id"], ["qty"], config=config)
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    producer.produce(f"legacy.{unique}", json.dumps({"id": 1, "note": "x"}), "1")
    assert producer.flush(120) == 0
    options = {"kafka.bootstrap.servers": bootstrap}
    with merge_batch(spark, "orders", config=config, options=options, keyless="merge") as merged:
        assert merged.counts["merged"] == 3
        hand_over(merged, options=options)
    table = read_sow(
        spark, "orders", "id LONG, qty LONG, note STRING", options={**options, "topic_prefix": f"{unique}.desk."}
    )
    found = {row.id: (row.qty, row.note, row._sow.source.partition("/")[0]) for row in table.toLocalIterator()}
    assert found == {1: (5, "x", f"legacy.{unique}"), 2: (6, None, f"legacy.{unique}")}
    admin.delete([spec.name for spec in specs(config)])


READERS = {
    "read_sow": read_sow,
    "read_deltas": read_deltas,
    "read_changes": lambda *args, **more: read_changes(*args, images="post", **more),
    "stream_sow": stream_sow,
    "stream_deltas": stream_deltas,
    "stream_changes": stream_changes,
}


def family(bootstrap: str, name: str, headers: dict[str, bytes], **settings: str) -> History:
    """A family whose topics have a record, a tombstone with a mark's key, and a later record."""
    history = History(name, bootstrap)
    key, _, _ = moved_record("orders_12")
    for role in ("sow", "delta"):
        history.create(role, **(settings if role == "sow" else {}))
        history.write(role, ("1", b'{"id":1}'), headers={"version": b"1", "kind": b"insert"})
        history.write(role, (key.decode(), None), headers=headers)
        history.write(role, ("1", b'{"id":1,"n":2}'), headers={"version": b"2"})
    return history


@pytest.mark.broker
def test_every_reader_gets_the_new_name(spark, bootstrap, unique) -> None:
    """A read and a stream are refused at the call, although records stand behind the mark."""
    headers = dict(moved_record("orders_12")[2])
    moved = family(bootstrap, unique, headers, delete__retention__ms=str(MOVED_RETENTION_MS))
    for read in READERS.values():
        with pytest.raises(TopicMoved, match="orders_12"):
            read(spark, moved.name, options=moved.options)


@pytest.mark.broker
def test_a_running_stream_fails_at_the_mark(spark, bootstrap, unique) -> None:
    """A query that was begun before the move fails with the place of the new name; a delete of that key fails none."""
    for number, headers in enumerate((dict(moved_record("orders_12")[2]), {"version": b"1", "kind": b"delete"})):
        history = family(bootstrap, f"{unique}{number}", headers)
        options = history.options | {"startingOffsets": "earliest"}
        for kind, stream in (("s", stream_sow), ("d", stream_deltas)):
            query = (
                stream(spark, history.name, options=options)
                .writeStream.format("memory")
                .queryName(f"{history.name}{kind}")
                .trigger(availableNow=True)
                .start()
            )
            try:
                if number == 0:
                    with pytest.raises(Exception, match=r"has moved, and gets no more records.*moved/orders_12"):
                        query.awaitTermination()
                else:
                    query.awaitTermination()
                    assert spark.table(f"{history.name}{kind}").count() == 3
            finally:
                query.stop()
