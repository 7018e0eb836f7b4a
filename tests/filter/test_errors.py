"""A filter error has the place, the expected input and a caret under the place."""

import pytest

from processor.errors import ConfigurationError, FilterError
from processor.filter import compile_filter

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
