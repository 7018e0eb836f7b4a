"""Every function of filters, and functions of plug-ins."""

import math
from decimal import Decimal
from time import time

import pytest

from processor.errors import FilterError, RecordRejected, Stop
from processor.filter import RecordMetadata, compile_expression, compile_filter
from processor.filter.functions import BUILT_IN
from tests.filter.installed import install

RECORD = {
    "s": "Hello",
    "n": 5,
    "f": 2.5,
    "d": Decimal("-2.5"),
    "t": True,
    "pad": " \tx ",
    "array": [3, "1", 2.5, None, "", {"a": 1}],
    "words": ["b", "a", 3],
    "one": {"px": 1},
    "digits": "16",
}

TABLE = {
    "INSTR": [
        ("INSTR(/s, 'l')", 3),
        ("INSTR(/s, 'L')", 0),
        ("INSTR(/s, 'Hello!')", 0),
        ("INSTR(12345, 3)", 3),
        ("INSTR(/words, 'b')", 1),
    ],
    "INSTR_I": [("INSTR_I(/s, 'L')", 3), ("INSTR_I('ÄÖ', 'ö')", 2), ("INSTR_I(/s, 'z')", 0)],
    "STREQUAL_I": [
        ("STREQUAL_I(/s, 'hELLO')", True),
        ("STREQUAL_I(/s, 'x')", False),
        ("STREQUAL_I(/n, '5') == 1", True),
    ],
    "LENGTH": [("LENGTH(/s)", 5), ("LENGTH(/n)", 1), ("LENGTH('€')", 1), ("LENGTH('')", None)],
    "CONCAT": [
        ("CONCAT(/s, /n, /t)", "Hello5true"),
        ("CONCAT('a', '', /missing, 'b')", "ab"),
        ("CONCAT(/missing)", ""),
    ],
    "UPPER": [("UPPER(/s)", "HELLO"), ("UPPER('straße')", "STRAßE")],
    "LOWER": [("LOWER(/s)", "hello")],
    "REPLACE": [
        ("REPLACE(/s, 'l', 'LL')", "HeLLLLo"),
        ("REPLACE(/s, 'l', '')", "Heo"),
        ("REPLACE(/s, 'l', /missing)", "Heo"),
        ("REPLACE(/s, '', 'x')", "Hello"),
        ("REPLACE(/missing, 'a', 'b')", None),
    ],
    "REGEXP_REPLACE": [
        ("REGEXP_REPLACE(/s, '[aeiou]', '*')", "H*ll*"),
        (r"REGEXP_REPLACE(/s, '(l+)', '<\1|\0>')", "He<ll|ll>o"),
        (r"REGEXP_REPLACE(/s, '(l)|(x)', r'\2\\')", "He\\\\o"),
        (r"REGEXP_REPLACE(/s, 'l', r'\1')", "Heo"),
        ("REGEXP_REPLACE(/s, '(?i)h', '')", "ello"),
        ("REGEXP_REPLACE('äöü', 'ö', 'o')", "äoü"),
        ("REGEXP_REPLACE(/s, '^', '>')", ">Hello"),
        ("REGEXP_REPLACE('aé€', '', '-')", "-a-é-€-"),
        ("REGEXP_REPLACE('aé€', 'x*', '-')", "-a-é-€-"),
        ("REGEXP_REPLACE('aé€b', '.', '<\\0>')", "<a><é><€><b>"),
        ("REGEXP_REPLACE(/missing, 'a', 'b')", None),
    ],
    "SUBSTR": [
        ("SUBSTR('fandango', 5)", "ango"),
        ("SUBSTR(/s, 1, 2)", "He"),
        ("SUBSTR(/s, 2, 99)", "ello"),
        ("SUBSTR(/s, -2)", "lo"),
        ("SUBSTR(/s, -4, 2)", "el"),
        ("SUBSTR(/s, -99)", "Hello"),
        ("SUBSTR(/s, -99, 2)", "He"),
        ("SUBSTR(/s, 0)", "Hello"),
        ("SUBSTR(/s, 6)", ""),
        ("SUBSTR(/s, 2, 0)", ""),
        ("SUBSTR(/s, 2, -1)", ""),
        ("SUBSTR(/s, '2', 1.9)", "e"),
        ("SUBSTR(/s, 'x')", None),
        ("SUBSTR(/s, 1, /missing)", None),
        ("SUBSTR(/s, 1, EXP(1000))", None),
        ("SUBSTR(12345, 2, 3)", "234"),
    ],
    "LEFT": [("LEFT(/s, 2)", "He"), ("LEFT(/s, 99)", "Hello"), ("LEFT(/s, -1)", ""), ("LEFT(/s, 'x')", None)],
    "RIGHT": [("RIGHT(/s, 2)", "lo"), ("RIGHT(/s, 99)", "Hello"), ("RIGHT(/s, 0)", ""), ("RIGHT(/s, 'x')", None)],
    "TRIM": [("TRIM(/pad)", "x"), ("TRIM('  ')", "")],
    "LTRIM": [("LTRIM(/pad)", "x ")],
    "RTRIM": [("RTRIM(/pad)", " \tx")],
    "REVERSE": [("REVERSE(/s)", "olleH"), ("REVERSE(SUBSTR('fandango',5)) == 'ogna'", True)],
    "COALESCE": [
        ("COALESCE(/missing, '', /one, /n, 9)", 5),
        ("COALESCE(/missing)", None),
        ("COALESCE(/words, 1)", "b"),
    ],
    "ABS": [("ABS(-5)", 5), ("ABS(/d)", Decimal("2.5")), ("ABS(2.5)", 2.5), ("ABS('-3')", 3)],
    "ROUND": [
        ("ROUND(2.5)", 3),
        ("ROUND(-2.5)", -3),
        ("ROUND(2.4)", 2),
        ("ROUND(1.005, 2)", 1.01),
        ("ROUND(/d)", -3),
        ("ROUND(/d, 1)", Decimal("-2.5")),
        ("ROUND(1250, -2)", 1300),
        ("ROUND(7, 2)", 7),
        ("ROUND('2.345', '2')", 2.35),
        ("ROUND(1e300, 2)", 1e300),
        ("ROUND(0.5, 9999)", 0.5),
        ("ROUND(2.5, /missing)", None),
        ("ROUND(2.5, 'x')", None),
    ],
    "FLOOR": [("FLOOR(2.9)", 2), ("FLOOR(-2.1)", -3), ("FLOOR(/d)", -3), ("FLOOR(7)", 7)],
    "CEILING": [("CEILING(2.1)", 3), ("CEILING(-2.9)", -2), ("CEILING(/d)", -2), ("CEILING('7.5')", 8)],
    "GREATEST": [
        ("GREATEST(1, '3', 2.5)", "3"),
        ("GREATEST(1, 'x')", "x"),
        ("GREATEST(/n)", 5),
        ("GREATEST(1, '')", None),
    ],
    "LEAST": [("LEAST(2, '1', 2.5)", "1"), ("LEAST('10', '9')", "10"), ("LEAST(1, 'x')", 1), ("LEAST(1, '')", None)],
    "POWER": [
        ("POWER(2, 10)", 1024.0),
        ("POWER(4, 0.5)", 2.0),
        ("POWER(10, 999)", math.inf),
        ("POWER(-8, 0.5) > 0", False),
    ],
    "SQRT": [("SQRT(/digits)", 4.0), ("SQRT(-1) IS NAN", True)],
    "LN": [("LN(1)", 0.0), ("LN(0) IS NAN", True)],
    "LOG10": [("LOG10(1000)", 3.0), ("LOG10(-1) IS NAN", True)],
    "LOG2": [("LOG2(8)", 3.0)],
    "EXP": [("EXP(0)", 1.0), ("EXP(1000)", math.inf)],
    "SIGN": [("SIGN(-3)", -1), ("SIGN(0.0)", 0), ("SIGN(/f)", 1), ("SIGN('x') IS NAN", True)],
    "UNIX_TIMESTAMP": [("UNIX_TIMESTAMP()", 1700000000.25)],
    "STRFTIME": [
        ("STRFTIME('%Y-%m-%dT%H:%M:%S', 1700000000)", "2023-11-14T22:13:20"),
        ("STRFTIME('%S.%f', 1.5)", "01.500000"),
        ("STRFTIME('%S.%03f %%03f', 1.5)", "01.500 %03f"),
        ("STRFTIME('%Y', 1e300)", None),
        ("STRFTIME('%Y', 'x')", None),
    ],
    "STRPTIME": [
        ("STRPTIME('2023-11-14T22:13:20', '%Y-%m-%dT%H:%M:%S')", 1700000000.0),
        ("STRPTIME('01.5', '%S.%03f')", -2208988798.5),
        ("STRPTIME('2023-11-15 00:13 +0200', '%Y-%m-%d %H:%M %z')", 1699999980.0),
        ("STRPTIME('yesterday', '%Y')", None),
        (f"STRPTIME('2023{'-' * 62}', '%Y{'-' * 62}')", 1672531200.0),
        (f"STRPTIME('2023{'-' * 63}', '%Y{'-' * 63}')", None),
        ("STRPTIME('1 1', '%d %d')", None),
        ("STRPTIME(STRFTIME('%Y-%m-%d', 1700000000), '%Y-%m-%d') <= 1700000000", True),
    ],
    "INSTANT": [
        ("INSTANT('2024-02-29T01:00+01:00') = '2024-02-29'", True),
        ("INSTANT('2024-02-29T00:00:00.000000001Z') > '2024-02-29'", True),
        ("INSTANT('2024-02-29 00:00Z') < INSTANT('2024-02-29T00:00-00:01')", True),
        ("INSTANT('2024-02-29T01:00+01:00')", "2024-02-29T01:00+01:00"),
        ("INSTANT('01:00:00Z')", None),
        ("INSTANT('2024-02-30')", None),
        ("INSTANT(20240229)", None),
        (f"INSTANT('2024-02-29T00:00:00.{'1' * 81}')", None),
        (f"INSTANT('2024-02-29T00:00:00.{'1' * 80}') < '2024-03'", True),
    ],
    "ARRAY_COUNT": [
        ("ARRAY_COUNT(/array)", 6),
        ("ARRAY_COUNT(/missing)", 0),
        ("ARRAY_COUNT('')", 0),
        ("ARRAY_COUNT(/n)", 1),
        ("ARRAY_COUNT(/one)", 1),
        ("ARRAY_COUNT(/one/px)", 1),
    ],
    "ARRAY_MIN": [("ARRAY_MIN(/array)", "1"), ("ARRAY_MIN(/words)", 3), ("ARRAY_MIN(/n)", 5), ("ARRAY_MIN('')", None)],
    "ARRAY_MAX": [("ARRAY_MAX(/array)", 3), ("ARRAY_MAX(/words)", "b"), ("ARRAY_MAX(/one)", None)],
    "ARRAY_SUM": [("ARRAY_SUM(/array)", 6.5), ("ARRAY_SUM(/words) IS NAN", True), ("ARRAY_SUM(/missing)", None)],
    "MESSAGE_SIZE": [("MESSAGE_SIZE()", 120)],
    "SOW_KEY": [("SOW_KEY()", "k7")],
    "TOPIC_NAME": [("TOPIC_NAME()", "orders")],
    "CORRELATION_ID": [("CORRELATION_ID()", "c1")],
    "LAST_UPDATED": [("LAST_UPDATED()", 1700000000.5)],
}

