"""All aggregates of one group, kept up to date while members come, change and leave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from processor.filter.aggregate.extremes import Exhausted, Extreme, ExtremeOfValues
from processor.filter.aggregate.moments import Moments, scaled
from processor.filter.syntax_tree import Scalar
from processor.filter.value import number, text_of
from processor.record import Value
from processor.values.key_text import key_text

Function: TypeAlias = Literal[
    "COUNT(*)", "AVG", "COUNT", "COUNT_DISTINCT", "FIRST", "LAST", "MAX", "MIN", "STDDEV_POP", "STDDEV_SAMP", "SUM"
]
"""The aggregate functions, in the spelling of the parser."""

FUNCTIONS: Final[frozenset[str]] = frozenset(get_args(Function))

COMBINED: Final[frozenset[str]] = frozenset(
    ("COUNT(*)", "COUNT", "MAX", "MIN", "SUM", "AVG", "STDDEV_POP", "STDDEV_SAMP")
)
"""The functions whose values over parts of a group combine to the value over the group."""

_OF_SQUARES: Final = frozenset(("STDDEV_POP", "STDDEV_SAMP"))

_WRITTEN_ALIKE: Final = frozenset((str, type(None)))
"""Types whose values of one group are written in one way."""

_RANKS: Final = {int: 0, bool: 1}
"""Types in the order in which the row of a group prefers them to others."""

_INT64_END: Final = 2**63

_Spelling: TypeAlias = tuple[Any, ...]

_OF_MOMENTS: Final = frozenset(("SUM", "AVG", "STDDEV_POP", "STDDEV_SAMP"))


class GroupIncomplete(Exception):
    """The extreme of a group is not known any more: build the group again from its members."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One call of an aggregate function."""

    function: Function
    """The function."""
    argument: int
    """The place of its argument in a contribution; -1 for `COUNT(*)`."""


Place: TypeAlias = tuple[int, int, int | bytes]
"""The timestamp of a record in milliseconds, its partition and offset; where partitions are not known, its timestamp,
offset and key. No other member has the same."""


class Contribution(NamedTuple):
    """The part of a record that its group needs."""

    place: Place
    """The place of the record, by which `FIRST` and `LAST` order the members."""
    group: tuple[Scalar, ...]
    """The values of the grouping fields."""
    arguments: tuple[Value, ...]
    """The values of the aggregates' arguments; None is NULL."""


class Group:
    """The aggregates of one group. A function of its members: the order of the calls does not matter."""

    __slots__ = ("_calls", "_fixed", "_has_spellings", "_sized", "_spellings", "_states", "_values", "members")

    def __init__(self, aggregates: tuple[Aggregate, ...], kept_max: int | None = None) -> None:
        """Begin without members.

        Args:
            aggregates: the calls of the definition.
            kept_max: most values of each kind that an extreme keeps; None: `KEPT_MAX`.
        """
        self.members = 0
        """Number of members."""
        states: dict[tuple[int, str], _State] = {}
        spread = {each.argument for each in aggregates if each.function in _OF_SQUARES}
        calls: list[tuple[Function, _State | None]] = []
        for function, argument in ((each.function, each.argument) for each in aggregates):
            state = None
            if function != "COUNT(*)":
                kind = "moments" if function in _OF_MOMENTS else function
                if (state := states.get((argument, kind))) is None:
                    state = states[argument, kind] = _new_state(function, kept_max, has_squares=argument in spread)
            calls.append((function, state))
        self._calls = calls
        self._states = [(argument, state) for (argument, _), state in states.items()]
        self._sized = [state for state in states.values() if isinstance(state, _KeepingState)]
        self._fixed = len(states) - len(self._sized)  # Values of the other states.
        self._values: tuple[Scalar, ...] | None = None  # Of the grouping fields; those of a member.
        self._has_spellings = False  # True if equal values may be written otherwise, as 1 and 1.0.
        self._spellings: dict[_Spelling, tuple[tuple[Scalar, ...], int]] = {}  # Values, and the members with them.

    @property
    def values_kept(self) -> int:
        """Number of values in memory, as a measure of the group's size."""
        return (len(self._spellings) or 1) + self._fixed + sum([state.values_kept for state in self._sized])

    def add(self, contribution: Contribution) -> None:
        """Take a member in."""
        self._change(contribution, 1)

    def remove(self, contribution: Contribution) -> None:
        """Let a member go, with the contribution with which it came."""
        self._change(contribution, -1)

    def replace(self, old: Contribution, new: Contribution) -> None:
        """Let a member go and take it in again, with another contribution to the same group."""
        if self._has_spellings and _spelling(old.group) != _spelling(new.group):
            self._spell(old.group, -1)
            self._spell(new.group, 1)
        before, after = old.arguments, new.arguments
        for argument, state in self._states:
            value, next_value = before[argument], after[argument]
            if value is not None and next_value is not None:
                state.replace(value, old.place, next_value, new.place)
            elif value is not None:
                state.change(value, old.place, -1)
            elif next_value is not None:
                state.change(next_value, new.place, 1)

    def group_values(self) -> tuple[Scalar, ...]:
        """Return the values of the grouping fields; where members write them in several ways, the simplest of these."""
        if not self._has_spellings:
            assert self._values is not None
            return self._values
        spellings = [tuple([_as_read(value) for value in values]) for values, _ in self._spellings.values()]
        return spellings[0] if len(spellings) == 1 else min(spellings, key=_simplicity)

    def values(self) -> list[Value]:
        """Return the values of the aggregates, in the order of the definition.

        Raises:
            GroupIncomplete: build the group again.
        """
        try:
            return [self.members if state is None else state.value(function) for function, state in self._calls]
        except Exhausted:
            raise GroupIncomplete from None

    @property
    def is_low(self) -> bool:
        """True if few of the kept values of an extreme are left, and others were forgotten."""
        return any(state.is_low for state in self._sized)

    @property
    def states(self) -> list[tuple[int, str]]:
        """The argument and the kind of each value of `partial` behind the members, for functions that combine."""
        return [(argument, state.kind) for argument, state in self._states]

    def partial(self, place: Place) -> Contribution:
        """Return the aggregates of these members as one contribution to a `CombinedGroup`.

        Args:
            place: a place for it.

        Raises:
            GroupIncomplete: build the group again.
        """
        try:
            partials = [state.partial() for _, state in self._states]
        except Exhausted:
            raise GroupIncomplete from None
        return Contribution(place, self.group_values(), (self.members, *partials))

    def _change(self, contribution: Contribution, times: int) -> None:
        self.members += times
        self._spell(contribution.group, times)
        place, arguments = contribution.place, contribution.arguments
        for argument, state in self._states:
            if (value := arguments[argument]) is not None:
                state.change(value, place, times)

    def _spell(self, values: tuple[Scalar, ...], times: int) -> None:
        """Count the members whose grouping values are written so; texts and NULL are written in one way."""
        if self._values is None:
            self._values = values
            self._has_spellings = not _WRITTEN_ALIKE.issuperset(map(type, values))
        if self._has_spellings:
            spelling = _spelling(values)
            count = times + (self._spellings[spelling][1] if spelling in self._spellings else 0)
            if count:
                self._spellings[spelling] = values, count
            else:
                del self._spellings[spelling]


