"""Values that several folders share: their kinds, instants, the texts of keys, and paths. Pure.

`cached_by_text` is the cache of all that is computed from texts of foreign programs, such as the names of headers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

_Text = TypeVar("_Text", bound=str | bytes)
_Result = TypeVar("_Result")

CACHED_SIZE_MAX: Final = 1024
"""Longest text in a cache, in characters or bytes: a foreign program may write a name of a megabyte."""

CACHE_SIZE_MAX: Final = 256 * 1024
"""Most characters or bytes of all texts in one cache, and 64 for each."""


def cached_by_text(compute: Callable[[_Text], _Result]) -> Callable[[_Text], _Result]:
    """Return a function of one text that caches its results, in bounded memory for texts of any size and number.

    A long text is not cached, and a full cache is emptied. An error is not cached either.
    """
    return _Cache(compute).__getitem__


class _Cache(dict[_Text, _Result]):
    """The results by text. Written in C for a text that is there: most are. Any thread."""

    def __init__(self, compute: Callable[[_Text], _Result]) -> None:
        self._compute = compute
        self._room = CACHE_SIZE_MAX

    def __missing__(self, text: _Text) -> _Result:
        result = self._compute(text)
        if len(text) <= CACHED_SIZE_MAX:
            self._room -= len(text) + 64
            if self._room < 0:
                self.clear()
                self._room = CACHE_SIZE_MAX
            self[text] = result
        return result
