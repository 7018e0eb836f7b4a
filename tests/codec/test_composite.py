"""The message types composite-local and composite-global: parts of other types."""

from pathlib import Path

import pytest

from processor.codec import CodecOptions
from processor.codec.composite_local import CompositeGlobalCodec, CompositeLocalCodec
from processor.config import SchemaConfig
from processor.errors import ConfigurationError
from tests.codec.refusing import refused
from tests.codec.specimens import PROTO_FILE

OPTIONS = CodecOptions(parts=("json", "binary", "nvfix"))
BOTH = pytest.mark.parametrize("make", [CompositeLocalCodec, CompositeGlobalCodec])


@BOTH
@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", {}),
        (b"\0\0\0\0" * 3, {}),
        (b"\0\0\0\x02{}", {"0": {}}),
        (b"\0\0\0\0\0\0\0\x01\xff", {"1": b"\xff"}),
        (b"\0\0\0\x01[\0\0\0\0"[:4] + b"7", {"0": 7}),
    ],
    ids=repr,
)
def test_a_part_without_bytes_is_absent(make, data, value):
    """Also where the parts at the end are missing altogether."""
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
    """The byte in the message, then what the part's type says."""
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
def test_what_it_cannot_say_is_a_type_error(make, value, why):
    """The message names the part."""
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
    """None at all, a composite in a composite, a type that is not installed."""
    with pytest.raises(ConfigurationError, match=why):
        make(CodecOptions(parts=parts))


def test_a_part_without_deltas_is_its_bytes_where_parts_have_deltas():
    """It is replaced whole, unknown fields and all; it is parsed all the same, and bad bytes are refused."""
    options = CodecOptions(parts=("protobuf",), schema=SchemaConfig(file=PROTO_FILE, message="test.Order"))
    data = b"\0\0\0\x02\x08\x07"
    assert CompositeLocalCodec(options).decode(data) == {"0": b"\x08\x07"}
    assert CompositeLocalCodec(options).encode({"0": b"\x08\x07"}) == data
    assert CompositeGlobalCodec(options).decode(data)["0"]["id"] == 7
    assert refused(CompositeLocalCodec(options), b"\0\0\0\x01\xff").startswith("undecodable: part 0 at byte 4: not a ")


def test_a_part_that_needs_headers_for_its_deltas_is_refused_where_parts_have_deltas():
    """An Avro delta says by header which fields it carries, and a composite has headers once for all parts."""
    options = CodecOptions(
        parts=("avro",), schema=SchemaConfig(file=Path(__file__).parents[2] / "schemas" / "order.avsc")
    )
    with pytest.raises(ConfigurationError, match="part 0 is avro, whose deltas need headers"):
        CompositeLocalCodec(options)
    assert CompositeGlobalCodec(options).decode(b"") == {}
