"""The delta merge: the effect of each command on the outputs, header by header, and rejections of bad input."""

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.record import Record, Stored
from processor.testing import ProcessorTestDriver
from processor.wire.headers import OUR_HEADERS
from tests.builtin.merging import bodies, told, written

PUBLISH = {"command": "publish"}
DELETE = {"command": "sow_delete"}


def merging(**settings) -> ProcessorTestDriver:
    """A driver of a topic with such settings, whose stream time is that of the clock."""
    topic = TopicConfig(**settings)
    return ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic, behind_ms=0)


@pytest.fixture
def driver() -> ProcessorTestDriver:
    """A topic of default settings with one record in it, committed."""
    driver = merging()
    driver.pipe_input("7", {"id": 7, "a": 1, "o": {"x": 1, "y": 2}})
    driver.commit()
    return driver


def news(driver: ProcessorTestDriver, sow: int = 1) -> tuple[list[Record], list[Record]]:
    """Return the records that the open transaction adds to `sow` and `delta`, which go together."""
    records = driver.pending_output("sow"), driver.pending_output("delta")
    assert [len(part) for part in records] == [sow, sow]
    return records


class TestCommands:
    """merge.md, Commands: every command, with a record and without."""

    @pytest.mark.parametrize("headers", [None, PUBLISH, {"command": "delta_publish"}])
    def test_the_first_record_of_a_key_is_an_insert_with_everything(self, headers):
        """The first record of a key is stored as it is, with version 1, and its delta is the full record."""
        driver = merging()
        driver.pipe_input("7", {"id": 7, "a": {"b": []}}, headers)
        [sow], [delta] = news(driver)
        assert (sow.key, sow.value) == (delta.key, delta.value) == (b"7", b'{"id":7,"a":{"b":[]}}')
        assert sow.headers == delta.headers == [("version", b"1"), ("kind", b"insert")]

    def test_a_delta_is_merged(self, driver):
        """The record keeps fields that the delta does not name; the delta topic gets the key and the changed fields."""
        driver.pipe_input("7", {"a": 2, "o": {"y": 3}, "new": None})
        [sow], [delta] = news(driver)
        assert sow.value == b'{"id":7,"a":2,"o":{"x":1,"y":3}}'
        assert delta.value == b'{"id":7,"a":2,"o":{"y":3}}'
        assert sow.headers == delta.headers == [("version", b"2")]

    @pytest.mark.parametrize(("pointers", "record", "delta"), [
        (("/id",), {"id": 7, "a": 1}, {"id": "7", "a": 2}),
        (("/k/id",), {"k": {"id": 7}, "a": 1}, {"k": {"id": "7"}, "a": 2}),
    ])  # fmt: skip
    def test_a_delta_does_not_change_a_key_field_not_even_its_type(self, pointers, record, delta):
        """A delta with `"7"` for the key 7 has the same key and leaves the record's value as it is (rule 7)."""
        driver = merging(key=pointers)
        driver.pipe_input("7", record)
        driver.pipe_input("7", delta)
        assert written(bodies(driver.pending_output("sow"))[-1]) == written(record | {"a": 2})

    def test_a_publish_replaces(self, driver):
        """A publish removes the fields that it lacks; only the delta topic lists them as removed."""
        driver.pipe_input("7", {"id": 7, "o": {"x": 1}, "b": None}, PUBLISH)
        [sow], [delta] = news(driver)
        assert sow.value == b'{"id":7,"o":{"x":1},"b":null}'
        assert delta.value == b'{"id":7,"b":null}'
        assert sow.headers == [("version", b"2")]
        assert told(delta) == {"version": "2", "removed": '["/o/y", "/a"]'}

    def test_a_null_key_field_is_missing_in_a_delta_only(self, driver):
        """A null for a key field counts as missing where a delta ignores nulls; in a publish it is no key."""
        driver.pipe_batch([("7", {"id": None, "a": 2}, None), ("7", {"id": None, "a": 3}, PUBLISH)])
        [sow], _ = news(driver)
        assert bodies([sow]) == [{"id": 7, "a": 2, "o": {"x": 1, "y": 2}}]
        [letter] = driver.pending_output("dlq")
        assert told(letter)["dlq_reason"] == "missing_key"

    @pytest.mark.parametrize("value", [None, {"id": 7}, b"not even JSON"], ids=["none", "its key", "garbage"])
    def test_sow_delete_removes(self, driver, value):
        """A delete writes a tombstone and a delta with the key fields and the next version; its body is ignored."""
        driver.pipe_input("7", value, DELETE)
        [sow], [delta] = news(driver)
        assert (sow.key, sow.value) == (b"7", None)
        assert (delta.key, delta.value) == (b"7", b'{"id":7}')
        assert sow.headers == delta.headers == [("version", b"2"), ("kind", b"delete")]
        assert driver.state.get_many([b"7"]) == {b"7": None}

    @pytest.mark.parametrize("headers", [None, PUBLISH, {"command": "delta_publish"}])
    def test_a_tombstone_removes_the_record(self, driver, headers):
        """A null value is a delete with any command."""
        driver.pipe_input("7", None, headers)
        [sow], [delta] = news(driver)
        assert sow.value is None
        assert told(sow) == told(delta) == {"version": "2", "kind": "delete"}

    @pytest.mark.parametrize(("value", "headers"), [(None, None), ({"id": 8}, DELETE)])
    def test_deleting_nothing_is_accounted_for(self, driver, value, headers):
        """A delete of no record writes nothing, is counted, and moves the input position."""
        driver.pipe_input("8", value, headers)
        assert news(driver, 0) == ([], [])
        driver.commit()
        assert driver.events == {"delete_of_nothing": 1}
        assert driver.committed_offset == 2

    @pytest.mark.parametrize("by_clock", [False, True], ids=["delete", "expire"])
    def test_a_record_that_cannot_be_read_any_more_can_end(self, by_clock):
        """A delete of an unreadable record writes a delta without key fields; the Kafka key names the record."""
        driver = merging()
        driver.state.put_many({b"7": Stored(3, b"{", driver.now_ms + 1000 if by_clock else 0)})
        if by_clock:
            driver.advance_time(1000)
        else:
            driver.pipe_input("7", None)
        [sow], [delta] = news(driver)
        assert (sow.key, sow.value, delta.key, delta.value) == (b"7", None, b"7", b"{}")
        assert told(delta) == {"version": "4", "kind": "expire" if by_clock else "delete"}

    def test_the_topic_has_the_command_of_a_record_without_one(self):
        """With `default_command: publish` fields left out are gone, and a header `command` beats the setting."""
        driver = merging(default_command="publish")
        driver.pipe_batch(
            [("7", {"id": 7, "a": 1}, None), ("7", {"b": 1}, None), ("7", {"c": 1}, {"command": "delta_publish"})]
        )
        assert bodies(driver.pending_output("sow"))[1:] == [{"b": 1, "id": 7}, {"b": 1, "id": 7, "c": 1}]

    def test_of_two_commands_the_last_counts(self, driver):
        """Of two headers `command` the last one counts, as with every header."""
        driver.pipe_input("7", {"b": 1}, [("command", b"sow_delete"), ("command", b"publish")])
        assert bodies(driver.pending_output("sow")) == [{"b": 1, "id": 7}]

    def test_the_records_of_a_batch_see_one_another(self):
        """Records of one batch are merged in order, as over many batches."""
        records = [("7", {"id": 7, "a": n}, None) for n in range(3)] + [("7", None, None), ("7", {"b": 1}, None)]
        together, apart = merging(), merging()
        together.pipe_batch(records)
        for key, value, headers in records:
            apart.pipe_input(key, value, headers)
        for role in ("sow", "delta"):
            assert together.pending_output(role) == apart.pending_output(role)
        assert [told(record)["version"] for record in together.pending_output("sow")] == ["1", "2", "3", "4", "9"]


