"""Functions of texts. Positions count from 1; a number or truth value is taken as its text.

Capitals and small letters are one for one, the same on every machine and in every version of Python.
A letter whose other case is several characters, such as `ß`, stays as it is: so do `İ`, ligatures, and letters that
got their other case after Unicode 14, which the oldest supported Python has. A text keeps its length, and the place of
every letter. A capital sigma becomes the usual small one also at the end of a word.
"""

from __future__ import annotations

import re
from typing import Final

from processor.filter.arithmetic import operand
from processor.filter.evaluation import Function, RecordMetadata
from processor.filter.limits import SHORT_CHARACTERS, case_steps, find_steps
from processor.filter.pattern import Replacer
from processor.filter.syntax_tree import Scalar
from processor.filter.value import is_finite, text_of

_LATER: Final = "\u019b\u0264\ua7cb-\ua7cf\ua7d2-\ua7d5\ua7da-\ua7dc\U00010d50-\U00010d8f\U00016ea0-\U00016edf"
"""Letters that Unicode 15 to 17 gave another case."""

_SEVERAL_CAPITALS: Final = (
    "\u00df\u0149\u01f0\u0390\u03b0\u0587\u1e96-\u1e9a\u1f50\u1f52\u1f54\u1f56\u1f80-\u1faf\u1fb2-\u1fb4\u1fb6\u1fb7"
    "\u1fbc\u1fc2-\u1fc4\u1fc6\u1fc7\u1fcc\u1fd2\u1fd3\u1fd6\u1fd7\u1fe2-\u1fe4\u1fe6\u1fe7\u1ff2-\u1ff4\u1ff6\u1ff7"
    "\u1ffc\ufb00-\ufb06\ufb13-\ufb17"
)
"""Letters whose capital is several characters."""

_NO_CAPITAL: Final = re.compile(f"([{_SEVERAL_CAPITALS}{_LATER}]+)")
_NO_SMALL_LETTER: Final = re.compile(f"([\u0130{_LATER}]+)")


def capitals(text: str) -> str:
    """The text in capitals."""
    if text.isascii() or _NO_CAPITAL.search(text) is None:
        return text.upper()
    pieces = _NO_CAPITAL.split(text)
    pieces[::2] = map(str.upper, pieces[::2])
    return "".join(pieces)


def small_letters(text: str) -> str:
    """The text in small letters."""
    if text.isascii():
        return text.lower()
    # Python looks at the letters around a sigma.
    text = text.replace("\u03a3", "\u03c3")
    if _NO_SMALL_LETTER.search(text) is None:
        return text.lower()
    pieces = _NO_SMALL_LETTER.split(text)
    pieces[::2] = map(str.lower, pieces[::2])
    return "".join(pieces)


def without_case(text: str) -> str:
    """The text as it is compared in any case."""
    return text.lower() if text.isascii() else small_letters(capitals(text))


WHITE_SPACE: Final = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""White space that TRIM and its like take away: that of Unicode 14, whichever the interpreter has."""


def instr(metadata: RecordMetadata, text: Scalar, part: Scalar) -> int:
    """Position at which a text begins in another one; 0 if it is not in it."""
    whole, wanted = text_of(text), text_of(part)
    metadata.spend(find_steps(len(whole), len(wanted)))
    return whole.find(wanted) + 1


def instr_i(metadata: RecordMetadata, text: Scalar, part: Scalar) -> int:
    """The same in any case."""
    whole, wanted = _caseless(metadata, text), _caseless(metadata, part)
    metadata.spend(find_steps(len(whole), len(wanted)))
    return whole.find(wanted) + 1


def strequal_i(metadata: RecordMetadata, one: Scalar, other: Scalar) -> bool:
    """Return whether two texts are equal in any case."""
    return _caseless(metadata, one) == _caseless(metadata, other)


def length(text: Scalar) -> int:
    """Number of characters of a text."""
    return len(text_of(text))


def concat(metadata: RecordMetadata, *texts: Scalar) -> str:
    """The texts one behind another; NULL is an empty one."""
    known = [text_of(text) for text in texts if text is not None]
    if (size := sum(map(len, known))) > SHORT_CHARACTERS:
        metadata.make(size)
    return "".join(known)


def upper(metadata: RecordMetadata, text: Scalar) -> str:
    """In capitals."""
    whole = text if type(text) is str and len(text) <= SHORT_CHARACTERS else _made(metadata, text, changes_case=True)
    return whole.upper() if whole.isascii() else capitals(whole)


def lower(metadata: RecordMetadata, text: Scalar) -> str:
    """In small letters."""
    whole = text if type(text) is str and len(text) <= SHORT_CHARACTERS else _made(metadata, text, changes_case=True)
    return whole.lower() if whole.isascii() else small_letters(whole)


def replace(metadata: RecordMetadata, text: Scalar, part: Scalar, replacement: Scalar) -> str | None:
    """The text with every occurrence of a part replaced; a NULL replacement is an empty one."""
    if text is None:
        return None
    whole = text_of(text)
    if part is None:
        return whole
    old, new = text_of(part), "" if replacement is None else text_of(replacement)
    metadata.spend(find_steps(len(whole), len(old)))
    count = whole.count(old)
    metadata.make(len(whole) + count * (len(new) - len(old)))
    metadata.spend(count // 4)
    return whole.replace(old, new)


def regexp_replace(replacer: Replacer, metadata: RecordMetadata, text: Scalar, replacement: Scalar) -> str | None:
    r"""The text with every match of a pattern replaced; \1 is the pattern's first group."""
    if text is None:
        return None
    return replacer(metadata, text_of(text), "" if replacement is None else text_of(replacement))


