"""Protobuf messages with field presence: the fields that their deltas change, remove and keep."""

import json

import pytest
from google.protobuf import descriptor_pb2, text_format

from processor.builtin.conflate import Conflate
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.codec import CodecOptions
from processor.codec.protobuf.codec import protobuf_codec
from processor.codec.protobuf.messages import WholeMessage
from processor.config import ConflatedConfig, SchemaConfig, TopicConfig
from processor.errors import RecordRejected
from processor.filter import compile_filter
from processor.testing import ProcessorTestDriver
from tests.builtin.merging import rejected, told
from tests.codec.specimens import codec_of, topic_of

PROTO2 = """
name: "two.proto" package: "two" syntax: "proto2"
enum_type { name: "Side" value { name: "BUY" number: 1 } value { name: "SELL" number: 2 } }
message_type {
  name: "Order"
  field { name: "id" number: 1 label: LABEL_REQUIRED type: TYPE_STRING }
  field { name: "qty" number: 2 label: LABEL_OPTIONAL type: TYPE_INT32 default_value: "5" }
  field { name: "side" number: 3 label: LABEL_OPTIONAL type: TYPE_ENUM type_name: ".two.Side" }
  field { name: "legs" number: 4 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".two.Order" }
  field { name: "box" number: 5 label: LABEL_OPTIONAL type: TYPE_GROUP type_name: ".two.Order.Box" }
  nested_type { name: "Box" field { name: "w" number: 1 label: LABEL_OPTIONAL type: TYPE_FLOAT } }
  extension_range { start: 100 end: 200 }
}
extension { name: "desk" extendee: ".two.Order" number: 100 label: LABEL_OPTIONAL type: TYPE_STRING }
extension { name: "tags" extendee: ".two.Order" number: 101 label: LABEL_REPEATED type: TYPE_STRING }
"""


@pytest.fixture
def schema(tmp_path):
    """The settings of a topic of `two.Order`."""
    file = tmp_path / "two.pb"
    proto = text_format.Parse(PROTO2, descriptor_pb2.FileDescriptorProto())
    file.write_bytes(descriptor_pb2.FileDescriptorSet(file=[proto]).SerializeToString())
    return {"file": file, "message": "two.Order"}


class Orders:
    """A topic of a protobuf message under a delta merge."""

    def __init__(self, topic):
        self.codec = codec_of("protobuf-presence") if topic is ROWS else protobuf_codec(options(topic))
        self.driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)

    def send(self, body, headers=None):
        """Publish a delta of key 7 as bytes or fields; return the new record, the delta and the delta's headers."""
        before = len(self.driver.pending_output("sow"))
        self.driver.pipe_input("7", body if isinstance(body, bytes) else self.codec.encode(body), headers)
        if (letters := rejected(self.driver)) and len(self.driver.pending_output("sow")) == before:
            return letters[-1]
        sow, delta = (self.driver.pending_output(role)[-1] for role in ("sow", "delta"))
        headers = {name: value for name, value in told(delta).items() if name not in {"version", "kind"}}
        return self.codec.decode_own(sow.value), self.codec.decode_own(delta.value), headers


ROWS = topic_of("protobuf-presence")


def options(topic):
    """The codec options of a topic."""
    return CodecOptions(schema=topic.message_schema)


@pytest.fixture
def two(schema):
    """A topic of `two.Order`."""
    return Orders(TopicConfig(message_type="protobuf", schema=schema))


@pytest.fixture
def rows():
    """A topic of `test.Row`."""
    return Orders(ROWS)


def test_proto2_and_optional_fields_can_do_deltas_and_plain_proto3_fields_cannot(schema):
    """True if the message type can do deltas follows from the schema: one scalar field without presence is enough."""
    assert protobuf_codec(CodecOptions(schema=SchemaConfig(**schema))).can_delta
    assert codec_of("protobuf-presence").can_delta
    assert not codec_of("protobuf").can_delta
    assert not codec_of("protobuf", schema=None).can_delta


def test_an_absent_field_is_unchanged_and_a_default_is_a_value(rows):
    """A field set to zero or to the empty text changes the record; a field that is not set does not."""
    rows.send({"id": "7", "b": 5, "a": {"b": 6, "card": "x"}})
    record, delta, _ = rows.send({"a": {"b": 0}})
    assert record == {"id": "7", "b": 5, "a": {"b": 0, "card": "x"}}
    assert delta == {"id": "7", "a": {"b": 0}}


