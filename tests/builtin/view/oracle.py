"""The rows of a view with groups, written from the specification alone: once in Python, once as SQL for DuckDB."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, NamedTuple

import duckdb

FIELDS = {
    "/orders": "COUNT(*)",
    "/priced": "COUNT(/px)",
    "/prices": "COUNT_DISTINCT(/px)",
    "/qty": "SUM(/qty)",
    "/mean": "AVG(/qty)",
    "/pop": "STDDEV_POP(/qty)",
    "/samp": "STDDEV_SAMP(/qty)",
    "/low": "MIN(/px)",
    "/high": "MAX(/px)",
    "/first": "FIRST(/name)",
    "/last": "LAST(/name)",
    "/least": "MIN(/name)",
}
"""A view with every aggregate; `qty` and `px` are numbers, `name` is a text that is no number."""

HAVING = "/orders > 1 AND (/low < 1 OR /low IS NULL)"
"""Refuses some rows, by a count and by an extreme."""


class Sow(NamedTuple):
    """One record of a SOW topic, as far as a view can see it."""

    partition: int
    offset: int
    timestamp_ms: int
    record: dict[str, Any] | None


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class Written(NamedTuple):
    """A value that a row must have in this spelling: 1, 1.0 and true are three."""

    kind: str
    text: str


def as_written(value: Any) -> Written:
    """The spelling of a value of a row, or of a record; numbers with fractions are Decimals in rows."""
    value = Decimal(repr(value)) if isinstance(value, float) else value
    return Written(type(value).__name__, str(value))


def extreme_of(values: Iterable[Any], best: Callable[..., Any]) -> Any:
    """`MIN` or `MAX` of the values of records, in any mixture; None of nothing.

    Args:
        values: as in the records.
        best: `min` or `max`.
    """
    scalars = [value[0] if isinstance(value, list) else value for value in values]
    scalars = [value for value in scalars if value is not None and value != "" and not isinstance(value, dict)]
    texts = [value for value in scalars if isinstance(value, str)]
    if len(texts) == len(scalars):
        return best(texts, default=None)
    words = [text for text in texts if not _NUMBER.fullmatch(text)]
    if best is max and words:
        return max(words)

    def order(value: Any) -> tuple[Fraction, str, str]:
        text = str(int(value)) if isinstance(value, bool) else repr(value) if isinstance(value, float) else str(value)
        return Fraction(text), type(value).__name__, str(value)

    return best([value for value in scalars if not isinstance(value, str) or _NUMBER.fullmatch(value)], key=order)


def python_rows(records: Iterable[Sow], *, has_having: bool = False) -> dict[str, dict[str, Any]]:
    """The rows of the last records of all keys: those whose state is `new`, by customer, and if asked by `HAVING`."""
    groups: dict[str, list[Sow]] = {}
    for sow in records:
        if sow.record is not None and sow.record.get("state") == "new":
            groups.setdefault(sow.record.get("customer") or "", []).append(sow)
    rows = {key: {"customer": key or None, **_row(members)} for key, members in groups.items()}
    if not has_having:
        return rows
    return {key: row for key, row in rows.items() if row["orders"] > 1 and (row["low"] is None or row["low"] < 1)}


def _row(members: list[Sow]) -> dict[str, Any]:
    members = sorted(members, key=lambda sow: (sow.timestamp_ms, sow.partition, sow.offset))
    rows = [sow.record or {} for sow in members]
    quantities = [Fraction(str(row["qty"])) for row in rows if row.get("qty") is not None]
    prices = [row["px"] for row in rows if row.get("px") is not None]
    names = [row["name"] for row in rows if row.get("name") not in (None, "")]
    total, count = sum(quantities, Fraction()), len(quantities)
    spread = sum(((each - total / count) ** 2 for each in quantities), Fraction())
    return {
        "orders": len(rows),
        "priced": len(prices),
        "prices": len({Fraction(str(price)) for price in prices}),
        "qty": total if count else None,
        "mean": float(total / count) if count else None,
        "pop": _root(spread / count) if count else None,
        "samp": _root(spread / (count - 1)) if count > 1 else None,
        "low": min((Fraction(str(price)) for price in prices), default=None),
        "high": max((Fraction(str(price)) for price in prices), default=None),
        "first": names[0] if names else None,
        "last": names[-1] if names else None,
        "least": min(names, default=None),
        "small": as_written(extreme_of([row.get("mixed") for row in rows], min)),
        "large": as_written(extreme_of([row.get("mixed") for row in rows], max)),
    }


def _root(value: Fraction) -> float:
    with localcontext(prec=120):
        return float((Decimal(value.numerator) / Decimal(value.denominator)).sqrt())


_SQL = """
    SELECT coalesce(nullif(customer, ''), '') AS key, count(*), count(px), count(DISTINCT px), sum(qty), avg(qty),
           stddev_pop(qty::DOUBLE), stddev_samp(qty::DOUBLE), min(px), max(px),
           arg_min(name, place) FILTER (name <> ''), arg_max(name, place) FILTER (name <> ''),
           min(name) FILTER (name <> '')
    FROM records WHERE state = 'new' GROUP BY 1
