"""What a topic's sequence groups and merge rules do to a delta before it is folded into the record.

They change the delta, never the record: then the ordinary merge folds it and finds what changed, so the law of delta
replay holds by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from processor.errors import ConfigurationError
from processor.merge.field_rule import FieldRule
from processor.merge.pointer import names
from processor.merge.policy import MergePolicy
from processor.merge.sequence_group import SequenceGroup
from processor.record import Value

Rules: TypeAlias = Callable[[Value | None, Value], int]
"""`(record, delta) -> groups that were stale`: changes the delta in place. Call it before `merge` or `insert`."""

Group: TypeAlias = tuple[str, Sequence[str]]
"""The JSON Pointer a sequence group goes by, and those of its fields."""


def compile_rules(
    groups: Sequence[Group],
    rules: Mapping[str, str],
    *,
    key_fields: Sequence[str] = (),
    policy: MergePolicy | None = None,
) -> Rules | None:
    """What a topic's settings say, as one function; None if they say nothing: then a record pays nothing.

    Used for deltas only: a full publish replaces the record entirely. So::

        stale = 0 if rules is None else rules(record, delta)  # record: None where there is none
        change = merge(record, delta)                         # or insert(delta, policy)

    Groups come first: a field that a late delta may not touch meets no rule.

    Args:
        groups: the sequence groups.
        rules: the name of a merge rule, by JSON Pointer.
        key_fields: the pointers of the key fields, which neither may touch.
        policy: how deltas of the topic merge; None: the default.

    Raises:
        ConfigurationError: no pointer, no such rule, or two that cannot both be meant.

    The function that is returned raises RecordRejected, `schema_mismatch` or `plugin_failed`, and may then have changed
    a part of the delta.
    """
    if not groups and not rules:
        return None
    policy = policy or MergePolicy()
    _check(groups, rules, key_fields, policy.merge_depth)
    nulls_missing = policy.null_policy == "ignore"
    sequence_groups = [SequenceGroup(by, fields, nulls_missing=nulls_missing) for by, fields in groups]
    field_rules = [FieldRule(pointer, name) for pointer, name in rules.items()]

    def change_delta(record: Value | None, delta: Value) -> int:
        if record is None:
            record = {}
        stale = 0
        for group in sequence_groups:
            stale += group.take_stale(record, delta)
        for rule in field_rules:
            rule.apply(record, delta)
        return stale

    return change_delta


def _check(groups: Sequence[Group], rules: Mapping[str, str], key_fields: Sequence[str], depth: int | None) -> None:
    """Refuse what cannot be meant."""
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
    """Whether a path is another one, or leads into it."""
    return path[: len(other)] == other