class CombinedGroup(Group):
    """A group whose contributions are the partial aggregates of its parts, as `Group.partial` returns them."""

    __slots__ = ()

    def replace(self, old: Contribution, new: Contribution) -> None:
        """Take a part's partial aggregate in place of its former one."""
        before, after = old.arguments, new.arguments
        self.members += after[0] - before[0]
        if self._has_spellings and _spelling(old.group) != _spelling(new.group):
            self._spell(new.group, 1)
            self._spell(old.group, -1)
        for place, (_, state) in enumerate(self._states, 1):
            state.replace_partial(before[place], after[place])

    def _change(self, contribution: Contribution, times: int) -> None:
        members, *partials = contribution.arguments
        self.members += times * members
        self._spell(contribution.group, times)
        for (_, state), partial in zip(self._states, partials, strict=True):
            state.combine(partial, times)


def _spelling(values: tuple[Scalar, ...]) -> _Spelling:
    """Return grouping values as something that is equal if they are written alike, as 1, 1.0 and true are not."""
    if len(values) == 1 and type(values[0]) is int:
        return values
    return tuple([(type(value), text_of(value) if value is not None else "") for value in values])


def _as_read(value: Scalar) -> Scalar:
    """Return a grouping value as it is after it was written as JSON and read: where a double does, it is one."""
    if not isinstance(value, int | Decimal) or (isinstance(value, int) and -_INT64_END <= value < 2 * _INT64_END):
        return value
    exact = Decimal(value)
    near = float(exact)
    return near if Decimal(repr(near)) == exact else value


def _simplicity(values: tuple[Scalar, ...]) -> list[tuple[int, int, str]]:
    """Return the place of grouping values in the order of equal ones: 1, then true, then 1.0, then 1.00."""
    texts = ["" if value is None else text_of(value) for value in values]
    ranks = [_RANKS.get(type(value), len(_RANKS)) for value in values]
    return [(rank, len(text), text) for rank, text in zip(ranks, texts, strict=True)]


class _State(ABC):
    """The state of an aggregate, or of several of the same argument."""

    kind: str = ""
    """Its name in `Group.states`; empty: it has no partial aggregate."""

    @abstractmethod
    def change(self, value: Value, place: Place, times: int) -> None:
        """Add a value that is not NULL; `times` -1 removes it."""

    def partial(self) -> Value:
        """Return the state as a value that JSON can write, for `combine`."""
        raise NotImplementedError(f"{type(self).__name__} has no partial aggregate")

    def combine(self, partial: Value, times: int) -> None:
        """Add the values of another state, as `partial` returned it; `times` -1 removes them."""
        raise NotImplementedError(f"{type(self).__name__} has no partial aggregate")

    def replace_partial(self, old: Value, new: Value) -> None:
        """Remove the values of another state, and add those of the next one."""
        if old != new:
            self.combine(new, 1)
            self.combine(old, -1)

    def replace(self, old: Value, old_place: Place, new: Value, place: Place) -> None:
        """Remove a value, and add another one; neither is NULL."""
        if type(old) is not type(new) or old != new or not new:  # Of equal doubles, 0.0 and -0.0 are written apart.
            self.change(old, old_place, -1)
            self.change(new, place, 1)

    @abstractmethod
    def value(self, function: Function) -> Value:
        """Return the value of an aggregate.

        Raises:
            Exhausted: it is not known any more.
        """


