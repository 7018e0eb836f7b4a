"""Regular expressions in time linear in the text: RE2, through Google's own package; the one place that knows it.

A filter may come from anybody, and Python's `re` can be kept busy for years by one pattern. RE2 cannot; what it lacks
for that, look-around and back-references, is refused with a word about it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeAlias

import re2

from processor.filter.evaluation import RecordMetadata
from processor.filter.limits import FREE_CHARACTERS, FREE_STEPS, PATTERN_BYTES_MAX, find_steps, lookup_steps

Replacer: TypeAlias = Callable[[RecordMetadata, str, str], str]
"""Replaces the matches of a pattern in a text: takes the metadata with the budget, the text and the replacement."""

_ANCHORED: Final = re.compile(r"\^(?:[^?*+|(){}]|\{[0-9]+(?:,[0-9]+)?\})*")
"""A pattern that can only match at the beginning of a text, in one way, up to a length."""
_COUNT: Final = re.compile(r"[{,]([0-9]{1,4})(?=[,}])")
"""A number of repetitions in a pattern."""
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_UNICODE_CLASSES_MAX: Final = 50
"""Most classes such as `\\pL` in a pattern: each takes the engine up to half a millisecond."""
_CHOICES_MAX: Final = 12
"""Choices of a pattern whose automaton may still be small."""
_SMALL_BYTES_MAX: Final = 300_000
"""Size of an automaton that surely fits into `PATTERN_BYTES_MAX` next to its program."""
_STATES_MAX: Final = 27_000
"""Characters times instructions of a search whose states fit in any case."""
_CALL_STEPS: Final = 10
"""Steps of a search in a short text."""
_MATCH_STEPS: Final = 24
_OWED_STEPS_MAX: Final = 100
"""Steps of a replacement after which they are taken from the budget."""
_LONG: Final = 100_000

_PLAIN: Final = re.compile(r"(\^?)([^\\.^$*+?{}\[\]|()]*)(\$?)", re.DOTALL)
"""A pattern without anything to be searched for by an engine."""

_SAID_MAX: Final = 100
"""Longest message of the engine, in characters, which may end with all of the pattern."""

_GROUP: Final = re.compile(rb"\\([0-9\\])")


class BadPattern(ValueError):
    """Not a regular expression, or none that can be searched for in linear time; the message names it."""


def is_plain_pattern(pattern: str) -> bool:
    """Return whether a pattern is a plain text, with or without `^` and `$`: it needs no engine."""
    return _PLAIN.fullmatch(pattern) is not None


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


def search_steps(pattern: str) -> Callable[[int], int]:
    """A function that gives the steps of a search for a pattern in a text of so many characters.

    The engine builds an automaton while it searches. Where that fits into its memory, each byte takes a few ns; where
    it may not, as of `[ab]*a[ab]{16}c` with its 65,536 states, each byte may take as long as the program has
    instructions.

    Raises:
        BadPattern: the engine does not take it.
    """
    plain = _PLAIN.fullmatch(pattern)
    if plain is not None:
        begin, text, end = plain.groups()
        return lookup_steps if begin or end else lambda characters: find_steps(characters, len(text))
    size = int(_compiled(pattern).programsize)
    if _ANCHORED.fullmatch(pattern) is not None:
        return lambda characters: _CALL_STEPS + (characters >> 2)
    if _fits_into_memory(pattern, size):
        return lambda characters: _CALL_STEPS + (characters >> 4)

    def steps(characters: int) -> int:
        if characters * (size + 30) <= _STATES_MAX:
            return _CALL_STEPS + (characters >> 2)
        return _CALL_STEPS + characters * (size + 10) // 5

    return steps


def _fits_into_memory(pattern: str, size: int) -> bool:
    """Return whether the automaton of a program of a size surely stays small.

    Each choice in the pattern, such as a class or a repetition, may at most double its states.
    """
    choices = sum(map(pattern.removeprefix("(?i)").count, "[.?*+|\\")) + sum(map(int, _COUNT.findall(pattern)))
    return choices <= _CHOICES_MAX and (size << choices) * (4 * size + 100) <= _SMALL_BYTES_MAX


def replacer(pattern: str) -> Replacer:
    r"""A function of the metadata with the budget, a text and a replacement.

    In the replacement \1 to \9 are the pattern's groups, and \0 is all of it.

    Raises:
        BadPattern: the engine does not take it.
    """
    compiled, steps = _compiled(pattern, groups=True), search_steps(pattern)
    # A match that may be long is looked for to the end of the text, each time.
    is_long = any(sign in pattern for sign in "*+{")
    ahead = 0 if not is_long else 1 if steps(_LONG) < _LONG else 16
    group_steps = compiled.programsize + 10 if compiled.groups else 0

    def replace(metadata: RecordMetadata, text: str, replacement: str) -> str:
        metadata.spend(steps(len(text)) + (len(replacement) >> 3))
        pieces = _GROUP.split(_bytes(replacement))
        literal_bytes, counts = _sizes(pieces, compiled.groups)
        data, done, owed, new_bytes = _bytes(text), 0, 0, 0
        made: list[bytes] = []
        is_counted = False
        for match in compiled.finditer(data):
            begin, end = match.span()
            if begin == end < len(data) and data[begin] & 0xC0 == 0x80:
                continue  # Nothing, found inside of a character.
            size = literal_bytes + sum(len(match[group] or b"") * count for group, count in counts)
            owed += (
                _MATCH_STEPS + len(pieces) + ((end - begin) * group_steps >> 4) + (steps(len(data) - end) * ahead >> 4)
            )
            new_bytes += size
            if owed > _OWED_STEPS_MAX or new_bytes > FREE_CHARACTERS:
                # Once more than is free: so it is counted from here on.
                metadata.spend(owed if is_counted else owed + FREE_STEPS)
                metadata.make(new_bytes)
                owed, new_bytes, is_counted = 0, 0, True
            made += (data[done:begin], _expanded(pieces, match))
            done = end
        made.append(data[done:])
        metadata.make(new_bytes + len(data) - done)
        return b"".join(made).decode(errors="replace")

    return replace


def _sizes(pieces: list[bytes], groups: int) -> tuple[int, list[tuple[int, int]]]:
    """The bytes of a replacement without its groups, and how often each group is in it."""
    references = Counter(pieces[1::2])
    literal_bytes = sum(map(len, pieces[::2])) + references.pop(b"\\", 0)
    return literal_bytes, [(int(group), count) for group, count in references.items() if int(group) <= groups]


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
    if sum(escaped in "pP" for escaped in _ESCAPED.findall(pattern)) > _UNICODE_CLASSES_MAX:
        raise BadPattern(f"more than {_UNICODE_CLASSES_MAX} classes of characters such as \\pL; make it smaller")
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
