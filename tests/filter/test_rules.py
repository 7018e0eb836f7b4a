"""Rules 1 to 4, 9 and 10: NULL, three-valued logic, properties of a filter, and its spelling."""

from itertools import product

import pytest

from processor.filter import RecordMetadata, compile_expression, compile_filter
from tests.filter.record import matches, value

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
def test_rule_1_null_values(null):
    """NULL is a missing field, a null, an empty text, an empty array, an object, or an array of only these."""
    assert matches(f"{null} IS NULL")
    assert not matches(f"{null} IS NOT NULL")


@pytest.mark.parametrize("known", ["/id", "/no", "/tags", "'x'", "0", "FALSE", "/legs/px", "1 / 0"])
def test_rule_1_values_that_are_not_null(known):
    """Zero, false and NAN are values and not NULL."""
    assert matches(f"{known} IS NOT NULL")
    assert not matches(f"{known} IS NULL")


@pytest.mark.parametrize("operator", ["=", "==", "!=", "<>", "<", "<=", ">", ">="])
def test_rule_2_a_comparison_with_null_is_false(operator):
    """A comparison with NULL is false on either side, also for `!=`."""
    for null, other in product(NULLS, ("1", "'abc'", "/id", "/name", "NULL", "/missing")):
        assert not matches(f"{null} {operator} {other}")
        assert not matches(f"{other} {operator} {null}")
        assert matches(f"NOT {null} {operator} {other}")


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
def test_rule_3_predicates_of_null_are_false_and_their_negations_true(predicate):
    """A predicate of NULL is false and its negation true: `/x NOT IN (1,2)` matches records without `/x`."""
    negated = predicate.replace("IS ", "IS NOT ") if predicate.startswith("IS") else f"NOT {predicate}"
    for null in NULLS:
        assert not matches(f"{null} {predicate}")
        assert matches(f"NOT ({null} {predicate})")
        assert matches(f"{null} {negated}")


@pytest.mark.parametrize(("low", "high"), [("NULL", "9"), ("0", "NULL"), ("/missing", "/qty"), ("''", "9")])
def test_rule_3_between_needs_both_ends(low, high):
    """`BETWEEN` with a missing bound is false; a missing bound does not leave the range open."""
    assert not matches(f"/id BETWEEN {low} AND {high}")
    assert matches(f"/id NOT BETWEEN {low} AND {high}")


@pytest.mark.parametrize(
    "predicate", ["BEGINS WITH ('')", "ENDS WITH ('')", "BEGINS WITH ('x', '')", "IN ('')", "= ''"]
)
def test_rule_3_an_empty_text_is_no_value_to_look_for(predicate):
    """An empty text is NULL: nothing equals it, and nothing begins or ends with it."""
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
    """AND, OR and NOT follow the symmetric tables of SQL-92, unlike AMPS.

    FALSE AND NULL is FALSE, TRUE OR NULL is TRUE; other combinations with NULL are NULL.
    """
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
def test_rule_4_a_null_filter_matches_nothing(text):
    """A filter that is NULL for a record does not match it."""
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
def test_rule_4_the_truth_of_other_values(text, expected):
    """A number or numeric text is true unless it is 0, the words `true` and `false` count, and all else is NULL."""
    assert value(f"NOT {text}") is (None if expected is None else not expected)


def test_rule_9_a_function_that_moves_by_itself_is_marked():
    """A filter with a function that changes by itself is marked at any depth, so callers can refuse it."""
    assert compile_filter("/at < 5 OR NOT (1 + UNIX_TIMESTAMP() > 3)").moves_by_itself
    assert compile_expression("IF(/a, UNIX_TIMESTAMP(), 1)").moves_by_itself
    assert not compile_filter("LAST_UPDATED() > 5").moves_by_itself


def test_rule_9_the_use_of_metadata_is_marked():
    """A filter that uses metadata is marked, so metadata need not be computed for others."""
    assert compile_filter("SOW_KEY() = '7'").uses_metadata
    assert not compile_filter("/id = 7").uses_metadata
    assert compile_filter("SOW_KEY() = '7'").matches({}, RecordMetadata(sow_key="7"))


@pytest.mark.parametrize("text", ["/no/such/path = 1", "/no[3]/path IS NOT NULL", "UPPER(/nowhere) LIKE 'x'"])
def test_rule_10_a_path_that_no_record_has_is_no_error(text):
    """A path that no record has is NULL and no error."""
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
    """A path leads through quoted and plain names, attributes, tags and parts of a composite."""
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
def test_equivalent_texts_are_one_tree(one, other):
    """Two filters that differ in brackets, spelling, case or white space only have the same tree."""
    assert compile_expression(one).tree == compile_expression(other).tree


def test_a_record_that_is_no_object_has_no_fields():
    """A record that is no object, such as binary bytes, has no fields but has metadata."""
    assert not matches("/a = 1", b"bytes")
    assert compile_filter("MESSAGE_SIZE() = 5").matches(b"bytes", RecordMetadata(message_bytes=5))


def test_a_filter_does_not_change_the_record():
    """A filter does not change the record."""
    record = {"legs": [{"px": [1, 2]}, {"px": 3}], "s": "x"}
    for text in ("/legs/px = 3", "ARRAY_SUM(/legs/px) = 6", "REVERSE(/s) = 'x'", "/legs[0]/px[1] = 2"):
        assert compile_filter(text).matches(record)
    assert record == {"legs": [{"px": [1, 2]}, {"px": 3}], "s": "x"}
