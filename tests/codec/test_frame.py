"""Confluent's frames in front of JSON and protobuf messages: skipped when read, never written."""

import json
import time

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.codec.frame import (
    frame_size,
    id_frame,
    path_in_frame,
    protobuf_frame,
    protobuf_frame_size,
    without_frame,
    without_protobuf_frame,
)
from processor.codec.json import JsonCodec
from processor.config import TopicConfig
from processor.errors import RecordRejected
from processor.testing import ProcessorTestDriver
from tests.builtin.merging import bodies, told
from tests.codec.specimens import codec_of, refused

ID = b"\x00\x00\x01\x86\xa0"
GUID = b"\x01" + bytes(range(16))


@pytest.mark.parametrize("frame", [ID, GUID], ids=["id", "guid"])
def test_a_json_message_is_read_behind_either_frame(frame):
    """The value behind a frame equals the value without it, also for numbers that need the exact parser."""
    codec = JsonCodec()
    for text in (b'{"id":7}', b' {"n":18446744073709551616}', b"[]", b"1e999"):
        assert codec.decode(frame + text) == codec.decode(text)


def test_messages_of_confluents_serializer_are_merged_without_their_frame():
    """Messages of Confluent's JSON serializer are merged, and neither SOW nor delta records have a frame."""
    registry = SchemaRegistryClient.new_client({"url": "mock://frames"})
    schema = '{"$schema":"http://json-schema.org/draft-07/schema#","title":"order","type":"object"}'
    serialize = JSONSerializer(schema, registry)
    context = SerializationContext("orders.publish", MessageField.VALUE)
    driver = ProcessorTestDriver(DeltaMerge, TopicConfig(), name="orders")
    for body in ({"id": 7, "a": 1}, {"a": 2}, {"id": 7, "b": None}):
        message = serialize(body, context)
        assert message[:1] == b"\0"
        driver.pipe_input("7", message)
    assert [record.value for record in driver.pending_output("sow")][1:] == [b'{"id":7,"a":2}'] * 2
    assert [record.value for record in driver.pending_output("delta")] == [
        b'{"id":7,"a":1}', b'{"id":7,"a":2}', b'{"id":7}',
    ]  # fmt: skip


def test_a_record_without_a_kafka_key_is_keyed_from_behind_its_frame():
    """A framed message without a Kafka key is re-keyed by the key field in its body and keeps its frame."""
    driver = ProcessorTestDriver(DeltaMerge, TopicConfig(), name="orders")
    driver.pipe_input(None, ID + b'{"id":7}')
    [again] = driver.pending_output("publish")
    assert (again.key, again.value) == (b"7", ID + b'{"id":7}')
    driver.commit()
    assert bodies(driver.pending_output("sow")) == [{"id": 7}]


def test_the_header_that_stands_for_a_frame_does_not_travel():
    """Confluent's schema header is dropped from SOW and delta records; other headers stay."""
    driver = ProcessorTestDriver(DeltaMerge, TopicConfig(), name="orders")
    driver.pipe_input("7", {"id": 7}, {"__value_schema_id": ID, "trace": "t"})
    for role in ("sow", "delta"):
        [record] = driver.pending_output(role)
        assert told(record) == {"version": "1", "kind": "insert", "trace": "t"}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x00", "undecodable: a Confluent frame that ends at byte 1"),
        (b"\x00\x00\x00\x01", "undecodable: a Confluent frame that ends at byte 4"),
        (b"\x01" + b'{"id":7}', "undecodable: a Confluent frame that ends at byte 9"),
        (ID, "undecodable: after a frame of 5 bytes: an empty value is no message; "),
        (ID + b"{", "undecodable: after a frame of 5 bytes: not JSON: "),
        (ID + ID + b"{}", "undecodable: not JSON: byte 00 after a frame of 5 bytes"),
        (GUID + ID + b"{}", "undecodable: not JSON: byte 00 after a frame of 17 bytes"),
        (b"\x00" * 1_000_000, "undecodable: not JSON: byte 00 after a frame of 5 bytes"),
        (ID + b"[" * 200 + b"]" * 200, "too_deep: after a frame of 5 bytes: "),
        (b"\x02" + b'{"id":7}', "undecodable: not JSON: "),
    ],
    ids=lambda part: part[:24].hex() if isinstance(part, bytes) else "",
)
def test_a_bad_frame_of_a_json_message_is_refused_with_its_place(data, why):
    """Half a frame, a frame in a frame, and bad JSON behind a frame are rejected, each with its own message."""
    assert refused(JsonCodec(), data).startswith(why)


