"""Spark's functions on an installation with a prefix and a mapped input."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer

from processor.config import Config
from processor.errors import ConfigurationError
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from spark_integration import merge_batch, publish_deltas, read_sow
from spark_integration.foundation.options import sink_options, source_options
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.batch.handover import hand_over
from spark_integration.read.source.source_options import parse_source_options

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
@pytest.mark.slow
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
