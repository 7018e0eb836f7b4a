"""Keys of any producer: other partitioners, other spellings, other formats of the Kafka key (spec producers.md)."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter

import pytest

from processor.builtin.delta_merge import plain
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.kafka.partitioner import partition_for
from processor.record import Stored
from processor.testing import ProcessorTestDriver
from tests.builtin.delta_merge.both_ways import needs_compiled
from tests.builtin.merging import acks, bodies, kinds, rejected, told
from tests.codec import avro_world

PARTITIONS = 4
HERE = 2
OURS = next(f"{n}" for n in range(100) if partition_for(b"%d" % n, PARTITIONS) == HERE)
FOREIGN = next(f"{n}" for n in range(100) if partition_for(b"%d" % n, PARTITIONS) != HERE)


def partition(number: int = HERE, **settings) -> ProcessorTestDriver:
    """A driver of one partition of four, whose stream time is that of the clock."""
    topic = TopicConfig.model_validate({"partitions": PARTITIONS, **settings})
    place = {"partition": number, "partitions": PARTITIONS}
    return ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic, behind_ms=0, **place)


@pytest.fixture(params=["compiled", "in parts"])
def way(request, monkeypatch):
    """Settings under which new keys are seen by each of the two implementations of the merge."""
    if request.param == "compiled":
        if not plain.has_compiled:
            pytest.skip("compiled_deltas was not compiled: no C compiler")
    else:
        monkeypatch.setattr(plain, "has_compiled", False)
    return {}


class TestAnotherPartitioner:
    """A key that murmur2 puts on another partition."""

    def test_a_new_key_is_moved_with_its_headers(self, way):
        """A record of a new key that belongs elsewhere is forwarded to the input topic as it came, and not merged."""
        driver = partition(**way)
        headers = {"traceparent": "00-1", "correlation_id": "abc=", "command": "publish"}
        driver.pipe_batch([(OURS, {"id": int(OURS)}, None), (FOREIGN, {"id": int(FOREIGN), "a": 1}, headers)])
        driver.pipe_input(FOREIGN, {"id": int(FOREIGN), "a": 2})
        assert [record.key for record in driver.pending_output("sow")] == [OURS.encode()]
        first, second = driver.pending_output("publish")
        assert (first.key, first.value, told(first)) == (
            FOREIGN.encode(),
            b'{"id":%s,"a":1}' % FOREIGN.encode(),
            headers,
        )
        assert (second.key, second.headers) == (FOREIGN.encode(), [])
        driver.commit()
        assert driver.events == {"moved": 2}
        assert len(driver.input) == 3  # It does not come back to this partition.

    @pytest.mark.parametrize("value", [None, {"a": 1}], ids=["tombstone", "sow_delete"])
    def test_a_delete_of_a_key_without_a_record_is_moved(self, value, way):
        """The record that a delete means may live in the key's own partition, so the delete goes there."""
        driver = partition(**way)
        driver.pipe_input(FOREIGN, value, {"command": "sow_delete"})
        [moved] = driver.pending_output("publish")
        assert (moved.key, moved.value is None) == (FOREIGN.encode(), value is None)

    def test_a_known_key_stays(self, way):
        """A key that has a record in this partition is merged here, although its hash names another one."""
        driver = partition(foreign_partition="accept", **way)
        driver.pipe_input(FOREIGN, {"id": int(FOREIGN), "a": 1})
        state = driver.state.get_many([FOREIGN.encode()])
        moving = partition(**way)
        moving.state.put_many(state)
        moving.pipe_input(FOREIGN, {"a": 2})
        assert [record.key for record in moving.pending_output("sow")] == [FOREIGN.encode()]
        assert moving.pending_output("publish") == []

    @pytest.mark.parametrize("is_expired_before", [True, False], ids=["timer first", "command first"])
    @pytest.mark.parametrize("mode", ["move", "reject"])
    def test_a_command_on_a_record_whose_time_is_over_is_for_a_new_key(self, mode, is_expired_before, way):
        """A key begins its next life in its own partition, whether the timer or a command ends the one here."""
        driver = partition(foreign_partition=mode, **way)
        driver.state.put_many({FOREIGN.encode(): Stored(1, b'{"id":%s}' % FOREIGN.encode(), driver.now_ms + 1_000)})
        if is_expired_before:
            driver.advance_time(1_000)
        else:
            driver.now_ms += 1_000
        driver.pipe_input(FOREIGN, {"id": int(FOREIGN), "a": 1})
        assert kinds(driver.pending_output("sow")) == [(FOREIGN, "2", "expire")]
        assert [record.key for record in driver.pending_output("publish")] == [FOREIGN.encode()] * (mode == "move")
        assert [reason for reason, _ in rejected(driver)] == ["wrong_partition"] * (mode == "reject")

    def test_reject(self, way):
        """Under `foreign_partition: reject` the record is a dead letter that names both partitions."""
        driver = partition(foreign_partition="reject", **way)
        driver.pipe_input(FOREIGN, {"id": int(FOREIGN)})
        [(reason, detail)] = rejected(driver)
        belongs = partition_for(FOREIGN.encode(), PARTITIONS)
        assert reason == "wrong_partition"
        assert f"partition {belongs} of orders.publish" in detail
        assert f"came to partition {HERE}" in detail

    def test_accept(self, way):
        """Under `foreign_partition: accept` a record is merged where it came."""
        driver = partition(foreign_partition="accept", **way)
        driver.pipe_input(FOREIGN, {"id": int(FOREIGN)})
        assert [record.key for record in driver.pending_output("sow")] == [FOREIGN.encode()]

    @needs_compiled
    def test_the_compiled_hash_is_the_partitioners(self):
        """Keys of every length up to 40 bytes, of any bytes, are placed alike by the compiled and the Python hash."""
        draw = random.Random(19)
        keys = [draw.randbytes(size % 41) for size in range(2_000)]
        driver = partition(key="explicit")
        assert driver is not None
        for number in range(PARTITIONS):
            compiled = partition(number)
            texts = [key.hex() for key in keys]
            compiled.pipe_batch([(text, b'{"id":"%s"}' % text.encode(), None) for text in texts])
            stayed = {record.key for record in compiled.pending_output("sow")}
            assert stayed == {t.encode() for t in texts if partition_for(t.encode(), PARTITIONS) == number}


