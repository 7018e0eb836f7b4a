"""Records are sorted in the order that a subscriber asked for."""

from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cmp_to_key

import pytest
from bson import DatetimeMS, Decimal128, Int64
from hypothesis import given, settings
from hypothesis import strategies as st
from msgpack import Timestamp

from processor.errors import ConfigurationError
from processor.filter import RecordMetadata
from processor.filter.compare import comparison
from processor.filter.limits import CHARACTERS_MAX
from processor.filter.value import elements, number
from processor.subscriptions.request.record_order import SortOrder

PROVED = settings(max_examples=200, deadline=None, print_blob=True)
NAN = float("nan")
FACTS = RecordMetadata()

MIDNIGHT = datetime(2026, 1, 2, tzinfo=UTC)

RISING = [
    [None, "", [], {}, {"b": 1}, [None, 5]],
    [NAN, Decimal("nan")],
    [float("-inf"), Decimal("-inf")],
    [-(10**400), Decimal(-(10**400))],
    [-(2**70)],
    ["-1.5", -1.5],
    [0, -0.0, "0", False, Decimal(0), Decimal("0E+3")],
    [Decimal("1E-400")],
    [Decimal("0.09999999999999999999")],
    [0.1, Decimal("0.1"), "0.1", ".1", "1e-1"],
    [Decimal("0.1000000000000000000001")],
    [
        Decimal("0.1000000000000000055511151231257827021181583404541015625"),
        "0.1000000000000000055511151231257827021181583404541015625",
    ],
    [1, True, "1", "1.0", [1, 0]],
    [2],
    ["10", 10.0, Decimal128("10.0"), Int64(10)],
    [Decimal128("10.5")],
    [2**53],
    [2**53 + 1, str(2**53 + 1)],
    [2**64],
    [2**64 + 1],
    [99999999999999991611392],
    [1e23, 10**23, "1e23", Decimal("1E+23"), Decimal128("1E+23")],
    [1e300],
    [10**400, Decimal("1E+400"), "1E+400"],
    [float("inf")],
    [Timestamp(-1, 5)],
    [date(2026, 1, 2), MIDNIGHT, MIDNIGHT.replace(tzinfo=None), Timestamp(1_767_312_000)],
    [Timestamp(1_767_312_000, 1)],
    [MIDNIGHT.replace(microsecond=500_000), Timestamp(1_767_312_000, 500_000_000), DatetimeMS(1_767_312_000_500)],
    [Timestamp(2**60)],
    [" 1"],
    ["+"],
    ["10 apples"],
    ["2026-01-02"],
    ["Zebra"],
    ["abc", ["abc", "a"]],
    ["abc\0"],
    ["abc\0d"],
    ["abcd"],
    ["inf"],
    ["nan"],
    ["٣"],
    ["\ud800"],
    ["\uffff"],
    ["\U0001f600"],
    ["\U0010ffff"],
]
"""Values from the lowest up; those in one list are equal."""


def keys(text, values):
    """The sort keys of records with a value each, all under one SOW key."""
    order = SortOrder(text)
    return [order.key(b"k", {"a": value}, FACTS) for value in values]


def assert_rising(groups):
    """Assert that the keys of a group are equal, and lower than those of later groups."""
    ranked = [(rank, key) for rank, group in enumerate(groups) for key in group]
    for rank, key in ranked:
        for other_rank, other in ranked:
            assert (key < other, key == other) == (rank < other_rank, rank == other_rank), (key, other)


def test_the_order_of_values():
    """The order of values is NULL, NaN, numbers by value, other texts; an array is ordered by element 0."""
    assert_rising([keys("/a", group) for group in RISING])


def test_desc_is_the_reverse():
    """DESC reverses the order of all values, so NULL comes last."""
    assert_rising([keys("/a DESC", group) for group in reversed(RISING)])