class TestHeaders:
    """Headers with the usual meaning are left out (merge.md, Metadata)."""

    @pytest.mark.parametrize("update", [{"a": 1}, {"id": 7, "a": 1, "o": {"x": 1, "y": 2}}, {}, {"a": None}])
    def test_an_update_that_changes_nothing_is_an_update(self, driver, update):
        """An update that changes nothing raises the version; its delta has the key fields and header `empty`."""
        driver.pipe_input("7", update)
        [sow], [delta] = news(driver)
        assert told(sow) == {"version": "2"}
        assert (delta.value, told(delta)) == (b'{"id":7}', {"version": "2", "empty": "true"})

    def test_a_removal_alone_is_not_empty(self, driver):
        """A delta that only removes fields has no field and is not empty."""
        driver.pipe_input("7", {}, {"remove": '["/a"]'})
        [_], [delta] = news(driver)
        assert (delta.value, told(delta)) == (b'{"id":7}', {"version": "2", "removed": '["/a"]'})

    def test_versions_count_on_and_on(self, driver):
        """Thousands of updates of a record have versions without a gap."""
        driver.pipe_batch([("7", b"{}", None)] * 5000)
        sow, delta = news(driver, 5000)
        for records in (sow, delta):
            assert [told(record)["version"] for record in records] == [str(n) for n in range(2, 5002)]

    def test_a_life_begins_above_the_versions_of_the_lives_before(self, driver):
        """A key that comes back after a delete is an insert, with a version that follows from its input offset."""
        driver.pipe_batch([("7", {"a": 2}, None), ("7", None, None), ("7", {"a": 3}, None), ("7", {"a": 4}, None)])
        sow, _ = news(driver, 4)
        assert [(told(record)["version"], told(record).get("kind")) for record in sow] == [
            ("2", None), ("3", "delete"), ("7", "insert"), ("8", None),
        ]  # fmt: skip

    def test_unknown_headers_travel_on(self, driver):
        """They go onto both outputs, unchanged and in their order, repeated ones too, after ours; also on deletes."""
        foreign = [("traceparent", b"00-\xff-01"), ("client", b"c"), ("traceparent", None), ("no_conflate", b"true")]
        for value in ({"a": 2}, None):
            driver.pipe_input("7", value, foreign)
        sow, delta = news(driver, 2)
        for record in (*sow, *delta):
            assert record.headers[-4:] == foreign

    def test_our_headers_do_not_travel_on(self, driver):
        """A publisher's headers with names of ours are not mistaken for ours."""
        asked = {"command": b"delta_publish", "remove": b"[]", "allow-merge": b"true", "expiration": b"0",
                 "sow_key": b"7", "ack_type": b"none"}  # fmt: skip
        ours = [(name, asked.get(name, b"1")) for name in sorted(OUR_HEADERS - {"correlation_id"})]
        driver.pipe_input("7", {"a": 2}, [*ours, ("mine", b"1")])
        [sow], [delta] = news(driver)
        assert sow.headers == delta.headers == [("version", b"2"), ("mine", b"1")]


