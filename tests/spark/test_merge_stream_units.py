"""The streaming merge without Spark: the test controls time, order and failures."""

from __future__ import annotations

import json
import random

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.record import Record
from processor.testing import ProcessorTestDriver

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")
pytest.importorskip("pandas", reason="pandas is not installed: pip install 'sowstream[spark]'")

from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.streaming.chunks import partition_of, slot_of
from spark_integration.merge.streaming.processor import InputEnd, MergeProcessor
from spark_integration.merge.streaming.state import BUCKET_MS, GRACE_MS
from tests.spark.micro_batches import MicroBatches

NOW_MS = 1_700_000_000_000
TTL_MS = 5_000


def _query(rng, input_end=None, **config) -> MicroBatches:
    # Most histories have all of their keys in one partition.
    settings = topic_settings("orders", {"foreign_partition": "accept", **config})
    return MicroBatches(lambda: MergeProcessor(settings, input_end=input_end), rng)


def _command(rng, key, sequences):
    """A publish, a delta, a delete or an invalid command of a client that repeats itself."""
    client = rng.choice("abc")
    sequences[client] += rng.choice([1, 1, 1, 0, -1, 3])
    headers = []
    if rng.random() < 0.7:
        headers = [("client", client.encode()), ("sequence", b"%d" % max(0, sequences[client]))]
    if rng.random() < 0.3:
        headers.append(("command", rng.choice([b"publish", b"sow_delete", b"delta_publish", b"nonsense"])))
    value = rng.choice([b'{"id":%d,"a":%d}', b'{"id":%d,"b":{"c":%d}}', b'{"id":9%d,"a":%d}', b'{"id":%d,%d'])
    return b"%d" % key, None if rng.random() < 0.1 else value % (key, rng.randrange(4)), headers


def _sent(told, role, partition=0):
    return [record for topic, at, record in told if topic == f"orders.{role}" and at == partition]


@pytest.mark.parametrize("seed", range(6))
def test_micro_batches_merge_as_a_worker_does(seed) -> None:
    """A history divided into any micro-batches, some of which fail and are repeated, gives the records of a worker."""
    print("seed", seed)
    rng = random.Random(seed)
    driver = ProcessorTestDriver(DeltaMerge, TopicConfig(), name="orders", now_ms=NOW_MS, partition=3)
    sequences = dict.fromkeys("abc", 0)
    commands = [_command(rng, rng.randrange(9), sequences) for _ in range(400)]
    driver.pipe_batch(commands)
    driver.commit()
    query, told, at = _query(rng), [], 0
    while at < len(commands):
        size = rng.randrange(1, 90)
        batch = {3: driver.input[at : at + size]}
        if rng.random() < 0.4:
            lost = query.run(batch, NOW_MS + at, fails=True)
            again = query.run(batch, NOW_MS + at)
            assert again == lost, "a micro-batch that comes again writes the same"
            told += again
        else:
            told += query.run(batch, NOW_MS + at)
        at += size
    for role in ("sow", "delta", "dlq"):
        expected = [(r.key, r.value, r.headers or []) for r in driver.read_output(role)]
        assert _sent(told, role, 3) == expected, role
    assert _sent(told, "dlq", 3)
    last = {key: (value, headers) for key, value, headers in _sent(told, "mark", 3)}
    assert last == {r.key: (r.value, r.headers or []) for r in driver.read_output("mark")}


@pytest.mark.parametrize("seed", range(6))
def test_nothing_expires_early_or_never(seed) -> None:
    """A record expires soon after its end, with the next version, whenever it is touched before."""
    print("seed", seed)
    rng = random.Random(seed)
    query = _query(rng, expiration=f"{TTL_MS}ms")
    ends, versions, gone, now_ms, offset = {}, {}, {}, NOW_MS, 0
    expired = 0
    for _ in range(120):
        now_ms += rng.choice([1, 40, 300, 1100, 2500])
        batch = []
        if rng.random() < 0.6:
            for _ in range(rng.randrange(1, 6)):
                key = b"%d" % rng.randrange(8)
                wanted = rng.choice([None, None, None, b"0", b"1", b"9"])
                headers = None if wanted is None else [("expiration", wanted)]
                batch.append(Record(key, b'{"id":%s}' % key, headers, offset, now_ms - rng.choice([0, 3, 700])))
                offset += 1
        told = query.run({0: batch}, now_ms) if batch else query.run({}, now_ms)
        for key, value, headers in _sent(told, "sow"):
            said = dict(headers)
            assert (
                int(said["version"]) == versions[key] + 1
                if key in versions
                else int(said["version"]) > gone.get(key, 0)
            )
            if value is None:
                assert said["kind"] == b"expire"
                assert 0 < ends.pop(key) <= now_ms, "early"
                gone[key] = versions.pop(key) + 1
                expired += 1
            else:
                versions[key] = int(said["version"])
                ends[key] = int(said.get("expires_at", b"0"))
        if not batch:
            late_ms = GRACE_MS + BUCKET_MS + 2500
            assert all(not end or end + late_ms >= now_ms for end in ends.values()), "late"
    assert expired > 10