NUMBERS = st.one_of(
    st.integers(-5, 5),
    st.integers(2**53 - 3, 2**53 + 3),
    st.integers(10**23 - 10**7, 10**23 + 10**7),
    st.floats(),
    st.sampled_from([0.1, 1e22, 1e23, 9007199254740993.0]),
    st.decimals(),
    st.floats(allow_nan=False, allow_infinity=False).map(repr).map(Decimal),
    st.sampled_from([0.1, 1e23, 3.3]).map(Decimal),
    st.sampled_from(["99999999999999997000000.5", "0.10000000000000000200", "1E+23"]).map(Decimal),
)
VALUES = st.one_of(NUMBERS, NUMBERS.map(str), st.text(max_size=3), st.sampled_from([None, True, "", "a", "10", "9"]))
DIRECTIONS = st.sampled_from(["/a", "/a ASC", "/a DESC"])


@PROVED
@given(DIRECTIONS, st.lists(VALUES, min_size=3, max_size=3))
def test_keys_have_one_order(text, values):
    """The order of any three keys is total and transitive."""
    one, other, third = keys(text, values)
    for left, right in [(one, other), (other, third), (one, third), (one, one)]:
        assert [left < right, left == right, right < left].count(True) == 1
    if one < other < third:
        assert one < third
    if one == other:
        assert (one < third, third < one) == (other < third, third < other)


@PROVED
@given(VALUES, VALUES)
def test_values_are_ordered_as_filters_compare_them(one, other):
    """Two values are ordered as a filter compares them, except that two texts of numbers go by their value."""
    if not elements(one) or not elements(other):
        return
    left, right = elements(one)[0], elements(other)[0]
    if type(left) is str and type(right) is str:
        left = left if number(left) is None else number(left)
        right = right if number(right) is None else number(right)
    if left != left or right != right:  # noqa: PLR0124 - NaN
        return
    rising, falling = keys("/a", [one, other]), keys("/a DESC", [one, other])
    for name, result in (("<", rising[0] < rising[1]), ("=", rising[0] == rising[1]), (">", rising[1] < rising[0])):
        assert result is comparison(name)(left, right)
    assert (falling[0] < falling[1], falling[1] < falling[0]) == (rising[1] < rising[0], rising[0] < rising[1])


@PROVED
@given(
    st.lists(st.fixed_dictionaries({"a": VALUES, "b": VALUES}), max_size=8),
    st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=2),
)
def test_several_expressions(records, parts):
    """The first expression that differs decides, then the SOW key, as in successive stable sorts."""
    text = ", ".join(f"/{name}{' desc' * falls}" for name, falls in parts) or None
    order = SortOrder(text)
    numbered = [(b"%d" % index, record) for index, record in enumerate(records)]
    result = sorted(numbered, key=lambda pair: order.key(*pair, FACTS))
    expected = numbered
    for name, falls in reversed(parts):
        single = SortOrder(f"/{name}")

        def compared(one, other, single=single, falls=falls):
            left, right = (single.key(b"", record, FACTS) for _, record in (one, other))
            return (-1 if falls else 1) * ((right < left) - (left < right))

        expected = sorted(expected, key=cmp_to_key(compared))
    assert [key for key, _ in result] == [key for key, _ in expected]


def test_without_an_order_the_sow_key_decides():
    """The SOW key decides between equal records, also with DESC."""
    for text in (None, "/a", "/a DESC"):
        order = SortOrder(text)
        assert order.key(b"a", {"a": 1}, FACTS) < order.key(b"b", {"a": 1}, FACTS)
    assert SortOrder(None).key(b"b", {"a": 1}, FACTS) < SortOrder(None).key(b"c", {"a": 0}, FACTS)


