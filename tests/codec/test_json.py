"""The message type JSON: what it reads, what it refuses and why, and numbers that nothing may round."""

import json
import subprocess
import sys
from decimal import Decimal

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.codec import CodecOptions
from processor.codec.json import DEPTH_MAX, JsonCodec
from processor.errors import ConfigurationError, RecordRejected
from processor.merge import diff

PROVED = settings(max_examples=300, deadline=None, print_blob=True)
CODEC = JsonCodec()

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
EXACT_NUMBERS = st.decimals(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def values(leaves):
    """JSON values with such leaves."""
    return st.recursive(
        st.none() | st.booleans() | TEXTS | leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=10,
    )


@PROVED
@given(values(NUMBERS))
def test_what_is_written_is_read_back(value):
    """Every value comes back with its types, members in their order."""
    data = CODEC.encode(value)
    assert repr(CODEC.decode(data)) == repr(CODEC.decode_own(data)) == repr(value)


@PROVED
@given(values(NUMBERS))
def test_another_writers_spaces_and_escapes_change_nothing(value):
    """A publisher that writes JSON in its own way is read as well; whole doubles keep their type."""
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
    """It comes back digit for digit, from a publisher's message and from our own, in an array in an object too."""
    data = f'{{"a":{pad}[{{"b":{pad}{literal}}}],"c":{pad}1.5}}'.encode()
    value = CODEC.decode(data)
    assert type(value["a"][0]["b"]) is Decimal
    assert value["c"] == 1.5
    own = CODEC.encode(value)
    assert own.replace(b" ", b"") == data.replace(b" ", b"")
    assert repr(CODEC.decode_own(own)) == repr(CODEC.decode(own)) == repr(value)


def test_a_number_with_an_exponent_survives_by_value():
    """Its spelling may change, as that of any number; its value does not."""
    value = CODEC.decode(b'{"a": "\\u0061", "b": 9007199254740993e0}')
    assert value == {"a": "a", "b": Decimal(9007199254740993)}
    assert CODEC.decode(CODEC.encode(value)) == {"a": "a", "b": 9007199254740993}


@PROVED
@given(values(EXACT_NUMBERS))
def test_any_decimal_survives(value):
    """Numbers of any length and size keep their exact value through reading, writing and reading again."""
    text = (
        json.dumps(value, default=lambda number: f"\ue000{number}\ue000")
        .replace('"\\ue000', "")
        .replace('\\ue000"', "")
    )
    own = CODEC.encode(CODEC.decode(text.encode()))

    def numbers(data):
        found = []
        json.loads(data, parse_float=lambda n: found.append(Decimal(n)), parse_int=lambda n: found.append(Decimal(n)))
        return found

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
    """Decimals are for numbers that need them: trailing zeros and long spellings do not."""
    assert repr(CODEC.decode(f'{{"a": {literal}}}'.encode())) == repr({"a": value})


def test_only_messages_with_such_numbers_are_marked():
    """A space at the end tells our own reader to look; usual messages carry none."""
    assert CODEC.encode({"a": 1.5}) == b'{"a":1.5}'
    assert CODEC.encode({"a": Decimal("1E+400")}) == b'{"a":1E+400} '


def test_long_digits_in_a_string_do_not_make_decimals():
    """Card numbers, version numbers and addresses in strings leave the message as it is."""
    record = {"card": "41111111111111111111", "v": "1.2.3.4.5.6.7.8.9.10", "price": 1.25, "e": "1e-999"}
    assert CODEC.decode(json.dumps(record).encode()) == record


def test_of_a_member_that_occurs_twice_the_last_counts():
    """Rule 11, on the fast way and on the exact one."""
    assert CODEC.decode(b'{"a":1,"b":2,"a":3}') == {"a": 3, "b": 2}
    assert CODEC.decode(b'{"a":1,"b":18446744073709551616,"a":3}') == {"a": 3, "b": Decimal(2**64)}


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"", "line 1 column 1 (char 0)"),
        (b'{"a":1,\n "b":}', "line 2 column 6 (char 13)"),
        (b'{"a":1} x', "line 1 column 9 (char 8)"),
        (b'"\xff"', "line 1 column"),
        (b"\xef\xbb\xbf{}", "line 1 column 1 (char 0)"),
        (b"[NaN]", "line 1 column 2 (char 1)"),
        (b'["\\ud800"]', "line 1 column"),
        (b'[1e999, "\\ud800"]', "not JSON"),
        (b"[1e999, NaN]", "not JSON"),
        (b"[1e99999999999999999999]", "not JSON"),
        (b"[1e999, \xff]", "not JSON"),
    ],
    ids=repr,
)
def test_what_is_no_json_is_undecodable_with_its_place(data, place):
    """One sentence, with line, column and position where the parser knows them."""
    with pytest.raises(RecordRejected) as caught:
        CODEC.decode(data)
    assert caught.value.reason == "undecodable"
    assert place in caught.value.detail