class TestReservedKeys:
    """A key that only Sowstream writes."""

    KEYS = ("\0sowstream/moved/x", "\0sowstream/", "\0sowstream/input")

    @pytest.mark.parametrize("key", KEYS)
    @pytest.mark.parametrize("mode", ["move", "reject", "accept"])
    @pytest.mark.parametrize("has_key", [True, False])
    def test_a_command_is_a_dead_letter(self, way, key, mode, has_key):
        """Every command is refused with its value, with a Kafka key and without one, wherever foreign keys go."""
        driver = partition(foreign_partition=mode, **way)
        kafka_key = key if has_key else None
        body = {"id": key, "a": 1}
        driver.pipe_batch([
            (kafka_key, body, None), (kafka_key, body, {"command": "publish"}), (OURS, {"id": int(OURS)}, None),
            (kafka_key, body, {"command": "sow_delete"}), (kafka_key, body, {"client": "c", "sequence": "1"}),
        ])  # fmt: skip
        assert [record.key for record in driver.pending_output("sow")] == [OURS.encode()]
        assert driver.pending_output("publish") == []
        assert [reason for reason, _ in rejected(driver)] == ["missing_key"] * 4
        letters = driver.pending_output("dlq")
        assert [letter.key for letter in letters] == [None if kafka_key is None else key.encode()] * 4
        assert [json.loads(letter.value or b"") for letter in letters] == [body] * 4

    def test_a_tombstone_is_a_dead_letter(self, way):
        """A delete under such a key could only be a forged mark, as there is no such record."""
        driver = partition(**way)
        for key in self.KEYS:
            driver.pipe_input(key, None, {"version": "1", "sowstream_moved_to": "x"})
        assert [reason for reason, _ in rejected(driver)] == ["missing_key"] * 3
        assert driver.pending_output("sow") == driver.pending_output("delta") == driver.pending_output("publish") == []

    def test_a_record_of_before_can_be_deleted(self, way):
        """A record that an earlier version stored can be changed and deleted; its tombstone has a kind."""
        driver = partition(**way)
        key = self.KEYS[0].encode()
        driver.state.put_many({key: Stored(3, b'{"id":"\\u0000sowstream/moved/x"}')})
        driver.pipe_input(key, {"a": 1})
        driver.pipe_input(key, None)
        changed, deleted = (told(record) for record in driver.pending_output("sow"))
        assert (changed["version"], deleted["version"], deleted["kind"]) == ("4", "5", "delete")

    def test_keys_of_other_formats_and_of_several_fields(self):
        """A key that is read from JSON is refused; a key of several fields is an array, and so is no reserved one."""
        driver = partition(key_format="json")
        driver.pipe_input(json.dumps({"id": self.KEYS[0]}), {"a": 1})
        assert [reason for reason, _ in rejected(driver)] == ["missing_key"]
        several = partition(key=["/id", "/b"], foreign_partition="accept")
        several.pipe_input(self.KEYS[0], None)
        assert [reason for reason, _ in rejected(several)] == ["missing_key"]
        several.pipe_input(b'["\\u0000sowstream/moved/x","1"]', None)
        assert len(rejected(several)) == 1


