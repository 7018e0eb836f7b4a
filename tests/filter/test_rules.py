"""The numbered rules of the language, each with a table of what holds and what does not."""

from decimal import Decimal

import pytest

from processor.errors import FilterError
from processor.filter import Facts, compile_expression, compile_filter

RECORD = {
    "id": 7,
    "qty": 10,
    "px": 1.5,
    "name": "abc",
    "digits": "10",
    "decimal": Decimal("0.1"),
    "yes": True,
    "no": False,
    "nothing": None,
    "empty": "",
    "none": [],
    "object": {"a": 1, "b c": {"d": 2}},
    "tags": ["x", "y"],
    "numbers": [3, 1, 2],
    "matrix": [[1, 2], [3]],
    "nulls": [None, ""],
    "legs": [{"px": 5, "ccy": "EUR"}, {"px": 6}, {"ccy": "USD"}, {"px": [7, 8]}],
    "@attr": "v",
    "#text": "t",
    "55": "IBM",
    "ns:x": 1,
    "a-b": 2,
    "it's": 3,
    "0": {"id": 4},
}


def matches(text, record=RECORD):
    """Whether the record above matches."""
    return compile_filter(text).matches(record)


def value(text, record=RECORD):
    """What an expression comes to for the record above."""
    return compile_expression(text).value(record)


NULLS = [
    "/missing",
    "/missing/deeper",
    "/name/x",
    "/nothing",
    "/empty",
    "/none",
    "/nulls",
    "/object",
    "''",
    "NULL",
    "1 + NULL",
]


@pytest.mark.parametrize("null", NULLS)
def test_rule_1_what_is_null(null):
    """A missing field, a null, an empty text, an empty array, an object, an array of nothing else."""
    assert matches(f"{null} IS NULL")
    assert not matches(f"{null} IS NOT NULL")


@pytest.mark.parametrize("known", ["/id", "/no", "/tags", "'x'", "0", "FALSE", "/legs/px", "1 / 0"])
def test_rule_1_what_is_not_null(known):
    """Zero, false and NAN are values."""
    assert matches(f"{known} IS NOT NULL")
    assert not matches(f"{known} IS NULL")


@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize("operator", ["=", "==", "!=", "<>", "<", "<=", ">", ">="])
def test_rule_2_a_comparison_with_null_is_false(operator, null):
    """On either side, beside a constant or a path; `!=` too."""
    for other in ("1", "'abc'", "/id", "/name", null):
        assert not matches(f"{null} {operator} {other}")
        assert not matches(f"{other} {operator} {null}")
        assert matches(f"NOT {null} {operator} {other}")


@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize(
    "predicate",
    [
        "IN (1, '', NULL)",
        "IN (/id, /missing)",
        "BETWEEN 0 AND 9",
        "BETWEEN /id AND /qty",
        "LIKE ''",
        "LIKE '.*'",
        "BEGINS WITH ('')",
        "BEGINS WITH ('a', '')",
        "ENDS WITH ('', 'c')",
        "IS NAN",
    ],
)
def test_rule_3_predicates_of_null_are_false_and_their_negations_true(predicate, null):
    """`/x NOT IN (1,2)` matches records without `/x`; so does NOT before it."""
    assert not matches(f"{null} {predicate}")
    assert matches(f"NOT ({null} {predicate})")
    negated = predicate.replace("IS ", "IS NOT ") if predicate.startswith("IS") else f"NOT {predicate}"
    assert matches(f"{null} {negated}")


@pytest.mark.parametrize(("low", "high"), [("NULL", "9"), ("0", "NULL"), ("/missing", "/qty"), ("''", "9")])
def test_rule_3_between_needs_both_ends(low, high):
    """A missing end is no end that is open."""
    assert not matches(f"/id BETWEEN {low} AND {high}")
    assert matches(f"/id NOT BETWEEN {low} AND {high}")


