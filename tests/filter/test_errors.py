"""Errors of filters with their place, and the limits of a filter."""

from contextlib import suppress
from time import process_time, thread_time

import pytest

from processor.errors import ConfigurationError, FilterError
from processor.filter import compile_expression, compile_filter, compile_work
from processor.filter.limits import CHARACTERS_MAX, DEPTH_MAX

VALUE = "a value, such as /qty, 10, 'text' or UPPER(/name)"


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("", 1, 1, f"expected {VALUE}; the filter ends"),
        ("   ", 1, 4, f"expected {VALUE}; the filter ends"),
        ("/a >", 1, 5, f"expected {VALUE}; the filter ends"),
        ("/a = = 1", 1, 6, f"expected {VALUE}; found ="),
        ("/a = 1 AND", 1, 11, f"expected {VALUE}; the filter ends"),
        ("/a = 1 /b = 2", 1, 8, "expected an operator (+, -, * …), AND, OR or the end; found /b"),
        ("/a 'x'", 1, 4, "expected a comparison (=, IN, LIKE …), an operator (+, -, * …), AND, OR or the end; found"),
        ("(/a = 1", 1, 8, "expected ); the filter ends"),
        ("SOW_KEY(", 1, 9, f"expected {VALUE} or a closing ); the filter ends"),
        ("/a = 1)", 1, 7, "expected the end; found )"),
        ("/a = 1 = 2", 1, 8, "expected an operator (+, -, * …), AND, OR or the end; found ="),
        ("/a IN 3", 1, 7, "expected (; found 3"),
        ("/a IN ()", 1, 8, f"expected {VALUE}; found )"),
        ("/a IN (1 2)", 1, 10, "expected an operator (+, -, * …), ) or a comma; found 2"),
        ("/a LIKE /b", 1, 9, "expected a text in quotes, such as 'text'; found /b"),
        ("/a BEGINS ('x')", 1, 11, "expected WITH; found ("),
        ("/a BEGINS WITH 'x'", 1, 16, "expected (; found 'x'"),
        ("/a ENDS WITH (/b)", 1, 15, "expected a text in quotes, such as 'text'; found /b"),
        ("/a IS 3", 1, 7, "expected NULL, NAN or NOT; found 3"),
        ("/a NOT 3", 1, 8, "expected BETWEEN, IN, LIKE, BEGINS WITH or ENDS WITH; found 3"),
        ("/a BETWEEN 1 OR 3", 1, 14, "expected an operator (+, -, * …) or AND; found OR"),
        ("symbol = 'X'", 1, 1, "symbol is no value; expected /symbol if it is a field, 'symbol' if it is a text"),
        ("/symbol = X", 1, 11, "X is no value; expected /X if it is a field, 'X' if it is a text, X(…) if a function"),
        ("/a = 'x", 1, 6, "this text has no end; expected another '"),
        ('/a/"x = 1', 1, 4, 'this text has no end; expected another "'),
        ("6/2 = 3", 1, 2, "found /2; to divide write white space on both sides of /"),
        ("/legs[x] = 1", 1, 6, "[ and ] only behind the name in a path, with a number from 0: /legs[0]/px"),
        ("/legs[-1] = 1", 1, 6, "[ and ] only behind"),
        ("/a = 1 && /b = 2", 1, 8, "'&' means nothing here"),
        ("/a = 1 && /b = 2", 1, 8, "write AND, OR, NOT"),
        ("/a ~ 3", 1, 4, "'~' means nothing here"),
        ("/a = 1\n  AND /b = ?", 2, 12, "'?' means nothing here"),
        ("/a = 1\nAND\nUPER(/b) = 'X'", 3, 1, "there is no function 'UPER'; did you mean 'UPPER'?"),
        ("F" * 50_000 + "(1)", 1, 1, f"there is no function '{'F' * 40}'; known: ABS, ARRAY_COUNT, "),
        ("UPPER() = 'X'", 1, 1, "UPPER takes 1 argument; here it has none"),
        ("SUBSTR(/a)", 1, 1, "SUBSTR takes 2 or 3 arguments; here it has 1"),
        ("SUBSTR(/a, 1, 2, 3)", 1, 1, "SUBSTR takes 2 or 3 arguments; here it has 4"),
        ("CONCAT()", 1, 1, "CONCAT takes 1 or more arguments; here it has none"),
        ("SOW_KEY(1)", 1, 1, "SOW_KEY takes no arguments; here it has 1"),
        ("1 = IF(/a, 2)", 1, 5, "IF takes 3 arguments; here it has 2"),
        ("/a LIKE '('", 1, 9, "no regular expression: missing ): (; to search for a special character itself put a \\"),
        ("/a LIKE '(?=x)'", 1, 9, "look-around and back-references cannot be searched for in linear time"),
        ("/a LIKE r'(a)\\1'", 1, 9, "look-around and back-references cannot be searched for in linear time"),
        ("/a LIKE 'a{5000}'", 1, 9, "no regular expression: invalid repetition size: {5000}; make it smaller"),
        ("REGEXP_REPLACE(/a, '[', '')", 1, 20, "no regular expression: missing ]: [;"),
        ("REGEXP_REPLACE(/a, /b, '')", 1, 20, "the pattern of REGEXP_REPLACE is a text in quotes, nothing else"),
    ],
)  # fmt: skip
def test_an_error_names_its_place(text, line, column, problem):
    """A filter error names line, column and the expected input in words that users know, without token names."""
    with pytest.raises(FilterError) as caught:
        compile_filter(text)
    message = str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert message.startswith(f"filter, line {line}, column {column}: ")
    assert problem in message.splitlines()[0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/a > ", ["  /a > ", "       ^"]),
        ("/a = 1\n  AND /b ~ 2\nOR /c", ["    AND /b ~ 2", "           ^"]),
        ("/a '\n'", ["  /a '", "     ^"]),
        ("/a LIKE '(\n'", ["  /a LIKE '(", "          ^"]),
        ("/a\t= ?", ["  /a = ?", "       ^"]),
        ("/a = '€' ?", ["  /a = '€' ?", "           ^"]),
        ("/" + "a" * 300 + " = ?", ["  … " + "a" * 96 + " = ?", "  " + " " * 101 + "^"]),
        ("? /" + "a" * 300, ["  ? /" + "a" * 97 + " …", "  ^"]),
        ("1 = ? " + "x" * 90 + " " * 60, ["  1 = ? " + "x" * 90 + "     …", "      ^"]),
    ],
)  # fmt: skip
def test_a_caret_stands_under_the_place(text, shown):
    """The caret stands under its place in a single line or a part of a long one; a tab is one column wide."""
    with pytest.raises(FilterError) as caught:
        compile_filter(text)
    assert str(caught.value).splitlines()[1:] == shown


def test_a_filter_error_is_a_configuration_error():
    """A filter error is a configuration error, which ends the process with code 2."""
    assert issubclass(FilterError, ConfigurationError)


def test_an_error_has_no_words_of_the_parser():
    """A filter error contains no parser terms and no Python errors, wherever a valid filter is truncated or broken."""
    good = "NOT /a/b[0] IN (1, 'x') AND (SUBSTR(/c, 1) LIKE 'y' OR -/d + 2 % 3 BETWEEN 1 AND 5) OR /e IS NOT NULL"
    for end in range(len(good)):
        for text in (good[:end], good[:end] + ")" + good[end:], good[:end] + " AND " + good[end:]):
            try:
                compile_filter(text)
            except FilterError as error:
                message = str(error).splitlines()[0]
                assert not any(word in message for word in ("_", "Token", "$", "terminal", "COMPARISON", "NUMBER")), (
                    message
                )


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
