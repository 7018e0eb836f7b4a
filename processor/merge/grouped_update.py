"""An update of a record with sequence groups, from its message to the stamps of the merged record.

A delta loses what newer updates have decided, and a full publish gets it from the record. Where a record has another
value in the place of an object that guarded fields are in, an update replaces the one by the other if it is not older
than any guarded field there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Final

from processor.errors import RecordRejected
from processor.merge.delta import changes, remove_path
from processor.merge.group_stamps import STAMPS_BYTES_MAX, Stamp, Tree, is_older
from processor.merge.sequence_group import GroupState, Path, Ruled, SequenceGroup, rules_below
from processor.record import Value
from processor.values.kinds import MISSING, strictly_equal
from processor.values.pointer import find, pointer_of

_ANY_DEPTH: Final = 1 << 30


class GroupedUpdate:
    """One update of a record with sequence groups, from its message to the stamps of the merged record.

    ::

        update = GroupedUpdate(groups, record, message, stamps, …)
        update.reduce(delta)  or  update.complete(body)             # before enrichment
        pointers = update.removals(merged, paths)                   # after the merge: `gone`, and header `remove`
        stamps = update.stamps(merged)
    """

    def __init__(
        self,
        groups: Sequence[SequenceGroup],
        record: Value | None,
        message: Value,
        stamps: bytes,
        *,
        null_policy: str = "ignore",
        merge_depth: int | None = None,
    ) -> None:
        """Read the stamps of a record.

        Args:
            groups: the topic's.
            record: the record before, which is not changed here; None if there is none.
            message: the delta or the full record.
            stamps: those of the record; empty: every field is as new as the record.
            null_policy: the topic's.
            merge_depth: the topic's.

        Raises:
            RecordRejected: `schema_mismatch`: the field that a group goes by has no order.
        """
        self.record: Value | None = record
        """The record before, for the merge that follows; None when it is used up."""
        self._record = {} if record is None else record
        self._nulls, self._depth = null_policy, merge_depth or _ANY_DEPTH
        trees = _trees(stamps)
        self._states = [GroupState(group, self._record, message, trees.get(group.by, True)) for group in groups]
        self.gone: list[str] = []
        """Pointers of members that the update takes from the record, and that no delta could name."""
        self.overruled: set[str] = set()
        """Pointers of fields whose value in the delta is the record's new one, whichever rule they have."""

    @property
    def stale_groups(self) -> int:
        """The number of groups that left some of the update alone."""
        return sum(state.is_stale for state in self._states)

    def reduce(self, delta: Value) -> None:
        """Take out of a delta, in place, what newer updates have decided."""
        blocked: dict[Path, None] = {}
        for state in self._states:
            for field, path in state.group.fields.items():
                if (place := self._reduce_field(state, field, path, delta)) is not None:
                    blocked[place] = None
        for place in blocked:
            self._reduce_place(place, delta)

    def _reduce_field(self, state: GroupState, field: str, path: Path, delta: Value, begin: int = 0) -> Path | None:
        """Reduce one field; return the place above it where the delta and the record have values of two kinds."""
        parent, record = delta, self._record
        for depth, name in enumerate(path[:-1]):
            new = parent.get(name, MISSING)
            if new is MISSING or (new is None and self._nulls == "ignore"):
                return None
            old = record.get(name, MISSING)
            if type(new) is not dict or (old is not MISSING and type(old) is not dict):
                if depth >= begin:
                    return path[: depth + 1]
                old = {}
            parent, record = new, {} if old is MISSING else old
        if path[-1] in parent:
            stamp = state.stamp(self._record, field)
            self._take(state, stamp, record, parent, path, self._depth - len(path) + 1, state.ruled(field))
            _drop_empty(delta, path[:-1])
        return None

    def _reduce_place(self, place: Path, delta: Value) -> None:
        """Decide about a delta that has an object where the record has another value, or the other way round."""
        fields = [
            (state, field, path)
            for state in self._states
            for field, path in state.group.fields.items()
            if len(path) > len(place) and path[: len(place)] == place
        ]
        newer = [state for state, field, _ in fields if state.has_newer(self._record, field)]
        for state in newer:
            state.is_stale = True
        if type(find(delta, place)) is not dict:
            for state, field, path in fields:
                old = find(self._record, path)
                final = state.write(state.stamp(self._record, field), old, MISSING, state.ruled(field))
                if newer and final is not old:
                    self._note_gone(path, old, final)
            if newer:
                remove_path(delta, place)
        elif newer:
            remove_path(delta, place)
        else:
            for state, field, path in fields:
                self._reduce_field(state, field, path, delta, begin=len(place))
        if newer:
            _drop_empty(delta, place[:-1])

    def _take(
        self, state: GroupState, stamp: Stamp, record: Value, delta: Value, path: Path, depth: int, ruled: Ruled
    ) -> None:
        """Reduce the member of a delta at the end of a path; `depth` counts the levels that merge, with this one."""
        name = path[-1]
        new, old = delta[name], record.get(name, MISSING)
        if new is None and self._nulls == "ignore":
            return
        if new is not None and isinstance(ruled, str):
            self._take_ruled(state, stamp, old, delta, path, ruled)
        elif type(new) is dict and depth > 1:
            if is_older(state.moment, stamp.whole):
                state.is_stale = True
                del delta[name]
                return
            if is_older(stamp.merged, state.moment):
                stamp.merged = state.moment
            there = old if type(old) is dict else {}
            for inner in list(new):
                member = stamp.member(inner, is_there=inner in there)
                self._take(state, member, there, new, (*path, inner), depth - 1, rules_below(ruled, inner))
        else:
            value = MISSING if new is None and self._nulls == "remove" else new
            final = state.write(stamp, old, value, ruled)
            if final is value:
                return
            if final is not old and type(value) is dict:
                delta[name] = final  # It replaces the record's as it is.
                return
            del delta[name]
            if final is not old:
                self._note_gone(path, old, final)

    def _take_ruled(self, state: GroupState, stamp: Stamp, old: Value, delta: Value, path: Path, ruled: Ruled) -> None:
        """Reduce a field with a merge rule."""
        name, moment = path[-1], state.moment
        is_first = old is MISSING or old is None
        if is_older(moment, stamp.whole) or (ruled == "precedes" and moment is None and not is_first):
            state.is_stale = True
            del delta[name]
        elif ruled == "refused":
            stamp.begin(moment)
        elif ruled == "precedes":
            since = stamp.whole if stamp.merged is None else stamp.merged
            if is_first or since is None or is_older(moment, since):
                stamp.merged = moment
                self.overruled.add(pointer_of(path))
                if type(old) is dict and type(delta[name]) is dict:
                    changes(old, delta[name], pointer_of(path), self.gone)
        elif is_older(stamp.merged, moment):
            stamp.merged = moment

    def complete(self, body: Value) -> None:
        """Give a full record, in place, the guarded fields that are newer than it; it shares them with the record."""
        for state in self._states:
            for field, path in state.group.fields.items():
                self._complete_field(state, field, path, body)

    def complete_stamped(self, body: Value, stamps: bytes) -> None:
        """Give a full record with stamps, in place, the guarded fields that are newer in the record before.

        Each field is taken from one of the two, with its stamps and all below it.
        """
        trees = _trees(stamps)
        for state in self._states:
            own = GroupState(state.group, body, body, trees.get(state.group.by, True))
            for field, path in state.group.fields.items():
                stamp, own_stamp = state.stamp(self._record, field), own.stamp(body, field)
                if not is_older(own_stamp.whole, stamp.whole):
                    state.root.members[field] = own_stamp
                    continue
                state.is_stale = True
                value = find(self._record, path)
                if value is not MISSING:
                    put(body, path, value)
                elif find(body, path) is not MISSING:
                    remove_path(body, path)
                    _drop_empty(body, path[:-1])
            if is_older(state.now, own.now):
                state.now = own.now

    def _complete_field(self, state: GroupState, field: str, path: Path, body: Value) -> None:
        stamp, value = state.stamp(self._record, field), find(body, path)
        blocker = _blocker(self._record, path)
        is_late = is_older(state.moment, stamp.whole)
        final = state.write(stamp, find(self._record, path), value, state.ruled(field))
        if is_late and blocker is not None:
            # Another value has the place of the object with the field, and is as new as the field.
            state.is_stale = True
            put(body, blocker, find(self._record, blocker))
        elif final is MISSING:
            if value is not MISSING:
                remove_path(body, path)
                _drop_empty(body, path[:-1])
        elif final is not value:
            put(body, path, final)

    def removals(self, merged: Value, paths: Iterable[Path]) -> list[str]:
        """The pointers that header `remove` takes from a merged record, which is not changed.

        Args:
            merged: the record after the merge.
            paths: those of the header, which lead through objects.
        """
        pointers: list[str] = []
        for path in paths:
            kept: Value = MISSING
            for state in self._states:
                for field, field_path in state.group.fields.items():
                    if path[: len(field_path)] == field_path:
                        kept = self._remove_below(state, field, field_path, merged, path)
                    elif field_path[: len(path)] == path:
                        kept = self._remove_above(state, field, field_path, merged, path, kept)
            old = find(merged, path)
            if kept is MISSING:
                pointers.append(pointer_of(path))
            elif kept is not old and type(old) is dict and type(kept) is dict:
                changes(old, kept, pointer_of(path), pointers)
        return pointers

    def _remove_below(self, state: GroupState, field: str, field_path: Path, merged: Value, path: Path) -> Value:
        """Remove a guarded field or a member of it; return its value afterwards."""
        stamp, value, ruled = state.stamp(merged, field), find(merged, field_path), state.ruled(field)
        for name in path[len(field_path) :]:
            there = value if type(value) is dict else {}
            stamp, value = stamp.member(name, is_there=name in there), there.get(name, MISSING)
            ruled = rules_below(ruled, name)
        return state.write(stamp, value, MISSING, ruled)

    def _remove_above(
        self, state: GroupState, field: str, field_path: Path, merged: Value, path: Path, kept: Value
    ) -> Value:
        """Remove an object that a guarded field is in; return the parts of it that are kept."""
        stamp, old = state.stamp(merged, field), find(merged, field_path)
        is_late = is_older(state.moment, stamp.whole)
        final = state.write(stamp, old, MISSING, state.ruled(field))
        if is_late and (blocker := _blocker(merged, field_path)) is not None and len(blocker) <= len(path):
            state.is_stale = True
            return find(merged, path)
        if final is MISSING:
            return kept
        kept = {} if type(kept) is not dict else kept
        put(kept, field_path[len(path) :], final)
        return kept

    def guarded_values(self, message: Value) -> list[dict[str, Value]]:
        """Copies of the guarded values of a message, by group and field."""
        return [
            {
                field: value if (value := find(message, path)) is MISSING else deepcopy(value)
                for field, path in {**state.group.fields, state.group.by: state.group.by_path}.items()
            }
            for state in self._states
        ]

    def note_computed(self, message: Value, before: Sequence[Mapping[str, Value]]) -> bool:
        """Note the guarded fields that enrichment computed: they are as new as the record.

        Args:
            message: the message after enrichment.
            before: its guarded values before it.

        Returns:
            True if all is noted; False if enrichment changed the field that a group goes by.
        """
        after = self.guarded_values(message)
        for state, values, computed in zip(self._states, before, after, strict=True):
            changed = [field for field, value in values.items() if not _is_unchanged(value, computed[field])]
            if state.group.by in changed:
                return False
            for field in changed:
                state.root.members[field] = Stamp(state.now)
        return True

    def stamps(self, merged: Value) -> bytes:
        """The stamps of the merged record, in the form of the header; empty where all is as new as the record.

        Raises:
            RecordRejected: `too_large`: there are too many.
        """
        trees = {state.group.by: tree for state in self._states if (tree := state.tree(merged)) is not True}
        if not trees:
            return b""
        text = json.dumps(trees, separators=(",", ":")).encode()
        if len(text) > STAMPS_BYTES_MAX:
            raise RecordRejected(
                "too_large",
                f"sequence group by {next(iter(trees))}: the fields that older updates set or removed have "
                f"{len(text)} bytes of stamps; at most {STAMPS_BYTES_MAX}; publish the record in full",
            )
        return text

    def _note_gone(self, path: Path, old: Value, final: Value) -> None:
        if final is MISSING:
            self.gone.append(pointer_of(path))
        else:
            changes(old, final, pointer_of(path), self.gone)


