"""Sequence groups: each field of a group has the value of the newest update that carries it, in any order of arrival.

An update applies to a field that is not newer than it, by the field's stamp (`group_stamps`). The *guarded* fields of a
group are its fields and `by` itself. `grouped_update` takes an update through the groups of its topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from processor.errors import RecordRejected
from processor.merge.builtin_rules import WhenLate
from processor.merge.group_stamps import (
    Moment,
    Stamp,
    Tree,
    is_older,
    is_same,
    moment_of,
    most_common,
    own_moment,
    stamp_of,
    with_own_moment,
)
from processor.record import Value
from processor.values.kinds import MISSING, compare, strictly_equal
from processor.values.pointer import find, names

Path: TypeAlias = tuple[str, ...]

Ruled: TypeAlias = "WhenLate | Mapping[str, Ruled]"
"""The merge rules of a field, or of the members of an object."""

_NO_RULES: Final[Mapping[str, Ruled]] = {}


class SequenceGroup:
    """One group: the field it goes `by`, and the fields that it guards."""

    __slots__ = ("by", "by_path", "fields", "rules")

    def __init__(self, by: str, fields: Iterable[str], rules: Mapping[str, WhenLate]) -> None:
        """Compile the pointers, which must be valid.

        Args:
            by: the field that orders the updates. It may stand inside one of the fields.
            fields: the fields that go by it.
            rules: the merge rules of the topic, by pointer.
        """
        self.by: Final = by
        self.by_path: Final = names(by)
        paths = {field: names(field) for field in fields}
        self.fields: Final[Mapping[str, Path]] = (
            paths if _covers(paths.values(), self.by_path) else {**paths, by: self.by_path}
        )
        self.rules: Final[Mapping[str, Ruled]] = {
            field: ruled for field, path in self.fields.items() if (ruled := _rules_at(path, rules)) is not None
        }

    def is_replaced(self, record: Value, message: Value, *, is_delta: bool) -> bool:
        """Return whether an update surely is as new as a record without stamps, and leaves none: as most do.

        Args:
            record: the record before.
            message: a full record, or a delta that carries every field of the group as one value.
            is_delta: whether the message is a delta.
        """
        if self.rules:
            return False
        if is_delta:
            for path in self.fields.values():
                value = find(message, path)
                if value is MISSING or value is None or type(value) is dict:
                    return False
        new, old = find(message, self.by_path), find(record, self.by_path)
        if type(new) is int and type(old) is int:
            return new >= old
        if new is MISSING or new is None:
            return False
        try:
            moment_of(new)
            return old is MISSING or old is None or compare(new, old) >= 0
        except RecordRejected:
            return False


def _covers(paths: Iterable[Path], path: Path) -> bool:
    return any(path[: len(other)] == other for other in paths)


def _rules_at(path: Path, rules: Mapping[str, WhenLate]) -> Ruled | None:
    """The rules at a field and below it; None without any."""
    tree: dict[str, Ruled] = {}
    for pointer, when_late in rules.items():
        rule_path = names(pointer)
        if rule_path == path:
            return when_late
        if rule_path[: len(path)] == path:
            place = tree
            for name in rule_path[len(path) : -1]:
                place = place.setdefault(name, {})  # type: ignore[assignment]
            place[rule_path[-1]] = when_late
    return tree or None


class GroupState:
    """One group during one update."""

    def __init__(self, group: SequenceGroup, record: Value, message: Value, tree: Tree) -> None:
        """Find the moments of record and update.

        Raises:
            RecordRejected: `schema_mismatch`: they have no order.
        """
        self.group = group
        self.is_stale = False
        old, new = find(record, group.by_path), find(message, group.by_path)
        try:
            own = own_moment(tree)
        except ValueError:  # A damaged header is none: the record is as old as its `by` says.
            own = None
        try:
            self.now: Moment = moment_of(old) if own is None else own
            self.moment: Moment = moment_of(new)
            if own is None and self.now is not None and self.moment is not None:
                is_late = compare(new, old) < 0  # An error names both as they are written.
            else:
                is_late = is_older(self.moment, self.now)
        except RecordRejected as error:
            raise RecordRejected(error.reason, f"sequence group by {group.by}: {error.detail}") from None
        try:
            self.root = stamp_of(tree, self.now)
        except (ValueError, RecursionError):
            self.root = Stamp(self.now)
        if group.by in group.fields:
            self.root.members[group.by] = Stamp(self.now)
        if not is_late:
            self.now = self.moment

    def stamp(self, record: Value, field: str) -> Stamp:
        """The stamp of a guarded field."""
        return self.root.member(field, is_there=find(record, self.group.fields[field]) is not MISSING)

    def ruled(self, field: str) -> Ruled:
        """The rules of a guarded field and below it."""
        return self.group.rules.get(field, _NO_RULES)

    def has_newer(self, record: Value, field: str) -> bool:
        """Return whether a guarded field has anything that is newer than the update."""
        stamp = self.stamp(record, field)
        value = find(record, self.group.fields[field])
        return is_older(self.moment, stamp.whole) or stamp.is_below_newer(value, self.moment)

    def write(self, stamp: Stamp, old: Value, value: Value, ruled: Ruled = _NO_RULES) -> Value:
        """Replace a field, or remove it by MISSING; return its value afterwards, which shares members with both.

        Members of the field that are newer stay: then the field stays an object.
        """
        if is_older(self.moment, stamp.whole):
            return self._refuse(old, value)
        if isinstance(ruled, str) and ruled != "refused":
            is_first = ruled == "precedes" and value is not MISSING
            if old is not MISSING and not is_first and is_older(self.moment, stamp.merged):
                stamp.begin(self.moment)  # Older deltas do not count any more.
                return self._refuse(old, value)
            stamp.begin(self.moment)
            stamp.merged = None
            return value
        if type(old) is dict and stamp.is_below_newer(old, self.moment):
            before = old
        elif stamp.members and type(value) is dict:
            before = {}
        else:
            stamp.begin(self.moment)
            return value
        after = value if type(value) is dict else {}
        result = {}
        for name in (*before, *(name for name in after if name not in before)):
            there = before.get(name, MISSING)
            inner = stamp.member(name, is_there=name in before)
            final = self.write(inner, there, after.get(name, MISSING), rules_below(ruled, name))
            if final is not MISSING:
                result[name] = final
        stamp.begin(self.moment)
        return result

    def _refuse(self, old: Value, value: Value) -> Value:
        if old is MISSING or value is MISSING:
            self.is_stale |= old is not value
        else:
            self.is_stale |= not strictly_equal(old, value)
        return old

    def tree(self, merged: Value) -> Tree:
        """The stamps of a merged record as JSON; true where all is as new as the record."""
        group, now = self.group, self.now
        try:
            own = moment_of(find(merged, group.by_path))
            is_said = is_same(own, now) or not (is_older(own, now) or is_older(now, own))
        except RecordRejected:
            is_said = False
        there: dict[str, Tree] = {}
        missing: dict[str, Tree] = {}
        for field, path in group.fields.items():
            if field != group.by:
                value = find(merged, path)
                stamp = self.root.member(field, is_there=value is not MISSING)
                (missing if value is MISSING else there)[field] = stamp.tree(value, now)
        whole, rest = most_common(missing.values()), most_common(there.values())
        members = {field: tree for field, tree in there.items() if not is_same(tree, rest)}
        members |= {field: tree for field, tree in missing.items() if not is_same(tree, whole)}
        tree = {name: stamp for name, stamp in (("w", whole), ("d", rest)) if stamp is not True}
        if members:
            tree["m"] = members
        if not is_said:
            tree = with_own_moment(tree, now)
        return tree or True


def rules_below(ruled: Ruled, name: str) -> Ruled:
    """The rules of a member, and below it."""
    return _NO_RULES if isinstance(ruled, str) else ruled.get(name, _NO_RULES)
