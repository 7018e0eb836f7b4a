"""The values of a record as a filter sees them, NULL, a truth value, a number or a text, and those in a filter's text.

Codecs bring more kinds than the language has. BSON's Decimal128 is a number, dates and times are a `Time`, bytes their
Base64, everything else its text: as `sowstream sow` shows them, so that a value that was seen can be asked for.
"""

from __future__ import annotations

import re
from base64 import b64encode
from decimal import Context, Decimal, Rounded
from typing import Final, TypeAlias

from processor.filter.evaluation import RecordMetadata
from processor.filter.limits import DIGITS_MAX, FEW_ELEMENTS, NUMBER_CHARACTERS_MAX
from processor.filter.syntax_tree import Scalar
from processor.record import Value
from processor.values.instant import Time, time_of
from processor.values.key_text import NUMBER, NUMBER_TEXT

Number: TypeAlias = int | float | Decimal
"""The types of numbers; infinity and NaN are floats always."""

NAN: Final = float("nan")

_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_EXPONENT: Final = re.compile(r"[eE]")
_SAFE_DIGITS: Final = 15
"""So many digits come through a float unchanged."""
_FEW_DIGITS_BYTES: Final = 128
"""Size of a Decimal in memory up to which its digits are looked at one by one."""
_MANY_DIGITS_BYTES: Final = 512
"""Size of a Decimal in memory below which it has surely no more than `DIGITS_MAX` digits."""
_TOO_MANY_DIGITS_BYTES: Final = 8_192
"""Size from which on it surely has more."""
_DIGITS: Final = Context(prec=DIGITS_MAX, traps=[Rounded])
_INTEGER_DIGITS_MAX: Final = 40
"""A Decimal without fraction up to here is an integer; longer ones are slow to turn into one, and come from nowhere."""


def first(value: Value) -> Scalar:
    """A value as functions and arithmetic take it: of an array the element 0; None is NULL."""
    while type(value) is list:
        value = value[0] if value else None
    return scalar(value)


def elements(value: Value, metadata: RecordMetadata | None = None) -> list[Scalar]:
    """A value as comparisons take it: every element of an array, also of arrays in it, and NULL left out.

    Each is a step of the evaluation's budget; without metadata nothing is counted.
    """
    if type(value) is not list:
        found = scalar(value)
        if metadata is not None and type(found) is str and type(value) is not str:
            metadata.make(len(found))  # Such as the Base64 of bytes.
        return [] if found is None else [found]
    if metadata is not None and len(value) > FEW_ELEMENTS:
        metadata.spend(len(value))
    result: list[Scalar] = []
    pending = value[::-1]
    while pending:
        element = pending.pop()
        if type(element) is list:
            if metadata is not None:
                metadata.spend(len(element) + 1)
            pending.extend(reversed(element))
        elif (found := scalar(element)) is not None:
            result.append(found)
    return result


def scalar(value: Value) -> Scalar:
    """The types that are no arrays of the language; None is NULL: so are an empty text and an object."""
    kind = type(value)
    if kind is str:
        return value or None
    if kind is int or kind is float or kind is bool or value is None:
        return value  # type: ignore[no-any-return]
    if kind is dict:
        return None
    if kind is Time:
        return value  # type: ignore[no-any-return]
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, int):
        return int(value)  # Such as BSON's Int64.
    if isinstance(value, float):
        return float(value)
    if isinstance(value, dict):
        return None  # Of a class of its own where it replaces whole.
    if kind.__name__ == "Decimal128" and hasattr(value, "to_decimal"):  # BSON's: its package need not be installed.
        return _decimal(value.to_decimal())
    return time_of(value) or _shown(value) or None


def number(value: Scalar) -> Number | None:
    """A scalar as a number; None where it is a text that is none, a time, or NULL. TRUE is 1."""
    kind = type(value)
    if kind is str:
        return read_number(value)  # type: ignore[arg-type]
    if kind is Time:
        return None
    return int(value) if kind is bool else value  # type: ignore[return-value,arg-type]


def read_number(text: str) -> Number | None:
    """The number that a text is; None if it is none.

    Digits with or without sign, fraction and exponent; no white space, and no words such as `inf`. A text of more than
    `NUMBER_CHARACTERS_MAX` is none.
    """
    if len(text) <= _SAFE_DIGITS and text.isdecimal() and text.isascii():
        return int(text)
    # Most texts that are none are told by their first character.
    if text[:1] not in "0123456789+-." or len(text) > NUMBER_CHARACTERS_MAX or not NUMBER_TEXT.fullmatch(text):
        return None
    is_integer = _INTEGER.fullmatch(text) is not None
    if len(text) <= _SAFE_DIGITS and (is_integer or not _EXPONENT.search(text)):
        return int(text) if is_integer else float(text)
    try:
        exact = Decimal(text)
    except ArithmeticError:
        return None  # An exponent that even a Decimal does not hold.
    near = float(text)
    if is_integer or Decimal(repr(near)) != exact:
        return _decimal(exact)
    return near


def text_of(value: Scalar) -> str:
    """A scalar as text functions and LIKE take it: a number as it is written in JSON, true or false; not NULL."""
    kind = type(value)
    if kind is str:
        return value  # type: ignore[return-value]
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        # Python refuses to write very long integers; a Decimal does not.
        return str(value) if -(10**300) < value < 10**300 else str(Decimal(value))  # type: ignore[operator,arg-type]
    return str(value)


def is_finite(value: Number) -> bool:
    """Return whether a number is neither infinite nor NaN."""
    return type(value) is not float or value - value == 0.0


def is_nan(value: Scalar) -> bool:
    """Return whether a scalar is the number that is none."""
    return type(value) is float and value != value  # noqa: PLR0124 - it is how NaN is told


def _decimal(value: Decimal) -> Number:
    """A Decimal as a number: without a fraction an integer, if not finite a float."""
    if not value.is_finite():
        return NAN if value.is_nan() else float(value)
    size_bytes = value.__sizeof__()
    if size_bytes > _FEW_DIGITS_BYTES:
        return NAN if size_bytes > _MANY_DIGITS_BYTES and _has_too_many_digits(value) else value
    if value.as_tuple().exponent == 0 and value.adjusted() < _INTEGER_DIGITS_MAX:
        return int(value)
    return value


def _has_too_many_digits(value: Decimal) -> bool:
    """Return whether a Decimal has more digits than a number may have: to compare it takes as long as it has digits."""
    if value.__sizeof__() > _TOO_MANY_DIGITS_BYTES:
        return True
    try:
        _DIGITS.plus(value)
    except Rounded:
        return True
    return False


def _shown(value: Value) -> str:
    """A value of another kind as the command line shows it."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode()
    return str(value)


STEP: Final = r"""(?:[\w@#:.$-]+|'(?:[^'\\]++|\\.|'')*'|"(?:[^"\\]++|\\.|"")*")"""
"""The name of a member in a path: quoted, or of these characters."""

PATH: Final = rf"(?:/{STEP}(?:\[[0-9]{{1,9}}\])*)+"
"""A path: names, and behind each any number of places in arrays."""

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


def negated(constant: Number) -> Number:
    """The number with the other sign, with all its digits: `-` rounds a Decimal."""
    return constant.copy_negate() if isinstance(constant, Decimal) else -constant


def read_constants(token: str) -> list[tuple[Number | str, int]]:
    """The values of a list of constants, and their places in it."""
    constants: list[tuple[Number | str, int]] = []
    for match in _EACH_CONSTANT.finditer(token):
        text = match[0]
        if text[0] == "-":
            constants.append((negated(literal_number(text[1:])), match.start()))
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
