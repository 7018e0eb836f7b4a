"""Makes sure that a text column holds texts: Spark stores numbers, objects and arrays in it as their JSON."""

from __future__ import annotations

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