class TestRekey:
    """A record without a Kafka key, which most likely is on the wrong partition."""

    def test_a_record_without_a_key_is_sent_to_the_input_again_with_its_key(self, driver):
        """The record is sent unchanged with its headers, and merged when it comes back."""
        headers = [("command", b"publish"), ("trace", b"1")]
        driver.pipe_input(None, {"a": 9, "id": 7}, headers)
        assert news(driver, 0) == ([], [])
        [again] = driver.pending_output("publish")
        assert (again.key, again.value, again.headers) == (b"7", b'{"a":9,"id":7}', headers)
        driver.commit()
        assert driver.events == {"rekeyed": 1}
        [sow], _ = news(driver)
        assert sow.value == b'{"a":9,"id":7}'

    def test_several_key_fields_make_a_key_of_texts(self):
        """The key of several fields is the compact JSON array of their texts, in the order of the settings."""
        driver = merging(key=["/customer/id", "/n"])
        driver.pipe_input(None, {"n": 1, "customer": {"id": "Ä"}})
        assert driver.pending_output("publish")[0].key == '["Ä","1"]'.encode()

    @pytest.mark.parametrize("value", [{"a": 1}, None, [7], b"7"])
    def test_without_key_fields_a_record_is_rejected(self, driver, value):
        """A record without a Kafka key and without its key fields has no owner and is rejected."""
        driver.pipe_input(None, value)
        [record] = driver.pending_output("dlq")
        assert told(record)["dlq_reason"] == "missing_key"


DEEP = b'{"id":7,"a":' + b"[" * 10 + b"]" * 10 + b"}"