def test_a_default_of_proto2_is_no_value(two):
    """A field of proto2 with a default of its own is absent until it is set, then a value like any other."""
    assert two.send({"id": "7", "side": "BUY"})[0] == {"id": "7", "side": "BUY"}
    assert two.send({"qty": 5})[1:] == ({"id": "7", "qty": 5}, {})
    assert two.send({"qty": 5})[1:] == ({"id": "7"}, {"empty": "true"})


def test_a_full_publish_removes_fields_that_are_not_set(rows):
    """A full publish removes the fields that it does not set, and the delta names them."""
    rows.send({"id": "7", "b": 5, "c": [{"s": 1}], "a": {"b": 1}})
    record, delta, headers = rows.send({"id": "7", "a": {}}, {"command": "publish"})
    assert (record, delta) == ({"id": "7", "a": {}}, {"id": "7"})
    assert sorted(json.loads(headers["removed"])) == ["/a/b", "/b", "/c"]


def test_setting_a_field_of_a_oneof_removes_the_other_one(rows):
    """Setting a field of a oneof removes the other one from the record, and the delta names it as removed."""
    rows.send({"id": "7", "card": "x", "a": {"cash": 0}})
    record, delta, headers = rows.send({"cash": 0.0, "a": {"card": ""}})
    assert record == {"id": "7", "cash": 0.0, "a": {"card": ""}}
    assert delta == {"id": "7", "cash": 0.0, "a": {"card": ""}}
    assert sorted(json.loads(headers["removed"])) == ["/a/cash", "/card"]


def test_a_repeated_field_is_replaced_in_full_and_emptied_by_remove(rows):
    """A repeated field is replaced in full; only header `remove` empties it, since an empty one is absent."""
    rows.send({"id": "7", "c": [{"s": 1}, {"s": 2}]})
    one = WholeMessage(s=3, ns=0)
    assert rows.send({"c": [{"s": 3}]}) == ({"id": "7", "c": [one]}, {"id": "7", "c": [one]}, {})
    assert rows.send({"b": 1})[0]["c"] == [one]
    assert rows.send({}, {"remove": '["/c"]'}) == ({"id": "7", "b": 1}, {"id": "7"}, {"removed": '["/c"]'})


def test_a_map_merges_by_its_keys(rows):
    """An entry of a map is added or merged by its key; a map without entries is absent."""
    rows.send({"id": "7", "rows": {"1": {"b": 1}}})
    record, delta, _ = rows.send({"rows": {"1": {"card": "x"}, "-2": {}}})
    assert record["rows"] == {"1": {"b": 1, "card": "x"}, "-2": {}}
    assert delta == {"id": "7", "rows": {"1": {"card": "x"}, "-2": {}}}
    assert rows.send({}, {"remove": '["/rows/1"]'})[2] == {"removed": '["/rows/1"]'}
    record, _, headers = rows.send({}, {"remove": '["/rows/-2"]'})
    assert (record, headers) == ({"id": "7"}, {"removed": '["/rows"]'})


def test_a_message_without_field_presence_is_replaced_in_full(rows):
    """A nested message without field presence is replaced in full, in a field and in a map."""
    rows.send({"id": "7", "at": {"s": 5, "ns": 6}, "n": {"x": {"s": 1}, "y": {"ns": 1}}})
    record, delta, _ = rows.send({"at": {"ns": 7}, "n": {"x": {"ns": 2}}})
    assert record["at"] == delta["at"] == {"s": 0, "ns": 7}
    assert record["n"] == {"x": {"s": 0, "ns": 2}, "y": {"s": 0, "ns": 1}}
    assert delta["n"] == {"x": {"s": 0, "ns": 2}}
    # The delta has the unchanged fields too: without them a reader would assume their defaults.
    rows.send({"at": {"s": 5, "ns": 6, "zones": ["x"]}})
    assert rows.send({"at": {"s": 5, "ns": 7}})[1]["at"] == {"s": 5, "ns": 7}


@pytest.mark.parametrize(
    ("text", "is_match"),
    [("/at/s = 5", True), ("/at/s = 6", False), ("/c/ns = 2", True), ("/n/x/s > 0", True), ("/at IS NULL", True)],
)
def test_a_filter_looks_into_a_message_that_is_replaced_in_full(text, is_match):
    """A filter's path leads into a message that is replaced in full as into any object; the message has no value."""
    codec = codec_of("protobuf-presence")
    record = codec.decode(codec.encode({"at": {"s": 5}, "c": [{"ns": 1}, {"ns": 2}], "n": {"x": {"s": 1}}}))
    assert compile_filter(text).matches(record) is is_match