@pytest.mark.parametrize(
    "predicate", ["BEGINS WITH ('')", "ENDS WITH ('')", "BEGINS WITH ('x', '')", "IN ('')", "= ''"]
)
def test_rule_3_an_empty_text_is_no_value_to_look_for(predicate):
    """It is NULL: nothing equals it, nothing begins or ends with it."""
    assert not matches(f"/name {predicate}")
    assert matches(f"NOT /name {predicate}")


TRUTHS = {"TRUE": True, "FALSE": False, "NULL": None}
AND = [[True, False, None], [False, False, False], [None, False, None]]
OR = [[True, True, True], [True, False, None], [True, None, None]]


@pytest.mark.parametrize(
    "spelling",
    [{"TRUE": "TRUE", "FALSE": "FALSE", "NULL": "NULL"}, {"TRUE": "/yes", "FALSE": "/no", "NULL": "/missing"}],
)
def test_rule_4_and_or_not_follow_sql_92(spelling):
    """Symmetric tables, unlike those of AMPS: FALSE AND NULL is FALSE, TRUE OR NULL is TRUE, else NULL stays."""
    for row, (one, of_one) in enumerate(TRUTHS.items()):
        for column, other in enumerate(TRUTHS):
            left, right = spelling[one], spelling[other]
            assert value(f"{left} AND {right}") is AND[row][column]
            assert value(f"{left} OR {right}") is OR[row][column]
            assert value(f"{left} AND {right} AND {left}") is AND[row][column]
            assert value(f"{left} OR {right} OR {left}") is OR[row][column]
        assert value(f"NOT {spelling[one]}") is (None if of_one is None else not of_one)