FACTS = RecordMetadata(
    message_bytes=120,
    sow_key="k7",
    topic="orders",
    correlation_id="c1",
    last_updated_ms=1_700_000_000_500,
    now_ms=1_700_000_000_250,
)

NOT_OF_NULL = {"CONCAT", "COALESCE", "ARRAY_COUNT", "REPLACE", "REGEXP_REPLACE"}
"""Functions that have a value even if an argument is NULL."""


def test_every_function_has_its_lines():
    """The table below has lines for every function."""
    assert set(TABLE) == set(BUILT_IN)


@pytest.mark.parametrize(("text", "expected"), [line for lines in TABLE.values() for line in lines], ids=str)
def test_a_function_returns_its_value(text, expected):
    """A function returns the expected value and type."""
    result = compile_expression(text).value(RECORD, FACTS)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - NOT_OF_NULL))
def test_a_function_of_null_is_null(name):
    """A function with a NULL argument is NULL, in any position; a missing fact of a record is NULL as well."""
    function = BUILT_IN[name]
    for null in range(max(1, function.least)):
        arguments = ["/missing" if index == null else "1" for index in range(function.least)]
        text = f"{name}({', '.join(arguments)})"
        if name == "UNIX_TIMESTAMP":
            continue
        assert compile_filter(f"{text} IS NULL").matches(RECORD), text


