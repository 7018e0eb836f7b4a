"""Tests that bulk load and single records replay any SOW topic into the same store."""

import random

import pytest
from confluent_kafka import Message

from processor.errors import PartitionHeld
from processor.kafka.message import by_log, records
from processor.runtime.recovery import log_replay
from processor.runtime.recovery.log_replay import SowReplay
from processor.store.layered_state import LayeredState
from processor.store.rocksdb import RocksStore
from processor.store.rocksdb_memory import RocksMemory


def message(offset, key=b"k", value=b"{}", headers=(("version", b"1"),), partition=0, topic="orders.sow"):
    """Create a Kafka message."""
    return Message(
        topic=topic, partition=partition, offset=offset, key=key, value=value,
        headers=list(headers) or None, timestamp=(1, 1000 + offset),
    )  # fmt: skip


def topic_of(seed, count, keys, *, expiring):
    """Create records, deletes and headers of every kind; records from `expiring` on may expire."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    for offset in range(count):
        headers = [("version", b"%d" % rng.randrange(1, 5))] if rng.random() < 0.9 else []
        if rng.random() < 0.2:
            headers.append(rng.choice([("source", b"t/0/%d" % offset), ("correlation_id", b"id"), ("kind", b"insert")]))
        if offset >= expiring and rng.random() < 0.3:
            headers.append(("expires_at", b"%d" % rng.randrange(1, 9999)))
        if (value := None if rng.random() < 0.1 else b"%d" % offset) is None and rng.random() < 0.5:
            headers.append(("version", b"no number, at a tombstone nobody minds"))
        yield message(offset, b"%d" % rng.randrange(keys), value, headers)


@pytest.fixture
def open_log(tmp_path):
    """Open a store and its log with a target behind all records."""
    memory = RocksMemory(8 << 20)
    opened = []

    def make():
        store = RocksStore(tmp_path / str(len(opened)), identity="i", memory=memory)
        opened.append(store)
        log = SowReplay("orders.sow", 0, LayeredState(store, cache_bytes=1 << 20))
        log.target = 10**9
        return log, store

    yield make
    for store in opened:
        store.close()


@pytest.mark.parametrize("expiring", [0, 1500, 10**9])
@pytest.mark.parametrize("many", [0, 10**10])
def test_both_ways_end_in_the_same_state(open_log, monkeypatch, expiring, many):
    """Records, headers, expiry index and progress are equal after both ways."""
    monkeypatch.setattr(log_replay, "_MANY", many)
    (quick, quick_store), (slow, slow_store) = open_log(), open_log()
    messages = list(topic_of(5, 3_000, 300, expiring=expiring))
    for begin in range(0, len(messages), 250):
        quick.take_messages(messages[begin : begin + 250])
        slow.take(records(messages[begin : begin + 250]))
    assert quick.position == slow.position == 3_000
    assert quick_store.progress() == slow_store.progress()
    assert list(quick_store.scan()) == list(slow_store.scan())
    assert quick_store.expiring(None, 10_000) == slow_store.expiring(None, 10_000)


@pytest.mark.parametrize(
    "bad", [{"headers": [("version", b"one")]}, {"key": None}, {"headers": [("version", b"9" * 30)]}]
)
def test_a_foreign_record_is_reported_by_its_offset(open_log, bad):
    """A record that no worker wrote is found among thousands, also by the bulk load."""
    log, _ = open_log()
    messages = [message(offset) for offset in range(100)]
    messages[71] = message(71, **bad)
    with pytest.raises(PartitionHeld, match=r"orders.sow partition 0 offset 71 is not a SOW record"):
        log.take_messages(messages)


def test_messages_of_several_logs_are_separated():
    """Messages of mixed partitions and topics keep their order within each log."""
    rng = random.Random(9)
    print("seed 9")
    mixed = [
        message(offset, partition=rng.randrange(2), topic=rng.choice(["orders.sow", "orders.mark"]))
        for offset in range(200)
    ]
    parted = by_log(mixed)
    assert len(parted) == 4
    for (topic, partition), messages in parted.items():
        assert messages == [each for each in mixed if (each.topic(), each.partition()) == (topic, partition)]
