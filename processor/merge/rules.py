"""A topic's sequence groups and merge rules, applied to an update before it is folded into the record.

Rules are found by entry point, and each is applied at its path. Groups and rules change the update, never the record:
then the ordinary merge folds it and finds the changes, so the law of delta replay holds by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Final, TypeAlias, cast

from processor.entry_points import find_installed, load_installed
from processor.errors import ConfigurationError, RecordRejected, Stop
from processor.merge import builtin_rules
from processor.merge.builtin_rules import ORDERED, Rule, WhenLate
from processor.merge.delta import changes
from processor.merge.fold import MergePolicy
from processor.merge.grouped_update import GroupedUpdate
from processor.merge.sequence_group import SequenceGroup
from processor.record import Value
from processor.values.kinds import FieldType
from processor.values.pointer import names

GROUP: Final = "sowstream.merge_rules"
"""The entry-point group: the name is what `merge_rules` says, the object a `Rule`; `builtin_rules` says what one is."""


class FieldRule:
    """One merge rule at its path."""

    __slots__ = ("_begin", "_last", "_name", "_parents", "_path", "_rule", "_trusted", "pointer", "when_late")

    def __init__(self, pointer: str, name: str, field_type: FieldType) -> None:
        """Find the rule.

        Args:
            pointer: the field.
            name: the rule's name.
            field_type: the type of the field.

        Raises:
            ConfigurationError: there is no such rule, it cannot be imported, or it is not for such a field.
        """
        self.pointer: Final = pointer
        self._name, self._path = name, names(pointer)
        *self._parents, self._last = self._path
        self._rule = load_rule(name)
        takes: frozenset[str] | None = getattr(self._rule, "takes", None)
        if takes is not None and field_type.kinds is not None and takes.isdisjoint(field_type.kinds):
            raise ConfigurationError(
                f"merge rule {name} at {pointer}: the schema allows {one_of(field_type.kinds)} there; "
                f"{name} is for {one_of(takes)}"
            )
        self.when_late: Final[WhenLate] = getattr(self._rule, "when_late", "refused")
        self._begin = getattr(self._rule, "begin", None)
        self._trusted = getattr(self._rule, "__module__", None) == builtin_rules.__name__
        if not field_type.any_number:
            self._rule = getattr(self._rule, "in_kind", self._rule)

    def apply(self, record: Value, delta: Value, gone: list[str]) -> None:
        """Put the rule's result for the record's value and the delta's into the delta, in place.

        Args:
            record: the record before.
            delta: the delta.
            gone: gets the pointers of the members that an object of the record has and the result does not: the merge
                would keep them.

        Raises:
            RecordRejected: `schema_mismatch` or the reason of the rule, with the path; `plugin_failed` if it raises
                anything else.
            Stop: the rule orders it, as where something that it asks does not answer.
        """
        for name in self._parents:
            delta = delta.get(name)
            if type(delta) is not dict:
                return
            record = record.get(name)
            if type(record) is not dict:
                record = {}
        last = self._last
        new = delta.get(last)
        if new is None:
            return
        old = record.get(last)
        try:
            if old is not None:
                value = self._rule(old if self._trusted else _own(old), new)
            elif self._begin is not None:
                value = self._begin(new)
            else:
                return
        except Stop:
            raise
        except RecordRejected as error:
            raise RecordRejected(error.reason, f"{self.pointer}, merge rule {self._name}: {error.detail}") from None
        except Exception as error:
            raise RecordRejected(
                "plugin_failed", f"merge rule {self._name} at {self.pointer}: {type(error).__name__}: {error}"
            ) from error
        if value is old:
            # The record has it: there is nothing to merge, and an object must not be merged into itself.
            del delta[last]
        else:
            delta[last] = value if self._trusted else _own(value)
            if not self._trusted and type(value) is dict and type(old) is dict:
                changes(old, value, self.pointer, gone)


def one_of(kinds: Iterable[str]) -> str:
    """Kinds of values in words: `array or text`."""
    return " or ".join(sorted(kinds))


def load_rule(name: str) -> Rule:
    """Find a merge rule.

    Raises:
        ConfigurationError: there is no such rule, or it cannot be imported, or is no function.
    """
    noun = "merge rule"
    point = find_installed(GROUP, noun, name)
    rule = load_installed(point, noun)
    if not callable(rule):
        raise ConfigurationError(f"{noun} {name!r}: {point.value} is no function (old, new) -> value")
    return cast("Rule", rule)


def _own(value: Value) -> Value:
    """A copy of an object or array: what a plug-in holds and what a record holds must not be one thing."""
    return deepcopy(value) if type(value) in (dict, list) else value


Group: TypeAlias = tuple[str, Sequence[str]]
"""The JSON Pointer a sequence group goes by, and those of its fields."""

TypeOf: TypeAlias = Callable[[tuple[str, ...]], FieldType]
"""The type of the field at a path of names: a message type's `field_type`."""