"""
_SQL_HAVING = " HAVING count(*) > 1 AND (min(px) < 1 OR min(px) IS NULL)"


class Duck:
    """DuckDB with a table of the records."""

    def __init__(self) -> None:
        self._connection = duckdb.connect(":memory:", config={"threads": 1})
        self._connection.execute(
            "CREATE TABLE records (key VARCHAR PRIMARY KEY, state VARCHAR, customer VARCHAR, qty DECIMAL(30, 10), "
            "px DECIMAL(30, 10), name VARCHAR, place HUGEINT)"
        )

    def clear(self) -> None:
        """Forget all records."""
        self._connection.execute("DELETE FROM records")

    def put(self, key: str, sow: Sow) -> None:
        """Take the last record of a key, or its tombstone."""
        if sow.record is None:
            self._connection.execute("DELETE FROM records WHERE key = ?", [key])
            return
        row, place = sow.record, (sow.timestamp_ms * 1_000 + sow.partition) * 1_000_000 + sow.offset
        numbers = [None if row.get(name) is None else Decimal(str(row[name])) for name in ("qty", "px")]
        values = [key, row.get("state"), row.get("customer"), *numbers, row.get("name"), place]
        self._connection.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def rows(self, *, has_having: bool = False) -> dict[str, dict[str, Any]]:
        """The rows of the view."""
        found = {}
        for key, *values in self._connection.execute(_SQL + has_having * _SQL_HAVING).fetchall():
            found[key] = {"customer": key or None, **dict(zip((name[1:] for name in FIELDS), values, strict=True))}
        return found


_ABOUT = frozenset(("mean", "pop", "samp"))


def difference(rows: dict[str, dict[str, Any]], expected: dict[str, dict[str, Any]], *, is_exact: bool) -> str:
    """The first difference between rows and expected rows; empty if there is none.

    Args:
        rows: parsed with numbers as Decimals where they have fractions.
        expected: of an oracle.
        is_exact: whether means and deviations must be the very same doubles; DuckDB rounds more than once.
    """
    if rows.keys() != expected.keys():
        return f"rows {sorted(rows)}, expected {sorted(expected)}"
    for key, row in rows.items():
        if row.keys() != expected[key].keys():
            return f"row {key!r} has the fields {sorted(row)}"
        for name, value in row.items():
            wanted = expected[key][name]
            if not _same(value, wanted, is_about=name in _ABOUT and not is_exact):
                return f"row {key!r}: {name} is {value!r}, expected {wanted!r}"
    return ""


def _same(value: Any, wanted: Any, *, is_about: bool) -> bool:
    if isinstance(wanted, Written):
        return as_written(value) == wanted
    if value is None or wanted is None or isinstance(wanted, str):
        return bool(value == wanted)
    if isinstance(wanted, float):
        if is_about:
            return abs(float(value) - wanted) <= 1e-9 * max(1.0, abs(wanted))
        return float(value) == wanted
    return (
        Fraction(str(value)) == Fraction(str(wanted))
        if not isinstance(wanted, Fraction)
        else (Fraction(str(value)) == wanted)
    )
