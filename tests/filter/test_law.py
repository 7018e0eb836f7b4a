"""Compiled filters agree with the naive rules for random trees and random records."""

from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from processor.filter import compile_filter
from processor.filter.compile import Compiler
from processor.filter.evaluation import NO_METADATA
from processor.filter.syntax_tree import (
    And,
    Arithmetic,
    Between,
    Compare,
    Constant,
    If,
    In,
    IsNan,
    IsNull,
    Like,
    Not,
    Or,
    Path,
)
from tests.filter.reference import NUMBERS, evaluate, truth

PROVED = settings(max_examples=200, deadline=None, print_blob=True)

TEXTS = ["", "a", "abc", "b", "10", "2", "2.0", "1e1", "-1", ".1", "0", "true", "False", " 1", "inf", "nan", "1_0", "٣"]
SCALARS = st.sampled_from([None, True, False, *NUMBERS, *TEXTS])
NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
RECORDS = st.dictionaries(NAMES, VALUES, max_size=3)
CONSTANTS = st.builds(Constant, SCALARS)
PATHS = st.builds(
    lambda name, rest: Path((name, *rest)), NAMES, st.lists(NAMES | st.integers(min_value=0, max_value=2), max_size=2)
)
OPERATORS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
OPERANDS = st.deferred(lambda: CONSTANTS | PATHS | PATHS | PATHS)
PREDICATES = st.one_of(
    st.builds(Compare, OPERATORS, OPERANDS, OPERANDS),
    st.builds(Between, OPERANDS, OPERANDS, OPERANDS),
    st.builds(In, OPERANDS, st.lists(OPERANDS, min_size=1, max_size=4).map(tuple)),
    st.builds(In, PATHS, st.lists(CONSTANTS, min_size=1, max_size=6).map(tuple)),
    st.builds(Like, PATHS, st.sampled_from(["a", "^a", "a$", "^a$", "", "[0-9]", "^1.0", "TRUE|true"])),
    st.builds(IsNull, OPERANDS),
    st.builds(IsNan, OPERANDS),
)
TREES = st.recursive(
    PREDICATES | OPERANDS,
    lambda inner: st.one_of(
        st.builds(And, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Not, inner),
        st.builds(If, inner, inner, inner),
        st.builds(Compare, OPERATORS, inner, inner),
    ),
    max_leaves=8,
)


def compiled(tree):
    """The truth of a tree, computed by its compiled functions."""
    return Compiler("").condition(tree)


@PROVED
@given(PREDICATES, RECORDS)
def test_a_predicate_agrees_with_the_naive_rules(tree, record):
    """A predicate on constants, top-level fields, paths and arrays agrees with the naive rules.

    Each of these operands is compiled to functions of its own.
    """
    result = compiled(tree)(record, NO_METADATA)
    assert result is evaluate(tree, record)


@PROVED
@given(TREES, RECORDS)
def test_a_tree_agrees_with_the_naive_rules(tree, record):
    """Trees of AND, OR, NOT and IF agree with the naive rules in three-valued logic."""
    assert compiled(tree)(record, NO_METADATA) is truth(evaluate(tree, record))


@PROVED
@given(
    st.sampled_from(["+", "-", "*", "/", "%"]),
    *[st.integers(-20, 20) | st.sampled_from(["", "a", "7", "-3", True])] * 2,
)
def test_arithmetic_of_integers_agrees_with_the_naive_rules(operator, one, other):
    """Arithmetic of integers with a path, NULL, NAN and texts agrees with the naive rules."""
    tree = Arithmetic(operator, Path(("a",)), Constant(other))
    record = {"a": one}
    expected = evaluate(tree, record)
    result = Compiler("").value(tree)(record, NO_METADATA)
    if expected is None or isinstance(expected, int):
        assert result == expected
        assert type(result) is type(expected)
    else:
        assert result != result  # noqa: PLR0124 - the test for NaN


def spelled(value):
    """A scalar in the spelling of a filter."""
    if value is None or isinstance(value, bool):
        return str(value).upper().replace("NONE", "NULL")
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


@PROVED
@given(OPERATORS, SCALARS, SCALARS)
def test_a_comparison_does_not_depend_on_the_place_of_a_value(operator, one, other):
    """A comparison has the same result for a value in the filter's text, in a field, at depth and in an array."""
    expected = evaluate(Compare(operator, Constant(one), Constant(other)), {})
    record = {"a": one, "b": {"a": one}, "c": [{"a": None}, {"a": one}], "d": other, "e": [["", other]]}
    for left in (spelled(one), "/a", "/b/a", "/c/a", "/c[1]/a", "IF(TRUE, /a, 0)"):
        for right in (spelled(other), "/d", "/e"):
            assert compile_filter(f"{left} {operator} {right}").matches(record) is expected, (left, right)


@PROVED
@given(st.lists(SCALARS, min_size=1, max_size=5), SCALARS)
def test_in_is_a_row_of_equalities(choices, one):
    """`IN` equals a row of equalities, by look-up and by comparison one by one."""
    record = {"a": one}
    row = " OR ".join(f"/a = {spelled(choice)}" for choice in choices)
    listed = ", ".join(map(spelled, choices))
    expected = compile_filter(row).matches(record)
    assert compile_filter(f"/a IN ({listed})").matches(record) is expected
    assert compile_filter(f"/a IN ({listed}, /nowhere)").matches(record) is expected
    assert compile_filter(f"/a NOT IN ({listed})").matches(record) is not expected


def test_the_reference_knows_the_examples_of_the_rules():
    """The naive rules give the results of the specification's examples, so both cannot be wrong in the same way."""
    for operator, one, other, expected in [
        ("=", 2, 2.0, True),
        ("=", "2.000", "2.0", False),
        ("<", 10, "2", False),
        ("<", 10, "abc", True),
        ("!=", None, 1, False),
        ("=", Decimal("0.1"), 0.1, True),
    ]:
        assert evaluate(Compare(operator, Constant(one), Constant(other)), {}) is expected
