"""Random text either compiles or is a filter error, and random records are filtered without any other error."""

import random
from datetime import UTC, datetime
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from processor.errors import FilterError
from processor.filter import compile_expression, compile_filter
from processor.filter.functions import BUILT_IN

WORDS = [
    *(
        "(",
        ")",
        ",",
        "+",
        "-",
        "*",
        "/",
        "%",
        "=",
        "==",
        "!=",
        "<>",
        "<",
        "<=",
        ">",
        ">=",
        "[0]",
        "[1]",
        "'",
        '"',
        "\\",
    ),
    *(
        "AND",
        "OR",
        "NOT",
        "IN",
        "LIKE",
        "BETWEEN",
        "IS",
        "NULL",
        "NAN",
        "TRUE",
        "FALSE",
        "BEGINS",
        "ENDS",
        "WITH",
        "MOD",
    ),
    *("/a", "/a/b", "/'a b'", "/a[0]", "/b", "/55", "/@x", "1", "2.5", ".5", "1e3", "1e999", "99999999999999999999"),
    *("'x'", "''", "'1'", "r'\\d+'", "'(a+)+$'", '"y"', "\n", "\\", "MOD"),
    *(f"{name}(" for name in BUILT_IN),
    "IF(",
    "IN (",
    "NOPE(",
    "name",
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.decimals(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.sampled_from(["%Y-%m-%d", "1e999", "-1", "\ud800", datetime(2024, 1, 1, tzinfo=UTC), Decimal("1E+999999")]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "a b"]), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None, print_blob=True)
@given(st.text() | st.text(alphabet="/ab'\"\\()[]0.1eE=<>!+-*% \nrANDORINLKE_,"))
def test_any_text_is_a_filter_or_a_filter_error(text):
    """Any text compiles or is a filter error with a place inside the text and three lines."""
    problem = error_of(text)
    if problem is not None:
        lines = text.split("\n")
        assert 1 <= problem.line <= len(lines)
        assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1
        assert len(str(problem).split("\n")) == 3


def error_of(text):
    """The filter error of a text; None if it compiles and can be evaluated."""
    try:
        compile_filter(text).matches({"a": [{"b": 1}, "x"], "b": "1", "55": None})
    except FilterError as error:
        return error
    return None


def test_any_row_of_words_is_a_filter_or_a_filter_error(random_seed):
    """Six thousand random rows of words compile or are filter errors; those that compile are evaluated."""
    rng = random.Random(random_seed)
    filters = 0
    for _ in range(6_000):
        text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 12)))
        filters += error_of(text) is None
    assert filters > 20


def argument(rng, depth):
    """A random argument of a function, which may be another call."""
    if depth and rng.random() < 0.4:
        name = rng.choice(sorted(BUILT_IN))
        function = BUILT_IN[name]
        count = rng.randint(function.least, function.most if function.most is not None else 4)
        arguments = [argument(rng, depth - 1) for _ in range(count)]
        if name == "REGEXP_REPLACE":
            arguments[1] = rng.choice(["'a'", "''", "'(.)(.)'", "'x*'", "'(?i)Ä'"])
        return f"{name}({', '.join(arguments)})"
    if depth and rng.random() < 0.4:
        operator = rng.choice(["+", "-", "*", "/", "%", "=", "<", "AND", "OR", "IN"])
        if operator == "IN":
            return f"({argument(rng, depth - 1)} IN ({argument(rng, depth - 1)}, 1, 'x'))"
        return f"({argument(rng, depth - 1)} {operator} {argument(rng, depth - 1)})"
    return rng.choice(["/a", "/b", "/a/b", "/a[1]", "NULL", "''", "'%Y %f'", "-1", "1e308", "0", "'12'", "2", "TRUE"])


@settings(max_examples=400, deadline=None, print_blob=True)
@given(st.dictionaries(st.sampled_from(["a", "b"]), VALUES), st.integers(0, 2**32))
def test_no_function_raises_for_any_arguments(record, seed):
    """A compiled filter has an answer for any arguments and any record."""
    text = argument(random.Random(seed), 3)
    try:
        expression = compile_expression(text)
        own_filter = compile_filter(f"({text}) LIKE '.' OR ({text}) BETWEEN 1 AND 'x'")
    except FilterError as error:  # One in a thousand is over the budget of a filter.
        assert "for a record with texts of" in str(error)  # noqa: PT017 - it is one of two outcomes
        return
    expression.value(record)
    assert own_filter.matches(record) in (True, False)