class TestSequencesOfMovedRecords:
    """A moved record is the same publisher's wherever it is merged."""

    def test_a_repeat_is_dropped_after_the_move(self):
        """Repeats of one sequence number that are moved are merged once; numbers of other partitions do not count."""
        came_in = partition(next(n for n in range(PARTITIONS) if n != partition_for(b"7", PARTITIONS)))
        target = partition(partition_for(b"7", PARTITIONS))
        target.pipe_input("7", {"id": 7, "n": 9}, {"client": "c", "sequence": "9"})
        for number in (1, 1, 2):
            came_in.pipe_input("7", {"n": number}, {"client": "c", "sequence": str(number)})
        for moved in came_in.pending_output("publish"):
            target.pipe_input(moved.key, moved.value, moved.headers)
        target.commit()
        assert [body["n"] for body in bodies(target.read_output("sow"))] == [9, 1, 2]
        assert target.events == {"duplicate": 1}


def test_producers_of_any_partitioner_leave_every_key_in_one_partition():
    """Records of one key that come to all partitions at once end in its own, in the order of each partition."""
    draw = random.Random(4)
    drivers = [partition(number) for number in range(PARTITIONS)]
    last: dict[tuple[int, str], int] = {}
    for number in range(2_000):
        at, key = draw.randrange(PARTITIONS), str(draw.randrange(50))
        drivers[at].pipe_input(key, {"id": int(key), f"from{at}": number})
        last[at, key] = number
        if draw.random() < 0.1:
            deliver(drivers)
    deliver(drivers)
    for number, driver in enumerate(drivers):
        for record in driver.read_output("sow"):
            assert partition_for(record.key, PARTITIONS) == number
    world = {
        record.key.decode(): json.loads(record.value) for driver in drivers for record in driver.read_output("sow")
    }
    expected: dict[str, dict[str, int]] = {}
    for (at, key), number in last.items():
        expected.setdefault(key, {"id": int(key)})[f"from{at}"] = number
    assert world == expected


def deliver(drivers: list[ProcessorTestDriver]) -> None:
    """Commit every partition, and bring forwarded records to their partition, as Kafka does."""
    for driver in drivers:
        seen = len(driver.read_output("publish"))
        driver.commit()
        for record in driver.read_output("publish")[seen:]:
            at = partition_for(record.key, PARTITIONS)
            drivers[at].pipe_input(record.key, record.value, record.headers)
    for driver in drivers:
        driver.commit()


class TestSpellingOfKeysOfSeveralFields:
    """The key of several fields is one text: their compact JSON array."""

    SPELLINGS = (b'["x", "EURUSD"]', b' ["x","EURUSD"]\n', b'["\\u0078","EURUSD"]')

    @pytest.mark.parametrize("spelling", SPELLINGS)
    def test_another_spelling_is_forwarded_under_the_text(self, spelling):
        """A record under another spelling of its key is merged under the canonical text, once, with one state."""
        topic = TopicConfig(key=("/book", "/sym"))
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_input(spelling, {"book": "x", "sym": "EURUSD", "q": 1})
        driver.pipe_input(b'["x","EURUSD"]', {"r": 2})
        driver.commit()
        driver.commit()
        assert {record.key for record in driver.read_output("sow")} == {b'["x","EURUSD"]'}
        assert bodies(driver.read_output("sow"))[-1] == {"r": 2, "book": "x", "sym": "EURUSD", "q": 1}
        assert driver.events == {"moved": 1}

    @pytest.mark.parametrize("mode", ["reject", "accept"])
    def test_another_spelling_is_rejected_where_nothing_is_moved(self, mode):
        """Without `move` another spelling of a key, which would make a second record, is rejected."""
        topic = TopicConfig(key=("/book", "/sym"), foreign_partition=mode)
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_input(self.SPELLINGS[0], {"book": "x", "sym": "EURUSD"})
        [(reason, detail)] = rejected(driver)
        assert (reason, '["x","EURUSD"]' in detail) == ("key_mismatch", True)


