"""The replay of a log into a state, and the input position at which a partition goes on."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Message
from structlog.testing import capture_logs

from processor.builtin.conflate.conflate import Conflate
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.builtin.pass_through import PassThrough
from processor.config import ConflatedConfig, TopicConfig
from processor.errors import DefinitionChanged, PartitionHeld
from processor.hosting.pipeline import Pipeline
from processor.kafka.message import by_log, records
from processor.record import Record, Stored
from processor.runtime.recovery import log_replay
from processor.runtime.recovery.input_position import Beginning, InputPositions, Start, settled_by_records
from processor.runtime.recovery.log_replay import PresentKeys, SowReplay
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from processor.store.rocksdb import RocksStore
from processor.store.rocksdb_memory import RocksMemory
from processor.wire.partition_marks import InputPosition

if TYPE_CHECKING:
    from pydantic import BaseModel

    from processor.api import Processor


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


@pytest.mark.parametrize("seed", range(20))
def test_keys_that_do_not_fit_into_memory_are_compared_in_passes(seed, monkeypatch):
    """Each key of the state that the input lacks is found, and the memory is bounded, with the end reported twice."""
    monkeypatch.setattr(log_replay, "_PRESENT_MAX", 10)
    rng = random.Random(seed)
    state = LayeredState(MemoryStore(), cache_bytes=0)
    state.restore({b"%d" % key: Stored(key + 1, b"{}") for key in range(0, 200, 2)}, 1, 1)
    log = [
        Record(b"%d" % rng.randrange(200), None if rng.random() < 0.3 else b"{}", None, offset, 0)
        for offset in range(300)
    ]
    present, passes = PresentKeys("orders.sow", 0, 0, len(log), state), 0
    while not present.is_complete:
        if passes:
            present.finish(len(log))  # The end that was reported with the last records of the pass before.
        while present.position < len(log):
            present.take(log[present.position : present.position + 7])
            assert len(present._keys) <= 10
        present.finish(len(log))
        passes += 1
    assert passes > 3
    there = {record.key for record in {each.key: each for each in log}.values() if record.value is not None}
    expected = {b"%d" % key: b"%d" % (key + 2) for key in range(0, 200, 2) if b"%d" % key not in there}
    deletes = present.deletes(500)
    assert {record.key: dict(record.headers)["version"] for record in deletes} == expected
    assert [record.offset for record in deletes] == list(range(500 - len(expected), 500))


OURS = InputPosition("desk", "topic-1", 100, "seen 104")


@pytest.fixture
def positions() -> InputPositions:
    """Create the positions of `orders`, whose input is `topic-1`."""
    created = InputPositions("desk", "orders", "orders.publish")
    created.topic_id = "topic-1"
    return created


def group_offset(
    committed: int | None, note: str | None = None, *, oldest: int = 0, has_records: bool = True
) -> dict[str, Any]:
    """Create the arguments for a group offset."""
    is_new = committed is None
    start = Start(oldest if committed is None else committed, is_new=is_new, metadata=note, oldest=oldest)
    return {"start": start, "has_records": has_records}


@pytest.mark.parametrize(
    "position",
    [OURS, OURS._replace(note='sow 7 mark 8 sowstream noted é"'), OURS._replace(settings={"key": "1f"})],
)
def test_a_written_position_is_read_back(position):
    """Any note is read back, and members that a later version adds are ignored."""
    written = bytes(position)
    assert InputPosition.read(written) == position
    assert InputPosition.read(written[:-1] + b',"more":1}') == position


def settings_of(processor_type: type[Processor], settings: BaseModel, topic: TopicConfig) -> dict[str, str]:
    """Return the digests that a worker compares."""
    underlying = "orders" if processor_type is Conflate else None
    return settled_by_records(Pipeline.of(processor_type, settings, name="x", topic=topic, underlying=underlying))


def test_the_records_of_a_partition_keep_the_settings_that_they_were_made_with():
    """Another key or filter, or a time without SOW, is refused by the position alone; other settings may change."""
    topic = TopicConfig(key=("/id",), partitions=4)
    copy = ConflatedConfig(underlying="orders", filter="/qty > 10")
    made = settings_of(DeltaMerge, topic, topic), settings_of(Conflate, copy, topic)
    for former, changed, name in (
        (made[0], settings_of(DeltaMerge, topic, topic.model_copy(update={"key": ("/sku",)})), "key"),
        (settings_of(PassThrough, topic, topic.model_copy(update={"sow": False})), made[0], "sow"),
        (made[1], settings_of(Conflate, copy.model_copy(update={"filter": "/qty < 10"}), topic), "filter"),
        (made[1], settings_of(Conflate, copy.model_copy(update={"filter": None}), topic), "filter"),
    ):
        positions = InputPositions("desk", "orders", "orders.publish", settings=changed, remedy="do this")
        with pytest.raises(DefinitionChanged, match=f"another {name}, .* set it back, or do this"):
            positions.refuse_changed(OURS._replace(settings=former))
        positions.refuse_changed(OURS._replace(settings=changed))
        positions.refuse_changed(OURS)  # Of a former version, or of a tool.
    respelled = copy.model_copy(update={"filter": " /qty>10\n"})
    assert settings_of(Conflate, respelled, topic) == made[1]
    faster = copy.model_copy(update={"interval": 1.0})
    later = topic.model_copy(update={"expiration": 60.0})
    assert (settings_of(DeltaMerge, later, later), settings_of(Conflate, faster, topic)) == made


def test_the_digest_of_a_filter_stays_the_same_in_later_versions():
    """Another one would stop every copy that has a filter: the names and fields of the syntax tree are kept."""
    text = (
        "[c]./a/0 = 'x' AND NOT (/b BETWEEN 1 AND 2.5 OR /c IN (1, null) OR /d LIKE 'a%') AND /e BEGINS WITH ('a') "
        "AND /f ENDS WITH ('b') AND /g IS NULL AND /h IS NAN AND -/i + 1 < IF(/j = true, LENGTH(/k), 3)"
    )
    copy = ConflatedConfig(underlying="orders", filter=text)
    assert settings_of(Conflate, copy, TopicConfig())["filter"] == "a988307ce234"


@pytest.mark.parametrize("value", [None, b"", b"{}", b"7", b"[]", b"\xff", b'{"offset":"x"}', b"null"])
def test_another_value_is_no_position(value):
    """Tombstones and values of other programs are no positions."""
    assert InputPosition.read(value) is None


@pytest.mark.parametrize(
    ("what", "position", "begin"),
    [
        (group_offset(None, has_records=False), None, Beginning(0, None)),
        (group_offset(None, oldest=20, has_records=False), None, Beginning(20, None)),
        (group_offset(100), None, Beginning(100, None)),
        (group_offset(100, "sowstream noted a"), OURS, Beginning(100, "sowstream noted a")),
        (group_offset(None), OURS, Beginning(100, "seen 104")),
        (group_offset(90, "sow 7 mark 8"), OURS, Beginning(90, "sow 7 mark 8")),
        (group_offset(120, "sow 7 mark 8"), OURS, Beginning(120, "sow 7 mark 8")),
        (group_offset(120), OURS, Beginning(120, None)),
    ],
    ids=["new", "new, old input", "no position", "agree", "no group", "tail", "lag", "ahead"],
)
def test_the_beginning_by_group_offset_and_position(positions, what, position, begin):
    """A new group begins with the oldest record; without an offset a group begins at the position."""
    assert positions.begin(3, position=position, **what) == begin


def test_a_group_ahead_of_the_position_is_logged(positions):
    """Records were skipped, or merged by an older version: the partition goes on with a warning."""
    with capture_logs() as logs:
        positions.begin(3, position=OURS, **group_offset(120))
        positions.begin(3, position=OURS, **group_offset(100))
    assert [entry["offset"] for entry in logs] == [120]


@pytest.mark.parametrize(
    ("what", "position", "reason", "says"),
    [
        (group_offset(None), None, "offsets_lost", "nothing says which input its outputs have"),
        (group_offset(90), OURS, "offsets_lost", "somebody has set the group back"),
        (group_offset(90, "sowstream noted a"), OURS, "offsets_lost", "somebody has set the group back"),
        (group_offset(100), OURS._replace(topic_id="topic-0"), "offsets_lost", "another topic of this name"),
        (group_offset(None), OURS._replace(topic_id="topic-0"), "offsets_lost", "as on a mirrored cluster"),
        (group_offset(100), OURS._replace(application_id="old"), "offsets_lost", "by application_id 'old'"),
        (group_offset(90, oldest=95), None, "input_gone", "sowstream offsets adopt orders --from earliest"),
        (group_offset(None, oldest=101), OURS, "input_gone", "the oldest record kept is 101"),
    ],
)
def test_a_partition_with_contradictory_positions_is_held(positions, what, position, reason, says):
    """The error message has a command for each way out."""
    with pytest.raises(PartitionHeld, match=r"orders\.publish partition 3") as raised:
        positions.begin(3, position=position, **what)
    assert raised.value.reason == reason
    assert says in str(raised.value)
    assert "sowstream offsets adopt orders --from" in str(raised.value)
