"""The stamps of a sequence group: the moment from which each of its fields has its value or its absence.

The *moment* of an update is the value of the group's field `by`, and the moment of a record that of its newest update.
A stamp is kept where it is not the record's moment: of a field that newer updates did not carry, and of one that no
update ever set. A record all of whose fields have its own moment has no stamps, and pays nothing.

Stamps are text, JSON, in header `group_stamps` of a SOW record and in its state::

    {"/ts": {"w": null, "d": 100, "m": {"/amount": 150, "/quote": {"w": null, "m": {"ask": 150}}}}}

=====  ===============================================================================================================
`at`   the record's moment, where its own field `by` does not say it: `by` was removed
`w`    since when the object is as it is: the stamp of each member that is neither there nor in `m`
`d`    the stamp of each member that is there and not in `m`
`o`    the last update that merged into it, where no member says it
`m`    the members with another stamp; at the top the group's fields, by pointer
=====  ===============================================================================================================

A missing `w` or `d` is the record's moment, and so is `true`; null is before every update. A stamp alone is that of an
object and of all below it. An integer is itself, every other moment a text with its kind in front: see `_text_of`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Final, NamedTuple, TypeAlias

from processor.errors import RecordRejected
from processor.record import Value
from processor.values.instant import Instant, instant_of
from processor.values.kinds import MISSING, check_order, compare, exact, is_number

STAMPS_BYTES_MAX: Final = 48 * 1024
"""Longest stamps of a record, all groups together."""


class OtherMoment(NamedTuple):
    """The moment of a value that is no number, no text and no instant."""

    kind: str
    """The name of its type: only values of one type have an order."""
    order: str
    """A text that sorts as the values do."""


Moment: TypeAlias = int | Decimal | str | Instant | OtherMoment | None
"""The value of a field `by`; None is before every value."""

Tree: TypeAlias = Value
"""Stamps as parsed JSON."""


def moment_of(value: Value) -> Moment:
    """The moment that a value of a field `by` names; None for a missing one and for null.

    Raises:
        RecordRejected: `schema_mismatch`: values of its kind have no order.
    """
    if value is MISSING or value is None:
        return None
    kind = type(value)
    if kind is int:
        return int(value)
    check_order(value)
    if is_number(value):
        return int(value) if isinstance(value, int) else exact(value)
    if isinstance(value, str):
        return str(value)
    if (instant := instant_of(value)) is not None:
        return instant
    return OtherMoment(kind.__name__, _sortable(value))


def _sortable(value: Value) -> str:
    """A text that sorts as the values of its type do."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, date | time | datetime):
        return value.isoformat()
    kind = type(value).__name__
    if kind in ("UUID", "ObjectId"):
        return str(value)
    if kind == "Timestamp":
        return f"{value.time:010d}.{value.inc:010d}"
    if kind == "ExtType":  # MessagePack's: a code from -128 to 127, then bytes.
        return f"{value.code + 128:03d}.{value.data.hex()}"
    if kind in ("MinKey", "MaxKey"):  # All values of one of them are equal.
        return ""
    raise RecordRejected("schema_mismatch", f"values of type {kind} have no order that is kept with a record")


def is_older(one: Moment, other: Moment) -> bool:
    """Return whether a moment is before another one.

    Raises:
        RecordRejected: `schema_mismatch`: the two have no order.
    """
    if other is None or one is other:
        return False
    if one is None:
        return True
    if isinstance(one, OtherMoment) and isinstance(other, OtherMoment) and one.kind == other.kind:
        return one.order < other.order
    if isinstance(one, OtherMoment) or isinstance(other, OtherMoment):
        raise RecordRejected("schema_mismatch", f"{_shown(one)} and {_shown(other)} have no order")
    return compare(one, other) < 0


def _shown(moment: Moment) -> str:
    return f"a value of type {moment.kind}" if isinstance(moment, OtherMoment) else repr(moment)[:100]