class TestSpellingOfUuids:
    """The key of a UUID, by an Avro schema, is its usual form; messages of .NET and SQL Server have it in capitals."""

    USUAL = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    SPELLINGS = (USUAL.upper(), USUAL.replace("-", ""), f"{{{USUAL}}}")

    @pytest.mark.parametrize("spelling", SPELLINGS)
    @pytest.mark.parametrize("message_key", [0, 1], ids=["spelled in the message", "usual in the message"])
    def test_another_spelling_is_forwarded_under_the_usual_one(self, spelling, message_key):
        """A record under another spelling of its UUID is merged under the usual one, with a record of that one."""
        driver = self.driver()
        driver.pipe_input(spelling, self.message((spelling, self.USUAL)[message_key], 1))
        driver.pipe_input(self.USUAL, self.message(spelling, 2))
        driver.commit()
        driver.commit()
        records = driver.read_output("sow")
        assert {record.key for record in records} == {self.USUAL.encode()}
        assert [record.value for record in records] == [self.message(self.USUAL, 2), self.message(self.USUAL, 1)]
        assert rejected(driver) == []
        assert driver.events == {"moved": 1}

    def test_other_keys_stay_what_they_are(self):
        """A key that is another UUID, or none, does not agree with that of the message; a delete finds its record."""
        driver = self.driver()
        for key in ("7", self.USUAL[:-1] + "2"):
            driver.pipe_input(key, self.message(self.USUAL, 1))
        assert [reason for reason, _ in rejected(driver)] == ["key_mismatch"] * 2
        driver.pipe_input(self.USUAL, self.message(self.USUAL, 1))
        driver.pipe_input(self.USUAL.upper(), None)
        driver.commit()
        driver.commit()
        assert [record.value is None for record in driver.read_output("sow")] == [False, True]

    @staticmethod
    def driver() -> ProcessorTestDriver:
        """A driver of a topic whose key is a UUID."""
        schema = avro_world.record(("id", {"type": "string", "logicalType": "uuid"}), ("qty", "int"))
        topic = TopicConfig.model_validate({"message_type": "avro", "schema": {"text": json.dumps(schema)}})
        return ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)

    @staticmethod
    def message(key: str, qty: int) -> bytes:
        """A message whose key is written as a text."""
        schema = avro_world.record(("id", "string"), ("qty", "int"))
        return avro_world.plain(schema, {"id": key, "qty": qty})


