"""The message type JSON: the texts that it accepts and rejects, and numbers that are never rounded.

JSONTestSuite has files that every JSON parser must accept, must reject, or may either accept or reject.
"""

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.codec import CodecOptions
from processor.codec.json import JsonCodec
from processor.codec.value_checks import DEPTH_MAX
from processor.errors import ConfigurationError, RecordRejected
from processor.merge import diff

PROVED = settings(max_examples=300, deadline=None, print_blob=True)
CODEC = JsonCodec()

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
EXACT_NUMBERS = st.decimals(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def values(leaves):
    """JSON values with the given leaves."""
    return st.recursive(
        st.none() | st.booleans() | TEXTS | leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=10,
    )


@PROVED
@given(values(NUMBERS))
def test_a_written_value_is_read_back(value):
    """Every value is read back with its types, its members in order."""
    data = CODEC.encode(value)
    assert repr(CODEC.decode(data)) == repr(CODEC.decode_own(data)) == repr(value)


@PROVED
@given(values(NUMBERS))
def test_another_writers_spaces_and_escapes_change_nothing(value):
    """Other writers' spaces and escapes do not change a value; whole doubles keep their type."""
    assert repr(CODEC.decode(json.dumps(value, indent=1).encode())) == repr(value)


@pytest.mark.parametrize(
    "literal",
    [
        "18446744073709551616",
        "-9223372036854775809",
        "123456789012345678901234567890",
        "0.1234567890123456789",
        "3.141592653589793238462643383279",
        "900719925474099.12",
        "9007199254740.993",
        "1234567890123456789.5",
        "1E+400",
        "1.5E-400",
        "1.234567890123E-320",
        "1.00000000000000000000000000000000001",
        pytest.param("9" * 5000, id="5000 digits"),
    ],
)
@pytest.mark.parametrize("pad", ["", " "], ids=["compact", "spaced"])
def test_a_number_that_a_double_would_round_survives(literal, pad):
    """A number that a double would round is kept digit for digit, also in nested arrays and objects."""
    data = f'{{"a":{pad}[{{"b":{pad}{literal}}}],"c":{pad}1.5}}'.encode()
    value = CODEC.decode(data)
    assert type(value["a"][0]["b"]) is Decimal
    assert value["c"] == 1.5
    own = CODEC.encode(value)
    assert own.replace(b" ", b"") == data.replace(b" ", b"")
    assert repr(CODEC.decode_own(own)) == repr(CODEC.decode(own)) == repr(value)


def test_a_number_with_an_exponent_survives_by_value():
    """A number with an exponent keeps its value; its spelling may change."""
    value = CODEC.decode(b'{"a": "\\u0061", "b": 9007199254740993e0}')
    assert value == {"a": "a", "b": Decimal(9007199254740993)}
    assert CODEC.decode(CODEC.encode(value)) == {"a": "a", "b": 9007199254740993}


@PROVED
@given(values(EXACT_NUMBERS))
def test_any_decimal_survives(value):
    """Numbers of any length and size keep their exact value when they are read, written and read again."""
    text = (
        json.dumps(value, default=lambda number: f"\ue000{number}\ue000")
        .replace('"\\ue000', "")
        .replace('\\ue000"', "")
    )
    own = CODEC.encode(CODEC.decode(text.encode()))

    def numbers(data):
        decoded = []
        json.loads(
            data, parse_float=lambda n: decoded.append(Decimal(n)), parse_int=lambda n: decoded.append(Decimal(n))
        )
        return decoded

    assert numbers(own) == numbers(text)
    assert repr(CODEC.decode_own(own)) == repr(CODEC.decode(text.encode()))


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("18446744073709551615", 18446744073709551615),
        ("-9223372036854775808", -9223372036854775808),
        ("0.30000000000000004", 0.30000000000000004),
        ("1.50", 1.5),
        ("1e2", 100.0),
        ("1.0000000000000000000", 1.0),
        ("5e-324", 5e-324),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ("-0.0", -0.0),
    ],
)
def test_a_number_that_fits_is_an_int_or_a_float(literal, value):
    """A number that fits is an int or a float; trailing zeros and long spellings do not make it a Decimal."""
    assert repr(CODEC.decode(f'{{"a": {literal}}}'.encode())) == repr({"a": value})


def test_only_messages_with_such_numbers_are_marked():
    """Only messages with exact numbers end with a space, which marks them for the codec's own reader."""
    assert CODEC.encode({"a": 1.5}) == b'{"a":1.5}'
    assert CODEC.encode({"a": Decimal("1E+400")}) == b'{"a":1E+400} '


def test_long_digits_in_a_string_do_not_make_decimals():
    """Long digits inside strings, such as card and version numbers, do not make decimals."""
    record = {"card": "41111111111111111111", "v": "1.2.3.4.5.6.7.8.9.10", "price": 1.25, "e": "1e-999"}
    assert CODEC.decode(json.dumps(record).encode()) == record


