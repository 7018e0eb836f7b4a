"""Fields that a late, out-of-order delta must not undo: it is they, not the delta, that have a newest value."""

from __future__ import annotations

from collections.abc import Iterable

from processor.errors import RecordRejected
from processor.merge.order import check_order, compare
from processor.merge.pointer import find, names
from processor.merge.same import MISSING
from processor.record import Value


class SequenceGroup:
    """One group: the field it goes `by`, and the fields that apply only if `by` is not older than the one applied.

    A delta touches a field when it names it, and also when it replaces an object on the way to it by something else,
    or something else by such an object: what protects the newer value then is that this replacement is taken out.
    """

    __slots__ = ("_by", "_guarded", "_nulls_missing", "by")

    by: str
    """JSON Pointer of the field that orders the updates."""

    def __init__(self, by: str, fields: Iterable[str], *, nulls_missing: bool) -> None:
        """Compile the pointers, which must be good ones.

        Args:
            by: the field that orders the updates. It may stand inside one of the fields.
            fields: what goes by it.
            nulls_missing: a null in a delta counts as missing: null policy `ignore`.
        """
        self.by = by
        self._by = names(by)
        self._nulls_missing = nulls_missing
        self._guarded = (*map(names, fields), self._by)

    def take_stale(self, record: Value, delta: Value) -> bool:
        """Take the group's fields out of a delta, in place, that is older than the record; whether it was.

        A delta without `by`, or with a null there, counts as older where the record has one. Where the record has none,
        everything applies.

        Raises:
            RecordRejected: `schema_mismatch`: the two values of `by` cannot be compared.
        """
        touched = [
            place
            for path in self._guarded
            if (place := _touched(record, delta, path, nulls_missing=self._nulls_missing)) is not None
        ]
        if not touched:
            return False
        old, new = find(record, self._by), find(delta, self._by)
        try:
            if new is not MISSING and new is not None:
                check_order(new)
                if old is MISSING or old is None or compare(new, old) >= 0:
                    return False
            elif old is MISSING or old is None:
                return False
        except RecordRejected as error:
            raise RecordRejected(error.reason, f"sequence group by {self.by}: {error.detail}") from None
        for path in touched:
            take_out(delta, path)
        return True


def take_out(delta: Value, path: tuple[str, ...]) -> None:
    """Remove the member at a path, in place, and each object that is empty without it.

    An object left empty would be a new field where the record has none.
    """
    name, *below = path
    if below and type(inner := delta.get(name)) is dict:
        take_out(inner, tuple(below))
        if inner:
            return
    delta.pop(name, None)


def _touched(record: Value, delta: Value, path: tuple[str, ...], *, nulls_missing: bool) -> tuple[str, ...] | None:
    """Where a delta meets a path: at its end, or on the way where another kind of value takes over; or None."""
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
