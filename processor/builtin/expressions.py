"""The preprocessor and the enricher `expressions`: fields that expressions of the filter language compute.

Settings name it by a mapping of paths to expressions: `enrich: {/total: "/qty * /px", /was: "PREVIOUS(/px)"}`. All
expressions of one step see the message as it was before the step.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Final, Literal

from processor.api import RecordRejected, Value
from processor.errors import ConfigurationError
from processor.filter import MISSING, PreviousRecord, RecordMetadata, compile_assignments
from processor.values.instant import Time
from processor.values.pointer import names, pointer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.api import Preprocess
    from processor.filter import Assignment

_NO_METADATA: Final = RecordMetadata()
_ABSENT: Final = object()
_PLAIN: Final = frozenset((int, float, str, bool, type(None)))
"""Types of values that are put into a message as they are."""
_NO_RECORD: Final[dict[str, Value]] = {}
_REPEATABLE: Final = frozenset(("replace", "first", "min", "max", "union"))
"""Merge rules that leave the record as it is when its own value is merged into it."""


def computing(fields: Mapping[str, str]) -> Preprocess:
    """Makes the preprocessor, which sees the message alone.

    Args:
        fields: by the path of each field its expression.

    Raises:
        ConfigurationError: a path or an expression is wrong.
    """
    assignments = compile_assignments(fields)

    def preprocess(message: Value) -> Value:
        _assign(message, message, assignments)
        return message

    return preprocess


class MessageEnricher:
    """The enricher of one topic: computes fields from the message, the stored record and both together.

    A path is a field of the record as the message would leave it: of a delta the field of the message, else of the
    stored record; of a full record that of the message only. `PREVIOUS(…)` is the stored record.
    """

    __slots__ = ("_assignments", "_depth", "_keeps_nulls", "_previous", "_roots")

    takes_merge_settings: Final = True
    """Asks for the settings of the topic by which deltas merge."""
    takes_is_delta: Final = True
    """Takes whether the message is a delta as its third argument, and `after` as its fourth."""

    def __init__(
        self,
        fields: Mapping[str, str],
        null_policy: Literal["ignore", "set", "remove"] = "ignore",
        merge_depth: int | None = None,
        merge_rules: Mapping[str, str] | None = None,
    ) -> None:
        """Compile the expressions.

        Args:
            fields: by the path of each field its expression.
            null_policy: the topic's: with `ignore`, a null in a delta leaves the stored value.
            merge_depth: the topic's: how deep objects merge; None: to any depth.
            merge_rules: the topic's: the names of merge rules, by JSON Pointer.

        Raises:
            ConfigurationError: a path or an expression is wrong, or a merge rule would count a field twice.
        """
        self._previous = PreviousRecord()
        self._assignments = compile_assignments(fields, self._previous)
        _check_rules(self._assignments, merge_rules or {})
        self._roots = sorted({str(path[0]) for one in self._assignments for path in one.paths})
        self._keeps_nulls = null_policy != "ignore"
        self._depth = -1 if merge_depth is None else merge_depth

    def __call__(
        self,
        message: Value,
        previous: Value | None,
        is_delta: bool = True,
        after: Callable[[Value], Value] | None = None,
    ) -> Value:
        """Compute the fields in the message, and return it.

        Args:
            message: the published record or delta, which is changed.
            previous: the stored record; None if there is none.
            is_delta: whether the message is merged into the stored record.
            after: the record as a message would leave it, where merge rules or header `remove` take part.

        Raises:
            RecordRejected: a field cannot be put into the message, or a third party's function raised.
        """
        record = message
        if previous is None:
            self._previous.record = _NO_RECORD
        else:
            self._previous.record = previous
            if is_delta and after is None:
                record = self._merged(message, previous)
        if after is not None:
            record = after(message)
        _assign(message, record, self._assignments)
        return message

    def _merged(self, message: dict[str, Value], previous: dict[str, Value]) -> dict[str, Value]:
        """The members that the expressions look at, as the delta would leave them."""
        record = {}
        for root in self._roots:
            value = message.get(root, _ABSENT)
            if value is _ABSENT or (value is None and not self._keeps_nulls):
                value = previous.get(root)
            elif type(value) is dict and self._depth != 1 and type(before := previous.get(root)) is dict:
                value = _overlaid(before, value, self._depth - 1, keeps_nulls=self._keeps_nulls)
            record[root] = value
        return record


def _check_rules(assignments: Sequence[Assignment], rules: Mapping[str, str]) -> None:
    """Refuse a field that a rule such as `sum` would merge into itself with each delta.

    Its expression sees the field after the rule, and the rule takes the result as the message's value.
    """
    for pointer, rule in rules.items():
        ruled = names(pointer)
        for one in assignments:
            if rule not in _REPEATABLE and _overlap(one.names, ruled) and any(_overlap(at, ruled) for at in one.paths):
                raise ConfigurationError(
                    f"{pointer_of(one.names)}: its expression sees {pointer} after merge rule {rule}, which would "
                    "count the stored value again with each delta; compute it in `preprocess`, which sees the message "
                    "alone, or give it a name without that rule"
                )


def _overlap(one: Sequence[str | int], other: Sequence[str | int]) -> bool:
    """Return whether one of two places is the other, or lies in it."""
    return all(left == right for left, right in zip(one, other, strict=False))


def _overlaid(before: dict[str, Value], change: dict[str, Value], depth: int, *, keeps_nulls: bool) -> dict[str, Value]:
    """A nested object with the changes of a delta, as a new one."""
    result = dict(before)
    for name, value in change.items():
        if value is None and not keeps_nulls:
            continue
        inner = result.get(name)
        if type(value) is dict and type(inner) is dict and depth != 1:
            result[name] = _overlaid(inner, value, depth - 1, keeps_nulls=keeps_nulls)
        else:
            result[name] = value
    return result


def _assign(message: dict[str, Value], record: Value, assignments: Sequence[Assignment]) -> None:
    """Put the computed values into a message."""
    if len(assignments) == 1:  # The usual case.
        names, evaluate, _ = assignments[0]
        value = evaluate(record, _NO_METADATA)
        kind = type(value)
        if len(names) == 1 and kind in _PLAIN:
            message[names[0]] = value
            return
    values = [evaluate(record, _NO_METADATA) for _, evaluate, _ in assignments]
    for (names, _, _), value in zip(assignments, values, strict=True):
        kind = type(value)
        if kind is dict or kind is list:
            value = copy.deepcopy(value)  # noqa: PLW2901 - it is of another record
        elif kind is Time:
            value = value.value  # noqa: PLW2901 - as a record has it
        if len(names) == 1:
            if value is MISSING:
                message.pop(names[0], None)
            else:
                message[names[0]] = value
        else:
            _put(message, names, value)


def _put(message: dict[str, Value], names: tuple[str, ...], value: Value) -> None:
    """Put a value at a path; objects on the way are created."""
    place = message
    for name in names[:-1]:
        inner = place.get(name)
        if inner is None:
            if value is MISSING:
                return
            inner = place[name] = {}
        elif type(inner) is not dict:
            raise RecordRejected("plugin_failed", f"expressions: /{'/'.join(names)} leads through a value, no object")
        place = inner
    if value is MISSING:
        place.pop(names[-1], None)
    else:
        place[names[-1]] = value
