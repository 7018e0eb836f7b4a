"""The values of numbers, texts and paths as they stand in a filter."""

from __future__ import annotations

import re
from typing import Final

from processor.filter.value import Number, read_number

STEP: Final = r"""(?:[\w@#:.$-]+|'(?:[^'\\]++|\\.|'')*'|"(?:[^"\\]++|\\.|"")*")"""
"""The name of a member in a path: quoted, or of these characters."""

PATH: Final = rf"(?:/{STEP}(?:\[[0-9]{{1,9}}\])*)+"
"""A path: names, and behind each any number of places in arrays."""

NUMBER: Final = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
"""A number without a sign."""

TEXT: Final = r"""'(?:[^'\\]++|\\.|'')*'|"(?:[^"\\]++|\\.|"")*"|[rR]'[^']*'|[rR]"[^"]*\""""
"""A text in quotes."""

_CONSTANT: Final = rf"(?:-?{NUMBER}|{TEXT})"

CONSTANTS: Final = rf"\(\s*{_CONSTANT}(?:\s*,\s*{_CONSTANT}){{15,}}+\s*\)"
"""A list of many constants in brackets, which the parser takes as one word: it takes 20 µs for each."""

_EACH_CONSTANT: Final = re.compile(_CONSTANT, re.DOTALL)

_PARTS: Final = re.compile(rf"/({STEP})|\[([0-9]+)\]", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\([\\'\"nrt]|x[0-9A-Fa-f]{2})")
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t"}


def read_text(token: str) -> str:
    r"""A text in quotes: `\\`, `\'`, `\"`, `\n`, `\r`, `\t`, `\x41`, the quote twice; any other `\` stands for itself.

    So regular expressions can be written as they are. After an `r` nothing is special.
    """
    if token[0] in "rR":
        return token[2:-1]
    quote = token[0]
    inner = token[1:-1]
    pieces = _ESCAPE.split(inner)
    for index, piece in enumerate(pieces):
        if index % 2 == 0:
            pieces[index] = piece.replace(quote * 2, quote)
        else:
            pieces[index] = chr(int(piece[1:], 16)) if piece[0] == "x" else _ESCAPED.get(piece, piece)
    return "".join(pieces)


def literal_number(token: str) -> Number:
    """A number: an integer of any length, else a float, or a Decimal where that has more digits than a float holds."""
    found = read_number(token)
    return float(token) if found is None else found


def read_constants(token: str) -> list[tuple[Number | str, int]]:
    """The values of a list of constants, and their places in it."""
    constants: list[tuple[Number | str, int]] = []
    for match in _EACH_CONSTANT.finditer(token):
        text = match[0]
        if text[0] == "-":
            constants.append((-literal_number(text[1:]), match.start()))
        elif text[0] in "'\"rR":
            constants.append((read_text(text), match.start()))
        else:
            constants.append((literal_number(text), match.start()))
    return constants


def read_path(token: str) -> tuple[str | int, ...]:
    """The parts of a path: `/legs/'a b'[2]/px` gives `("legs", "a b", 2, "px")`."""
    parts: list[str | int] = []
    for name, index in _PARTS.findall(token):
        if index:
            parts.append(int(index))
        else:
            parts.append(read_text(name) if name[0] in "'\"" else name)
    return tuple(parts)
