"""Parses a filter into its tree, or reports its error in the writer's words with a caret under the place.

Also names the fields and functions that a text of the filter language uses.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from processor.errors import FilterError
from processor.filter.limits import CHARACTERS_MAX, DEPTH_MAX, PATH_PARTS_MAX, TOKENS_MAX
from processor.filter.syntax_tree import JOINED_MARK, Call, Node, Path, children
from processor.filter.value import CONSTANTS, PATH, TEXT, read_path
from processor.values.key_text import NUMBER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lark import UnexpectedToken


_SHOWN_MAX: Final = 100
"""Most characters of a line that are shown; of a longer one the part around the place."""


def syntax_error(text: str, at: int, problem: str, noun: str = "filter") -> FilterError:
    """The error for a place in a filter.

    Args:
        text: the filter, or another text of the language.
        at: the place, in characters from 0; the length of the text is its end.
        problem: the problem there, and the remedy.
        noun: the kind of text.
    """
    begin = text.rfind("\n", 0, at) + 1
    line, column = text.count("\n", 0, at) + 1, at - begin + 1
    end = text.find("\n", at)
    shown = text[begin : end if end >= 0 else len(text)]
    caret = column - 1
    if len(shown) > _SHOWN_MAX:
        cut = min(max(0, caret - _SHOWN_MAX // 2), len(shown) - _SHOWN_MAX)
        before, after = "… " if cut else "", " …" if cut + _SHOWN_MAX < len(shown) else ""
        shown, caret = before + shown[cut : cut + _SHOWN_MAX] + after, caret - cut + len(before)
    place = f"{noun}, line {line}, column {column}"
    message = f"{place}: {_printable(problem)}\n  {_printable(shown)}\n  {' ' * caret}^"
    return FilterError(message, line, column, problem)


def _printable(text: str) -> str:
    """One column for each character, or the caret would stand elsewhere."""
    return "".join(character if character.isprintable() else " " for character in text)


_VALUE: Final = "a value, such as /qty, 10, 'text' or UPPER(/name)"
_TEXT: Final = "a text in quotes, such as 'text'"
_AMONG_OTHERS: Final = {
    "COMPARISON": "a comparison (=, IN, LIKE …)",
    "PLUS": "an operator (+, -, * …)",
    "_AND": "AND",
    "_OR": "OR",
    "_OPEN": "(",
    "_CLOSE": ")",
    "_COMMA": "a comma",
    "_WITH": "WITH",
    "$END": "the end",
}
"""Tokens that may come next, in a person's words; those that are nowhere here come along with one that is."""

_ALONE: Final = {
    "TEXT": _TEXT,
    "NULL": "NULL",
    "NAN": "NAN",
    "NOT": "NOT",
    "_BETWEEN": "BETWEEN",
    "_IN": "IN",
    "_LIKE": "LIKE",
    "_BEGINS": "BEGINS WITH",
    "_ENDS": "ENDS WITH",
}
"""The same where none of those above may come."""

_PATH: Final = f"{PATH.removesuffix('+')}{{1,{PATH_PARTS_MAX + 1}}}"
"""A path, or so much of one that it is too long."""
_WORD: Final = re.compile(rf"(?P<list>{CONSTANTS})|{TEXT}|{_PATH}|{NUMBER}|\w+|(?P<open>['\"])|[^\s]", re.DOTALL)
"""A word or a sign, about as the parser divides a text."""
_CONSTANTS_OF_A_WORD: Final = 60
"""Characters of a list of constants that take as long as a word."""

_NAME_BEFORE: Final = re.compile(r"\b([A-Za-z_]\w*)\s*\Z")
_BEFORE_OPEN: Final = frozenset(("IN", "WITH"))
"""Keywords that a ( follows."""


def parse(text: str) -> Node:
    """The tree of a filter.

    Raises:
        FilterError: it cannot be parsed, or is larger than a filter may be.
    """
    if not isinstance(text, str):
        # Callers without a type checker pass anything.
        problem = f'a filter is a text, such as "/qty > 10", and no {type(text).__name__}'  # type: ignore[unreachable]
        raise syntax_error(f"{text!r:.100}", 0, problem)
    if len(text) > CHARACTERS_MAX:
        raise syntax_error(
            text, CHARACTERS_MAX, f"it has {len(text)} characters, a filter at most {CHARACTERS_MAX}; make it shorter"
        )
    _check_words(text)
    # Commands without a filter, such as `get`, do not pay for the parser.
    from lark import UnexpectedCharacters, UnexpectedToken  # noqa: PLC0415
    from lark.exceptions import VisitError  # noqa: PLC0415

    from processor.filter.grammar import NotAText, parser  # noqa: PLC0415

    try:
        # With a transformer the parser gives what that made.
        tree = cast("Node", parser().parse(text))
    except UnexpectedToken as error:
        raise _unexpected(text, error) from None
    except UnexpectedCharacters as error:
        raise _unreadable(text, cast("int", error.pos_in_stream)) from None
    except (NotAText, VisitError) as error:
        place = error if isinstance(error, NotAText) else error.orig_exc
        if not isinstance(place, NotAText):
            raise
        raise syntax_error(text, place.args[0], f"expected {_TEXT}; found a number") from None
    _check_depth(text, tree)
    return tree


