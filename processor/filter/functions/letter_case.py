"""Capitals and small letters, one for one: the same on every machine and in every version of Python.

A letter whose other case is several characters, such as `ß`, stays as it is: so do `İ`, ligatures, and letters that
got their other case after Unicode 14, which the oldest supported Python has. A text keeps its length, and the place of
every letter. A capital sigma becomes the usual small one also at the end of a word.
"""

from __future__ import annotations

import re
from typing import Final

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