@pytest.mark.parametrize(
    ("text", "record", "beside"),
    [
        ("/a + /b DESC", {"a": 1, "b": 2}, {"a": 1, "b": 1}),
        ("( /a + /b )desc", {"a": 1, "b": 2}, {"a": 1, "b": 1}),
        ("/'a, b' Desc", {"a, b": 2}, {"a, b": 1}),
        ("/'a'DESC", {"a": 2}, {"a": 1}),
        ("/asc", {"asc": 1}, {"asc": 2}),
        ("/desc", {"desc": 1}, {"desc": 2}),
        ("/x/desc aSc", {"x": {"desc": 1}}, {"x": {"desc": 2}}),
        ("COALESCE(/a, /b), /c DESC", {"b": 1, "c": 1}, {"a": 2, "c": 2}),
        ("COALESCE(/a, /b), /c DESC", {"b": 1, "c": 2}, {"a": 1, "c": 1}),
        ("CONCAT(/a, r',(\\', \"]\")\tDESC,/b", {"a": "x"}, {"a": "w"}),
        ("IF(/a = 'x desc', 1, 2)", {"a": "x desc"}, {"a": "x"}),
        ("/legs[1]/px", {"legs": [{"px": 2}, {"px": 1}]}, {"legs": [{"px": 1}, {"px": 2}]}),
        ("/legs/px", {"legs": [{}, {"px": 1}]}, {"legs": [{"px": 2}, {"px": 0}]}),
        ("/a\nDESC,\n/b", {"a": 2}, {"a": 1}),
    ],
)
def test_an_order_takes_expressions_of_filters(text, record, beside):
    """An order takes the expressions of filters, with commas in brackets and quotes; the first record comes first."""
    order = SortOrder(text)
    assert order.key(b"b", record, FACTS) < order.key(b"a", beside, FACTS)


def test_a_record_that_is_no_object_has_no_values():
    """A record that is no object, such as binary bytes, is ordered by metadata and SOW key only."""
    assert SortOrder("/a").key(b"k", b"bytes", FACTS) == SortOrder("/a").key(b"k", {}, FACTS)
    order = SortOrder("MESSAGE_SIZE() DESC")
    assert order.key(b"b", b"", RecordMetadata(message_bytes=9)) < order.key(b"a", b"", RecordMetadata(message_bytes=8))
    assert order.uses_metadata
    assert not SortOrder("/a").uses_metadata
    assert not SortOrder(None).uses_metadata


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("", 1, 1, "expected an expression, such as /price, with ASC, DESC or nothing behind it"),
        ("/a,", 1, 4, "expected an expression, such as /price"),
        ("/a,,/b", 1, 4, "expected an expression, such as /price"),
        ("/a, DESC", 1, 5, "expected an expression, such as /price"),
        ("/a DOWN", 1, 4, "DOWN"),
        ("/a,  price DESC", 1, 6, "price is no value; expected /price if it is a field"),
        ("/a, /b + DESC", 1, 9, "expected a value, such as /qty, 10, 'text' or UPPER(/name); it ends"),
        ("/a, (/b, /c", 1, 8, "expected"),
        ("/a,\n /b,\n  /c +\n  * 2 DESC", 4, 3, "expected a value"),
        ("/a, UPER(/b)", 1, 5, "did you mean 'UPPER'?"),
        ("/a, 'b", 1, 5, "this text has no end"),
        ("/a, UNIX_TIMESTAMP() - /b", 1, 5, "its value moves although no record changes"),
    ],
)
def test_a_bad_order_is_refused(text, line, column, problem):
    """A bad order is refused with its problem, its place in the full text, and a caret."""
    with pytest.raises(ConfigurationError) as error:
        SortOrder(text)
    message, shown, caret = str(error.value).split("\n")
    assert message.startswith(f"order_by, line {line}, column {column}: ")
    assert problem in message
    assert shown == "  " + text.split("\n")[line - 1]
    assert caret == " " * (column + 1) + "^"


def test_the_length_of_an_order_is_limited():
    """The length of an order is limited, since any client may send one."""
    with pytest.raises(ConfigurationError, match=f"an order at most {CHARACTERS_MAX}"):
        SortOrder("/" + "a" * CHARACTERS_MAX)
