"""The delta merge with message types that cannot do deltas, or that need headers."""

import json

import pytest

from processor.builtin.conflate import Conflate
from processor.config import ConflatedConfig, TopicConfig
from processor.errors import ConfigurationError
from processor.testing import ProcessorTestDriver
from tests.builtin.installed import install
from tests.builtin.merging import bodies, kinds, merging, rejected, told


@pytest.fixture(autouse=True)
def message_types(tmp_path, monkeypatch):
    """The message types of `tests/builtin/installed.py` are installed."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


class TestWholeMessages:
    """A message type without deltas: a delta publish delivers the message as it is, also on the delta topic."""

    def test_one_that_cannot_be_written_in_part_ends_with_an_empty_message(self):
        """A protobuf message with required fields that is deleted or expires has an empty delta; the worker goes on."""
        driver = merging(message_type="required", expiration="1s")
        driver.pipe_batch([(key, {"id": int(key), "price": 1}, None) for key in "78"])
        driver.pipe_input("7", None)
        driver.advance_time(1000)
        assert rejected(driver) == []
        assert kinds(driver.pending_output("delta"))[2:] == [("7", "2", "delete"), ("8", "4", "expire")]
        assert [record.value for record in driver.pending_output("delta")][2:] == [b"", b""]
        assert [record.value for record in driver.pending_output("sow")][2:] == [None, None]

    @pytest.mark.parametrize("command", ["publish", "delta_publish"])
    def test_the_bytes_are_kept_as_they_came(self, command):
        """A message of bytes is stored and sent unchanged with every command, and the second one replaces the first."""
        driver = merging(message_type="whole")
        values = b'{"id": 7, "a": 1}', b'{ "b":2, "id": 7 }'
        driver.pipe_batch([("7", value, {"command": command}) for value in values])
        for role in ("sow", "delta"):
            assert [record.value for record in driver.pending_output(role)] == list(values)
            assert kinds(driver.pending_output(role)) == [("7", "1", "insert"), ("7", "2", None)]
            assert told(driver.pending_output(role)[1]) == {"version": "2"}

    def test_a_delete_tells_the_key_fields(self):
        """A delete writes the key fields to the delta topic, as for every message type."""
        driver = merging(message_type="whole", expiration=1)
        driver.pipe_batch([("7", b'{"id": 7, "a": 1}', None), ("7", None, None), ("8", b'{"id": 8}', None)])
        driver.advance_time(1000)
        assert bodies(driver.pending_output("delta"))[1::2] == [{"id": 7}, {"id": 8}]

    @pytest.mark.parametrize(("value", "reason"), [
        (b"{", "undecodable"), (b"[]", "not_an_object"), (b'{"id":8}', "key_mismatch"),
    ])  # fmt: skip
    def test_a_message_is_checked(self, value, reason):
        """A message that cannot be read, or is of another type, is rejected."""
        driver = merging(message_type="whole")
        driver.pipe_input("7", value)
        assert [reason for reason, _ in rejected(driver)] == [reason]

    def test_without_a_kafka_key_it_is_keyed_by_its_fields(self):
        """A record without a Kafka key gets that of its fields, and its message arrives unchanged."""
        driver = merging(message_type="whole")
        driver.pipe_input(None, b'{"id": 7}')
        driver.commit()
        assert driver.pending_output("sow")[0].value == b'{"id": 7}'

    def test_no_field_of_it_can_be_removed(self):
        """Header `remove` is rejected, and rules for fields are refused in the settings."""
        driver = merging(message_type="whole")
        driver.pipe_input("7", {"id": 7, "a": 1}, {"remove": '["/a"]'})
        assert [reason for reason, _ in rejected(driver)] == ["bad_header"]
        with pytest.raises(ConfigurationError, match="orders: messages of type 'whole' are published whole; take out"):
            merging(message_type="whole", merge_rules={"/n": "sum"})

    def test_plugins_see_it_and_their_result_counts(self):
        """A message that a plug-in changed is encoded again."""
        driver = merging(message_type="whole", preprocess=[{"use": "tag", "settings": {"text": "x"}}])
        driver.pipe_input("7", b'{ "id": 7 }')
        assert driver.pending_output("sow")[0].value == driver.pending_output("delta")[0].value
        assert bodies(driver.pending_output("sow")) == [{"id": 7, "tags": ["x"]}]

    def test_bytes_that_mean_nothing_need_an_explicit_key(self):
        """With an explicit key they are stored, and the delta of a delete is empty; otherwise no key is found."""
        driver = merging(message_type="bytes", key="explicit")
        driver.pipe_batch([("7", b"\x00\xff", None), ("7", b"", None), ("7", None, None)])
        assert [record.value for record in driver.pending_output("sow")] == [b"\x00\xff", b"", None]
        assert [record.value for record in driver.pending_output("delta")] == [b"\x00\xff", b"", b""]
        driver = merging(message_type="bytes")
        driver.pipe_input("7", b"\x00\xff")
        assert rejected(driver) == [("not_an_object", "the message is bytes; a record is an object")]

    def test_a_copy_passes_them_on(self):
        """A conflated topic delivers the last full message of an interval."""
        driver = ProcessorTestDriver(
            Conflate, ConflatedConfig(underlying="orders", interval="1s"), name="slow", underlying="orders",
            topic=TopicConfig(message_type="bytes", key="explicit"),
        )  # fmt: skip
        for values in ((b"\x00", b"\xff"), (b"\xfe", None)):
            driver.pipe_batch([("7", value, {"version": str(n + 1)}) for n, value in enumerate(values)])
            driver.advance_time(1000)
        assert [record.value for record in driver.pending_output("sow")] == [b"\xff", None]
        assert [record.value for record in driver.pending_output("delta")] == [b"\xff", b""]


class TestHeaders:
    """A message type that has a part of the message in headers."""

    def given(self, key, names, values, **headers):
        """A message of the type `labelled`."""
        return key, values, {"labels": json.dumps(names), **headers}

    def test_commands_are_read_and_deltas_written_with_their_headers(self):
        """The message type's headers do not travel on: the record has none, the delta has its own."""
        driver = merging(message_type="labelled")
        driver.pipe_batch(
            [self.given("7", ["id", "a", "b"], [7, 1, 2]), self.given("7", ["a", "b"], [1, 3]), ("7", None, None)]
        )
        sow, delta = driver.pending_output("sow"), driver.pending_output("delta")
        assert bodies(sow) == [{"id": 7, "a": 1, "b": 2}, {"id": 7, "a": 1, "b": 3}, None]
        assert not any("labels" in told(record) for record in sow)
        assert bodies(delta) == [[7, 1, 2], [7, 3], [7]]
        assert [told(record)["labels"] for record in delta] == ['["id", "a", "b"]', '["id", "b"]', '["id"]']

    def test_a_message_type_knows_whether_a_message_is_a_delta(self):
        """The message type learns the command, from its header or the topic's default."""
        driver = merging(message_type="labelled", default_command="publish")
        driver.pipe_batch([self.given("7", ["a"], [1]), self.given("7", ["a"], [1], command="delta_publish")])
        assert rejected(driver) == [("schema_mismatch", "a whole record has an id")]

    def test_a_message_without_its_headers_is_rejected(self):
        """The message type gives the reason, with headers or without."""
        driver = merging(message_type="labelled")
        driver.pipe_batch([("7", [7], None), ("7", [7], {"trace": "1"}), (None, [7], None)])
        assert rejected(driver) == [("bad_header", "no header labels")] * 3

    def test_a_record_without_kafka_key_keeps_them(self):
        """A forwarded record keeps the headers that its message type needs to read it."""
        driver = merging(message_type="labelled")
        driver.pipe_batch([self.given(None, ["id"], [7])])
        driver.commit()
        assert bodies(driver.pending_output("sow")) == [{"id": 7}]

    def test_a_copy_writes_its_deltas_the_same_way(self):
        """A conflated delta has headers of its own, too."""
        driver = ProcessorTestDriver(
            Conflate, ConflatedConfig(underlying="orders", interval="1s"), name="slow", underlying="orders",
            topic=TopicConfig(message_type="labelled"),
        )  # fmt: skip
        for n, body in enumerate(({"id": 7, "a": 1}, {"id": 7, "a": 2}, None)):
            driver.pipe_input("7", body, {"version": str(n + 1)})
            driver.advance_time(1000)
        assert bodies(driver.pending_output("delta")) == [[7, 1], [7, 2], [7]]
        assert all("labels" in told(record) for record in driver.pending_output("delta"))


@pytest.mark.parametrize("headers", [{}, {"no_conflate": "true"}])
def test_a_message_type_that_trips_over_a_record_of_a_copy_costs_that_record(headers):
    """Such a record is rejected when it is due or read early, and the updates of other keys are delivered."""
    settings = ConflatedConfig(underlying="orders", interval="1s")
    topic = TopicConfig(message_type="brittle")
    driver = ProcessorTestDriver(Conflate, settings, name="orders_1s", topic=topic, underlying="orders")
    for n, word in enumerate(["a", "trip", "b"]):
        driver.pipe_input("7", {"id": 7, "word": word}, {"version": str(n + 1), **(headers if word == "trip" else {})})
    driver.advance_time(1000)
    assert rejected(driver) == [("plugin_failed", "ValueError: tripped")]
    [delivery] = driver.pending_output("sow")
    assert (bodies([delivery]), told(delivery)["conflated"]) == ([{"id": 7, "word": "b"}], "2")
