"""A filter cannot use unbounded time, stack or memory."""

from contextlib import suppress
from time import process_time, thread_time

import pytest

from processor.errors import FilterError
from processor.filter import compile_expression, compile_filter, compile_work
from processor.filter.limits import CHARACTERS_MAX, DEPTH_MAX

CATASTROPHIC = [
    r"(a+)+$",
    r"^(a|a)*$",
    r"(a|aa)+$",
    r"(.*a){10}$",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    r"(x+x+)+y",
    r"(a*)*b",
]
"""Patterns that keep an engine with back-tracking busy for years."""


@pytest.mark.parametrize("pattern", CATASTROPHIC)
def test_a_catastrophic_pattern_takes_no_longer_than_others(pattern):
    """A catastrophic pattern searches or replaces in a text of a hundred thousand characters within seconds."""
    record = {"a": "a" * 100_000 + "!", "x": "x" * 100_000}
    searches = [compile_filter(f"/{name} LIKE r'{pattern}'") for name in record]
    started = thread_time()
    assert not all(search.matches(record) for search in searches)
    assert thread_time() - started < 2
    replace = compile_expression(f"LENGTH(REGEXP_REPLACE(/a, r'{pattern}$', ''))")
    started = thread_time()
    assert (replace.value(record) or 1) > 0
    assert thread_time() - started < 2


@pytest.mark.parametrize("quoted", ["'{}'", '"{}"', "/'{}'", "'\\\\{}'", "STRFTIME(/a, '{}')", "'{}"])
def test_a_long_text_is_compiled_in_one_step(quoted):
    """A text in quotes takes about as long as one after `r`, and not a step for each of its characters.

    No other thread of Python runs during such a step, and in the gateway no other client is served.
    """

    def least_s(text):
        times = []
        for _ in range(5):
            started = process_time()
            with suppress(FilterError):  # One has no end.
                compile_filter(f"/a = {text.format('%Y' * 30_000)}")
            times.append(process_time() - started)
        return min(times)

    assert least_s(quoted) < 30 * least_s("r'{}'")


@pytest.mark.parametrize(
    "pattern", ["(a{1000}){1000}", "(((a{100}){100}){100}){100}", r"\pL{200}", r"(?i)" + r"\pL" * 51, r"\PZ" * 51]
)
def test_a_pattern_whose_program_would_be_large_is_refused(pattern):
    """A pattern with a large program is refused, so memory is bounded."""
    with pytest.raises(FilterError, match=r"no regular expression: .*; make it smaller"):
        compile_filter(f"/a LIKE r'{pattern}'")


def test_the_length_of_a_filter_is_limited():
    """A filter of the maximum length compiles, and one more character is an error."""
    longest = "/a = '" + "x" * (CHARACTERS_MAX - 7) + "'"
    assert len(longest) == CHARACTERS_MAX
    assert not compile_filter(longest).matches({"a": "x"})
    with pytest.raises(FilterError, match=r"it has 65537 characters, a filter at most 65536; make it shorter"):
        compile_filter(longest + " ")


def test_the_length_of_a_path_is_limited():
    """A path may lead through the deepest record, and not further: one of 30,000 names took 100 ms to compile."""
    record = 5
    for _ in range(250):
        record = {"a": [record]}
    assert compile_filter(f"{'/a[0]' * 100}/a/a = 5 OR {'/a' * 250} = 5").matches(record)
    for path in ("/a" * 301, "/a[0]" * 151, "/'a b'" * 301):
        with pytest.raises(FilterError, match=r"column 8: the path has more than 300 names and places"):
            compile_filter(f"/b = 1 {path} = 1")
    assert compile_filter(f"/'{'/' * 500}' = 1").matches({"/" * 500: 1})
    assert compile_work("/a" * 30_000) >= 100  # Not one word, which a gateway would compile on its event loop.


def nested(kind, depth):
    """A filter with operators or calls nested to a depth."""
    return {
        "not": "NOT " * (depth - 1) + "/a",
        "minus": "- " * (depth - 1) + "/a",
        "sum": " + ".join(["/a"] * depth),
        "call": "ABS(" * (depth - 1) + "/a" + ")" * (depth - 1),
        "if": "IF(/a, " * (depth - 1) + "/a" + ", 1)" * (depth - 1),
        "compare": "(1 = " * (depth - 1) + "/a" + ")" * (depth - 1),
        "in": "(1 IN (" * (depth - 1) + "/a" + "))" * (depth - 1),
        "between": "(1 BETWEEN 0 AND " * (depth - 1) + "/a" + ")" * (depth - 1),
        "like": "(" * (depth - 1) + "/a" + " LIKE 'x')" * (depth - 1),
        "and": "(/a AND (/a OR " * ((depth - 1) // 2) + "/a" + "))" * ((depth - 1) // 2),
        "concat": "CONCAT('', " * (depth - 1) + "/a" + ")" * (depth - 1),
    }[kind]


KINDS = ["not", "minus", "sum", "call", "if", "compare", "in", "between", "like", "and", "concat"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_depth_of_a_filter_is_limited(kind):
    """A filter of the maximum depth is evaluated on a stack already in use, and a deeper one is refused."""
    deepest = compile_filter(nested(kind, DEPTH_MAX))

    def lower(levels):
        return deepest.matches({"a": [1]}) if levels == 0 else lower(levels - 1)

    lower(400)
    with pytest.raises(FilterError, match=f"nested deeper than {DEPTH_MAX}; take it apart"):
        compile_filter(nested(kind, DEPTH_MAX + 2))


@pytest.mark.parametrize("kind", KINDS)
def test_far_too_deep_is_refused_as_well(kind):
    """A filter nested far too deep is refused without a stack overflow."""
    with pytest.raises(FilterError):
        compile_filter(nested(kind, CHARACTERS_MAX // 30))


def test_brackets_alone_are_no_depth():
    """Neither brackets nor the operands of one AND or OR count as depth."""
    assert compile_filter("(" * 1000 + "/a = 1" + ")" * 1000).matches({"a": 1})
    many = " OR ".join(f"/a = {number}" for number in range(600))
    assert compile_filter(many).matches({"a": 599})
    assert compile_filter(" AND ".join(["/a = 1"] * 600)).matches({"a": 1})


def test_a_record_may_be_deep():
    """Deeply nested arrays in a record are searched without recursion."""
    record = {"a": 1}
    for _ in range(50_000):
        record = {"a": [record["a"]]}
    assert compile_filter("/a = 1 AND ABS(/a) = 1 AND /a/b IS NULL").matches(record)