def test_a_delta_may_lack_required_fields_and_a_record_may_not(two):
    """A delta may lack required fields; a record or an element of it that lacks one is rejected."""
    with pytest.raises(RecordRejected, match=r"schema_mismatch: /id is missing; two\.Order requires it"):
        two.codec.complete({"qty": 1})
    two.send({"id": "7", "qty": 1})
    assert two.send({"qty": 2})[0] == {"id": "7", "qty": 2}
    assert two.send({"legs": [{"qty": 1}]}) == ("schema_mismatch", "/legs/0/id is missing; two.Order requires it")


def test_a_delete_delivers_the_key_fields_even_where_others_are_required(two):
    """The delta record of a delete is a message with the key fields alone."""
    two.send({"id": "7", "qty": 1})
    two.driver.pipe_input("7", None)
    assert two.codec.decode_own(two.driver.pending_output("delta")[-1].value) == {"id": "7"}


def test_unknown_fields_and_extensions_survive_a_merge_and_change_with_a_delta(two):
    """Fields of a newer schema stay in the record byte for byte until a delta brings the same field."""
    unknown = b"\x98\x02\x05" + b"\x98\x02\x06" + b"\x99\x02" + bytes(8) + b"\xa2\x02\x02hi" + b"\xad\x02" + bytes(4)
    group = b"\xb3\x02\x08\x01\x12\x01x\xb4\x02"
    known = two.codec.encode({"id": "7", "[two.desk]": "fx", "[two.tags]": ["a"], "box": {"w": 0.5}})
    record, _, _ = two.send(known + unknown + group)
    assert record == {
        "id": "7", "box": {"w": 0.5}, "[two.desk]": "fx", "[two.tags]": ["a"],
        "35": b"\x98\x02\x05\x98\x02\x06\x99\x02" + bytes(8), "36": b"\xa2\x02\x02hi", "37": b"\xad\x02" + bytes(4),
        "38": group,
    }  # fmt: skip
    changed, delta, _ = two.send(b"\xa2\x02\x03new" + two.codec.encode({"[two.tags]": ["b"]}))
    assert changed == {**record, "36": b"\xa2\x02\x03new", "[two.tags]": ["b"]}
    assert delta == {"id": "7", "36": b"\xa2\x02\x03new", "[two.tags]": ["b"]}
    removed = two.send({}, {"remove": '["/38", "/[two.desk]"]'})[2]["removed"]
    assert json.loads(removed) == ["/[two.desk]", "/38"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"c": []}, "/c is empty, which no message can say; leave the field out, or name it in header remove"),
        ({"rows": {}}, "/rows is empty, "),
        ({"a": {"rows": {"1": {"c": []}}}}, "/a/rows/1/c is empty, "),
        ({"b": None}, "/b: "),
        ({"77": b"\x08\x01"}, "/77: b'\\x08\\x01' is not an unknown field 77 as bytes"),
        ({"77": b"\xe8\x04\x01\x08\x01"}, "/77: "),
        ({"77": b"\xe8\x04\x01\x18\x01"}, "/77: "),
        ({"77": b"\xe8"}, "/77: "),
        ({"77": 1}, "/77: 1 is not an unknown field 77 as bytes"),
        ({"3": b"\x18\x01"}, "/3: b'\\x18\\x01' is not an unknown field 3 "),
        ({"077": b"\xe8\x04\x01"}, "/077: "),
        ({"[two.desk]": "x"}, "/[two.desk]: test.Row has no such field"),
        ({"[": 1}, "/[: test.Row has no such field"),
        ({"nope": 1}, "/nope: test.Row has no such field"),
    ],
    ids=repr,
)
def test_a_value_that_no_message_can_hold_is_a_type_error_with_its_path(value, why):
    """A value that no message can hold is a TypeError with its path: an empty array, a null, bytes of another field."""
    with pytest.raises(TypeError) as caught:
        codec_of("protobuf-presence").encode(value)
    assert why in str(caught.value)


def test_a_field_of_another_type_is_kept_as_an_unknown_one(rows):
    """A field with another wire type than in the schema is kept as an unknown field next to the field itself."""
    record, _, _ = rows.send(b"\x08\x05" + rows.codec.encode({"id": "7"}))
    assert record == {"id": "7", "1": b"\x08\x05"}
    assert rows.send({"b": 1})[0] == {"id": "7", "b": 1, "1": b"\x08\x05"}


def test_an_extension_belongs_to_its_message(two):
    """A bracketed name that is no extension of the message is no field."""
    for name in ("[two.nope]", "[two.desk", "[two.Order]"):
        with pytest.raises(TypeError, match=r"two\.Order has no such field"):
            two.codec.encode({name: "x"})