@pytest.mark.parametrize(
    "text", ["NULL", "NOT NULL", "/missing", "NOT /missing", "/missing AND 1 = 1", "/missing OR 1 = 2"]
)
def test_rule_4_what_is_null_matches_nothing(text):
    """A record matches only a filter that is true of it."""
    assert not matches(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/id", True),
        ("0", False),
        ("0.0", False),
        ("'1'", True),
        ("'0'", False),
        ("'true'", True),
        ("'False'", False),
        ("'abc'", None),
        ("1 / 0", None),
        ("/tags", None),
        ("/object", None),
        ("/numbers", True),
        ("/decimal", True),
    ],
)
def test_rule_4_what_other_values_are_as_truth(text, expected):
    """A number is true unless it is 0, so is a text of one; `true` and `false` are words; all else is NULL."""
    assert value(f"NOT {text}") is (None if expected is None else not expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 = 2.0", True),
        ("'2.000' = '2.0'", False),
        ("10 < '2'", False),
        ("10 < 'abc'", True),
        ("10 = '10'", True),
        ("10 = '10.0'", True),
        ("10 = '1e1'", True),
        ("-5 = '-5'", True),
        ("5 = '+5'", True),
        ("0.5 = '.5'", True),
        ("10 = ' 10'", False),
        ("10 = '1_0'", False),
        ("1e400 = '1e500'", False),
        ("1e400 < '1e500'", True),
        ("1e-400 > 0", True),
        ("'1e3' / 7 = 1000.0 / 7", True),
        ("3 = '٣'", False),
        ("3 < '٣'", True),
        ("10 != 'abc'", True),
        ("10 > 'abc'", False),
        ("'abc' > 10", True),
        ("'abc' >= 1e300", True),
        ("1 < 'inf'", True),
        ("1 < 'nan'", True),
        ("'10' < '9'", True),
        ("'b' > 'a'", True),
        ("'A' = 'a'", False),
        ("/digits = 10", True),
        ("/digits < 9", False),
        ("/digits < '9'", True),
        ("/decimal = 0.1", True),
        ("/decimal = '0.1'", True),
        ("/decimal < 0.10000000000000000001", True),
        ("0.1 = 0.10000000000000000001", False),
        ("9007199254740993 = 9007199254740992.0", False),
        ("123456789012345678901234567890 > 123456789012345678901234567889", True),
        ("/yes = TRUE", True),
        ("/yes = 1", True),
        ("/no = 0", True),
        ("/yes = 'true'", False),
        ("1 / 0 = 1 / 0", False),
        ("1 / 0 != 1", True),
        ("1 / 0 < 1", False),
        ("/decimal < 1 / 0", False),
        ("/decimal < EXP(1000)", True),
        ("7 BETWEEN 7 AND 7", True),
        ("'7' BETWEEN 6 AND '8'", True),
        ("'b' BETWEEN 'a' AND 'c'", True),
        ("/id NOT BETWEEN 8 AND 9", True),
        ("2 IN ('2.0', 5)", True),
        ("'2' IN ('2.0', 5)", False),
        ("'2' IN (2.0, 5)", True),
        ("/decimal IN (0.1)", True),
        ("0.1 IN (/decimal)", True),
        ("/digits IN (/qty)", True),
        ("/yes IN (1)", True),
    ],
)  # fmt: skip
def test_rule_5_numbers_and_texts(text, expected):
    """A number and a numeric text are compared as numbers, by what is written; other texts are above."""
    assert matches(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 / 5", 0),
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("7 / -2", -3),
        ("7.0 / 2", 3.5),
        ("7 / 2.0", 3.5),
        ("1 / 5.0", 0.2),
        ("-5 % 3", -2),
        ("5 % -3", 2),
        ("5 MOD 3", 2),
        ("5 mod -3", 2),
        ("-5.5 % 3", -2.5),
        ("'7' / '2'", 3),
        ("'7.0' / 2", 3.5),
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 2 - 3", 5),
        ("100 / 10 / 2", 5),
        ("- /qty", -10),
        ("-(-(3))", 3),
        ("- /decimal", Decimal("-0.1")),
        ("TRUE + TRUE", 2),
        ("/decimal + 0.2", 0.1 + 0.2),
        ("/decimal + /decimal", Decimal("0.2")),
        ("/decimal * 10 / 3", Decimal(1) / 3),
        ("/decimal % 3", Decimal("0.1")),
        ("/missing + 1", None),
        ("1 - /nothing", None),
        ("- /empty", None),
        ("/object * 2", None),
        ("9223372036854775807 + 1", 2**63),
    ],
)  # fmt: skip
def test_rule_6_arithmetic(text, expected):
    """Integers stay integers, towards 0; a float makes a float; `%` has the sign of its left side; NULL stays NULL."""
    found = value(text)
    if isinstance(expected, Decimal):
        assert abs(found - expected) < Decimal("1e-20")
    else:
        assert found == expected
        assert type(found) is type(expected)


@pytest.mark.parametrize(
    "text", ["'abc' + 1", "1 * 'x'", "- /name", "1 / 0", "1.0 / 0", "5 % 0", "5.0 % 0", "/decimal / 0"]
)
def test_rule_6_what_is_no_number_is_nan(text):
    """A text that is none; division by 0."""
    assert matches(f"{text} IS NAN")
    assert not matches(f"{text} IS NOT NAN")
    assert matches(f"{text} + 1 IS NAN")


def test_rule_6_a_text_is_no_nan_by_itself():
    """NAN comes of counting with it."""
    assert matches("/name IS NOT NAN")
    assert matches("/name + 0 IS NAN")


