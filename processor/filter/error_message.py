"""Error messages of the parser: the problem, line and column, and a caret under the place."""

from __future__ import annotations

from typing import Final

from processor.errors import FilterError

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
