"""The built-in merge rules, registered in `sowstream.merge_rules` as the rules of a plug-in are.

A rule is a function `(old, new) -> value` of the record's value and the delta's; it returns the value that the record
gets: of two objects the result replaces the record's, and a null in it is one of a delta. It returns `old` itself where
the record's value stays, and changes neither. It may raise `RecordRejected`; any other exception rejects the record as
`plugin_failed`. It is not called for a null, nor where the record has no value: there the delta's value begins, or the
result of the rule's attribute `begin`, a function of the delta's value.

Three more attributes are optional. `takes` is the set of kinds (`processor.values.kinds.ValueKind`) that the rule
works on: a topic whose schema has none of them at the rule's path is refused. `in_kind` is the variant of the rule for
message types that cannot write a number of any size and precision. `when_late` is for fields of a sequence group: see
`WhenLate`.

Numbers are added exactly: money must not drift, and 0.1 + 0.2 is 0.3.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from decimal import MAX_EMAX, MIN_EMIN, Clamped, Context, Decimal, DecimalException, Inexact, InvalidOperation, Overflow
from typing import Final, Literal, TypeAlias

from processor.errors import RecordRejected
from processor.record import Value
from processor.values.kinds import DECIMAL_TEXT, PLAIN, ValueKind, check_order, compare, exact, is_decimal128, is_number

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


DIGITS_MAX: Final = 1000
"""Longest sum. Any two doubles have a shorter one; 1E+1000000 + 1 would be a megabyte of digits."""

_EXACT: Final = Context(
    prec=DIGITS_MAX, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Clamped, Inexact, InvalidOperation, Overflow]
)
_INT_MIN: Final = -(2**63)
_INT_END: Final = 2**64


def check_addend(value: Value) -> None:
    """Make sure that a value can be added to.

    Raises:
        RecordRejected: `schema_mismatch`: neither a finite number nor a text of one.
    """
    if not is_number(value) and not (isinstance(value, str) and DECIMAL_TEXT.fullmatch(value)):
        raise RecordRejected("schema_mismatch", f"{value!r:.100} is not a number")


def exact_sum(one: Value, other: Value) -> Value:
    """The exact sum of two numbers, or of two texts that are numbers, for types that write any number, such as JSON.

    Two ints give an int of 64 bits, two Decimals a Decimal, two texts a text without an exponent; a float takes part as
    the number it is written as and gives a float. Where that kind does not hold the sum exactly, it is a Decimal.

    Raises:
        RecordRejected: `schema_mismatch`: no number, a number and a text, or more than 1,000 digits.
    """
    result = _sum(one, other)
    if type(result) is int:
        return _int_or_decimal(result)
    if type(result) is str or (isinstance(one, Decimal) and isinstance(other, Decimal)):
        return result
    if not isinstance(one, float) and not isinstance(other, float) and result.as_tuple().exponent == 0:
        return _int_or_decimal(int(result))
    near = float(result)
    return near if Decimal(repr(near)) == result else result


def exact_sum_in_kind(one: Value, other: Value) -> Value:
    """The sum of two numbers as a value of their own kind, for message types whose numbers have a type each.

    Two ints give an int, and two doubles the double nearest to the exact sum of both as they are written. Of two kinds
    the one with more values wins: an int and a double give a double, and a decimal wins over both. A class of its own,
    such as BSON's Int64, is kept, the first value's before the second's.

    Raises:
        RecordRejected: `schema_mismatch`: as `exact_sum`, or the kind does not hold the sum.
    """
    result = _sum(one, other)
    if type(result) is str:
        return _of_class(str, result, one, other)
    if type(result) is int:
        total_of_class = _of_class(int, result, one, other)
        # A class of its own is signed: Int64 of BSON, or a long in a union of Avro.
        if not _INT_MIN <= result < (_INT_END if type(total_of_class) is int else -_INT_MIN):
            raise _does_not_fit(one, other, "64 bits")
        return total_of_class
    for addend in (one, other):
        if is_decimal128(addend):
            try:
                return type(addend)(result)
            except (ArithmeticError, ValueError):
                raise _does_not_fit(one, other, "the 34 digits of a Decimal128") from None
    if isinstance(one, Decimal) or isinstance(other, Decimal):
        return _of_class(Decimal, result, one, other)
    near = float(result)
    if near - near != 0.0:
        raise _does_not_fit(one, other, "a double")
    return _of_class(float, near, one, other)


def _sum(one: Value, other: Value) -> Value:
    """The exact sum: an int of two ints, a text of two texts, else a Decimal."""
    check_addend(one)
    check_addend(other)
    if isinstance(one, str) is not isinstance(other, str):
        raise RecordRejected("schema_mismatch", f"{one!r:.100} and {other!r:.100}: a text and a number have no sum")
    if isinstance(one, int) and isinstance(other, int):
        return int(one) + int(other)
    try:
        if isinstance(one, str):
            return format(_EXACT.add(Decimal(one), Decimal(other)), "f")
        return _EXACT.add(exact(one), exact(other))
    except DecimalException:
        raise _does_not_fit(one, other, f"{DIGITS_MAX} digits") from None


def _of_class(kind: type, value: Value, one: Value, other: Value) -> Value:
    """A value as one of the class that a message type has for it, if one of the addends has such a class."""
    for addend in (one, other):
        of_class: Value = type(addend)
        if of_class is not kind and issubclass(of_class, kind):
            return of_class(value)
    return value


def _does_not_fit(one: Value, other: Value, room: str) -> RecordRejected:
    return RecordRejected("schema_mismatch", f"{one!r:.100} and {other!r:.100}: their sum does not fit in {room}")


def _int_or_decimal(value: int) -> int | Decimal:
    """An int as messages have it; longer ones are Decimals without an exponent."""
    return value if _INT_MIN <= value < _INT_END else Decimal(value)


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