def test_the_last_of_two_members_with_one_name_counts():
    """The last of two members with the same name counts (rule 11), in the fast parser and in the exact one."""
    assert CODEC.decode(b'{"a":1,"b":2,"a":3}') == {"a": 3, "b": 2}
    assert CODEC.decode(b'{"a":1,"b":18446744073709551616,"a":3}') == {"a": 3, "b": Decimal(2**64)}


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b'{"a":1,\n "b":}', "line 2 column 6 (char 13)"),
        (b'{"a":1} x', "line 1 column 9 (char 8)"),
        (b'"\xff"', "line 1 column"),
        (b"[NaN]", "line 1 column 2 (char 1)"),
        (b'["\\ud800"]', "line 1 column"),
        (b'[1e999, "\\ud800"]', "not JSON"),
        (b"[1e999, NaN]", "not JSON"),
        (b"[1e99999999999999999999]", "not JSON"),
        (b"[1e999, \xff]", "not JSON"),
    ],
    ids=repr,
)
def test_invalid_json_is_undecodable_with_its_place(data, place):
    """Invalid JSON is rejected as `undecodable` with one sentence and, if available, line, column and position."""
    with pytest.raises(RecordRejected) as caught:
        CODEC.decode(data)
    assert caught.value.reason == "undecodable"
    assert place in caught.value.detail


def test_damaged_stored_messages_are_undecodable():
    """Damaged stored messages are rejected as `undecodable`, also by the reader without checks."""
    for data in (b"", b"{", b"{ "):
        with pytest.raises(RecordRejected, match="undecodable"):
            CODEC.decode_own(data)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b' [\n{"a" : ', b"}]")])
@pytest.mark.parametrize(("number", "written"), [(b"1", b"1"), (b"1e999", b"1E+999"), (b"9" * 30, b"9" * 30)])
def test_nesting_is_refused_beyond_max_depth_and_not_before(opening, closing, number, written):
    """A message with `max_depth` levels is read and written; one or thousands more are `too_deep`."""
    levels = len(closing)
    for max_depth in (2, 10, 128, DEPTH_MAX):
        codec = JsonCodec(CodecOptions(max_depth))
        fits = max_depth // levels
        own = codec.encode(codec.decode(opening * fits + number + closing * fits))
        assert own.strip() == b"".join(opening.split()) * fits + written + closing * fits
        for times in (fits + 1, 600, 5000):
            with pytest.raises(RecordRejected, match="too_deep"):
                codec.decode(opening * times + number + closing * times)


def test_brackets_do_not_make_depth():
    """Siblings and brackets in strings are no levels; an empty array at the bottom is one."""
    record = {"a": [[1], *([] for _ in range(1000))], "s": "[{" * 1000}
    assert JsonCodec(CodecOptions(3)).decode(orjson.dumps(record)) == record
    with pytest.raises(RecordRejected, match="too_deep"):
        JsonCodec(CodecOptions(3)).decode(orjson.dumps({**record, "b": [[{}]]}))


@pytest.mark.parametrize("max_depth", [0, DEPTH_MAX + 1])
def test_a_depth_that_could_not_be_written_is_a_configuration_error(max_depth):
    """A `max_depth` above 250 is a configuration error: orjson writes 254 levels, some of them around it."""
    with pytest.raises(ConfigurationError, match="1 to 250"):
        JsonCodec(CodecOptions(max_depth))
    deepest = JsonCodec(CodecOptions(DEPTH_MAX)).encode(json.loads("[" * DEPTH_MAX + "]" * DEPTH_MAX))
    assert len(deepest) == 2 * DEPTH_MAX


@pytest.mark.parametrize("value", [{1: 2}, {"a": 1j}, {"a": Decimal("NaN")}, {"a": {1, 2}}], ids=repr)
def test_a_value_without_a_json_form_is_a_type_error(value):
    """A value that JSON cannot represent is a TypeError, the fault of a plug-in and not of the record."""
    with pytest.raises(TypeError):
        CODEC.encode(value)


@pytest.mark.parametrize("literal", [
    b"7.19369477883690001e+17", b"-7.19369477883690001e17", b"1.23456789012345678901234e23", b"9007199254740993E0",
    b"719369477883690001.0", b"18446744073709551616",
])  # fmt: skip
def test_a_number_with_an_exponent_keeps_its_type(literal):
    """An integral Decimal stays a Decimal, and does not become an integer of 64 bits, when written and read again."""
    codec = JsonCodec(CodecOptions())
    value = codec.decode(b'{"a":%b}' % literal)
    again = codec.decode_own(codec.encode(value))
    assert diff(value, again).delta == {}
    assert codec.encode(again) == codec.encode(value)


