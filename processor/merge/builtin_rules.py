"""The merge rules that come along, registered in `sowstream.merge_rules` like anybody's.

A rule is a function `(old, new) -> value`: what the record has, what the delta brings, what the record shall have. It
returns `old` itself where the record's value stays, and changes neither. It may raise `RecordRejected`; whatever else
it raises rejects the record as `plugin_failed`. It is not called for a null, nor where the record has no value: there
the delta's value begins, or what the rule's attribute `begin`, a function of the delta's value, makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeAlias

from processor.merge.order import check_order, compare
from processor.merge.same import PLAIN
from processor.merge.total import check_addend, total
from processor.record import Value

Rule: TypeAlias = Callable[[Value, Value], Value]
"""`(old, new) -> value`."""


def begins_with(begin: Callable[[Value], Value]) -> Callable[[Rule], Rule]:
    """Give a rule its attribute `begin`."""

    def mark(rule: Rule) -> Rule:
        rule.begin = begin  # type: ignore[attr-defined]
        return rule

    return mark


def _number(new: Value) -> Value:
    check_addend(new)
    return new


def _ordered(new: Value) -> Value:
    check_order(new)
    return new


def _elements(value: Value) -> list[Value]:
    """An array as it is, anything else as an array of one: so XML has a single element."""
    return value if type(value) is list else [value]


def _distinct(new: Value) -> Value:
    return _without([], _elements(new))


def replace(old: Value, new: Value) -> Value:  # noqa: ARG001
    """The delta's value: what happens without a rule. An object still merges."""
    return new


@begins_with(_number)
def add(old: Value, new: Value) -> Value:
    """`sum`: exactly, see `total`."""
    return total(old, new)


@begins_with(_ordered)
def least(old: Value, new: Value) -> Value:
    """`min`: the smaller one; of two equal ones the record's stays."""
    return new if compare(new, old) < 0 else old


@begins_with(_ordered)
def greatest(old: Value, new: Value) -> Value:
    """`max`: the larger one; of two equal ones the record's stays."""
    return new if compare(new, old) > 0 else old


@begins_with(_elements)
def append(old: Value, new: Value) -> Value:
    """The record's elements, then the delta's; what is not an array counts as one element."""
    return [*_elements(old), *_elements(new)]


@begins_with(_distinct)
def union(old: Value, new: Value) -> Value:
    """As `append`, without what is there already, compared strictly."""
    elements = _elements(old)
    added = _without(elements, _elements(new))
    return [*elements, *added] if added else old


def first(old: Value, new: Value) -> Value:  # noqa: ARG001
    """The first value stays."""
    return old


def _without(known: list[Value], elements: list[Value]) -> list[Value]:
    """The elements that are not known, each once."""
    seen = set(map(_written, known))
    added = []
    for element in elements:
        written = _written(element)
        if written not in seen:
            seen.add(written)
            added.append(element)
    return added


def _written(value: Value) -> Hashable:
    """A value as something to look up: equal for two values exactly if they would be written alike."""
    kind = type(value)
    if kind in PLAIN:
        return kind, value
    if kind is list:
        return kind, tuple(map(_written, value))
    if kind is dict:
        return kind, frozenset((name, _written(member)) for name, member in value.items())
    # 0.0 == -0.0 and Decimal("1.0") == Decimal("1.00"), yet they are written differently.
    return kind, repr(value)
