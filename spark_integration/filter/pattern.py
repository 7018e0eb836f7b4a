"""Checks of texts: translates the regular expressions that Java matches exactly as RE2 does, in linear time.

Java's engine backtracks and RE2 does not, so only patterns with little of it are translated. Spark stores numbers,
objects and arrays in a text column as their JSON, so a column's texts are told from these first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

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
_STEPS_MAX: Final = 200
"""Most characters that a translated pattern may read for each character of a text."""

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
_QUANTIFIER: Final = re.compile(r"[*+?]|\{(?P<least>[0-9]+)(?P<range>,(?P<most>[0-9]+)?)?\}")
_COUNTS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_JAVA: Final = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "s": r"[\t\n\f\r ]",
    "S": r"[^\t\n\f\r ]",
}


class _Piece(NamedTuple):
    """A character or class of a pattern, with its number of repetitions."""

    atom: str
    """In Java's syntax."""
    least: int
    most: int | None
    """None: any number."""

    def __str__(self) -> str:
        least, most = self.least, self.most
        if most is None:
            # Java repeats `x*` in a loop, and `x{2,}` by a call for each character where their sizes differ.
            return f"{self.atom}{{{least}}}{self.atom}*" if least else f"{self.atom}*"
        return self.atom if least == most == 1 else f"{self.atom}{{{least},{most}}}"


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
    """The pattern in Java's syntax; None where the two engines may differ, in the result or in the time."""
    is_begin, is_end = pattern.startswith("^"), False
    pieces: list[_Piece] = []
    at = int(is_begin)
    while at < len(pattern) and not is_end:
        if pattern[at:] == "$":
            is_end = True
            continue
        atom = _ATOM.match(pattern, at)
        if atom is None:
            return None
        quantifier = _QUANTIFIER.match(pattern, atom.end())
        at = atom.end() if quantifier is None else quantifier.end()
        # The next character may make the quantifier lazy, possessive or invalid.
        if quantifier is not None and pattern[at : at + 1] in tuple("*+?{"):
            return None
        pieces.append(_Piece(_atom(atom), *_counts(quantifier)))
    _trim(pieces, is_begin=is_begin, is_end=is_end)
    if not _is_fast(pieces, is_begin=is_begin):
        return None
    return "".join((r"\A" * is_begin, *map(str, pieces), r"\z" * is_end))


def _counts(quantifier: re.Match[str] | None) -> tuple[int, int | None]:
    """The least and the largest number of repetitions; None: any."""
    if quantifier is None:
        return 1, 1
    if quantifier["least"] is None:
        return _COUNTS[quantifier[0]]
    least = int(quantifier["least"])
    if quantifier["range"] is None:
        return least, least
    return least, None if quantifier["most"] is None else int(quantifier["most"])


def _trim(pieces: list[_Piece], *, is_begin: bool, is_end: bool) -> None:
    """Remove the repetitions at an open side that find nothing else: `.*a.+` is found where `a.` is."""
    for is_held, side in ((is_begin, 0), (is_end, -1)):
        while not is_held and pieces:
            least = pieces[side].least
            pieces[side] = pieces[side]._replace(most=least)
            if least:
                break
            pieces.pop(side)


def _is_fast(pieces: list[_Piece], *, is_begin: bool) -> bool:
    """Return whether Java reads each character of a text a limited number of times.

    It tries each number of repetitions of each piece, at each character of the text where nothing holds the pattern at
    its beginning. So one piece of any length is only fast behind `^`, and the choices of the others multiply.
    """
    choices, steps = 1, 0
    for _, least, most in pieces:
        steps += choices * (least + 1 if most is None else most)
        choices *= 1 if most is None else most - least + 1
    return steps <= _STEPS_MAX and sum(most is None for *_, most in pieces) <= is_begin


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
