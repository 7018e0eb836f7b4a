r"""Translates regular expressions that Java matches exactly as RE2 does, and as fast.

Java's engine backtracks and RE2 does not, so only patterns without backtracking are translated: at most one unbounded
quantifier, and none on a group. `.`, `$` and `\s` are written out, as the two engines differ in them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

_PLAIN: Final = re.compile(r"(\^?)([^\\.^$*+?{}\[\]|()]*)(\$?)", re.DOTALL)
_COUNT_MAX: Final = 20
"""Longest repetition that is translated."""

# Only what is ASCII and no letter or digit may be escaped, and classes hold characters and ranges, nothing else.
_ATOM: Final = re.compile(
    r"""
    (?P<plain>[^\\.^$*+?{}\[\]|()\#&~\s]|[ #&~])
    | (?P<any>\.)
    | \\(?P<class>[dDwWsS])
    | \\(?P<escaped>[^\w\s])
    | (?P<set>\[\^?(?:\w-\w|[\w ,:;.@%/=<>!])+\])
    """,
    re.VERBOSE | re.ASCII,
)
_QUANTIFIER: Final = re.compile(r"(?P<open>\*|\+|\{[0-9]+,\})|\?|\{(?P<least>[0-9]+)(?:,(?P<most>[0-9]+))?\}")
_JAVA: Final = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "s": r"[\t\n\f\r ]",
    "S": r"[^\t\n\f\r ]",
}


def searching(pattern: str) -> Callable[[Column], Column] | None:
    """A function that searches a text column for a pattern; None where Java may differ from RE2.

    Args:
        pattern: a valid pattern of RE2.
    """
    plain = _PLAIN.fullmatch(pattern)
    if plain is not None:
        return _plain(*plain.groups())
    java = _java(pattern)
    return None if java is None else lambda text: text.rlike(java)


def _plain(begin: str, text: str, end: str) -> Callable[[Column], Column]:
    if begin and end:
        return lambda searched: searched == text
    if begin:
        return lambda searched: searched.startswith(F.lit(text))
    if end:
        return lambda searched: searched.endswith(F.lit(text))
    return lambda searched: searched.contains(F.lit(text))


def _java(pattern: str) -> str | None:
    """The pattern in Java's syntax; None where the two engines may differ."""
    made: list[str] = []
    at, open_ends = 0, 0
    if pattern.startswith("^"):
        made.append(r"\A")
        at = 1
    while at < len(pattern):
        if pattern[at:] == "$":
            made.append(r"\z")
            break
        atom = _ATOM.match(pattern, at)
        if atom is None:
            return None
        at = atom.end()
        made.append(_atom(atom))
        quantifier = _QUANTIFIER.match(pattern, at)
        if quantifier is None:
            continue
        at = quantifier.end()
        open_ends += quantifier["open"] is not None
        counts = re.findall("[0-9]+", quantifier[0])
        # The next character may make the quantifier lazy, possessive or invalid.
        if pattern[at : at + 1] in tuple("*+?{") or open_ends > 1 or any(int(count) > _COUNT_MAX for count in counts):
            return None
        made.append(quantifier[0])
    return "".join(made)


def _atom(atom: re.Match[str]) -> str:
    if atom["any"]:
        return r"[^\n]"
    if atom["class"]:
        return _JAVA[atom["class"]]
    if atom["escaped"]:
        return rf"\x{{{ord(atom['escaped']):x}}}"
    if atom["set"]:
        return atom["set"]
    return rf"\x{{{ord(atom['plain']):x}}}"