def test_rule_6_integers_that_grow_become_floats():
    """Beyond forty digits a float says how large it is; so nothing takes for ever."""
    record = {"a": 10**30}
    assert value("/a * 10", record) == 10**31
    assert type(value("/a * /a", record)) is float
    assert value(" * ".join(["/a"] * 50), record) == float("inf")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/tags = 'x'", True),
        ("/tags = 'z'", False),
        ("/tags != 'z'", True),
        ("/tags != 'x'", True),
        ("NOT /tags = 'x'", False),
        ("/numbers > 2", True),
        ("/numbers > 3", False),
        ("2 < /numbers", True),
        ("/numbers = /matrix", True),
        ("/numbers BETWEEN 2.5 AND 9", True),
        ("/numbers BETWEEN 1.2 AND 1.8", False),
        ("2 BETWEEN /numbers AND /numbers", True),
        ("/tags IN ('y', 'q')", True),
        ("/tags NOT IN ('y', 'q')", False),
        ("/tags NOT IN ('p', 'q')", True),
        ("'y' IN (/tags)", True),
        ("/tags LIKE '^Y'", False),
        ("/tags LIKE '(?i)^Y'", True),
        ("/tags BEGINS WITH ('y')", True),
        ("/tags ENDS WITH ('q')", False),
        ("/matrix = 3", True),
        ("/nulls != 'x'", False),
        ("UPPER(/tags) = 'X'", True),
        ("UPPER(/tags) = 'Y'", False),
        ("/numbers + 1 = 4", True),
        ("/numbers + 1 = 2", False),
        ("/tags[1] = 'y'", True),
        ("/tags[0] = 'y'", False),
        ("/tags[2] IS NULL", True),
        ("/id[0] = 7", True),
        ("/id[1] IS NULL", True),
        ("/matrix[0] = 2", True),
        ("/matrix[0][1] = 2", True),
        ("/legs/px = 6", True),
        ("/legs/px = 8", True),
        ("/legs/px = 9", False),
        ("/legs/ccy = 'USD'", True),
        ("/legs/px[1] = 6", True),
        ("/legs[1]/px = 6", True),
        ("/legs[2]/px IS NULL", True),
        ("/legs/none IS NULL", True),
        ("/legs IS NULL", True),
        ("ARRAY_COUNT(/legs/px) = 4", True),
        ("ABS(/legs/px) = 5", True),
    ],
)  # fmt: skip
def test_rule_7_arrays(text, expected):
    """A comparison is of any element, a function of element 0; objects in arrays flatten by path."""
    assert matches(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/name LIKE 'b'", True),
        ("/name LIKE 'B'", False),
        ("/name LIKE '(?i)B'", True),
        ("/name LIKE '^b'", False),
        ("/name LIKE '^ab'", True),
        ("/name LIKE 'bc$'", True),
        ("/name LIKE '^abc$'", True),
        ("/name LIKE '^ab$'", False),
        ("/name LIKE 'a.c'", True),
        ("/name LIKE r'\\w{3}'", True),
        ("/name LIKE '\\w{3}'", True),
        ("/name LIKE '\\\\w{4}'", False),
        ("/name LIKE '[x-z]|c'", True),
        ("/name NOT LIKE 'z'", True),
        ("/qty LIKE '^1'", True),
        ("/px LIKE r'^1\\.5$'", True),
        ("/yes LIKE 'true'", True),
        ("INSTR(/name, 'b') != 0", True),
    ],
)  # fmt: skip
def test_rule_8_like(text, expected):
    """An unanchored, case-sensitive search by a regular expression; a number is searched as its text."""
    assert matches(text) is expected


def test_rule_8_a_dollar_is_the_end_of_the_text():
    """Also where the text ends with a line: the engine's way, and that of what goes without it."""
    for pattern in ("b$", "[b]$"):
        assert not matches(f"/a LIKE '{pattern}'", {"a": "ab\n"})
        assert matches(f"/a LIKE '{pattern}'", {"a": "ab"})


def test_rule_8_the_pattern_is_a_literal():
    """No path, no function: it is compiled once."""
    for text in ("/name LIKE /tags", "/name LIKE UPPER('x')", "/name LIKE 5"):
        with pytest.raises(FilterError, match="expected a text in quotes"):
            compile_filter(text)


def test_rule_9_a_function_that_moves_by_itself_is_told():
    """So that who must not use it can refuse it; wherever in the filter it stands."""
    assert compile_filter("/at < 5 OR NOT (1 + UNIX_TIMESTAMP() > 3)").moves_by_itself
    assert compile_expression("IF(/a, UNIX_TIMESTAMP(), 1)").moves_by_itself
    assert not compile_filter("LAST_UPDATED() > 5").moves_by_itself


