"""The message types composite-local and composite-global consist of parts of other types."""

from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.schema_registry import Schema

from processor.codec import CodecOptions
from processor.codec.composite_local import CompositeGlobalCodec, CompositeLocalCodec
from processor.codec.schema_registry.schemas import Registry
from processor.config import SchemaConfig
from processor.config.kafka_names import KafkaNames
from processor.errors import ConfigurationError
from tests.codec.specimens import PROTO_FILE, refused

OPTIONS = CodecOptions(parts=("json", "binary", "nvfix"))
BOTH = pytest.mark.parametrize("make", [CompositeLocalCodec, CompositeGlobalCodec])


@BOTH
@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\0\0\0\0" * 3, {}),
        (b"\0\0\0\x02{}", {"0": {}}),
        (b"\0\0\0\0\0\0\0\x01\xff", {"1": b"\xff"}),
        (b"\0\0\0\x01[\0\0\0\0"[:4] + b"7", {"0": 7}),
    ],
    ids=repr,
)
def test_a_part_without_bytes_is_absent(make, data, value):
    """A part without bytes is absent, also where the last parts are missing altogether."""
    assert make(OPTIONS).decode(data) == value


@BOTH
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\0\0\0", "undecodable: part 0 at byte 0 is longer than the message"),
        (b"\0\0\0\x02{}\xff\xff\xff\xff", "undecodable: part 1 at byte 6 is longer than the message"),
        (b"\0\0\0\0" * 3 + b"x", "undecodable: 1 bytes too many after the last part, at byte 12"),
        (b"\0\0\0\x01{", "undecodable: part 0 at byte 4: not JSON: "),
        (b"\0\0\0\0\0\0\0\0\0\0\0\x01x", "undecodable: part 2 at byte 12: expected name=value at byte 0"),
    ],
    ids=repr,
)
def test_bad_bytes_are_refused_with_the_part(make, data, why):
    """Bad bytes are rejected with the part, its place in the message and the message of the part's codec."""
    assert refused(make(OPTIONS), data).startswith(why)


@BOTH
@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"3": {}}, "/3 is no part; there are 3, from 0"),
        ({"0": 1j}, "/0: "),
        ({"1": b""}, "/1 would be written with no bytes"),
        ({"2": {}}, "/2 would be written with no bytes"),
        ([], "an object of parts; this is list"),
    ],
    ids=repr,
)
def test_an_unsupported_value_is_a_type_error(make, value, why):
    """A value that a composite cannot represent is a TypeError that names the part."""
    with pytest.raises(TypeError) as caught:
        make(OPTIONS).encode(value)
    assert why in str(caught.value)


@BOTH
@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ((), "needs `parts`"),
        (("json", "composite-local"), "part 1 is composite-local"),
        (("jsonn",), "did you mean 'json'"),
    ],
)
def test_parts_that_cannot_be_are_a_configuration_error(make, parts, why):
    """Parts that are empty, composite themselves or not installed are a configuration error."""
    with pytest.raises(ConfigurationError, match=why):
        make(CodecOptions(parts=parts))


def test_a_part_without_deltas_is_its_bytes_where_parts_have_deltas():
    """A part whose type cannot do deltas is its bytes in composite-local, replaced in full with its unknown fields.

    It is parsed all the same, and bad bytes are rejected.
    """
    options = CodecOptions(parts=("protobuf",), schema=SchemaConfig(file=PROTO_FILE, message="test.Order"))
    data = b"\0\0\0\x02\x08\x07"
    assert CompositeLocalCodec(options).decode(data) == {"0": b"\x08\x07"}
    assert CompositeLocalCodec(options).encode({"0": b"\x08\x07"}) == data
    assert CompositeGlobalCodec(options).decode(data)["0"]["id"] == 7
    assert refused(CompositeLocalCodec(options), b"\0\0\0\x01\xff").startswith("undecodable: part 0 at byte 4: not a ")


def test_a_part_that_needs_headers_for_its_deltas_is_refused_where_parts_have_deltas():
    """A part whose deltas need headers is a configuration error in composite-local.

    An Avro delta names its fields in a header, and a composite message has its headers once for all parts.
    """
    options = CodecOptions(
        parts=("avro",), schema=SchemaConfig(file=Path(__file__).parents[2] / "schemas" / "order.avsc")
    )
    with pytest.raises(ConfigurationError, match="part 0 is avro, whose deltas need headers"):
        CompositeLocalCodec(options)
    assert CompositeGlobalCodec(options).decode(bytes(4)) == {}


def test_a_part_uses_the_subjects_of_its_topic():
    """A part reads and registers its schemas under the topic's Kafka names, with the prefix of the installation."""
    url = f"mock://{uuid4()}"
    client = Registry({"url": url})._client
    schema = '{"type":"record","name":"R","fields":[{"name":"id","type":"string"}]}'
    client.register_schema("acme.orders.publish-value", Schema(schema, "AVRO"))
    names = KafkaNames(prefix="acme.")
    CompositeGlobalCodec(CodecOptions(topic="orders", names=names, parts=("avro",), registry={"url": url}))
    assert sorted(client.get_subjects()) == [f"acme.orders.{role}-value" for role in ("delta", "publish")]