def compile_work(text: str) -> int:
    """Return the work to compile a filter, in words and signs of about 20 µs; at most a few more than `TOKENS_MAX`.

    For a limit on what one client may have compiled in a time: this takes a hundredth of the work itself.
    """
    words = 0
    for match in _WORD.finditer(text[:CHARACTERS_MAX]):
        if match["open"]:
            break  # The parser goes no further.
        words += 1 + (match.end() - match.start()) // _CONSTANTS_OF_A_WORD if match["list"] else 1
        if words > TOKENS_MAX:
            break
    return words


def _check_words(text: str) -> None:
    """Refuse a text whose parts would take too long to compile."""
    for number, match in enumerate(_WORD.finditer(text)):
        if match["open"]:
            return  # A quote without an end: the parser tells.
        word = match[0]
        if word[0] == "/" and len(word) > PATH_PARTS_MAX and len(read_path(word)) > PATH_PARTS_MAX:
            problem = f"the path has more than {PATH_PARTS_MAX} names and places"
            raise syntax_error(text, match.start(), problem)
        if number >= TOKENS_MAX:
            problem = (
                f"it has more than {TOKENS_MAX:,} words and signs; make it shorter, or write `IN (…)` in place of many "
                "comparisons: a list of constants counts as one"
            )
            raise syntax_error(text, match.start(), problem)


def _check_depth(text: str, tree: Node) -> None:
    """Refuse a tree that would not fit on Python's stack."""
    level, depth = [tree], 0
    while level:
        depth += 1
        if depth > DEPTH_MAX:
            raise syntax_error(
                text, level[0].at, f"operators and functions are nested deeper than {DEPTH_MAX}; take it apart"
            )
        level = [child for node in level for child in children(node)]


def _unexpected(text: str, error: UnexpectedToken) -> FilterError:
    """A token that may not stand where it does."""
    token = error.token
    at = len(text) if token.type == "$END" else token.start_pos or 0
    expected = _expected(error.accepts or error.expected)
    name = _NAME_BEFORE.search(text, 0, at)
    if expected == "(" and name is not None and name[1].upper() not in _BEFORE_OPEN:
        word = _short(name[1])
        problem = (
            f"{word} is no value; expected /{word} if it is a field, '{word}' if it is a text, {word}(…) if a function"
        )
        return syntax_error(text, name.start(), problem)
    found = "the filter ends" if token.type == "$END" else f"found {_short(token)}"
    divides = token.type == "PATH" and at > 0 and not text[at - 1].isspace() and "operator" in expected
    hint = "; to divide write white space on both sides of /" if divides else ""
    return syntax_error(text, at, f"expected {expected}; {found}{hint}")


def _expected(tokens: set[str]) -> str:
    """The tokens that may come next, in words."""
    if "NUMBER" in tokens:
        words = [_VALUE, "a closing )"] if "_CLOSE" in tokens else [_VALUE]
    else:
        known = _AMONG_OTHERS if not tokens.isdisjoint(_AMONG_OTHERS) else _ALONE
        words = [known[token] for token in known if token in tokens]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _short(token: str) -> str:
    return token if len(token) <= 30 else f"{token[:30]}…"


def _unreadable(text: str, at: int) -> FilterError:
    """A character that begins nothing."""
    character = text[at]
    if character in "'\"":
        return syntax_error(text, at, f"this text has no end; expected another {character}")
    if character in "[]":
        return syntax_error(
            text, at, "expected [ and ] only behind the name in a path, with a number from 0: /legs[0]/px"
        )
    problem = f"{character!r} means nothing here; expected {_VALUE}, or an operator"
    if character in "&|!":
        problem += "; write AND, OR, NOT"
    return syntax_error(text, at, problem)


class NamedField(NamedTuple):
    """A field, as one place of a text names it."""

    topic: str | None
    """The joined topic whose record has it; None: the text's own record."""
    member: str
    """The member of the record in which it is."""
    at: int
    """The place, in characters from 0."""


def named_fields(text: str) -> list[NamedField]:
    """Return the fields that a filter or an expression names, in order.

    Raises:
        FilterError: it cannot be parsed.
    """
    return [
        NamedField(first.removeprefix(JOINED_MARK), str(rest[0]), path.at)
        if first.startswith(JOINED_MARK)
        else NamedField(None, first, path.at)
        for path in _paths(parse(text))
        for first, *rest in [tuple(map(str, path.parts))]
    ]


def called_functions(text: str) -> set[str]:
    """Return the names of the functions that a filter or an expression calls, in capitals.

    Raises:
        FilterError: it cannot be parsed.
    """
    return set(_called(parse(text)))


def _called(node: Node) -> Iterator[str]:
    if isinstance(node, Call):
        yield node.name
    for child in children(node):
        yield from _called(child)


def _paths(node: Node) -> Iterator[Path]:
    if isinstance(node, Path):
        yield node
    for child in children(node):
        yield from _paths(child)