def test_rule_9_who_asks_for_facts_is_told():
    """So that they need not be made for filters that ask for none."""
    assert compile_filter("SOW_KEY() = '7'").uses_facts
    assert not compile_filter("/id = 7").uses_facts
    assert compile_filter("SOW_KEY() = '7'").matches({}, Facts(sow_key="7"))


@pytest.mark.parametrize("text", ["/no/such/path = 1", "/no[3]/path IS NOT NULL", "UPPER(/nowhere) LIKE 'x'"])
def test_rule_10_a_path_that_no_record_has_is_no_error(text):
    """It is NULL."""
    assert not matches(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/object/a", 1),
        ("/object/'b c'/d", 2),
        ('/object/"b c"/d', 2),
        ("/'object'/a", 1),
        ("/@attr", "v"),
        ("/#text", "t"),
        ("/55", "IBM"),
        ("/ns:x", 1),
        ("/a-b", 2),
        ("/'it\\'s'", 3),
        ("/'it''s'", 3),
        ("/0/id", 4),
        ("/object", {"a": 1, "b c": {"d": 2}}),
        ("/legs/ccy", ["EUR", "USD"]),
    ],
)  # fmt: skip
def test_the_steps_of_a_path(text, expected):
    """Quoted or plain, an attribute, a tag, a part of a composite; the value is what stands there."""
    assert value(text) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("not /a = 1 and /b = 2 or /c = 3", "((NOT (/a = 1)) AND (/b = 2)) OR (/c = 3)"),
        ("/a = 1 OR /b = 2 AND /c = 3", "/a = 1 OR (/b = 2 AND /c = 3)"),
        ("/a = 1 AND /b = 2 AND /c = 3", "(/a = 1 AND /b = 2) AND /c = 3"),
        ("/a == 1", "/a = 1"),
        ("/a <> 1", "/a != 1"),
        ("/a not in (1)", "NOT /a IN (1)"),
        ("/a NOT LIKE 'x'", "NOT (/a LIKE 'x')"),
        ("/a is not null", "NOT /a IS NULL"),
        ("/a mod 2 = 0", "/a % 2 = 0"),
        ("upper(/a) begins with ('X')", "UPPER(/a) BEGINS WITH ('X')"),
        ("/a between 1 and 2 and /b = 3", "(/a BETWEEN 1 AND 2) AND /b = 3"),
        ("/a + 1 * -2 > 3", "(/a + (1 * (-2))) > 3"),
        ("/a=1", "  /a\n=\t1 "),
        ("'a\\n\\'b\\\\'", '"a\\n\'b\\\\"'),
        ("r'\\d'", "'\\d'"),
        ("'\\x41\\x4'", r"r'A\x4'"),
        ("/a / /b", "(/a) / (/b)"),
    ],
)  # fmt: skip
def test_two_texts_that_say_the_same_are_one_tree(one, other):
    """Precedence, spelling, case and white space; places do not count."""
    assert compile_expression(one).tree == compile_expression(other).tree


def test_a_record_that_is_no_object_has_no_fields():
    """The bytes of a binary message; facts are there all the same."""
    assert not matches("/a = 1", b"bytes")
    assert compile_filter("MESSAGE_SIZE() = 5").matches(b"bytes", Facts(message_bytes=5))


def test_a_filter_only_looks():
    """The record is as it was."""
    record = {"legs": [{"px": [1, 2]}, {"px": 3}], "s": "x"}
    for text in ("/legs/px = 3", "ARRAY_SUM(/legs/px) = 6", "REVERSE(/s) = 'x'", "/legs[0]/px[1] = 2"):
        assert compile_filter(text).matches(record)
    assert record == {"legs": [{"px": [1, 2]}, {"px": 3}], "s": "x"}