def test_update_published_in_time_finds_its_record() -> None:
    """A job that is behind expires no record that a pending update may reach: its input's time counts."""
    query = _query(random.Random(1), expiration=f"{TTL_MS}ms")
    query.run({0: [Record(b"1", b'{"id":1,"a":1}', None, 0, NOW_MS)]}, NOW_MS)
    other = Record(b"2", b'{"id":2}', None, 1, NOW_MS + TTL_MS - 2)
    told = query.run({0: [other]}, NOW_MS + 60_000)
    assert [key for key, _, _ in _sent(told, "sow")] == [b"2"]
    late = Record(b"1", b'{"id":1,"b":2}', None, 2, NOW_MS + TTL_MS - 1)
    told = query.run({0: [late]}, NOW_MS + 61_000)
    assert [(key, value) for key, value, _ in _sent(told, "sow")] == [(b"1", b'{"id":1,"a":1,"b":2}')]


@pytest.mark.parametrize(
    ("later_ms", "is_gone"),
    [(0, False), (NOW_MS + TTL_MS + GRACE_MS - 1, False), (NOW_MS + TTL_MS + GRACE_MS, True)],
)
def test_a_query_that_asks_for_no_end_of_its_input_expires_what_was_due_before(later_ms, is_gone) -> None:
    """Micro-batches after the last question for the end of the input leave records to updates that wait in Kafka."""
    end = InputEnd(NOW_MS, later_ms)
    query = _query(random.Random(1), end, expiration=f"{TTL_MS}ms")
    query.run({0: [Record(b"1", b'{"id":1,"a":1}', None, 0, NOW_MS)]}, NOW_MS)
    # The first micro-batch without input, and those in which the record is checked again.
    expired = [row for minute in (2, 4, 6) for row in _sent(query.run({}, NOW_MS + minute * 60_000), "sow")]
    assert [value for _, value, _ in expired] == [None] * is_gone
    late = Record(b"1", b'{"id":1,"b":2}', None, 1, NOW_MS + TTL_MS - 1)
    told = query.run({0: [late]}, NOW_MS + 500_000)
    merged = b'{"id":1,"b":2}' if is_gone else b'{"id":1,"a":1,"b":2}'
    assert [value for _, value, _ in _sent(told, "sow")] == [merged]


def test_a_repeated_micro_batch_expires_what_it_did() -> None:
    """A micro-batch that asked for the end of the input expires the same records when a later run repeats it."""
    rng = random.Random(1)
    query, now_ms = _query(rng, expiration=f"{TTL_MS}ms"), NOW_MS + TTL_MS + 2 * GRACE_MS
    query.run({0: [Record(b"1", b'{"id":1,"a":1}', None, 0, NOW_MS)]}, NOW_MS)
    lost = query.run({}, now_ms, fails=True)
    assert _sent(lost, "sow")
    settings = topic_settings("orders", {"foreign_partition": "accept", "expiration": f"{TTL_MS}ms"})
    query._make = lambda: MergeProcessor(settings, input_end=InputEnd(now_ms, 0))
    assert query.run({}, now_ms) == lost


def test_key_that_is_touched_again_and_again_is_looked_for_once() -> None:
    """A record that expires has one entry in the index, however often it is touched before."""
    query = _query(random.Random(1), expiration="1h")
    for number in range(50):
        query.run({0: [Record(b"1", b'{"id":1}', None, number, NOW_MS + number * 1000)]}, NOW_MS + number * 1000)
    assert len(query._timers) == 1
    assert sum(len(rows) for (name, _), rows in query._maps.items() if name == "expiring") == 1


def test_acks_follow_in_the_next_micro_batch() -> None:
    """An ack is written once, after Kafka has its record, also without new input."""
    query = _query(random.Random(1))
    headers = [("client", b"c"), ("sequence", b"1"), ("ack_type", b"processed,persisted")]
    told = query.run({2: [Record(b"1", b'{"id":1}', headers, 0, NOW_MS)]}, NOW_MS)
    assert not _sent(told, "ack", 2)
    assert [json.loads(value)["ack_type"] for _, value, _ in _sent(query.run({}, NOW_MS + 500), "ack", 2)] == [
        "processed",
        "persisted",
    ]
    assert query.run({}, NOW_MS + 1000) == []