class _KeepingState(_State):
    """The state of an aggregate that keeps values of members, so that its size changes."""

    is_low: bool = False
    """True if few of the kept values are left, and others were forgotten."""

    @property
    @abstractmethod
    def values_kept(self) -> int:
        """Number of values in memory."""


class _Moments(_State):
    """`SUM`, `AVG` and the standard deviations: of numbers, and of texts that are numbers."""

    kind = "moments"

    def __init__(self, *, has_squares: bool) -> None:
        self._moments = Moments(has_squares=has_squares)

    def replace(self, old: Value, old_place: Place, new: Value, place: Place) -> None:
        if type(old) is int and type(new) is int:
            self._moments.replace(old, new)
        else:
            super().replace(old, old_place, new, place)

    def change(self, value: Value, place: Place, times: int) -> None:  # noqa: ARG002
        found = number(value)
        exact = None if found is None else scaled(found)
        if exact is not None:
            self._moments.add(exact, times)

    def partial(self) -> Value:
        return list(self._moments.partial)

    def combine(self, partial: Value, times: int) -> None:
        count, total, decimals, squares = partial
        # JSON has long integers as Decimals.
        self._moments.combine((count, int(total), decimals, int(squares)), times)

    def value(self, function: Function) -> Value:
        match function:
            case "SUM":
                return self._moments.sum()
            case "AVG":
                return self._moments.mean()
            case _:
                return self._moments.deviation(of_sample=function == "STDDEV_SAMP")


class _Count(_State):
    """`COUNT` of an argument."""

    kind = "count"

    def __init__(self) -> None:
        self._count = 0

    def change(self, value: Value, place: Place, times: int) -> None:  # noqa: ARG002
        self._count += times

    def partial(self) -> Value:
        return self._count

    def combine(self, partial: Value, times: int) -> None:
        self._count += times * partial

    def value(self, function: Function) -> Value:  # noqa: ARG002
        return self._count


class _Distinct(_KeepingState):
    """`COUNT_DISTINCT`: numbers by value, however they are written, and texts by characters."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    @property
    def values_kept(self) -> int:
        return len(self._times)

    def change(self, value: Value, place: Place, times: int) -> None:  # noqa: ARG002
        key = key_text(value)
        count = self._times.get(key, 0) + times
        if count:
            self._times[key] = count
        else:
            del self._times[key]

    def value(self, function: Function) -> Value:  # noqa: ARG002
        return len(self._times)


class _OfValues(_KeepingState):
    """`MIN` or `MAX`."""

    def __init__(self, function: Function, kept_max: int | None) -> None:
        self.kind = function
        self._extreme = ExtremeOfValues(is_greatest=function == "MAX", kept_max=kept_max)

    @property
    def values_kept(self) -> int:
        return self._extreme.kept

    @property
    def is_low(self) -> bool:  # type: ignore[override]
        return self._extreme.is_low

    def partial(self) -> Value:
        return self._extreme.partial()

    def combine(self, partial: Value, times: int) -> None:
        self._extreme.combine(partial, times)

    def replace_partial(self, old: Value, new: Value) -> None:
        self.combine(new, 1)  # Equal ones too: 1 and 1.0 are written apart.
        self.combine(old, -1)

    def change(self, value: Value, place: Place, times: int) -> None:  # noqa: ARG002
        (self._extreme.add if times > 0 else self._extreme.remove)(value)

    def value(self, function: Function) -> Value:  # noqa: ARG002
        return self._extreme.value()


class _OfPlaces(_KeepingState):
    """`FIRST` or `LAST`, of the members whose argument is not NULL."""

    def __init__(self, function: Function) -> None:
        self._extreme = Extreme(is_greatest=function == "LAST")

    @property
    def values_kept(self) -> int:
        return self._extreme.kept

    def replace(self, old: Value, old_place: Place, new: Value, place: Place) -> None:
        self.change(old, old_place, -1)  # Equal values too: their places differ.
        self.change(new, place, 1)

    def change(self, value: Value, place: Place, times: int) -> None:
        # A place occurs once, so the values themselves are never compared.
        (self._extreme.add if times > 0 else self._extreme.remove)((place, value))

    def value(self, function: Function) -> Value:  # noqa: ARG002
        best = self._extreme.best()
        return None if best is None else best[1]


def _new_state(function: Function, kept_max: int | None, *, has_squares: bool) -> _State:
    match function:
        case "COUNT":
            return _Count()
        case "COUNT_DISTINCT":
            return _Distinct()
        case "MIN" | "MAX":
            return _OfValues(function, kept_max)
        case "FIRST" | "LAST":
            return _OfPlaces(function)
        case _:
            return _Moments(has_squares=has_squares)
