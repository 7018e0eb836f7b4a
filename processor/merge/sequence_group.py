"""Sequence groups: fields that late, out-of-order updates must not undo."""

from __future__ import annotations

from collections.abc import Iterable

from processor.errors import RecordRejected
from processor.merge.order import check_order, compare
from processor.record import Value
from processor.values.equality import MISSING, strictly_equal
from processor.values.pointer import find, names


class SequenceGroup:
    """One group: the field it goes `by`, and the fields that apply only if `by` is not older than the one applied.

    Fields and `by` together are the *guarded* fields. A delta touches one of them when it names it, and also when it
    replaces an object on the way to it by something else, or something else by such an object.
    """

    __slots__ = ("_by", "_guarded", "_nulls_missing", "by")

    by: str
    """JSON Pointer of the field that orders the updates."""

    def __init__(self, by: str, fields: Iterable[str], *, nulls_missing: bool) -> None:
        """Compile the pointers, which must be valid.

        Args:
            by: the field that orders the updates. It may stand inside one of the fields.
            fields: the fields that go by it.
            nulls_missing: a null in a delta counts as missing: null policy `ignore`.
        """
        self.by = by
        self._by = names(by)
        self._nulls_missing = nulls_missing
        self._guarded = (*map(names, fields), self._by)

    def is_late(self, record: Value, message: Value) -> bool:
        """Return whether a message, a delta or a whole record, is older than the record.

        A message without `by`, or with a null there, counts as older where the record has one. Where the record has
        none, no message is late.

        Raises:
            RecordRejected: `schema_mismatch`: the message's `by` has no order, or none against the record's.
        """
        old, new = find(record, self._by), find(message, self._by)
        is_first = old is MISSING or old is None
        if new is MISSING or new is None:
            return not is_first
        try:
            if is_first:
                check_order(new)
                return False
            return compare(new, old) < 0
        except RecordRejected as error:
            raise RecordRejected(error.reason, f"sequence group by {self.by}: {error.detail}") from None

    def take_out(self, record: Value, delta: Value) -> bool:
        """Take the guarded fields out of a late delta, in place; whether it touched any."""
        touched = [
            place
            for path in self._guarded
            if (place := _touched(record, delta, path, nulls_missing=self._nulls_missing)) is not None
        ]
        for path in touched:
            _take_out(delta, path)
        return bool(touched)

    def keep(self, before: Value, after: Value) -> bool:
        """Give the guarded fields of a record the values that they had before a late update; whether any had changed.

        Args:
            before: the record before the update. It is not changed, but shares values with `after` from now on.
            after: the record after the update, changed in place.
        """
        changed = [_keep(before, after, path) for path in self._guarded]
        return any(changed)


def _take_out(value: Value, path: tuple[str, ...]) -> None:
    """Remove the member at a path, in place, and each object that is empty without it.

    An object left empty would be a new field where the record has none.
    """
    name, *below = path
    if below and type(inner := value.get(name)) is dict:
        _take_out(inner, tuple(below))
        if inner:
            return
    value.pop(name, None)


def _keep(before: Value, after: Value, path: tuple[str, ...]) -> bool:
    """Restore the member at a path; whether it had changed.

    A value of another kind on the way, in the place of an object, is kept in the same way: it is as new as the group.
    """
    last = len(path) - 1
    for depth, name in enumerate(path):
        old, new = before.get(name, MISSING), after.get(name, MISSING)
        if old is MISSING:
            if find(after, path[depth:]) is MISSING:
                return False
            _take_out(after, path[depth:])
            return True
        if depth == last or type(old) is not dict:
            if new is not MISSING and strictly_equal(old, new):
                return False
            after[name] = old
            return True
        if type(new) is not dict:
            if not _stands(old, path[depth + 1 :]):
                return False
            new = after[name] = {}
        before, after = old, new
    return False


def _stands(value: Value, path: tuple[str, ...]) -> bool:
    """Return whether there is a value at a path, or one of another kind in the place of an object on the way to it."""
    for name in path:
        if type(value) is not dict:
            return True
        value = value.get(name, MISSING)
    return value is not MISSING


def _touched(record: Value, delta: Value, path: tuple[str, ...], *, nulls_missing: bool) -> tuple[str, ...] | None:
    """The place where a delta meets a path: its end, or on the way where another kind of value takes over; or None."""
    last = len(path) - 1
    for depth, name in enumerate(path):
        new = delta.get(name, MISSING)
        if new is MISSING or (new is None and nulls_missing):
            return None
        old = record.get(name, MISSING)
        if depth == last or type(new) is not dict or (old is not MISSING and type(old) is not dict):
            return path[: depth + 1]
        delta, record = new, {} if old is MISSING else old
    return None