_NOTHING: Final[Value] = {}


class Rules:
    """The sequence groups and merge rules of one topic.

    Groups come first: `GroupedUpdate` says in which order its steps, and those of a merge, follow each other.
    A record of None is one that does not exist.
    """

    __slots__ = ("_groups", "_policy", "_rules")

    def __init__(self, groups: Sequence[SequenceGroup], rules: Sequence[FieldRule], policy: MergePolicy) -> None:
        """Take compiled ones; `compile_rules` makes them of a topic's settings."""
        self._groups, self._rules, self._policy = groups, rules, policy

    @property
    def has_groups(self) -> bool:
        """True if there are sequence groups."""
        return bool(self._groups)

    @property
    def has_merge_rules(self) -> bool:
        """True if there are merge rules."""
        return bool(self._rules)

    def update(
        self, record: Value | None, message: Value, stamps: bytes, *, is_delta: bool = True, is_plain: bool = False
    ) -> GroupedUpdate:
        """An update of a record as its sequence groups see it.

        Args:
            record: the record before; `GroupedUpdate.record` is it.
            message: the delta or the full record.
            stamps: the record's.
            is_delta: whether the message is a delta.
            is_plain: the merge follows at once, and removes nothing by header: most updates have no work for a group.

        Raises:
            RecordRejected: `schema_mismatch`: the field that a group goes by has no order.
        """
        policy, groups = self._policy, self._groups
        known = _NOTHING if record is None else record
        if is_plain and not stamps and all(one.is_replaced(known, message, is_delta=is_delta) for one in groups):
            groups = ()
        return GroupedUpdate(
            groups, record, message, stamps, null_policy=policy.null_policy, merge_depth=policy.merge_depth
        )

    def change(self, record: Value | None, delta: Value, overruled: Collection[str] = ()) -> list[str]:
        """Apply the merge rules to a delta, in place; not those of overruled fields, by pointer.

        Returns:
            The pointers of members to remove after the merge: of objects that a plug-in's rule replaces.

        Raises:
            RecordRejected: `schema_mismatch` or `plugin_failed`; a part of the delta may have been changed.
        """
        record = _NOTHING if record is None else record
        gone: list[str] = []
        for rule in self._rules:
            if rule.pointer not in overruled:
                rule.apply(record, delta, gone)
        return gone


def compile_rules(
    groups: Sequence[Group],
    rules: Mapping[str, str],
    *,
    key_fields: Sequence[str] = (),
    policy: MergePolicy | None = None,
    type_of: TypeOf | None = None,
) -> Rules | None:
    """The sequence groups and merge rules of a topic's settings; None if there are none: then a record pays nothing.

    Args:
        groups: the sequence groups.
        rules: the name of a merge rule, by JSON Pointer.
        key_fields: the pointers of the key fields, which neither may touch.
        policy: how deltas of the topic merge; None: the default.
        type_of: the type of each field; None: any value, as in JSON.

    Raises:
        ConfigurationError: no pointer, no such rule, two that contradict each other, or one for a field that the schema
            does not have or whose values it cannot work on.
    """
    if not groups and not rules:
        return None
    policy = policy or MergePolicy()
    type_of = type_of or _any_type
    _check(groups, rules, key_fields, policy.merge_depth)
    _check_types(groups, rules, type_of)
    field_rules = [FieldRule(pointer, name, type_of(names(pointer))) for pointer, name in rules.items()]
    when_late = {rule.pointer: rule.when_late for rule in field_rules if rule.when_late != "replaces"}
    return Rules([SequenceGroup(by, fields, when_late) for by, fields in groups], field_rules, policy)