class TestKeyInBody:
    """A record never loses its key fields (producers.md, rule 6)."""

    @pytest.mark.parametrize(
        ("before", "after"),
        [(None, "7"), ({"id": 7}, 7), ({"id": "7"}, "7")],
        ids=["new", "number", "text"],
    )
    def test_a_full_publish_gets_it_from_the_kafka_key(self, before, after):
        """The key field that a full publish lacks is a text, or the number that the record had."""
        driver = partition(partition_for(b"7", PARTITIONS))
        if before is not None:
            driver.pipe_input("7", before)
        driver.pipe_input("7", {"a": 1}, {"command": "publish"})
        assert bodies(driver.pending_output("sow"))[-1] == {"a": 1, "id": after}
        assert bodies(driver.pending_output("delta"))[-1] == {"a": 1, "id": after}
        assert all("removed" not in told(record) for record in driver.pending_output("delta"))

    def test_a_nested_key_field_gets_its_objects(self):
        """The objects around a missing key field are made."""
        topic = TopicConfig(key=("/a/b/id",))
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_input("7", {"a": {"x": 1}}, {"command": "publish"})
        assert bodies(driver.pending_output("sow")) == [{"a": {"x": 1, "b": {"id": "7"}}}]

    @pytest.mark.parametrize(("key", "body"), [(b"\xff", {}), (b"7", {"a": 5})], ids=["not UTF-8", "no object"])
    def test_a_record_that_cannot_be_completed_is_rejected(self, key, body):
        """A full publish that cannot have its key field is rejected as `missing_key`."""
        topic = TopicConfig(key=("/a/id",))
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_input(key, body, {"command": "publish"})
        assert [reason for reason, _ in rejected(driver)] == ["missing_key"]

    @pytest.mark.parametrize("command", ["publish", "delta_publish"])
    @pytest.mark.parametrize(
        ("settings", "reasons", "after"),
        [({}, ["missing_key"], b'{"id":"7"}'), ({"key_in_body": "optional"}, [], b'{"n":2}')],
    )
    def test_a_message_that_is_stored_as_it_came_must_have_it(self, settings, reasons, after, command):
        """Of a type without deltas a message without its key field is rejected, and replaces no record that has it."""
        topic = TopicConfig(message_type="composite-global", parts=("json",), key=("/0/id",), **settings)
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        for data in (b'{"id":"7"}', b'{"n":2}'):
            driver.pipe_input("7", len(data).to_bytes(4) + data, {"command": command})
        assert [reason for reason, _ in rejected(driver)] == reasons
        assert (driver.pending_output("sow")[-1].value or b"")[4:] == after

    def test_optional_keeps_the_record_without_it(self):
        """`key_in_body: optional` stores a full publish as it came."""
        topic = TopicConfig(key_in_body="optional")
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_input("7", {"a": 1}, {"command": "publish"})
        assert bodies(driver.pending_output("sow")) == [{"a": 1}]

    @pytest.mark.parametrize("merge_depth", [None, 1, 2, 3])
    @pytest.mark.parametrize("null_policy", ["ignore", "set", "remove"])
    @pytest.mark.parametrize(
        "delta", [{"a": {"x": 1}}, {"a": {"b": None}}, {"a": {"b": {"y": 1}}}, {"a": {"b": {"id": 7}}}]
    )
    def test_a_delta_never_takes_a_deep_key_field_away(self, merge_depth, null_policy, delta):
        """A key field three levels down stays in the record below any `merge_depth`, or the delta is rejected."""
        topic = TopicConfig(key=("/a/b/id",), merge_depth=merge_depth, null_policy=null_policy)
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_batch([("7", {"a": {"b": {"id": 7}}, "q": 1}, None), ("7", delta, None)])
        for body in bodies(driver.pending_output("sow")):
            assert body["a"]["b"]["id"] == 7

    @pytest.mark.parametrize("merge_depth", [None, 2, 3])
    def test_fields_that_a_delta_leaves_out_stay_next_to_a_deep_key_field(self, merge_depth):
        """An object around a key field that a delta leaves out keeps its other fields where the object above merges."""
        topic = TopicConfig(key=("/a/b/id",), merge_depth=merge_depth)
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_batch([("7", {"a": {"b": {"id": "7", "w": 1}}}, None), ("7", {"a": {"x": 1}}, None)])
        assert bodies(driver.pending_output("sow"))[-1] == {"a": {"b": {"id": "7", "w": 1}, "x": 1}}