def test_json_is_written_without_a_frame():
    """A message that was read behind a frame is written as plain JSON."""
    codec = JsonCodec()
    assert codec.encode(codec.decode(ID + b'{"id": 7}')) == b'{"id":7}'
    assert json.loads(codec.encode(codec.decode(GUID + b'{"id": 7}'))) == {"id": 7}


def test_the_size_of_a_frame_follows_from_its_first_byte():
    """The first byte decides the size of a frame: five bytes with an id, seventeen with a GUID, otherwise none."""
    assert [frame_size(data) for data in (b"", b"{", b"\x02", ID, GUID)] == [0, 0, 0, 5, 17]
    assert id_frame(100_000) == ID
    assert without_frame(ID + b"x") == b"x"
    assert without_frame(b"{}") == b"{}"


@pytest.mark.parametrize("frame", [ID, GUID], ids=["id", "guid"])
@pytest.mark.parametrize("path", [b"\x00", b"\x02\x04", b"\x04\x02\x00", b"\x02\xfe\xff\xff\xff\x0f"], ids=bytes.hex)
def test_a_protobuf_message_is_read_behind_frame_and_path(frame, path):
    """The path to the message type is skipped at any length."""
    assert without_protobuf_frame(frame + path + b"\x08\x07") == b"\x08\x07"
    assert codec_of("protobuf").decode(frame + path + b"\x08\x07")["id"] == 7


def test_a_path_with_a_number_of_a_million_bytes_is_refused_at_once():
    """An endless varint in a path is rejected after five bytes and does not keep a worker busy for minutes."""
    begin = time.process_time()
    with pytest.raises(RecordRejected, match="more than 32 bits at byte 5"):
        without_protobuf_frame(b"\x00" * 5 + b"\x80" * 1_000_000)
    assert time.process_time() - begin < 1


def test_a_path_of_more_steps_than_any_message_type_has_is_refused():
    """A path of a hundred steps is read; a longer one is rejected, since it would only cost time."""
    assert without_protobuf_frame(ID + b"\xc8\x01" + b"\x02" * 100 + b"\x08\x07") == b"\x08\x07"
    with pytest.raises(RecordRejected, match="a path of 101 steps at byte 5; 100 at most"):
        without_protobuf_frame(ID + b"\xca\x01" + b"\x02" * 101 + b"\x08\x07")


@pytest.mark.parametrize("path", [[0], [1], [0, 0], [3, 64, 8192, 2**30], [5] * 100], ids=str)
def test_a_frame_with_a_path_is_that_of_confluents_serializers(path):
    """The frame that is written for a protobuf message is Confluent's, and its path is read back."""
    frame = protobuf_frame(100_000, path)
    assert frame == SchemaId("PROTOBUF", 100_000, None, path).id_to_bytes()
    assert path_in_frame(frame) == tuple(path)
    assert protobuf_frame_size(frame + b"\x08\x07") == len(frame)


def test_a_path_of_less_than_no_steps_is_undecodable():
    """A frame whose path has a negative number of steps is rejected, as Confluent's client has no such frame."""
    with pytest.raises(RecordRejected, match=r"^undecodable: .*a path of -1 steps at byte 5"):
        without_protobuf_frame(ID + b"\x01\x08\x07")
