"""Functions of installed packages are loaded and called, and their errors are handled."""

import pytest

from processor.errors import FilterError, RecordRejected, Stop
from processor.filter import compile_expression, compile_filter
from tests.filter.installed import install


@pytest.fixture(autouse=True)
def functions(tmp_path, monkeypatch):
    """The functions of `tests/filter/installed.py` are installed."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BASIS_POINTS(/px, /close)", 100),
        ("basis_points(/px, /nowhere)", None),
        ("Basis_Points(/array, 100)", 100),
        ("SPREAD(1, 3)", 2),
        ("spread(1)", -1),
        ("LARGEST()", None),
        ("LARGEST(1, 3, 2)", 3),
        ("LISTED('y')", ["y", "x"]),
        ("LISTED('y') = 'x'", True),
    ],
)
def test_a_function_is_called_by_its_name_in_any_case(text, expected):
    """A function is called by its name in any case, with None for NULL and element 0 of an array."""
    assert compile_expression(text).value({"px": 101, "close": 100, "array": [101, 5]}) == expected


def test_a_built_in_function_cannot_be_replaced():
    """A package cannot replace a built-in function."""
    assert compile_expression("UPPER('a')").value({}) == "A"


def test_a_filter_with_a_clock_function_is_marked():
    """A filter with a function that changes by itself is marked, as with UNIX_TIMESTAMP."""
    assert compile_filter("TICKS() > 4").moves_by_itself
    assert not compile_filter("SPREAD(1, 2) > 4").moves_by_itself


def test_a_function_that_raises_rejects_the_record():
    """A function that raises rejects the record as `plugin_failed` with its name.

    A rejection or a Stop that the function raises itself is passed on.
    """
    with pytest.raises(RecordRejected, match=r"plugin_failed: function FAILS: OSError: no table for 5"):
        compile_filter("FAILS(/a) = 1").matches({"a": 5})
    with pytest.raises(RecordRejected, match=r"schema_mismatch: not today"):
        compile_filter("REFUSES(/a) = 1").matches({"a": 5})
    with pytest.raises(Stop, match=r"start it"):
        compile_filter("STOPS(/a) = 1").matches({"a": 5})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SPREAD()", "SPREAD takes 1 or 2 arguments; here it has none"),
        ("BASIS_POINTS(1)", "BASIS_POINTS takes 2 arguments; here it has 1"),
        ("GONE(1)", "function 'gone': tests.filter.installed:not_there cannot be loaded: .*; install what it needs"),
        ("NO_FUNCTION(1)", "function NO_FUNCTION: tests.filter.installed:NUMBER is no function of values in order"),
        ("BY_NAME(1)", "function BY_NAME: .*price has to be given by name; ask whoever wrote it"),
        ("BASIS_POINT(1)", "there is no function 'BASIS_POINT'; did you mean 'BASIS_POINTS'"),
    ],
)
def test_a_function_that_cannot_be_called_is_an_error_with_its_place(text, message):
    """A function that cannot be called is a filter error with its place when the filter is compiled."""
    with pytest.raises(FilterError, match=message) as caught:
        compile_filter(f"/a = {text}")
    assert caught.value.column == 6
