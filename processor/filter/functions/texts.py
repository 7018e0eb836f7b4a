"""Functions of texts. Positions count from 1; a number or truth value is taken as its text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from processor.filter.arithmetic import operand
from processor.filter.function import Function
from processor.filter.limits import TEXT_CHARACTERS_MAX
from processor.filter.syntax_tree import Scalar
from processor.filter.value import is_finite, text_of


def instr(text: Scalar, part: Scalar) -> int:
    """Position at which a text begins in another one; 0 if it is not in it."""
    return text_of(text).find(text_of(part)) + 1


def instr_i(text: Scalar, part: Scalar) -> int:
    """The same in any case."""
    return text_of(text).lower().find(text_of(part).lower()) + 1


def strequal_i(one: Scalar, other: Scalar) -> bool:
    """Return whether two texts are equal in any case."""
    return text_of(one).lower() == text_of(other).lower()


def length(text: Scalar) -> int:
    """Number of characters of a text."""
    return len(text_of(text))


def concat(*texts: Scalar) -> str | None:
    """The texts one behind another; NULL is an empty one."""
    known = [text_of(text) for text in texts if text is not None]
    return "".join(known) if sum(map(len, known)) <= TEXT_CHARACTERS_MAX else None


def upper(text: Scalar) -> str:
    """In capitals."""
    return text_of(text).upper()


def lower(text: Scalar) -> str:
    """In small letters."""
    return text_of(text).lower()


def replace(text: Scalar, part: Scalar, replacement: Scalar) -> str | None:
    """The text with every occurrence of a part replaced; a NULL replacement is an empty one."""
    if text is None:
        return None
    whole = text_of(text)
    if part is None:
        return whole
    old, new = text_of(part), "" if replacement is None else text_of(replacement)
    if len(new) > len(old) and len(whole) + whole.count(old) * (len(new) - len(old)) > TEXT_CHARACTERS_MAX:
        return None
    return whole.replace(old, new)


def regexp_replace(replacer: Callable[[str, str], str | None], text: Scalar, replacement: Scalar) -> str | None:
    r"""The text with every match of a pattern replaced; \1 is the pattern's first group."""
    if text is None:
        return None
    return replacer(text_of(text), "" if replacement is None else text_of(replacement))


def substr(text: Scalar, position: Scalar, count: Scalar = None) -> str | None:
    """The part of a text from a position on, negative from the end; all of it, or so many characters."""
    whole, begin = text_of(text), _count(position)
    if begin is None:
        return None
    begin = max(0, len(whole) + begin) if begin < 0 else max(0, begin - 1)
    if count is None:
        return whole[begin:]
    wanted = _count(count)
    return None if wanted is None else whole[begin : begin + max(0, wanted)]


def left(text: Scalar, count: Scalar) -> str | None:
    """The first so many characters."""
    wanted = _count(count)
    return None if wanted is None else text_of(text)[: max(0, wanted)]


def right(text: Scalar, count: Scalar) -> str | None:
    """The last so many characters."""
    wanted = _count(count)
    whole = text_of(text)
    return None if wanted is None else whole[max(0, len(whole) - max(0, wanted)) :]


def trim(text: Scalar) -> str:
    """Without white space on either side."""
    return text_of(text).strip()


def ltrim(text: Scalar) -> str:
    """Without white space at the beginning."""
    return text_of(text).lstrip()


def rtrim(text: Scalar) -> str:
    """Without white space at the end."""
    return text_of(text).rstrip()


def reverse(text: Scalar) -> str:
    """From the last character to the first."""
    return text_of(text)[::-1]


def _count(value: Scalar) -> int | None:
    """A number of characters: without its fraction; None if it is no number."""
    number = operand(value)
    if number is None or not is_finite(number):
        return None
    # No text is longer; Python refuses to count further.
    return int(max(-(2**31), min(2**31, number)))


FUNCTIONS: Final = (
    Function("INSTR", instr, 2, 2),
    Function("INSTR_I", instr_i, 2, 2),
    Function("STREQUAL_I", strequal_i, 2, 2),
    Function("LENGTH", length, 1, 1),
    Function("CONCAT", concat, 1, None, "nulls"),
    Function("UPPER", upper, 1, 1),
    Function("LOWER", lower, 1, 1),
    Function("REPLACE", replace, 3, 3, "nulls"),
    Function("REGEXP_REPLACE", regexp_replace, 3, 3, "nulls"),
    Function("SUBSTR", substr, 2, 3),
    Function("LEFT", left, 2, 2),
    Function("RIGHT", right, 2, 2),
    Function("TRIM", trim, 1, 1),
    Function("LTRIM", ltrim, 1, 1),
    Function("RTRIM", rtrim, 1, 1),
    Function("REVERSE", reverse, 1, 1),
)