class TestKeyFormat:
    """Kafka keys that are no texts: Connect's and Debezium's JSON, Java's integers."""

    JSON_KEYS = (b"7", b'"7"', b'{"id":7}', b'{"id": 7}', b'{"schema":{"type":"struct"},"payload":{"id":7}}')

    @pytest.mark.parametrize("key", JSON_KEYS)
    def test_json_keys_of_one_field(self, key):
        """Every JSON form of one key is the same record, under the key's text, in the text's partition."""
        driver = partition(partition_for(b"7", PARTITIONS), key_format="json")
        driver.pipe_input(key, {"id": 7})
        assert [record.key for record in driver.pending_output("sow")] == [b"7"]
        elsewhere = partition((partition_for(b"7", PARTITIONS) + 1) % PARTITIONS, key_format="json")
        elsewhere.pipe_input(key, {"id": 7})
        [moved] = elsewhere.pending_output("publish")
        assert (moved.key, told(moved)["source"].startswith("orders.publish/")) == (b"7", True)
        driver.pipe_input(moved.key, moved.value, moved.headers)
        assert kinds(driver.pending_output("sow")) == [("7", "1", "insert"), ("7", "2", None)]

    @pytest.mark.parametrize("key", [b"7", b'"7"', b'{"schema":{"type":"int32"},"payload":7}'])
    def test_json_keys_that_publishers_choose(self, key):
        """With `key: explicit` a JSON scalar is the key, as its text; an object or array has no fields for one."""
        driver = partition(partition_for(b"7", PARTITIONS), key="explicit", key_format="json")
        driver.pipe_batch([(key, {"a": 1}, None), (b'{"id":7}', {"a": 1}, None), (b"[7]", {"a": 1}, None)])
        assert [record.key for record in driver.pending_output("sow")] == [b"7"]
        assert [reason for reason, _ in rejected(driver)] == ["missing_key"] * 2
        assert all("key: explicit takes" in detail for _, detail in rejected(driver))

    @pytest.mark.parametrize("key", [b'{"a":"x","b":{"c":1}}', b'["x",1]', b'["x", "1"]'])
    def test_json_keys_of_several_fields(self, key):
        """An object of the key fields, or an array of their values, becomes the compact array of their texts."""
        topic = TopicConfig(key=("/a", "/b/c"), key_format="json")
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_input(key, {"a": "x", "b": {"c": 1}})
        assert [record.key for record in driver.pending_output("sow")] == [b'["x","1"]']

    def test_half_a_surrogate_pair_is_no_key(self):
        """A key with an escape of half a surrogate pair is a dead letter for the key, in each format of keys."""
        for settings, key in (
            ({"key_format": "json"}, b'{"id":"\\ud800"}'),
            ({"key_format": "json", "key": ["/id", "/b"]}, b'["7","\\ud800"]'),
            ({"key": ["/id", "/b"]}, b'["7","\\ud800"]'),
        ):
            driver = partition(**settings)
            for value in ({"id": 7, "b": 1}, {"a": 1}):
                driver.pipe_input(key, value)
            assert {reason for reason, _ in rejected(driver)} <= {"missing_key", "key_mismatch"}
            assert len(rejected(driver)) == 2

    @pytest.mark.parametrize("number", [0, 7, -1, 2**31 - 1])
    @pytest.mark.parametrize("size", [">i", ">q"])
    def test_integers(self, number, size):
        """Integers of 4 and of 8 bytes become their decimal text."""
        topic = TopicConfig(key_format="int")
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_input(struct.pack(size, number), {"id": number})
        assert [record.key for record in driver.pending_output("sow")] == [b"%d" % number]

    def test_a_forwarded_key_is_not_read_again(self):
        """A text of 4 bytes that a worker forwarded is not read as an integer: header `source` marks it as text."""
        topic = TopicConfig(key_format="int")
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_input(b"1234", {"id": 1234}, {"source": "orders.publish/3/5"})
        assert [record.key for record in driver.pending_output("sow")] == [b"1234"]

    @pytest.mark.parametrize(
        ("key_format", "key"),
        [("json", b"{"), ("json", b'{"x":1}'), ("json", b"[7]"), ("json", b"1.5"), ("int", b"7")],
    )
    def test_an_unreadable_key_is_a_dead_letter_as_it_came(self, key_format, key):
        """A key that is not in the topic's format is rejected as `missing_key`, and its publisher gets an answer."""
        topic = TopicConfig(key_format=key_format)
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_input(key, {"id": 7}, {"ack_type": "processed"})
        assert [record.key for record in driver.pending_output("dlq")] == [key]
        assert [reason for reason, _ in rejected(driver)] == ["missing_key"]
        assert [ack["status"] for ack in acks(driver)] == ["failure"]

    def test_a_rejected_message_keeps_its_kafka_key(self):
        """A dead letter has the Kafka key that the publisher wrote, so that it can be replayed."""
        topic = TopicConfig(key_format="json")
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_input(b'{"id":7}', b"{")
        assert [record.key for record in driver.pending_output("dlq")] == [b'{"id":7}']


