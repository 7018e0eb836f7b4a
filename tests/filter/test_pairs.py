"""Comparing two arrays takes time in proportion to their lengths and gives the answer of trying every pair."""

import time
from datetime import UTC, datetime
from decimal import Decimal
from itertools import product

import pytest
from bson import Decimal128
from hypothesis import given, settings
from hypothesis import strategies as st
from msgpack import Timestamp

from processor.filter import compile_filter
from processor.filter.compare import PAIRS_MAX, comparison, extremes
from processor.filter.value import elements
from tests.filter.reference import NUMBERS

TEXTS = ["a", "b", "10", "2", "2.0", "2.00", "1e1", "-1", "0", "true", " 1", "nan", "2024", "2024-02-29", "2024-03-01"]
TIMES = [datetime(2024, 2, 29, tzinfo=UTC), Timestamp(1_709_164_800, 1), datetime(2024, 1, 1), Timestamp(-1)]  # noqa: DTZ001
OTHERS = [
    float("nan"),
    float("inf"),
    float("-inf"),
    Decimal128("2.000"),
    Decimal("NaN"),
    True,
    False,
    None,
    "",
    {"x": 1},
]
ALL = st.sampled_from([*NUMBERS, *TEXTS, *TIMES, *OTHERS])
CROSSED = [
    ["2", 2, 2.0, Decimal("2.0")], ["2.0", "2.00"], [2, "2.000", "2.0"], TIMES[:1], ["b", "c"], NUMBERS,
    ["2024-02-29", TIMES[0], "2024-02-29T00:00Z"], [TIMES[1], "x"], [float("nan")], [float("nan"), "x", "5"],
    ["10", "9", "1e1"], [9.5, 9.75], ["2024-02-29T10:00+09:00", "2024-02-29T02:00Z"],
    [Timestamp(1_709_170_200), datetime(2024, 2, 29, 1, 45, tzinfo=UTC)],
    [" 1", "9"], [10, 11], [" x", "2024-02-29"], [Timestamp(2 * 10**9), Timestamp(3 * 10**9)], [True, None],
]  # fmt: skip
"""Hard values: equal ones of other types, texts whose order differs from that of their numbers or times, and values
between these.
"""
ARRAYS = st.one_of(
    st.sampled_from(CROSSED).flatmap(lambda values: st.lists(st.sampled_from(values), min_size=9, max_size=14)),
    st.lists(ALL, min_size=9, max_size=14),
)
PROVED = settings(max_examples=300, deadline=None, derandomize=True)


def holds_for_any_pair(name, left, right):
    """Return whether a comparison holds for any pair, by trying each of them."""
    holds = comparison(name)
    return any(holds(one, other) for one, other in product(elements(left), elements(right)))


COMPILED = {name: compile_filter(f"/a {name} /b") for name in ("=", "!=", "<", "<=", ">", ">=")}


@PROVED
@given(ARRAYS, ARRAYS)
def test_a_comparison_of_arrays_is_that_of_every_pair(left, right):
    """A comparison of long arrays has the answer of trying every pair."""
    assert len(left) * len(right) > PAIRS_MAX
    for name, compiled in COMPILED.items():
        assert compiled.matches({"a": left, "b": right}) is holds_for_any_pair(name, left, right), name


@pytest.mark.parametrize("name", COMPILED)
def test_no_kind_of_value_is_forgotten(name):
    """Arrays of all kinds of values in either order are compared correctly."""
    arrays = [order for values in CROSSED for order in (values, values[::-1])]
    for left, right in product(arrays, arrays):
        # Repeated values are compared in time that follows the lengths, and the pairs are the same.
        record = {"a": left * 10, "b": right * 10}
        assert COMPILED[name].matches(record) is holds_for_any_pair(name, left, right)


@PROVED
@given(ARRAYS, ARRAYS, ARRAYS)
def test_in_and_between_of_arrays_are_those_of_every_pair(one, low, high):
    """`IN` is an equality with any element, and `BETWEEN` two comparisons of the same element."""
    record = {"a": one, "b": low, "c": high}
    assert compile_filter("/a IN (/b)").matches(record) is holds_for_any_pair("=", one, low)
    assert compile_filter("/a IN (/b, 2, /c)").matches(record) is holds_for_any_pair("=", one, [*low, 2, *high])
    within = any(
        holds_for_any_pair(">=", [each], low) and holds_for_any_pair("<=", [each], high) for each in elements(one)
    )
    assert compile_filter("/a BETWEEN /b AND /c").matches(record) is within


@PROVED
@given(st.lists(ALL, max_size=40), st.booleans())
def test_eight_elements_decide(values, highest):
    """At most eight elements of an array are compared with those of the other one, at any length."""
    assert len(extremes(elements(values), highest=highest)) <= 8


LENGTH = 20_000
LONG = {
    "numbers": list(range(LENGTH)),
    "halves": [number + 0.5 for number in range(LENGTH)],
    "texts": [f"t{number}" for number in range(LENGTH)],
    "other_texts": [f"u{number}" for number in range(LENGTH)],
    "twos": ["2." + "0" * (number % 300) for number in range(LENGTH)],
    "two": [2] * LENGTH,
    "low": [-1] * LENGTH,
    "lower": [-1.5] * LENGTH,
    "times": [Timestamp(number) for number in range(LENGTH)],
    "other_times": [Timestamp(number, 1) for number in range(LENGTH)],
}


@pytest.mark.parametrize(("text", "answer"), [
    ("/numbers = /halves", False), ("/texts = /other_texts", False), ("/times = /other_times", False),
    ("/numbers IN (/halves, /low)", False), ("/twos != /two", False), ("/low < /lower", False),
    ("/low <= /lower", False),
    ("/lower > /low", False), ("/lower >= /low", False), ("/low BETWEEN /numbers AND /halves", False),
    ("/numbers BETWEEN /halves AND /lower", False), ("/low BETWEEN /lower AND /lower", False),
])  # fmt: skip
def test_arrays_of_any_length_are_compared_at_once(text, answer):
    """Two arrays of 20,000 elements are compared within seconds, although they have 400 million pairs."""
    compiled = compile_filter(text)
    begin = time.process_time()
    assert compiled.matches(LONG) is answer
    assert time.process_time() - begin < 5