def test_completing_a_record_returns_whether_it_changed():
    """Completing a record removes empty values to any depth and returns whether it changed the record."""
    codec = codec_of("protobuf-presence")
    record = {"id": "7", "c": [], "rows": {"1": {"n": {}}}, "a": {"c": [{"s": 1, "zones": []}]}, "cash": 1, "card": "x"}
    assert codec.complete(record)
    assert record == {"id": "7", "rows": {"1": {}}, "a": {"c": [{"s": 1}]}, "card": "x"}
    assert not codec.complete(record)
    assert codec.decode(codec.encode(record)) == {**record, "a": {"c": [{"s": 1, "ns": 0}]}}


def test_frames_are_read_and_not_written(rows):
    """Records and deltas behind Confluent's frame are merged, and SOW and delta records have no frame."""
    frame = b"\x00\x00\x00\x00\x07\x00"
    rows.send(frame + rows.codec.encode({"id": "7", "b": 1}), {"__value_schema_id": frame[:5]})
    assert rows.send(frame + rows.codec.encode({"b": 2})) == ({"id": "7", "b": 2}, {"id": "7", "b": 2}, {})
    values = [record.value for role in ("sow", "delta") for record in rows.driver.pending_output(role)]
    assert not any(value.startswith(b"\x00") for value in values)


def test_records_with_the_publishers_own_bytes_are_merged(rows):
    """A stored message with the publisher's own bytes and frame, from before deltas were possible, can be read."""
    data = rows.codec.encode({"id": "7", "b": 1, "c": [{"s": 1}]})
    assert rows.codec.decode_own(b"\x00\x00\x00\x00\x07\x00" + data) == rows.codec.decode(data)


def test_bytes_do_not_depend_on_the_order_of_a_map():
    """The bytes of a record do not depend on the order in which its map was filled."""
    codec = codec_of("protobuf-presence")
    keys = [str(number) for number in range(-20, 20)]
    one, other = ({"rows": {key: {} for key in order}} for order in (keys, keys[::-1]))
    assert codec.encode(one) == codec.encode(other)


def test_a_part_of_a_composite_merges_by_presence():
    """A protobuf part takes deltas as a topic of its own does, oneofs included."""
    topic = topic_of("composite-local", parts=["json", "protobuf"], schema=ROWS.message_schema.model_dump())
    driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
    for body in ({"0": {"id": "7"}, "1": {"b": 1, "cash": 1.0}}, {"1": {"card": "x"}}):
        driver.pipe_input("7", body)
    assert rejected(driver) == []
    codec = codec_of("composite-local", parts=["json", "protobuf"], schema=ROWS.message_schema.model_dump())
    assert codec.decode(driver.pending_output("sow")[-1].value) == {"0": {"id": "7"}, "1": {"b": 1, "card": "x"}}
    assert json.loads(told(driver.pending_output("delta")[-1])["removed"]) == ["/1/cash"]


def test_a_conflated_copy_delivers_deltas_by_presence():
    """A conflated topic emits the fields that the updates of an interval changed, and the removed field of a oneof."""
    codec = codec_of("protobuf-presence")
    settings = ConflatedConfig(underlying="orders", interval="1s")
    driver = ProcessorTestDriver(Conflate, settings, name="orders_1s", topic=ROWS, underlying="orders")
    states = [{"id": "7", "cash": 1.0, "b": 1}, {"id": "7", "cash": 1.0, "b": 0}, {"id": "7", "card": "x", "b": 0}]
    for version, state in enumerate(states, 1):
        driver.pipe_input("7", state, {"version": str(version)})
        if version == 1:
            driver.advance_time(1000)
    driver.advance_time(1000)
    delta = driver.pending_output("delta")[-1]
    assert codec.decode_own(delta.value) == {"id": "7", "card": "x", "b": 0}
    assert json.loads(told(delta)["removed"]) == ["/cash"]


def test_arrays_and_maps_count_towards_the_depth():
    """Objects and arrays count alike towards `max_depth`, also in messages that are replaced in full."""
    for value, levels in [({}, 1), ({"at": {}}, 2), ({"at": {"zones": ["x"]}}, 3), ({"rows": {"1": {"c": [{}]}}}, 5)]:
        data = codec_of("protobuf-presence").encode(value)
        assert codec_of("protobuf-presence", max_depth=levels).decode(data) is not None
        if levels > 1:
            with pytest.raises(RecordRejected, match="too_deep"):
                codec_of("protobuf-presence", max_depth=levels - 1).decode(data)