def substr(metadata: RecordMetadata, text: Scalar, position: Scalar, count: Scalar = None) -> str | None:
    """The part of a text from a position on, negative from the end; all of it, or so many characters."""
    whole, begin = text_of(text), _count(position)
    if begin is None:
        return None
    begin = max(0, len(whole) + begin) if begin < 0 else max(0, begin - 1)
    wanted = len(whole) if count is None else _count(count)
    return None if wanted is None else _part(metadata, whole, begin, begin + max(0, wanted))


def left(metadata: RecordMetadata, text: Scalar, count: Scalar) -> str | None:
    """The first so many characters."""
    wanted = _count(count)
    return None if wanted is None else _part(metadata, text_of(text), 0, max(0, wanted))


def right(metadata: RecordMetadata, text: Scalar, count: Scalar) -> str | None:
    """The last so many characters."""
    wanted = _count(count)
    whole = text_of(text)
    return None if wanted is None else _part(metadata, whole, max(0, len(whole) - max(0, wanted)), len(whole))


def trim(metadata: RecordMetadata, text: Scalar) -> str:
    """Without white space on either side."""
    return _made(metadata, text).strip(WHITE_SPACE)


def ltrim(metadata: RecordMetadata, text: Scalar) -> str:
    """Without white space at the beginning."""
    return _made(metadata, text).lstrip(WHITE_SPACE)


def rtrim(metadata: RecordMetadata, text: Scalar) -> str:
    """Without white space at the end."""
    return _made(metadata, text).rstrip(WHITE_SPACE)


def reverse(metadata: RecordMetadata, text: Scalar) -> str:
    """From the last character to the first."""
    return _made(metadata, text)[::-1]


def _made(metadata: RecordMetadata, text: Scalar, *, changes_case: bool = False) -> str:
    """The text of a scalar, of which a function makes another one of the same length at most."""
    whole = text_of(text)
    size = len(whole)
    if size > SHORT_CHARACTERS:
        metadata.make(size)
        if changes_case:
            metadata.spend(case_steps(size, is_ascii=whole.isascii()))
    return whole


def _caseless(metadata: RecordMetadata, text: Scalar) -> str:
    whole = _made(metadata, text, changes_case=True)
    if not whole.isascii():
        _made(metadata, text, changes_case=True)  # It is changed twice.
    return without_case(whole)


def _part(metadata: RecordMetadata, text: str, begin: int, end: int) -> str:
    """The characters of a text between two places."""
    part = text[begin:end]
    if len(part) > SHORT_CHARACTERS:
        metadata.make(len(part))
    return part


def _count(value: Scalar) -> int | None:
    """A number of characters: without its fraction; None if it is no number."""
    number = operand(value)
    if number is None or not is_finite(number):
        return None
    # No text is longer; Python refuses to count further.
    return int(max(-(2**31), min(2**31, number)))


FUNCTIONS: Final = (
    Function("INSTR", instr, 2, 2, is_counted=True),
    Function("INSTR_I", instr_i, 2, 2, is_counted=True),
    Function("STREQUAL_I", strequal_i, 2, 2, is_counted=True),
    Function("LENGTH", length, 1, 1),
    Function("CONCAT", concat, 1, None, "nulls", is_counted=True),
    Function("UPPER", upper, 1, 1, is_counted=True),
    Function("LOWER", lower, 1, 1, is_counted=True),
    Function("REPLACE", replace, 3, 3, "nulls", is_counted=True),
    Function("REGEXP_REPLACE", regexp_replace, 3, 3, "nulls", is_counted=True),
    Function("SUBSTR", substr, 2, 3, is_counted=True),
    Function("LEFT", left, 2, 2, is_counted=True),
    Function("RIGHT", right, 2, 2, is_counted=True),
    Function("TRIM", trim, 1, 1, is_counted=True),
    Function("LTRIM", ltrim, 1, 1, is_counted=True),
    Function("RTRIM", rtrim, 1, 1, is_counted=True),
    Function("REVERSE", reverse, 1, 1, is_counted=True),
)
