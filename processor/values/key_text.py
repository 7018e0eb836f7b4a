"""Keys as texts: the key of a group, and a SOW key as messages, filters and files show it.

Equal grouping values share the key of a group, and different ones do not. Values are equal as COUNT_DISTINCT counts
them: numbers by what is written, in any type, texts by their characters. A number is another value than a text that
reads as one.

========================================  ==========================================================================
value                                     text
========================================  ==========================================================================
number without fraction                   its digits: `100` for 100, 100.0, 1e2 and a Decimal of it; `0` for -0.0
number with a fraction                    the shortest one, as Python writes a double: `0.1`, `1e-07`
number of more than `DIGITS_MAX` digits   with an exponent: `1e+2000`
true, false                               `1`, `0`, as TRUE is the number 1 for filters
NULL                                      the empty text
text that reads as a number, `true`,      itself as a JSON string, in quotation marks: `"1"`
`false`, the empty text, and one that
begins with a quotation mark
any other text                            itself
========================================  ==========================================================================

The key of one value is its text, that of several the compact JSON array of their texts.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from processor.values import cached_by_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.record import Value


KEY_VERSION: Final = 2
"""Of this law: the keys of the first one were the texts of the values, which 1 and "1" share, and 1 and 1.0 do not."""

DIGITS_MAX: Final = 1_000
"""Most digits of a number that is written without an exponent."""

NUMBER: Final = r"(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"
"""A number without a sign. Digits once taken are not given back, so that a long row of them is gone through once."""

NUMBER_TEXT: Final = re.compile(rf"[+-]?{NUMBER}", re.ASCII)
"""A text that reads as a number: digits with or without sign, fraction and exponent."""

_TRUTH: Final = {"true": "1", "false": "0"}
_FIRST_OF_NUMBER: Final = "0123456789+-."
_FIRST_OF_QUOTED: Final = f'{_FIRST_OF_NUMBER}tf"'
"""A text that begins otherwise is its own text in a key. The empty text is in every text, too."""

_PLAIN_MAX: Final = 10**15
"""Integers and floats without fraction up to here have the digits that Python writes."""

_LEAST_PLAIN_POWER: Final = -4
"""The power of ten of the first digit down to which Python writes a double without an exponent."""


def group_key(values: Sequence[Value]) -> bytes:
    """Return the key of a group: of one value its text, of several the compact JSON array of their texts."""
    if len(values) == 1:
        text = key_text(values[0])
    elif values:
        text = json.dumps([*map(key_text, values)], ensure_ascii=False, separators=(",", ":"))
    else:
        return b""
    try:
        return text.encode()
    except UnicodeEncodeError:  # Half a surrogate pair.
        return text.encode(errors="surrogatepass")


def key_text(value: Value) -> str:
    """Return the text of a grouping value in keys: of a number, a text, a truth value or None."""
    kind = type(value)
    if kind is str:
        text: str = value
        if text[:1] not in _FIRST_OF_QUOTED:
            return text
        return _text_in_key(text)
    if kind is int and -_PLAIN_MAX < value < _PLAIN_MAX:
        return str(value)
    if value is None:
        return ""
    if kind is bool:
        return "1" if value else "0"
    if isinstance(value, float):
        if value.is_integer() and abs(value) < _PLAIN_MAX:
            return str(int(value))
        text = float.__repr__(value)
        has_fraction = "." in text and "e" not in text and not text.endswith(".0")
        return text if has_fraction else _number_text(Decimal(text))
    if isinstance(value, int | Decimal):
        return _number_text(Decimal(value))
    return key_text(str(value))


def text_of_key_text(text: str) -> str:
    """Return the text whose `key_text` is this one."""
    return str(json.loads(text)) if text[:1] == '"' else text


def spelled_group_key(text: str, count: int) -> str:
    """Return the key that is meant by a text: `1.0`, `1e0` and `true` mean `1`. A key means itself.

    Args:
        text: the key, as a person or a program spells it.
        count: the number of the grouping values.
    """
    if count == 1:
        return _spelled(text)
    parts = parts_of_key(text, count)
    return text if parts is None else json.dumps([*map(_spelled, parts)], ensure_ascii=False, separators=(",", ":"))


def parts_of_key(text: str, count: int) -> list[str] | None:
    """Return the texts of a key of several values; None if it is no JSON array of so many texts."""
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_array = type(parts) is list and len(parts) == count and all(type(part) is str for part in parts)
    return parts if is_array else None


def is_respelled(text: str) -> bool:
    """Return whether a text may spell a key of groups otherwise than the key itself, for some number of values."""
    return text[:1] == "[" or _spelled(text) != text


def _spelled(text: str) -> str:
    if text[:1] == '"':
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text
        return key_text(value) if type(value) is str else text
    if text in _TRUTH:
        return _TRUTH[text]
    if text[:1] in _FIRST_OF_NUMBER and NUMBER_TEXT.fullmatch(text):
        try:
            return _number_text(Decimal(text))
        except ArithmeticError:
            return text  # An exponent that even a Decimal does not hold.
    return text


@cached_by_text  # Most records are of a group that another record was in.
def _text_in_key(value: str) -> str:
    """Return a text as it is, or in quotation marks where it would be taken for something else."""
    first = value[:1]
    if not first or first == '"':
        return json.dumps(value, ensure_ascii=False)
    is_quoted = value in _TRUTH if first in "tf" else NUMBER_TEXT.fullmatch(value) is not None
    return f'"{value}"' if is_quoted else value  # Without characters that JSON escapes.


def _number_text(value: Decimal) -> str:
    """Return the text of a number, which depends on its value alone."""
    sign, digits, exponent = value.as_tuple()
    shown = "".join(map(str, digits)).lstrip("0")
    significant = shown.rstrip("0")
    if not significant or not isinstance(exponent, int):
        return "0" if isinstance(exponent, int) else ""  # Infinity and NaN are NULL.
    exponent += len(shown) - len(significant)
    power = len(significant) + exponent - 1
    if exponent >= 0 and power < DIGITS_MAX:
        text = significant + "0" * exponent
    elif exponent < 0 <= power:
        text = f"{significant[: power + 1]}.{significant[power + 1 :]}"
    elif exponent < 0 and power >= _LEAST_PLAIN_POWER:
        text = f"0.{'0' * (-power - 1)}{significant}"
    else:
        fraction = f".{significant[1:]}" if len(significant) > 1 else ""
        text = f"{significant[0]}{fraction}e{power:+03d}"
    return f"-{text}" if sign else text


_LOOKS_ESCAPED: Final = re.compile(rb"\\(?=x(?:5c|[89a-f][0-9a-f]))")
_BACKSLASH: Final = rb"\x5c"


def text_of_key(key: bytes | None) -> str:
    r"""The text of a key: its UTF-8, with each byte that is not UTF-8 as an escape such as `\xff`.

    A backslash that would look like the beginning of such an escape is one itself, `\x5c`. So a key of valid UTF-8 is
    its own text, unless it has `\x5c` or `\x80` to `\xff` in it, spelled out in four characters.
    """
    if not key:
        return ""
    if b"\\x" in key:
        key = _LOOKS_ESCAPED.sub(lambda _: _BACKSLASH, key)
    return key.decode(errors="backslashreplace")