def _any_type(_path: tuple[str, ...]) -> FieldType:
    return FieldType(any_number=True)


def _check_types(groups: Sequence[Group], rules: Mapping[str, str], type_of: TypeOf) -> None:
    """Refuse fields that the schema of the messages does not have, or that have no order and need one."""
    for by, fields in groups:
        kinds = type_of(names(by)).kinds
        if kinds and kinds.isdisjoint(ORDERED):
            raise ConfigurationError(
                f"sequence group by {by}: the schema allows {one_of(kinds)} there, which has no order; "
                f"name a field of {one_of(ORDERED)}"
            )
        _check_known([by, *fields], f"sequence group by {by}", type_of)
    for pointer, name in rules.items():
        _check_known([pointer], f"merge rule {name} at {pointer}", type_of)


def _check_known(pointers: Sequence[str], place: str, type_of: TypeOf) -> None:
    for pointer in pointers:
        kinds = type_of(names(pointer)).kinds
        if kinds is not None and not kinds:
            raise ConfigurationError(f"{place}: the schema of the messages has no field {pointer} to merge into")


def _check(groups: Sequence[Group], rules: Mapping[str, str], key_fields: Sequence[str], depth: int | None) -> None:
    """Reject settings that contradict each other."""
    keys = {pointer: names(pointer) for pointer in key_fields}
    grouped: dict[str, tuple[str, ...]] = {}
    for by, fields in groups:
        place = f"sequence group by {by}"
        by_path = _path(by, place)
        members = {field: _path(field, place) for field in fields if field != by}
        # A field may hold its own `by`: an object with the time it is of.
        if not any(_inside(by_path, path) for path in members.values()):
            members[by] = by_path
        for pointer, path in members.items():
            _check_place(pointer, path, place, keys, depth)
            for other, other_path in grouped.items():
                if _inside(path, other_path) or _inside(other_path, path):
                    raise ConfigurationError(
                        f"{place}: {pointer} and {other} overlap; a field goes by one sequence, and is named once"
                    )
            grouped[pointer] = path
    ruled: dict[str, tuple[str, ...]] = {}
    by_paths = {by: names(by) for by, _ in groups}
    for pointer, name in rules.items():
        place = f"merge rule {name} at {pointer}"
        path = _path(pointer, place)
        _check_place(pointer, path, place, keys, depth)
        for other, other_path in ruled.items():
            if _inside(path, other_path) or _inside(other_path, path):
                raise ConfigurationError(f"{place}: {other} has a rule too, and one is inside the other")
        for by, by_path in by_paths.items():
            if _inside(by_path, path):
                raise ConfigurationError(f"{place}: a sequence group goes by {by}, which a newer delta replaces")
        for other, other_path in grouped.items():
            if len(path) < len(other_path) and _inside(other_path, path):
                raise ConfigurationError(f"{place}: {other} inside it is in a sequence group; name the fields")
        ruled[pointer] = path


def _check_place(
    pointer: str, path: tuple[str, ...], place: str, keys: Mapping[str, tuple[str, ...]], depth: int | None
) -> None:
    for key, key_path in keys.items():
        if _inside(path, key_path) or _inside(key_path, path):
            raise ConfigurationError(f"{place}: {pointer} and the key field {key} overlap; a key never changes")
    if depth is not None and len(path) > depth:
        raise ConfigurationError(
            f"{place}: {pointer} is below merge_depth {depth}, where objects are replaced whole; "
            "name a field above, or raise merge_depth"
        )


def _path(pointer: str, place: str) -> tuple[str, ...]:
    try:
        path = names(pointer)
    except ValueError as error:
        raise ConfigurationError(f"{place}: {error}") from None
    if not path:
        raise ConfigurationError(f"{place}: {pointer!r} is the whole record; name a field, such as /qty")
    return path


def _inside(path: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return whether a path is another one, or leads into it."""
    return path[: len(other)] == other