def test_own_messages_that_somebody_damaged_are_undecodable():
    """Reading without checks does not mean any other exception."""
    for data in (b"", b"{", b"{ "):
        with pytest.raises(RecordRejected, match="undecodable"):
            CODEC.decode_own(data)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b' [\n{"a" : ', b"}]")])
@pytest.mark.parametrize(("number", "written"), [(b"1", b"1"), (b"1e999", b"1E+999"), (b"9" * 30, b"9" * 30)])
def test_nesting_is_refused_beyond_max_depth_and_not_before(opening, closing, number, written):
    """At the limit a message is read and can be written; one level more is `too_deep`, thousands more as well."""
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
    """Many siblings, and brackets in strings, are not levels; an empty one at the bottom is."""
    record = {"a": [[1], *([] for _ in range(1000))], "s": "[{" * 1000}
    assert JsonCodec(CodecOptions(3)).decode(orjson.dumps(record)) == record
    with pytest.raises(RecordRejected, match="too_deep"):
        JsonCodec(CodecOptions(3)).decode(orjson.dumps({**record, "b": [[{}]]}))


@pytest.mark.parametrize("max_depth", [0, DEPTH_MAX + 1])
def test_a_depth_that_could_not_be_written_is_a_configuration_error(max_depth):
    """What is read must be writable: orjson writes 254 levels."""
    with pytest.raises(ConfigurationError, match="1 to 254"):
        JsonCodec(CodecOptions(max_depth))
    deepest = JsonCodec(CodecOptions(DEPTH_MAX)).encode(json.loads("[" * DEPTH_MAX + "]" * DEPTH_MAX))
    assert len(deepest) == 2 * DEPTH_MAX


@pytest.mark.parametrize("value", [{1: 2}, {"a": 1j}, {"a": Decimal("NaN")}, {"a": {1, 2}}], ids=repr)
def test_what_json_cannot_say_is_a_type_error(value):
    """A plug-in that puts such a value into a record is at fault, not the record."""
    with pytest.raises(TypeError):
        CODEC.encode(value)


@pytest.mark.parametrize("literal", [
    b"7.19369477883690001e+17", b"-7.19369477883690001e17", b"1.23456789012345678901234e23", b"9007199254740993E0",
    b"719369477883690001.0", b"18446744073709551616",
])  # fmt: skip
def test_a_number_with_an_exponent_stays_the_value_it_is(literal):
    """A decimal that happens to be whole does not turn into an integer of 64 bits when it is written and read again."""
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
    """Others read what has neither as an int: rule 9 keeps the kinds apart, and beyond 64 bits too."""
    codec = JsonCodec(CodecOptions())
    written = codec.encode(codec.decode(b'{"a":%b}' % literal))
    assert type(json.loads(written)["a"]) is float, written
    assert Decimal(written.strip()[5:-1].decode()) == Decimal(literal.decode())


def test_what_is_written_takes_no_more_memory_than_it_is_long():
    """Workers keep very many records as they were written. In a process of its own, to see its memory."""
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
    """What each message says, or that it says nothing."""
    codec, found = JsonCodec(), []
    for message in messages:
        try:
            found.append(codec.decode_own(message))
        except RecordRejected:
            return RecordRejected
    return found


def together(messages):
    """The same of all at once."""
    try:
        return JsonCodec().decode_own_many(messages)
    except RecordRejected:
        return RecordRejected


PIECES = [b"{}", b"1", b"1],[2", b'{"a":1},{"b":2}', b'{"a":[1', b"2]}", b'{"a":"x', b'y"}', b"", b" ", b"{},null,{}",
          b"null", b"[null]", b"]", b"[", b"0.10000000000000000000000001 ", b'{"n":18446744073709551616} ', b"\xff",
          b"{}null", b"null,{}", b'{"a":', b",", b'"null"', b"[1,2]"]  # fmt: skip


@settings(max_examples=2000, deadline=None, print_blob=True)
@given(st.lists(st.sampled_from(PIECES), max_size=5))
def test_messages_read_together_say_what_each_says_alone(messages):
    """Bad ones that are a good text together are refused, even if another makes up for the number of values."""
    said = together(messages)
    assert repr(said) == repr(one_by_one(messages))


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
    """Each of them is bad, or its neighbour is."""
    with pytest.raises(RecordRejected, match="not JSON"):
        JsonCodec().decode_own_many(messages)


def test_a_message_nested_as_deep_as_can_be_read_is_read_among_others():
    """One level more, that of the array they are in, would be too deep."""
    deep = b"[" * 1024 + b"]" * 1024
    one, nested = JsonCodec().decode_own_many([b"1", deep])
    assert (one, type(nested), len(nested)) == (1, list, 1)
