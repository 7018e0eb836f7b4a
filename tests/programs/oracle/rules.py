"""Sequence groups and merge rules (merge.md, "Field groups"), which change an update before it is merged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.programs.oracle.numbers import check_addend, compare, total
from tests.programs.oracle.values import MISSING, Path, same, value_at, with_value, without

Object = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Fields that apply only if the field `by` is not older than the one applied."""

    by: Path
    fields: tuple[Path, ...]

    @property
    def guarded(self) -> tuple[Path, ...]:
        """The fields and `by` itself."""
        return (*self.fields, self.by)

    def is_stale(self, record: Object | None, update: Object) -> bool:
        """Whether an update is older than the record, or has no time although the record has one.

        Raises:
            Rejected: `schema_mismatch`: the two values of `by` have no order.
        """
        new = value_at(update, self.by)
        old = MISSING if record is None else value_at(record, self.by)
        if new is MISSING or new is None:
            return old is not MISSING and old is not None
        compare(new, new)
        return old is not MISSING and old is not None and compare(new, old) < 0

    def is_touched(self, delta: Object, *, nulls_missing: bool) -> bool:
        """Whether a delta has one of the fields."""
        values = [value_at(delta, path) for path in self.guarded]
        return any(value is not MISSING and not (value is None and nulls_missing) for value in values)


def without_stale(groups: tuple[Group, ...], record: Object | None, delta: Object, *, nulls_missing: bool) -> Object:
    """A delta without the fields of the groups for which it is too old."""
    for group in groups:
        if group.is_touched(delta, nulls_missing=nulls_missing) and group.is_stale(record, delta):
            for path in group.guarded:
                delta = without(delta, path)
    return delta


def with_newer(groups: tuple[Group, ...], record: Object, body: Object) -> Object:
    """A full publish with the record's fields of the groups for which it is too old; the rest is replaced."""
    for group in groups:
        if group.is_stale(record, body):
            for path in group.guarded:
                kept = value_at(record, path)
                body = without(body, path) if kept is MISSING else with_value(body, path, kept)
    return body


def ruled(rules: dict[Path, str], record: Object | None, delta: Object, *, has_kinds: bool) -> Object:
    """A delta with the values that merge rules make of the record's and its own. A null follows the null policy.

    Raises:
        Rejected: `schema_mismatch`: a value that the rule cannot take.
    """
    for path, rule in rules.items():
        new = value_at(delta, path)
        if new is MISSING or new is None:
            continue
        old = MISSING if record is None else value_at(record, path)
        old = None if old is MISSING else old
        delta = with_value(delta, path, _value(rule, old, new, has_kinds=has_kinds))
    return delta


def _value(rule: str, old: Any, new: Any, *, has_kinds: bool) -> Any:
    if rule == "first":
        return new if old is None else old
    if rule in ("append", "union"):
        elements = [] if old is None else _elements(old)
        added = _elements(new)
        if rule == "union":
            added = _distinct(added, elements)
            if not added and old is not None:
                return old
        return [*elements, *added]
    if rule == "sum":
        check_addend(new)
        return new if old is None else total(old, new, has_kinds=has_kinds)
    compare(new, new)
    if old is None:
        return new
    order = compare(new, old)
    return new if (order < 0 if rule == "min" else order > 0) else old


def _elements(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _distinct(elements: list[Any], existing: list[Any]) -> list[Any]:
    """The elements that are not in the list, each once."""
    added: list[Any] = []
    for element in elements:
        if not any(same(element, other) for other in [*existing, *added]):
            added.append(element)
    return added
