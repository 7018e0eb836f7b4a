"""Regular expressions in time linear in the text: RE2, through Google's own package; the one place that knows it.

A filter may come from anybody, and Python's `re` can be kept busy for years by one pattern. RE2 cannot; what it lacks
for that, look-around and back-references, is refused with a word about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import re2

from processor.filter.limits import PATTERN_BYTES_MAX, TEXT_CHARACTERS_MAX

_PLAIN: Final = re.compile(r"(\^?)([^\\.^$*+?{}\[\]|()]*)(\$?)", re.DOTALL)
"""A pattern without anything to be searched for by an engine."""

_SAID_MAX: Final = 100
"""Longest message of the engine, in characters, which may end with all of the pattern."""

_GROUP: Final = re.compile(rb"\\([0-9\\])")


class BadPattern(ValueError):
    """Not a regular expression, or none that can be searched for in linear time; the message names it."""


def searcher(pattern: str) -> Callable[[str], bool]:
    """A function that decides whether a pattern occurs in a text.

    Raises:
        BadPattern: the engine does not take it.
    """
    plain = _PLAIN.fullmatch(pattern)
    if plain is not None:
        return _plain(*plain.groups())
    search = _compiled(pattern).search
    # The engine's own way for texts counts characters, which nobody asks for here.
    return lambda text: search(_bytes(text)) is not None


def replacer(pattern: str) -> Callable[[str, str], str | None]:
    r"""A function of a text and a replacement, in which \1 to \9 are the pattern's groups and \0 is all of it.

    It gives None where the result would be longer than a text may be.

    Raises:
        BadPattern: the engine does not take it.
    """
    compiled = _compiled(pattern, groups=True)

    def replace(text: str, replacement: str) -> str | None:
        pieces = _GROUP.split(_bytes(replacement))
        data, done = _bytes(text), 0
        made: list[bytes] = []
        room = TEXT_CHARACTERS_MAX - len(data)
        for match in compiled.finditer(data):
            begin, end = match.span()
            if begin == end < len(data) and data[begin] & 0xC0 == 0x80:
                continue  # Nothing, found inside of a character.
            new = _expanded(pieces, match)
            room -= len(new)
            if room < 0:
                return None
            made += (data[done:begin], new)
            done = end
        made.append(data[done:])
        return b"".join(made).decode(errors="replace")

    return replace


def _expanded(pieces: list[bytes], match: re2._Match) -> bytes:
    """A replacement with the matches of its groups; a group that there is not, or that took no part, is nothing."""
    made = [pieces[0]]
    for reference, literal in zip(pieces[1::2], pieces[2::2], strict=True):
        if reference == b"\\":
            made.append(reference)
        elif int(reference) <= match.re.groups:
            made.append(match[int(reference)] or b"")
        made.append(literal)
    return b"".join(made)


def _compiled(pattern: str, *, groups: bool = False) -> re2._Regexp:
    options = re2.Options()
    options.max_mem = PATTERN_BYTES_MAX
    options.log_errors = False
    options.never_capture = not groups
    try:
        return re2.compile(_bytes(pattern).decode(errors="replace"), options)
    except re2.error as error:
        raise BadPattern(_explained(error.args[0])) from None


def _plain(begin: str, text: str, end: str) -> Callable[[str], bool]:
    """A search that Python's own text functions do several times faster."""
    if begin and end:
        return lambda searched: searched == text
    if begin:
        return lambda searched: searched.startswith(text)
    if end:
        return lambda searched: searched.endswith(text)
    return lambda searched: text in searched


def _bytes(text: str) -> bytes:
    """Half of a surrogate pair, which some parsers let pass, is no character: a question mark stands for it."""
    return text.encode(errors="replace")


def _explained(said: bytes) -> str:
    """The engine's message, with a remedy."""
    words = said.decode(errors="replace")[:_SAID_MAX]
    if "perl operator" in words or "escape sequence" in words:
        return f"{words}; look-around and back-references cannot be searched for in linear time: write it without"
    if "too large" in words or "repetition size" in words:
        return f"{words}; make it smaller"
    return f"{words}; to search for a special character itself put a \\ before it"
