"""JSON numbers that neither 64 bits nor a double hold: told from others, read as Decimal, written with every digit.

Slower than orjson by an order of magnitude, and needed for one record in a million: `survives` says for which.
"""

from __future__ import annotations

import json
import re
from decimal import MAX_EMAX, Decimal
from typing import Final, NoReturn

import orjson

from processor.record import Value

MARK: Final = 0x20
"""The byte, a space, at the end of a message that we wrote with such a number, and of no other of ours."""

_INT_MIN: Final = -(2**63)
_INT_END: Final = 2**64
_INT_DIGITS_SAFE: Final = 18

# A double holds any 15 significant digits, unless the number is so small that its exponent has three digits. (One that
# is too large orjson refuses.)
_SUSPECT: Final = re.compile(rb"-?[0-9](?:[0-9.]{15,}(?:[eE][-+]?[0-9]+)?|[0-9.]*[eE]-[0-9]{3,})")
_SPACES: Final = b" \t\r\n"
_TO_ZERO: Final = bytes.maketrans(b".123456789", b"0" * 10)
_RUN: Final = b"0" * 16
_SHOWN_MAX: Final = 50
"""Most characters of a number that an error shows."""


def survives(data: bytes, written: bytes) -> bool:
    """Return whether every number of a valid message comes through orjson unchanged.

    May say no for the sake of digits inside a string; never yes when a number is lost.

    Args:
        data: the message.
        written: the same, after orjson read and wrote it.
    """
    # Another writer's spaces, such as Python's own, are no difference: no number has a space inside.
    if data.translate(None, _SPACES) == written.translate(None, _SPACES):
        return True
    # Searches at the speed of C keep the expression, ten times slower, for those that need it.
    if data.translate(_TO_ZERO).find(_RUN) < 0 and data.find(b"e-") < 0 and data.find(b"E-") < 0:
        return True
    return all(_holds(match.group().decode()) for match in _SUSPECT.finditer(data))


def read(data: bytes) -> Value:
    """Parse a text of a peer that wrote it well, with every digit: `loads`, at the speed of orjson where that will do.

    Raises:
        ValueError: not JSON.
        RecursionError: nested too deep.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return loads(data)  # A number may be too large for a double.
    return value if survives(data, b"") else loads(data)


def loads(data: bytes) -> Value:
    """Parse a message; numbers that would change are Decimals.

    Raises:
        ValueError: not JSON, or a number with an exponent that even a Decimal does not hold.
        RecursionError: nested too deep.
    """
    return json.loads(data.decode(), parse_int=_read_int, parse_float=_read_float, parse_constant=_no_number)


def dumps(value: Value) -> bytes:
    """Write a message that holds Decimals, marked as such.

    Raises:
        TypeError: it holds another value that JSON cannot express.
    """
    return orjson.dumps(value, default=_write) + bytes((MARK,))


def _holds(literal: str) -> bool:
    """Return whether an int of 64 bits or a double has just this value."""
    if literal.lstrip("-").isdecimal():
        return _fits(literal)
    try:
        text = repr(float(literal))
    except ValueError:
        return True  # `1.2.3`: in a valid message only a string holds that.
    try:
        return text == literal or Decimal(text) == Decimal(literal)
    except ArithmeticError:
        return False


def _fits(literal: str) -> bool:
    """Return whether it is an int of 64 bits, as orjson has them: from the least signed to the largest unsigned."""
    return len(literal) <= _INT_DIGITS_SAFE or (len(literal) <= 20 and _INT_MIN <= int(literal) < _INT_END)


def _read_int(literal: str) -> int | Decimal:
    return int(literal) if _fits(literal) else Decimal(literal)


def _read_float(literal: str) -> float | Decimal:
    if _holds(literal):
        return float(literal)
    try:
        number = Decimal(literal)
    except ArithmeticError:
        shown = literal if len(literal) <= _SHOWN_MAX else f"{literal[:_SHOWN_MAX]}…"
        raise ValueError(f"the exponent of the number {shown} is beyond {MAX_EMAX}, the largest of a decimal") from None
    sign, digits, exponent = number.as_tuple()
    if exponent == 0:
        # `1.5e1` and the like would be written as whole numbers, which others read as ints: rule 9. One more zero.
        return Decimal((sign, (*digits, 0), -1))
    return number


def _no_number(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is not a JSON value")


def _write(value: object) -> orjson.Fragment:
    if type(value) is Decimal and value.is_finite():
        text = str(value)
        # What a plug-in reckoned: without its exponent it would be read again as an int, and that is another value.
        if text.lstrip("-").isdecimal() and _fits(text) and not _holds(f"{text}E0"):
            text += "E0"
        return orjson.Fragment(text)
    raise TypeError(f"{type(value).__name__} is not a JSON value: {value!r}")
