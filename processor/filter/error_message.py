"""Says what is wrong with a filter, or with a list like one, and where: line, column, a caret under the place."""

from __future__ import annotations

from typing import Final

from processor.errors import FilterError

_SHOWN_MAX: Final = 100
"""Most characters of a line that are shown; of a longer one the part around the place."""


def syntax_error(text: str, at: int, said: str, noun: str = "filter") -> FilterError:
    """The error for a place in a filter.

    Args:
        text: the filter, or what the noun says.
        at: the place, in characters from 0; the length of the text is its end.
        said: what is wrong there, and what to write.
        noun: what the text is.
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
    return FilterError(f"{place}: {_printable(said)}\n  {_printable(shown)}\n  {' ' * caret}^", line, column, said)


def _printable(text: str) -> str:
    """One column for each character, or the caret would stand elsewhere."""
    return "".join(character if character.isprintable() else " " for character in text)