BAD = {
    "not JSON": ("7", b"{", None, "undecodable", "not JSON: "),
    "empty": ("7", b"", None, "undecodable", "an empty value is no message; send null"),
    "not UTF-8": ("7", b'{"id":"\xff"}', None, "undecodable", "not JSON: "),
    "an array": ("7", b"[1]", None, "not_an_object", "the message is an array; a record is an object"),
    "a number": ("7", b"1", PUBLISH, "not_an_object", "the message is a number; a record is an object"),
    "null": ("7", b"null", None, "not_an_object", "the message is null; a record is an object"),
    "no key anywhere": (None, {"a": 1}, None, "missing_key", "no Kafka key, and no /id in the message"),
    "a key that is no scalar": ("7", {"id": []}, None, "missing_key", "/id is an array; a key is "),
    "another key": ("7", {"id": 8}, None, "key_mismatch", "/id is '8', but the record's key says '7'"),
    "unknown command": ("7", {}, {"command": "upsert"}, "unknown_command", "'upsert'; known: delta_publish, "),
    "no command": ("7", {}, {"command": ""}, "unknown_command", "''; known: "),
    "command not UTF-8": ("7", {}, {"command": b"\xff"}, "bad_header", "header command is not UTF-8: "),
    "remove not JSON": ("7", {}, {"remove": "/a"}, "bad_header", "header remove is not a JSON array: "),
    "remove not UTF-8": ("7", {}, {"remove": b"\xff"}, "bad_header", "header remove is not UTF-8: "),
    "remove an object": ("7", {}, {"remove": "{}"}, "bad_header", "header remove is not a JSON array: it is an object"),
    "remove null": ("7", {}, {"remove": "null"}, "bad_header", "header remove is not a JSON array: it is null"),
    "remove nested": ("7", {}, {"remove": "[" * 99_999}, "bad_header", "header remove is not a JSON array: "),
    "remove no pointer": ("7", {}, {"remove": '["a"]'}, "bad_header", "header remove: 'a' is not a JSON Pointer"),
    "remove numbers": ("7", {}, {"remove": "[1]"}, "bad_header", "header remove is not a JSON array of JSON Pointers"),
    "remove the key": ("7", {}, {"remove": '["/id"]'}, "bad_header", "header remove: '/id' would remove the key field"),
    "too large": ("7", b'{"a":"' + b"x" * 200 + b'"}', None, "too_large", "208 bytes; max_record_bytes is 200"),
    "too large merged": ("7", {"b": "x" * 180}, None, "too_large", "merged: "),
    "too deep": ("7", DEEP, None, "too_deep", "nested deeper than 9 objects and arrays"),
}


@pytest.mark.parametrize(("key", "value", "headers", "reason", "detail"), BAD.values(), ids=BAD)
def test_a_bad_record_is_rejected_and_changes_nothing(key, value, headers, reason, detail):
    """Other records of the batch are merged as without it, and the dead-letter topic has the full record."""
    driver = merging(max_record_bytes=200, max_depth=9)
    driver.pipe_input("7", {"id": 7, "a": "some text"})
    given = [*(headers or {}).items(), ("trace", "1")]
    raw = [(name, text.encode() if isinstance(text, str) else text) for name, text in given]
    driver.pipe_batch([("7", {"n": 1}, None), (key, value, raw), ("7", {"n": 2}, None), ("8", {"id": 8}, None)])
    driver.commit()

    assert bodies(driver.read_output("sow")) == [
        {"id": 7, "a": "some text"},
        {"id": 7, "a": "some text", "n": 1},
        {"id": 7, "a": "some text", "n": 2},
        {"id": 8},
    ]
    assert driver.state.get_many([b"7"]) == {b"7": Stored(3, b'{"id":7,"a":"some text","n":2}')}
    [rejected] = driver.read_output("dlq")
    assert (rejected.key, rejected.value) == (driver.input[2].key, driver.input[2].value)
    assert rejected.headers[:-3] == raw
    assert rejected.headers[-3] == ("dlq_reason", reason.encode())
    assert rejected.headers[-2][0] == "dlq_detail"
    assert rejected.headers[-2][1].decode().startswith(detail)
    assert rejected.headers[-1] == ("source", b"orders.publish/0/2")
    assert driver.rejections == {reason: 1}
    assert driver.read_output("publish") == []


def test_a_record_of_just_the_size_that_is_allowed_is_merged():
    """A message and the record it makes may have just the allowed size; one byte more is too large."""
    driver = merging(max_record_bytes=20)
    driver.pipe_batch([
        ("7", b'{"id":7,"a":"12345"}', None), ("7", b'{"id":7,"a":"123456"}', None), ("8", b'{"id":8,"a":"123"}', None),
        ("8", b'{"b":1}', None), ("9", b'{"id":9,"a":1}', None), ("9", b'{"b":2}', None),
    ])  # fmt: skip
    assert [record.value for record in driver.pending_output("sow")] == [
        b'{"id":7,"a":"12345"}', b'{"id":8,"a":"123"}', b'{"id":9,"a":1}', b'{"id":9,"a":1,"b":2}',
    ]  # fmt: skip
    assert [told(letter)["dlq_detail"].split(";")[0] for letter in driver.pending_output("dlq")] == [
        "21 bytes", "merged: 24 bytes",
    ]  # fmt: skip


def test_uncommitted_output_is_not_read():
    """A rolled back transaction is in no output; the same record gives the same outputs again."""
    driver = merging()
    driver.pipe_input("7", {"id": 7})
    assert driver.read_output("sow") == []
    before = driver.pending_output("delta")
    driver.abort()
    assert [record._replace(offset=0) for record in driver.pending_output("delta")] == before
    driver.abort(feed=False)
    assert driver.pending_output("delta") == []
    assert driver.state.get_many([b"7"]) == {b"7": None}