def test_record_of_a_foreign_key_is_sent_to_its_own_partition() -> None:
    """A record of a new key that belongs to another partition is forwarded to the input topic, as by a worker."""
    from processor.kafka.partitioner import partition_for

    home = partition_for(b"7", 4)
    query = _query(random.Random(1), foreign_partition="move")
    told = query.run({(home + 1) % 4: [Record(b"7", b'{"id":7}', None, 0, NOW_MS)]}, NOW_MS)
    assert told[0] == ("orders.publish", home, (b"7", b'{"id":7}', []))
    assert [topic for topic, *_ in told] == ["orders.publish", "orders.mark"]
    told = query.run({home: [Record(b"7", b'{"id":7}', None, 0, NOW_MS)]}, NOW_MS)
    assert [(key, value) for key, value, _ in _sent(told, "sow", home)] == [(b"7", b'{"id":7}')]


def test_record_without_a_key_is_sent_to_its_own_partition() -> None:
    """A record without a Kafka key is forwarded to the input topic with its key, to the partition of the key."""
    from processor.kafka.partitioner import partition_for

    told = _query(random.Random(1)).run({0: [Record(None, b'{"id":7}', None, 0, NOW_MS)]}, NOW_MS)
    assert told[0] == ("orders.publish", partition_for(b"7", 4), (b"7", b'{"id":7}', []))
    assert [topic for topic, *_ in told] == ["orders.publish", "orders.mark"]


def _begun(query, inputs, now_ms):
    """The first micro-batch of a query; its initial state has three keys and a mark in partition 1, nothing in 0."""
    sow = [
        Record(b"1", b'{"id":1,"a":1}', [("version", b"7")], 0, NOW_MS),
        Record(b"2", b'{"id":2}', [("version", b"3"), ("expires_at", b"%d" % (NOW_MS - 5))], 1, NOW_MS),
    ]
    mark = [Record(b"sequence//c", b"9", None, 0, NOW_MS)]
    initial = [(0, "beginning", []), (1, "beginning", []), (1, "sow", sow), (1, "mark", mark)]
    return query.run(inputs, now_ms, initial=initial)


def test_a_stream_goes_on_where_workers_stopped() -> None:
    """With the workers' topics as initial state, versions continue, duplicates are recognised, due records expire."""
    query = _query(random.Random(1))
    headers = [("client", b"c"), ("sequence", b"9")]
    inputs = {
        0: [Record(b"8", b'{"id":8}', None, 0, NOW_MS)],
        1: [Record(b"1", b'{"id":1,"b":2}', None, 0, NOW_MS), Record(b"1", b'{"id":1,"b":3}', headers, 1, NOW_MS)],
    }
    assert _begun(query, inputs, NOW_MS) == [], "what a first micro-batch told it would begin with when it came again"
    told = query.run({0: [Record(b"8", b'{"id":8,"x":1}', None, 1, NOW_MS)]}, NOW_MS + 2000)
    assert [(value, dict(said)["version"]) for _, value, said in _sent(told, "sow", 0)] == [
        (b'{"id":8}', b"1"),
        (b'{"id":8,"x":1}', b"2"),
    ]
    told += query.run({}, NOW_MS + 4000)
    assert [(key, value, dict(said)["version"]) for key, value, said in _sent(told, "sow", 1)] == [
        (b"1", b'{"id":1,"a":1,"b":2}', b"8"),
        (b"2", None, b"4"),
    ]


def test_a_slot_stands_for_one_partition() -> None:
    """Slots are 32-bit integers from which their partitions can be computed."""
    slots = [slot_of(partition) for partition in range(10_000)]
    assert len(set(slots)) == len(slots)
    assert all(-(2**31) <= slot < 2**31 for slot in slots)
    assert [partition_of(slot) for slot in slots] == list(range(10_000))


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("client", "is_merged"), [(b"feed", False), (b"feed-0123abcd", False), (b"feed~once-0123abcd", True)]
)
def test_a_publisher_is_known_for_ever_and_a_name_for_one_occasion_for_a_week(client, is_merged) -> None:
    """The last number of a publisher that was quiet for eight days is dropped as a repeat, as by workers."""
    query = _query(random.Random(1))

    def publish(*sequences, offset, now_ms):
        headers = [[("client", client), ("sequence", b"%d" % sequence)] for sequence in sequences]
        records = [Record(b"1", b'{"id":1}', one, offset + at, now_ms) for at, one in enumerate(headers)]
        return _sent(query.run({0: records}, now_ms), "sow")

    assert len(publish(5, 6, offset=0, now_ms=NOW_MS)) == 2
    assert publish(6, offset=2, now_ms=NOW_MS + 6 * DAY_MS) == []
    assert len(publish(6, offset=3, now_ms=NOW_MS + 14 * DAY_MS)) == is_merged
