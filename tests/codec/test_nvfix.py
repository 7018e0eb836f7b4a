"""The message types NVFIX and FIX: fields, repeated fields and separators."""

from decimal import Decimal

import pytest

from processor.codec import CodecOptions
from processor.codec.nvfix import FixCodec, NvfixCodec
from processor.errors import ConfigurationError
from tests.codec.refusing import refused

PIPED = CodecOptions(separator="|")


def test_the_last_separator_may_be_missing_and_is_written():
    """The last separator may be missing in a message and is always written; later equals signs belong to the value."""
    for data in (b"a=1|b=x=y|c=", b"a=1|b=x=y|c=|"):
        value = NvfixCodec(PIPED).decode(data)
        assert value == {"a": "1", "b": "x=y", "c": ""}
        assert NvfixCodec(PIPED).encode(value) == b"a=1|b=x=y|c=|"


def test_repeating_groups_are_arrays():
    """Repeated fields become arrays: every value is kept in order, the interleaving of a group is not."""
    codec = FixCodec(PIPED)
    value = codec.decode(b"35=D|453=2|448=A|447=D|448=B|447=D|55=IBM|")
    assert value == {"35": "D", "453": "2", "448": ["A", "B"], "447": ["D", "D"], "55": "IBM"}
    assert codec.encode(value) == b"35=D|453=2|448=A|448=B|447=D|447=D|55=IBM|"


def test_numbers_and_booleans_are_written_as_text():
    """Numbers and booleans from plug-ins and merge rules are written as text with every digit."""
    value = {"a": 1, "b": 1.5, "c": True, "d": Decimal(18446744073709551616), "e": ["x", 2]}
    assert NvfixCodec(PIPED).encode(value) == b"a=1|b=1.5|c=true|d=18446744073709551616|e=x|e=2|"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"a=1|b", "undecodable: expected name=value at byte 4; it is 'b'"),
        ("ä=1||b=2".encode(), "undecodable: expected name=value at byte 5; it is ''"),
        (b"=1", "undecodable: expected name=value at byte 0; it is '=1'"),
        (b"a=\xff", "undecodable: not UTF-8: invalid start byte at byte 2"),
    ],
)
def test_bad_bytes_are_refused_with_their_place(data, why):
    """Bad bytes are rejected with their offset in bytes, also after characters of several bytes."""
    assert refused(NvfixCodec(PIPED), data) == why


def test_fix_takes_tags_only():
    """FIX accepts tags of ASCII digits only."""
    assert refused(FixCodec(PIPED), b"35=D|x=1") == "undecodable: expected tag=value at byte 5; it is 'x=1'"
    assert "byte 0" in refused(FixCodec(PIPED), "٣=1".encode())
    with pytest.raises(TypeError, match="/x cannot be a field: 'x' is no tag"):
        FixCodec().encode({"x": "1"})


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"a": "x|y"}, "/a holds the separator"),
        ({"a|b": "x"}, "/a|b cannot be a field"),
        ({"a=b": "x"}, "/a=b cannot be a field"),
        ({"": "x"}, "/ cannot be a field"),
        ({"a": None}, "/a is null"),
        ({"a": {}}, "/a is dict"),
        ({"a": [["x"]]}, "/a is list"),
        ({"a": []}, "/a is an empty array"),
        ({"a": "\ud800"}, "surrogate"),
        (["a"], "a record is an object; this is list"),
    ],
    ids=repr,
)
def test_an_unsupported_value_is_a_type_error_with_its_path(value, why):
    """A value that would be read back differently is a TypeError with its path."""
    with pytest.raises(TypeError) as caught:
        NvfixCodec(PIPED).encode(value)
    assert why in str(caught.value)


@pytest.mark.parametrize(("codec", "separator"), [(NvfixCodec, "="), (FixCodec, "="), (FixCodec, "5")])
def test_a_separator_that_stands_in_fields_is_a_configuration_error(codec, separator):
    """A separator that can occur in fields is a configuration error."""
    with pytest.raises(ConfigurationError, match="separator is "):
        codec(CodecOptions(separator=separator))