def _trees(stamps: bytes) -> Mapping[str, Tree]:
    """The stamps of each group, by the pointer that it goes by; none where they cannot be read."""
    if not stamps:
        return {}
    try:
        trees = json.loads(stamps)
    except (ValueError, RecursionError):  # A publisher can send any, as `topics heal` does.
        return {}
    return trees if type(trees) is dict else {}


def _is_unchanged(one: Value, other: Value) -> bool:
    return one is other or (one is not MISSING and other is not MISSING and strictly_equal(one, other))


def _blocker(record: Value, path: Path) -> Path | None:
    """The place on the way to a field where a record has another value than an object; None if there is none."""
    for depth, name in enumerate(path[:-1]):
        record = record.get(name, MISSING)
        if record is MISSING:
            return None
        if type(record) is not dict:
            return path[: depth + 1]
    return None


def put(record: Value, path: Path, value: Value) -> None:
    """Set the member at a path, in place; objects on the way are made where there are none."""
    for name in path[:-1]:
        inner = record.get(name)
        if type(inner) is not dict:
            inner = record[name] = {}
        record = inner
    record[path[-1]] = value


def _drop_empty(value: Value, path: Path) -> None:
    """Remove the object at a path that has become empty, and those around it: they would be new fields of a record."""
    while path and (inner := find(value, path)) is not MISSING and inner == {}:
        remove_path(value, path)
        path = path[:-1]
