"""Sequence groups and merge rules (merge.md, "Field groups"), which change an update before it is merged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any, Literal, NamedTuple, TypeAlias

from tests.programs.oracle.numbers import check_addend, compare, total
from tests.programs.oracle.values import MISSING, Path, is_object, same, value_at, with_value, without

Object = dict[str, Any]

RULES = {"sum": "number", "min": "number", "max": "number", "append": "array", "union": "array", "first": "number"}
"""The rules that `_value` computes, each with the kind of field on which the covering array tries it."""


class Taken(NamedTuple):
    """An update of a record's present life."""

    is_delta: bool
    body: Object
    removed: tuple[Path, ...]
    """The paths of header `remove`."""


@dataclass(frozen=True)
class Group:
    """Fields that have the values of the newest updates that carry them."""

    by: Path
    fields: tuple[Path, ...]

    @property
    def guarded(self) -> tuple[Path, ...]:
        """The fields and `by` itself."""
        return (*self.fields, self.by)

    def check(self, life: list[Taken]) -> None:
        """Make sure that the last update can be ordered.

        Raises:
            Rejected: `schema_mismatch`: its value of `by` has no order, or none against the newest one.
        """
        moments = [moment for taken in life if (moment := self.moment(taken)) is not None]
        if self.moment(life[-1]) is not None:
            compare(moments[-1], moments[-1])
            for moment in moments[:-1]:
                compare(moments[-1], moment)

    def moment(self, taken: Taken) -> Any:
        """The value of `by` in an update; None where there is none: it comes before all that have one."""
        value = value_at(taken.body, self.by)
        return None if value is MISSING else value

    def is_older(self, one: Any, other: Any) -> bool:
        """Return whether a value of `by` comes before another one."""
        return other is not None and (one is None or compare(one, other) < 0)

    def in_order(self, life: list[Taken]) -> list[Taken]:
        """The updates in the order of `by`; those with the same in the order of arrival."""

        def order(one: Taken, other: Taken) -> int:
            mine, theirs = self.moment(one), self.moment(other)
            return self.is_older(theirs, mine) - self.is_older(mine, theirs)

        return sorted(life, key=cmp_to_key(order))


def grouped(
    group: Group, life: list[Taken], rules: dict[Path, str], nulls: NullPolicy, *, has_kinds: bool
) -> dict[Path, Any]:
    """The values of the guarded fields after all updates of a life; MISSING where there is none.

    Fields without a rule have those of a replay in the order of `by`.
    """
    group.check(life)
    record: Object = {}
    for taken in group.in_order(life):
        for path in group.guarded:
            value = value_at(taken.body, path)
            if taken.is_delta and value is not MISSING:
                record = merged(record, with_value({}, path, value), nulls, None)
            elif not taken.is_delta:
                record = without(record, path) if value is MISSING else with_value(record, path, value)
            if any(path[: len(removed)] == removed for removed in taken.removed):
                record = without(record, path)
    values = {path: value_at(record, path) for path in group.guarded}
    for path in group.guarded:
        if path in rules:
            values[path] = _RuledField(group, path, rules[path], nulls, has_kinds).value(life)
    return values


@dataclass
class _RuledField:
    """A field with a rule in a group: late values count, or of `first` come before; replacements go by their time."""

    group: Group
    path: Path
    rule: str
    nulls: NullPolicy
    has_kinds: bool
    current: Any = MISSING
    replaced_at: Any = None
    added_at: Any = None

    def value(self, life: list[Taken]) -> Any:
        """The value after updates in the order of their arrival."""
        for taken in life:
            at, new = self.group.moment(taken), value_at(taken.body, self.path)
            if not taken.is_delta:
                self._replace(at, new)
            elif new is None:
                if self.nulls != "ignore":
                    self._replace(at, MISSING if self.nulls == "remove" else None)
            elif new is not MISSING and not self.group.is_older(at, self.replaced_at):
                self._add(at, new)
            if any(self.path[: len(removed)] == removed for removed in taken.removed):
                self._replace(at, MISSING)
        return self.current

    def _add(self, at: Any, new: Any) -> None:
        has_value = self.current is not MISSING and self.current is not None
        if self.rule != "first":
            self.current = _value(self.rule, self.current if has_value else None, new, has_kinds=self.has_kinds)
            if self.group.is_older(self.added_at, at):
                self.added_at = at
            return
        since = self.replaced_at if self.added_at is None else self.added_at
        if not has_value or (at is not None and (since is None or self.group.is_older(at, since))):
            self.current, self.added_at = new, at

    def _replace(self, at: Any, new: Any) -> None:
        if self.group.is_older(at, self.replaced_at):
            return
        is_first = self.rule == "first" and new is not MISSING
        if is_first or self.current is MISSING or not self.group.is_older(at, self.added_at):
            self.current, self.added_at = new, None
        self.replaced_at = at


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


NullPolicy: TypeAlias = Literal["ignore", "set", "remove"]


def merged(record: dict[str, Any], delta: dict[str, Any], nulls: NullPolicy, depth: int | None) -> dict[str, Any]:
    """The record after a delta.

    Args:
        record: the record before; an empty one where there is none.
        delta: the fields that change.
        nulls: the meaning of a null in the delta (rule 6).
        depth: how many levels merge; below, objects are replaced as they are (rule 2). None: all of them.
    """
    result = dict(record)
    for name, value in delta.items():
        if value is None and nulls == "ignore":
            continue
        if value is None and nulls == "remove":
            result.pop(name, None)
        elif is_object(value) and depth != 1:
            before = result.get(name)
            # An object onto anything but an object replaces it: its nulls still follow the policy (rule 4).
            deeper = None if depth is None else depth - 1
            result[name] = merged(before if is_object(before) else {}, value, nulls, deeper)
        else:
            result[name] = value
    return result
