"""The built-in merge rules, registered in `sowstream.merge_rules` as the rules of a plug-in are.

A rule is a function `(old, new) -> value` of the record's value and the delta's; it returns the value that the record
gets. It returns `old` itself where the record's value stays, and changes neither. It may raise `RecordRejected`; any
other exception rejects the record as `plugin_failed`. It is not called for a null, nor where the record has no value:
there the delta's value begins, or the result of the rule's attribute `begin`, a function of the delta's value.

Three more attributes are optional. `takes` is the set of kinds (`processor.values.kinds.ValueKind`) that the rule
works on: a topic whose schema has none of them at the rule's path is refused. `in_kind` is the variant of the rule for
message types that cannot write a number of any size and precision. `when_late` is for fields of a sequence group: see
`WhenLate`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Literal, TypeAlias

from processor.merge.add_exactly import check_addend, exact_sum, exact_sum_in_kind
from processor.record import Value
from processor.values.kinds import PLAIN, ValueKind, check_order, compare

Rule: TypeAlias = Callable[[Value, Value], Value]
"""`(old, new) -> value`."""

WhenLate: TypeAlias = Literal["counts", "precedes", "replaces", "refused"]
"""The use of a value that comes late, in a field of a sequence group.

It counts as any other value, for rules that give the same result in any order; or the oldest value is the result; or
there is no rule, and the newest is; or, as the rule does not say, it is left out.
"""


ORDERED: Final[frozenset[ValueKind]] = frozenset(("number", "text", "bytes", "time", "other"))
"""The kinds of values that have an order."""

_ADDED: Final[frozenset[ValueKind]] = frozenset(("number", "text"))
_COLLECTED: Final[frozenset[ValueKind]] = frozenset(("array",))


def _rule(
    begin: Callable[[Value], Value], takes: frozenset[ValueKind], in_kind: Rule | None = None
) -> Callable[[Rule], Rule]:
    """Give a rule its attributes; a late value counts."""

    def mark(rule: Rule) -> Rule:
        rule.when_late = "counts"  # type: ignore[attr-defined]
        rule.begin, rule.takes, rule.in_kind = begin, takes, in_kind or rule  # type: ignore[attr-defined]
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
    """The delta's value: as without a rule. An object still merges."""
    return new


@_rule(_number, _ADDED, in_kind=exact_sum_in_kind)
def add(old: Value, new: Value) -> Value:
    """`sum`: exact, see `exact_sum`; in a type of numbers that cannot hold the exact sum, see `exact_sum_in_kind`."""
    return exact_sum(old, new)


@_rule(_ordered, ORDERED)
def least(old: Value, new: Value) -> Value:
    """`min`: the smaller one; of two equal ones the record's stays."""
    return new if compare(new, old) < 0 else old


@_rule(_ordered, ORDERED)
def greatest(old: Value, new: Value) -> Value:
    """`max`: the larger one; of two equal ones the record's stays."""
    return new if compare(new, old) > 0 else old


@_rule(_elements, _COLLECTED)
def append(old: Value, new: Value) -> Value:
    """The record's elements, then the delta's; any other value counts as one element."""
    return [*_elements(old), *_elements(new)]


@_rule(_distinct, _COLLECTED)
def union(old: Value, new: Value) -> Value:
    """As `append`, without what is there already, compared strictly."""
    elements = _elements(old)
    added = _without(elements, _elements(new))
    return [*elements, *added] if added else old


def first(old: Value, new: Value) -> Value:  # noqa: ARG001
    """The first value stays."""
    return old


replace.when_late = "replaces"  # type: ignore[attr-defined]
first.when_late = "precedes"  # type: ignore[attr-defined]


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
    """A value as a hashable one: equal for two values that are written alike but for the order of members."""
    kind = type(value)
    if kind in PLAIN:
        return kind, value
    if kind is list:
        return kind, tuple(map(_written, value))
    if kind is dict:
        return kind, frozenset((name, _written(member)) for name, member in value.items())
    # 0.0 == -0.0 and Decimal("1.0") == Decimal("1.00"), yet they are written differently.
    return kind, repr(value)
