"""The streaming merge on a real Kafka: its output and its checks."""

from __future__ import annotations

import json
import random
import time

import pytest
from confluent_kafka import Producer

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.errors import ConfigurationError
from processor.kafka.admin.admin import Admin
from processor.kafka.partitioner import partition_for
from processor.testing import ProcessorTestDriver
from processor.topics.family import family_specs
from processor.wire.control import SPARK, Fence
from tests.spark.conftest import PARTITIONS

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    # A limit that ends a test within a call to the JVM breaks the session for all tests after it.
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

ROLES = ("publish", "sow", "delta", "dlq", "ack", "mark")
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
PATIENCE_S = 600


@pytest.fixture
def merging(spark):
    """The session with the settings for a streaming merge."""
    before = {name: spark.conf.get(name) for name in (PROVIDER, NO_DATA)}
    spark.conf.set(PROVIDER, ROCKSDB)
    yield spark
    for query in spark.streams.active:
        query.stop()
    for name, value in before.items():
        spark.conf.set(name, value)


def _create(family):
    """Create the topics as `sowstream topics apply` does."""
    Admin(family._client).create(family_specs(family.name, ROLES, partitions=PARTITIONS))


def _publish(family, commands):
    producer = Producer({**family._client, "partitioner": "murmur2_random"})
    for key, value, headers in commands:
        producer.produce(f"{family.name}.publish", value, key, headers=headers)
    assert producer.flush(120) == 0


def _commands(rng, count, sequences):
    for _ in range(count):
        key, client = rng.randrange(9), rng.choice("ab")
        sequences[client] += rng.choice([1, 1, 1, 0])
        headers = [("client", client.encode()), ("sequence", b"%d" % sequences[client])] if rng.random() < 0.3 else []
        if rng.random() < 0.3:
            headers.append(("command", rng.choice([b"publish", b"sow_delete", b"delta_publish", b"nonsense"])))
        value = rng.choice([b'{"id":%d,"a":%d}', b'{"id":%d,"b":{"c":%d}}', b'{"id":9%d,"a":%d}', b'{"id":%d,%d'])
        yield b"%d" % key, value % (key, rng.randrange(4)), headers


def _read(family, role, partition):
    records = [record for record in family.read(role) if record.partition() == partition]
    return [(record.key(), record.value(), record.headers() or []) for record in records]


@pytest.mark.long
def test_a_stream_merges_as_workers_do_and_repeats_the_same_records(merging, family, tmp_path) -> None:
    """A stream continues from a worker's records as the worker would; a repeated batch writes the same records."""
    from spark_integration.merge.streaming.merge_stream import merge_stream

    merging.conf.set(NO_DATA, "false")  # Else there is no last micro-batch.
    rng = random.Random(5)
    _create(family)
    with family.transaction("sow") as write:
        write("77", '{"id":77,"a":1}', version="7")
    drivers = [
        ProcessorTestDriver(DeltaMerge, TopicConfig(), name=family.name, partition=partition)
        for partition in range(PARTITIONS)
    ]
    sequences = {"a": 0, "b": 0}

    def publish(count):
        commands = list(_commands(rng, count, sequences))
        for command in commands:
            drivers[partition_for(command[0], PARTITIONS)].pipe_batch([command])
        _publish(family, commands)

    def start():
        writer = merge_stream(merging, family.name, config={"partitions": PARTITIONS}, options=family.options)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = start()
    known = (b"77", b'{"id":77,"b":2}', [])
    drivers[partition_for(b"77", PARTITIONS)].pipe_batch([known])
    _publish(family, [known])
    for count in (60, 40):
        publish(count)
        query.processAllAvailable()
    query.stop()
    publish(80)  # All of it is the last micro-batch's.
    query = start()
    query.processAllAvailable()
    query.stop()
    told = {(role, at): _read(family, role, at) for role in ("sow", "delta", "dlq") for at in range(PARTITIONS)}
    for (role, at), records in told.items():
        expected = [(r.key, r.value, r.headers or []) for r in _committed(drivers[at], role) if r.key != b"77"]
        assert [record for record in records if record[0] != b"77"] == expected, (role, at)
    at = partition_for(b"77", PARTITIONS)
    assert (b"77", b'{"id":77,"a":1,"b":2}', [("version", b"8")]) in told["sow", at]
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for name in (str(last), f".{last}.crc"):  # With its checksum: Spark would take that for another query's.
        (commits / name).unlink()
    query = start()
    query.processAllAvailable()
    query.stop()
    repeated = 0
    for (role, at), records in told.items():
        again = _read(family, role, at)[len(records) :]
        assert again == records[len(records) - len(again) :], (role, at)
        repeated += len(again)
    assert repeated > 50


