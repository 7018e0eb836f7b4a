"""Checks of texts: translates the regular expressions that Java matches exactly as RE2 does, and as fast.

Java's engine backtracks and RE2 does not, so only patterns without backtracking are translated. Spark stores numbers,
objects and arrays in a text column as their JSON, so a column's texts are told from these first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_integration.filter.resolved_path import ELEMENTS, Check, ResolvedPath, RowColumns, Step

_NO_TEXT: Final = r"\A(?:[\[{]|-?[0-9]|(?:true|false)\z)"
"""Matches the beginning of values that may be the JSON of another type than a text."""

_UNQUOTABLE: Final = frozenset("'\"\\[]")


def can_be_checked(place: ResolvedPath) -> bool:
    """Return whether a JSON path of Spark can address the path."""
    return all(isinstance(step, int) or step == ELEMENTS or _UNQUOTABLE.isdisjoint(step) for step, _ in place.steps)


def of_texts(place: ResolvedPath, check: Check) -> Check:
    """Limit a check to texts; a value of another type fails the query.

    An empty text is NULL. Only texts that look like another type make Spark read the record once more.
    """
    steps = [step for step, _ in place.steps]
    where = "".join(f"[{step}]" if isinstance(step, int) else "" if step == ELEMENTS else f"/{step}" for step in steps)
    problem = (
        f"a record has no text at {where}, where the schema says STRING, so that a filter cannot tell what it is: "
        "correct the schema, or filter without it"
    )

    def checked(text: Column, source: RowColumns) -> Column:
        are_texts = _are_texts(F.try_parse_json(source.value), steps)
        is_text = F.when(text.rlike(_NO_TEXT) & ~are_texts, F.raise_error(problem).cast("boolean")).otherwise(
            F.lit(True)
        )
        return is_text & (text != "") & check(text, source)

    return checked


def _are_texts(variant: Column, steps: list[Step]) -> Column:
    """Return whether every value at the path is a text or null."""
    if not steps:
        return F.coalesce(F.schema_of_variant(variant), F.lit("VOID")).isin("STRING", "VOID")
    step, *rest = steps
    if step == ELEMENTS:
        elements = F.try_variant_get(variant, "$", "array<variant>")
        return F.coalesce(F.forall(elements, lambda element: _are_texts(element, rest)), F.lit(True))
    path = f"$[{step}]" if isinstance(step, int) else f"$['{step}']"
    return _are_texts(F.try_variant_get(variant, path, "variant"), rest)


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