class Stamp:
    """The stamp of one field, and of all below it where it is an object."""

    __slots__ = ("members", "merged", "rest", "whole")

    def __init__(self, moment: Moment) -> None:
        """Create the stamp of a field that has been as it is since one moment."""
        self.whole: Moment = moment
        """The last update that replaced or removed the field; also the stamp of members that are missing."""
        self.rest: Moment = moment
        """The stamp of members that are there and not in `members`."""
        self.merged: Moment = None
        """The last update that merged into the field."""
        self.members: dict[str, Stamp] = {}

    def member(self, name: str, *, is_there: bool) -> Stamp:
        """The stamp of a member, which may be changed."""
        stamp = self.members.get(name)
        if stamp is None:
            stamp = self.members[name] = Stamp(self.rest if is_there else self.whole)
        return stamp

    def begin(self, moment: Moment) -> None:
        """Note that an update replaced the field; members that a newer one removed keep their stamps."""
        self.whole = self.rest = moment

    def is_below_newer(self, value: Value, moment: Moment) -> bool:
        """Return whether an object has a member, or was merged into, after a moment."""
        if is_older(moment, self.merged):
            return True
        if type(value) is not dict:
            return False
        members = self.members
        for name, inner in value.items():
            stamp = members.get(name)
            if stamp is None:
                if is_older(moment, self.rest):
                    return True
            elif is_older(moment, stamp.whole) or stamp.is_below_newer(inner, moment):
                return True
        return False

    def tree(self, value: Value, now: Moment) -> Tree:
        """The stamps as JSON: the shortest form.

        Args:
            value: the value of the field in the record, MISSING where it has none.
            now: the moment of the record.
        """
        there = value if type(value) is dict else {}
        if not self.members and not is_older(self.whole, self.merged):
            return _text_of(self.whole, now) if self.whole == self.rest or not there else self._tree(there, {}, now)
        trees = {name: stamp.tree(there.get(name, MISSING), now) for name, stamp in self.members.items()}
        return self._tree(there, trees, now)

    def _tree(self, there: Mapping[str, Value], trees: dict[str, Tree], now: Moment) -> Tree:
        whole, rest = _text_of(self.whole, now), _text_of(self.rest, now)
        own = {name: trees.get(name, rest) for name in there}
        common = most_common(own.values()) if own else whole
        members = {name: tree for name, tree in own.items() if not is_same(tree, common)}
        # A member that was removed with its object, or before, is as missing as any.
        members |= {name: tree for name, tree in trees.items() if name not in there and self._is_after(tree, now)}
        is_merged = is_older(self.whole, self.merged) and not self._has_since(there)
        if not members and not is_merged and is_same(common, whole):
            return whole
        tree = {} if whole is True else {"w": whole}
        if there and common is not True:
            tree["d"] = common
        if is_merged:
            tree["o"] = _text_of(self.merged, now)
        if members:
            tree["m"] = members
        return tree

    def _is_after(self, tree: Tree, now: Moment) -> bool:
        """Return whether a missing member was removed after its object began."""
        return type(tree) is dict or is_older(self.whole, _moment_of_text(tree, now))

    def _has_since(self, there: Mapping[str, Value]) -> bool:
        """Return whether a member is as new as the last merge into its object."""
        stamps = [self.members.get(name) for name in there]
        return any(not is_older(self.rest if stamp is None else stamp.whole, self.merged) for stamp in stamps)


def stamp_of(tree: Tree, now: Moment) -> Stamp:
    """The stamps of a field in their JSON form.

    Raises:
        ValueError: it is none.
    """
    if type(tree) is not dict:
        return Stamp(_moment_of_text(tree, now))
    stamp, members = Stamp(now), tree.get("m", {})
    if type(members) is not dict:
        raise ValueError(f"{members!r:.100} is no object of stamps")
    if "w" in tree:
        stamp.whole = _moment_of_text(tree["w"], now)
    if "d" in tree:
        stamp.rest = _moment_of_text(tree["d"], now)
    if "o" in tree:
        stamp.merged = _moment_of_text(tree["o"], now)
    stamp.members = {name: stamp_of(member, now) for name, member in members.items()}
    return stamp


def is_same(one: Tree, other: Tree) -> bool:
    """Return whether two stamps are the same; for Python, 1 and true are."""
    return type(one) is type(other) and bool(one == other)


def most_common(trees: Iterable[Tree]) -> Tree:
    """The stamp that most of some fields have, named once for all of them; true where none has a stamp of its own."""
    stamps = [tree for tree in trees if type(tree) is not dict]
    if not stamps or all(is_same(stamp, stamps[0]) for stamp in stamps):  # As mostly.
        return stamps[0] if stamps else True
    return Counter((type(stamp), stamp) for stamp in stamps).most_common(1)[0][0][1]


def own_moment(tree: Tree) -> Moment:
    """The moment of a record as its stamps say it; None where its field `by` does.

    Raises:
        ValueError: it is none.
    """
    return _moment_of_text(tree["at"], None) if type(tree) is dict and "at" in tree else None


def with_own_moment(tree: Tree, now: Moment) -> Tree:
    """The stamps of a record whose field `by` does not say its moment."""
    return {"at": _text_of(now, MISSING), **tree}


def _text_of(moment: Moment, now: object) -> Tree:
    """A moment in JSON: `n` and a number, `t` and a text, `i` and an instant, `o` and another kind and its value."""
    if moment is None:
        return None if now is not None else True
    if moment == now and type(moment) is type(now):
        return True
    if isinstance(moment, int):
        return moment
    if isinstance(moment, str):
        return f"t{moment}"
    if isinstance(moment, Instant):
        return f"i{int(moment.is_dated)}/{moment.seconds}/{moment.fraction}"
    if isinstance(moment, OtherMoment):
        return f"o{moment.kind}/{moment.order}"
    return f"n{moment}"


def _moment_of_text(text: Tree, now: Moment) -> Moment:
    if text is True:
        return now
    if text is None or type(text) is int:
        return text
    if type(text) is not str:
        raise ValueError(f"{text!r:.100} is no stamp")
    kind, rest = text[:1], text[1:]
    if kind == "t":
        return rest
    if kind == "n":
        try:
            return Decimal(rest)
        except ArithmeticError:
            raise ValueError(f"{text!r:.100} is no stamp") from None
    first, _, last = rest.partition("/")
    if kind == "i":
        seconds, _, fraction = last.partition("/")
        return Instant(first == "1", int(seconds), fraction)
    if kind != "o":
        raise ValueError(f"{text!r:.100} is no stamp")
    return OtherMoment(first, last)