def _committed(driver, role):
    driver.commit()
    return driver.read_output(role)


@pytest.mark.long
def test_records_expire_and_acks_follow_their_records(merging, family, tmp_path) -> None:
    """A record expires after its time without any input; an ack is written after its record, not before."""
    from spark_integration.merge.streaming.merge_stream import merge_stream

    _create(family)
    config = {"partitions": PARTITIONS, "expiration": "2s"}
    writer = merge_stream(merging, family.name, config=config, options=family.options, initial=None)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="300 milliseconds").start()
    _publish(family, [(b"1", b'{"id":1}', [("ack_type", b"persisted"), ("client", b"c"), ("sequence", b"1")])])
    until_s = time.monotonic() + PATIENCE_S
    while len(found := family.read("sow")) < 2:
        assert query.exception() is None
        assert time.monotonic() < until_s, found
        time.sleep(0.2)  # Between two looks.
    query.stop()
    record, end = found
    assert (end.value(), dict(end.headers())["kind"]) == (None, b"expire")
    assert end.timestamp()[1] >= int(dict(record.headers())["expires_at"])
    (ack,) = family.read("ack")
    assert json.loads(ack.value())["ack_type"] == "persisted"
    assert ack.timestamp()[1] >= record.timestamp()[1]


def test_a_query_that_is_to_end_asks_for_the_end_of_its_input_at_its_start(
    merging, family, monkeypatch, tmp_path
) -> None:
    """With `availableNow`, by `merge_stream` and after a takeover, records that are due after the start stay."""
    from spark_integration.foundation.settings import topic_settings
    from spark_integration.merge.moves.merge_query import MergeQuery
    from spark_integration.merge.streaming import merge_stream as module

    _create(family)
    ends = []

    def note(_settings, _bytes_max, _input_id, input_end) -> None:
        ends.append(input_end)
        raise InterruptedError

    monkeypatch.setattr(module, "MergeProcessor", note)
    before_ms, config = int(time.time() * 1000), {"partitions": PARTITIONS}
    query = MergeQuery(merging, topic_settings(family.name, config), config, family.options)
    fence = Fence(at_ms=0, phase=SPARK, number=1, checkpoint=str(tmp_path))
    for start in (
        lambda: module.merge_stream(merging, family.name, config=config, options=family.options),
        lambda: query.start(fence, "1 second"),
        lambda: module.merge_stream(merging, family.name, config=config, options=family.options, once=True),
        lambda: query.start(fence, None),
    ):
        with pytest.raises(InterruptedError):
            start()
    assert ends[:2] == [None, None]
    for end in ends[2:]:
        assert end.asked_ms == end.later_ms
        assert before_ms <= end.asked_ms <= time.time() * 1000


def test_state_that_spark_cannot_keep_is_refused(spark) -> None:
    """A session without RocksDB is refused, and the error names the setting."""
    from spark_integration.merge.streaming.merge_stream import merge_stream

    ours = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, ours.replace("RocksDB", "HDFSBacked"))
    try:
        with pytest.raises(ConfigurationError, match=f"{PROVIDER}=.*RocksDB"):
            merge_stream(spark, "orders", config={}, options={"kafka.bootstrap.servers": "nowhere:1"})
    finally:
        spark.conf.set(PROVIDER, ours)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"config": None}, "config={}"),
        ({"initial": "begin"}, "initial='begin'"),
        ({"options": {"kafka.acks": "1"}}, "kafka.acks"),
        ({"options": {"kafka.enable.idempotence": "false"}}, "kafka.enable.idempotence"),
        ({"options": {"kafka.transactional.id": "x"}}, "no transactions"),
        ({"options": {"minOffsetsPerTrigger": "5"}}, "'minOffsetsPerTrigger' cannot be given: a record would expire"),
        ({"options": {"kafka.partitioner.class": "x"}}, "kafka.partitioner.class"),
        ({"options": {"kafka.sasl.jaas.config": "x"}}, "section `kafka` of the settings"),
        ({}, "does not exist"),
    ],
)
def test_settings_that_would_lose_records_are_refused(merging, family, given, why) -> None:
    """Settings and options that would lose records or their order are errors before anything starts."""
    from spark_integration.merge.streaming.merge_stream import merge_stream

    options = family.options | given.get("options", {})
    with pytest.raises(ConfigurationError, match=why):
        merge_stream(merging, family.name, **{"config": {}, **given, "options": options})