@pytest.mark.parametrize("literal", [
    b"7.19369477883690001e+17", b"-92233720368547758091.6146472256001054e+16", b"18446744073709551616e0", b"-0.1e1",
    b"9007199254740993E0", b"719369477883690001.0", b"1e400",
])  # fmt: skip
def test_a_number_with_a_point_or_an_exponent_is_written_with_one(literal):
    """A number read with a point or an exponent is written with one, so others do not read an int (rule 9)."""
    codec = JsonCodec(CodecOptions())
    written = codec.encode(codec.decode(b'{"a":%b}' % literal))
    assert type(json.loads(written)["a"]) is float, written
    assert Decimal(written.strip()[5:-1].decode()) == Decimal(literal.decode())


def test_a_written_message_takes_no_more_memory_than_its_length():
    """A written message takes no more memory than its length, since workers keep many of them.

    The test runs in a process of its own to measure its memory.
    """
    program = """
from pathlib import Path
from processor.codec.json import JsonCodec

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

codec = JsonCodec()
before = resident()
kept = [codec.encode({"id": n, "symbol": "X"}) for n in range(50_000)]
print((resident() - before) // len(kept))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    print(f"{ran.stdout.strip()} bytes each")
    assert int(ran.stdout) < 500


def one_by_one(messages):
    """The values of messages decoded one by one, or `RecordRejected`."""
    codec, decoded = JsonCodec(), []
    for message in messages:
        try:
            decoded.append(codec.decode_own(message))
        except RecordRejected:
            return RecordRejected
    return decoded


def together(messages):
    """The values of messages decoded together, or `RecordRejected`."""
    try:
        return JsonCodec().decode_own_many(messages)
    except RecordRejected:
        return RecordRejected


PIECES = [b"{}", b"1", b"1],[2", b'{"a":1},{"b":2}', b'{"a":[1', b"2]}", b'{"a":"x', b'y"}', b"", b" ", b"{},null,{}",
          b"null", b"[null]", b"]", b"[", b"0.10000000000000000000000001 ", b'{"n":18446744073709551616} ', b"\xff",
          b"{}null", b"null,{}", b'{"a":', b",", b'"null"', b"[1,2]"]  # fmt: skip


@settings(max_examples=500, deadline=None, print_blob=True)
@given(st.lists(st.sampled_from(PIECES), max_size=5))
def test_messages_read_together_equal_messages_read_alone(messages):
    """Messages decoded together give the same values or the same rejection as one by one.

    Bad messages that are valid JSON when joined are rejected, even if another one makes up for the number of values.
    """
    result = together(messages)
    assert repr(result) == repr(one_by_one(messages))


@pytest.mark.parametrize(
    "messages",
    [
        [b'{"a":[1', b"2]}", b"{},{}"],
        [b'{"a":[1', b"2]}", b"{},{},{}"],
        [b'{"a":[1', b"2]}", b"{},null,{}"],
        [b"1],[2"],
        [b"1,2"],
        [b"", b"{},{}"],
    ],
)
def test_bad_messages_that_are_a_good_text_together_are_refused(messages):
    """Bad messages that are valid JSON when joined are rejected."""
    with pytest.raises(RecordRejected, match="not JSON"):
        JsonCodec().decode_own_many(messages)


def test_a_message_nested_as_deep_as_can_be_read_is_read_among_others():
    """The deepest message that can be read alone can be read among others too.

    The array that joins them would be one level too many.
    """
    deep = b"[" * 1024 + b"]" * 1024
    one, nested = JsonCodec().decode_own_many([b"1", deep])
    assert (one, type(nested), len(nested)) == (1, list, 1)


SUITE = Path(__file__).parents[3] / "shared" / "suites" / "json" / "parsing"


def cases(prefix):
    """The files of one kind, as test parameters."""
    files = sorted(SUITE.glob(f"{prefix}_*.json"))
    if not files:
        return [pytest.param(None, id="absent", marks=pytest.mark.skip(reason="no JSONTestSuite beside the project"))]
    return [pytest.param(file, id=file.stem) for file in files]


@pytest.mark.parametrize("file", cases("y"))
def test_valid_json_is_accepted(file):
    """Every valid file is read, written and read again as the same value."""
    codec = JsonCodec()
    value = codec.decode(file.read_bytes())
    assert repr(codec.decode_own(codec.encode(value))) == repr(value)


@pytest.mark.parametrize("file", cases("n"))
def test_invalid_json_is_rejected(file):
    """Every invalid file is rejected as the record's fault, never with another exception."""
    with pytest.raises(RecordRejected) as caught:
        JsonCodec().decode(file.read_bytes())
    assert caught.value.reason in {"undecodable", "too_deep"}


@pytest.mark.parametrize("file", cases("i"))
def test_ambiguous_json_is_read_or_rejected(file):
    """A file that parsers may accept or reject is rejected, or read, written and read again as the same value."""
    codec = JsonCodec()
    try:
        value = codec.decode(file.read_bytes())
    except RecordRejected:
        return
    assert repr(codec.decode_own(codec.encode(value))) == repr(value)
