"""The message type protobuf decodes the fields of a descriptor set, or keeps the bytes without one."""

import pytest
from google.protobuf import descriptor_pb2

from processor.codec import CodecOptions
from processor.codec.protobuf.codec import protobuf_codec
from processor.config import SchemaConfig
from processor.errors import ConfigurationError
from tests.codec.specimens import PROTO_FILE, codec_of, refused


def test_without_a_schema_the_value_is_the_bytes():
    """Without a schema the value is the bytes themselves, and the key must come from the publisher."""
    codec = protobuf_codec()
    assert codec.encode(codec.decode(b"\xff\0")) == b"\xff\0"
    with pytest.raises(TypeError, match="is bytes; this is dict"):
        codec.encode({})


def test_fields_that_cannot_be_absent_have_their_defaults():
    """Fields without presence get their defaults; `optional` fields, oneofs and messages exist only if they are set."""
    codec = codec_of("protobuf")
    empty = {
        "id": 0,
        "big": 0,
        "raw": b"",
        "price": 0.0,
        "side": "UNKNOWN",
        "tags": [],
        "legs": [],
        "by_n": {},
        "ok": False,
    }
    assert codec.decode(b"") == empty
    assert codec.decode(codec.encode({"note": "", "cash": 0, "parent": {}})) == {
        **empty, "note": "", "cash": 0, "parent": empty,
    }  # fmt: skip
    with pytest.raises(TypeError, match=r"^/cash: the oneof pay has another field set"):
        codec.encode({"cash": 1, "card": "x"})


def test_an_unknown_field_is_no_error_and_an_unknown_enum_is_its_number():
    """Unknown fields are ignored and unknown enum values are read as numbers, so a newer publisher can be read."""
    value = codec_of("protobuf").decode(b"\x08\x07\x30\x09\xf8\x07\x01")
    assert (value["id"], value["side"]) == (7, 9)


@pytest.mark.parametrize("index", [b"\x00", b"\x02\x04", b"\x04\x02\x00"], ids=bytes.hex)
def test_a_confluent_frame_is_skipped(index):
    """A Confluent frame with its schema id and message path is skipped without a look-up."""
    assert codec_of("protobuf").decode(b"\x00\x00\x00\x00\x07" + index + b"\x08\x07")["id"] == 7


@pytest.mark.parametrize(
    "data", [b"\xff", b"\x08", b"\x00\x00", b"\x00" * 5, b"\x00" * 5 + b"\x06\x00", b"\x1a\x01\xff"]
)
def test_bad_bytes_are_refused(data):
    """Truncated bytes, invalid texts and half a frame are rejected as `undecodable`."""
    assert refused(codec_of("protobuf"), data).startswith("undecodable: ")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"nope": 1}, "/nope: test.Order has no such field"),
        ({"id": "7"}, "/id: "),
        ({"id": True}, "/id: True is not what the field takes"),
        ({"id": 2**63}, "/id: "),
        ({"id": None}, "/id: "),
        ({"raw": "x"}, "/raw: "),
        ({"note": b"x"}, "/note: "),
        ({"ok": 1}, "/ok: "),
        ({"side": "SELL"}, "/side: test.Side has no value 'SELL'"),
        ({"tags": "x"}, "/tags is str; the field is repeated"),
        ({"legs": [{"id": 1}, {"id": ""}]}, "/legs/id: "),
        ({"parent": {"parent": {"x": 1}}}, "/parent/parent/x: "),
        ({"by_n": {"x": {}}}, "/by_n: "),
        ({"by_n": []}, "/by_n is list; the field is a map"),
        ([], "the record is list"),
    ],
    ids=repr,
)
def test_a_value_outside_the_schema_is_a_type_error_with_its_path(value, why):
    """A value that the schema does not accept is a TypeError with its path; no value is converted to fit."""
    with pytest.raises(TypeError) as caught:
        codec_of("protobuf").encode(value)
    assert why in str(caught.value)


def test_a_schema_that_cannot_be_used_is_a_configuration_error(tmp_path):
    """A schema that cannot be used is a configuration error with the remedy.

    Covered are a missing file, no descriptor set, missing imports, an unknown message and a registry subject.
    """
    junk, lonely = tmp_path / "junk", tmp_path / "lonely"
    junk.write_bytes(b"\xff")
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", dependency=["b.proto"])
    lonely.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    for schema, why in [
        (SchemaConfig(file=tmp_path / "none", message="test.Order"), "No such file"),
        (SchemaConfig(file=junk, message="test.Order"), "no complete descriptor set"),
        (SchemaConfig(file=lonely, message="test.Order"), "--include_imports"),
        (SchemaConfig(file=PROTO_FILE, message="test.Ordr"), "did you mean 'test.Order'"),
        (SchemaConfig(file=PROTO_FILE), "message: full.Name"),
        (SchemaConfig(subject="orders-value"), "name no schema registry"),
        (SchemaConfig(message="test.Order"), "DESCRIPTOR_SET"),
    ]:
        with pytest.raises(ConfigurationError) as caught:
            protobuf_codec(CodecOptions(schema=schema))
        assert why in str(caught.value)