class TestExpectVersion:
    """Header `expect_version` (queues.md, rule 8)."""

    @pytest.mark.parametrize("command", ["publish", "delta_publish", "sow_delete"])
    @pytest.mark.parametrize(("expected", "applies"), [(2, True), (1, False), (3, False), (0, False)])
    def test_a_command_is_applied_to_the_expected_version_only(self, command, expected, applies):
        """A command that expects another version changes nothing and is no dead letter; its ack has the version."""
        topic = TopicConfig()
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_batch([("7", {"id": 7}, None), ("7", {"a": 1}, None)])
        asked = {"command": command, "expect_version": str(expected), "ack_type": "processed", "client": "c"}
        driver.pipe_input("7", {"id": 7, "b": 1}, asked)
        assert len(driver.pending_output("sow")) == (3 if applies else 2)
        assert driver.pending_output("dlq") == []
        [ack] = acks(driver)
        wanted = f"version {expected}" if expected else "no record"
        why = f"conflict: the record has version 2, and the command expects {wanted}"
        answer = ("success", None, 3) if applies else ("failure", why, 2)
        assert (ack["status"], ack.get("reason"), ack.get("version")) == answer
        driver.commit()
        assert driver.events == ({} if applies else {"conflict": 1})

    def test_zero_means_no_record(self):
        """`expect_version: 0` is applied to a key without a record, and to no other."""
        topic = TopicConfig()
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_batch([("7", {"id": 7, "n": n}, {"expect_version": "0"}) for n in range(2)])
        assert bodies(driver.pending_output("sow")) == [{"id": 7, "n": 0}]

    @pytest.mark.parametrize("expected", [0, 3])
    def test_a_command_for_a_version_of_a_foreign_key_is_moved(self, expected):
        """A conditional command of a foreign partitioner meets the record of its key, in the key's own partition."""
        driver = partition()
        driver.pipe_input(FOREIGN, None, {"expect_version": str(expected)})
        assert [dict(sent.headers) for sent in driver.pending_output("publish")] == [
            {"expect_version": str(expected).encode()}
        ]
        driver.commit()
        assert driver.events == {"moved": 1}

    @pytest.mark.parametrize("expected", [0, 3])
    def test_a_heal_of_a_copy_that_is_gone_is_refused_and_not_moved(self, expected):
        """A heal's command for a copy that is gone from this partition never meets the key's record at home."""
        driver = partition()
        driver.pipe_input(FOREIGN, None, {"expect_version": str(expected), "source": "orders.publish/heal"})
        assert len(driver.pending_output("publish")) == (0 if expected else 1)
        driver.commit()
        assert driver.events == ({"conflict": 1} if expected else {"moved": 1})

    @pytest.mark.parametrize("text", ["", "-1", "x", "9" * 20])
    def test_anything_but_a_number_is_rejected(self, text):
        """A header `expect_version` that is no version is rejected as `bad_header`."""
        topic = TopicConfig()
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_input("7", {"id": 7}, {"expect_version": text})
        assert [reason for reason, _ in rejected(driver)] == ["bad_header"]


class TestHeadersThatAlmostMatch:
    """producers.md, rule 5."""

    @pytest.mark.parametrize(
        ("name", "right"),
        [("Command", "command"), ("ackType", "ack_type"), ("ack-type", "ack_type"), ("Allow-Merge", "allow-merge"),
         ("ALLOW_MERGE", "allow-merge"), ("correlationId", "correlation_id"), ("no-conflate", "no_conflate"),
         ("Sequence", "sequence"), ("sow_Key", "sow_key")],
    )  # fmt: skip
    def test_another_spelling_of_a_header_of_ours_is_an_error(self, name, right):
        """It is rejected, and the detail has the right spelling: passing it on would ignore a command silently."""
        topic = TopicConfig()
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_input("7", {"id": 7}, {name: "1"})
        [(reason, detail)] = rejected(driver)
        assert (reason, repr(right) in detail, repr(name) in detail) == ("bad_header", True, True)

    @pytest.mark.parametrize("flag", ["allow-merge", "allow_merge"])
    def test_allow_merge_has_two_spellings(self, flag):
        """`allow_merge` merges as `allow-merge` does, and does not travel on."""
        topic = TopicConfig(preset="um")
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_batch([("7", {"id": 7, "bid": 1}, None), ("7", {"ask": 2}, {flag: "true"})])
        assert bodies(driver.pending_output("sow"))[-1] == {"id": 7, "bid": 1, "ask": 2}
        assert Counter(name for name, _ in driver.pending_output("sow")[-1].headers) == {"version": 1}

    @pytest.mark.parametrize("name", ["x-command", "commands", "__source", "__version", "traceparent"])
    def test_headers_of_other_systems_travel_on(self, name):
        """A header that is no spelling of ours travels on; so does one in another system's name space."""
        topic = TopicConfig()
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        driver.pipe_input("7", {"id": 7}, {name: "1"})
        assert told(driver.pending_output("sow")[0])[name] == "1"
