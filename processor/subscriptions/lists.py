"""Splits a list at its commas: those in quotes and in brackets are part of an item."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|(?<!\w)[rR](?:'[^']*'|"[^"]*")|[][(),]""", re.DOTALL
)
"""The tokens that decide: a text in quotes, as in filters, a bracket, a comma. A quote that is never closed is none."""


class Item(NamedTuple):
    """One item of a list."""

    text: str
    """Without the white space round it."""
    at: int
    """Its begin in the list, in characters from 0; of an empty one, the place where it should be."""


def split(text: str) -> list[Item]:
    """The items of a list, one more than it has commas.

    A bracket without its partner counts as if it had one at the end: the reader of the items reports it.
    """
    items: list[Item] = []
    begin = depth = 0
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign in "[(":
            depth += 1
        elif sign in "])":
            depth = max(0, depth - 1)
        elif sign == "," and not depth:
            items.append(_item(text, begin, token.start()))
            begin = token.end()
    items.append(_item(text, begin, len(text)))
    return items


def _item(text: str, begin: int, end: int) -> Item:
    """The item between two places."""
    part = text[begin:end]
    stripped = part.lstrip()
    return Item(stripped.rstrip(), begin + len(part) - len(stripped) if stripped else end)