@pytest.mark.parametrize("name", ["if", "If", "IF"])
def test_if_returns_the_first_value_where_its_condition_is_true(name):
    """`IF` returns the first value if its condition is true, otherwise the second, and evaluates no other."""
    assert compile_expression(f"{name}(/n > 4, 'more', 'less')").value(RECORD) == "more"
    assert compile_expression(f"{name}(/n > 5, 'more', 'less')").value(RECORD) == "less"
    assert compile_expression(f"{name}(/missing, 'more', 'less')").value(RECORD) == "less"
    assert compile_expression(f"{name}(1, /words, 'less')").value(RECORD) == ["b", "a", 3]


def test_without_an_argument_unix_timestamp_reads_the_clock():
    """`UNIX_TIMESTAMP` without an argument returns the clock's seconds with their fraction."""
    assert abs(compile_expression("UNIX_TIMESTAMP()").value({}) - time()) < 5


@pytest.mark.parametrize(
    "text",
    [
        "CONCAT(/a, /a)",
        "REPLACE(/a, 'x', /a)",
        "REPLACE(/a, 'x', 'yy')",
        "REGEXP_REPLACE(/a, 'x+', '\\0\\0')",
    ],
)
def test_a_text_that_would_be_too_long_is_null(text):
    """An evaluation that would make a longer text than one million characters is NULL."""
    assert compile_expression(text).value({"a": "x" * 600_000}) is None
    assert compile_filter(f"LENGTH({text}) > 5").matches({"a": "x" * 50})


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """The functions of `tests/filter/installed.py` are installed."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("functions")
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


@pytest.mark.usefixtures("functions")
def test_a_built_in_function_cannot_be_replaced():
    """A package cannot replace a built-in function."""
    assert compile_expression("UPPER('a')").value({}) == "A"


@pytest.mark.usefixtures("functions")
def test_a_filter_with_a_clock_function_is_marked():
    """A filter with a function that changes by itself is marked, as with UNIX_TIMESTAMP."""
    assert compile_filter("TICKS() > 4").moves_by_itself
    assert not compile_filter("SPREAD(1, 2) > 4").moves_by_itself


@pytest.mark.usefixtures("functions")
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


@pytest.mark.usefixtures("functions")
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
