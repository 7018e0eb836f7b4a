"""The conflation buffer of a subscription with `conflation_key`: records with the same values wait as one group.

::

    record, group    B,X   A,X   A,Y              delete A
    newest of X       B     A     B
    newest of Y                   A               none is left
                      ╰─ interval of X ─╮ B is delivered
                                  ╰─ interval of Y ─╮ nothing is delivered
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from processor.filter import compile_expression

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from processor.record import Record, Value
    from processor.subscriptions.entitlement import Entitlement
    from processor.subscriptions.focus import FocusChange
    from processor.subscriptions.message import Message
    from processor.subscriptions.message_builder import MessageBuilder
    from processor.subscriptions.topic import ParsedRecord, Topic


class _Group:
    """The records in focus that have the same values."""

    __slots__ = ("delivered", "members", "name")

    def __init__(self, name: Hashable) -> None:
        self.name = name
        """The values, or the key of the one record that has none."""
        self.members: dict[bytes, int] = {}
        """The turn of each record's last update by its key, the newest last."""
        self.delivered = 0
        """The turn of the record that the subscriber has of the group; 0 if it has none."""

    @property
    def newest(self) -> tuple[bytes, int]:
        """The key and turn of the record that was updated last."""
        key = next(reversed(self.members))
        return key, self.members[key]


class GroupBuffer:
    """Folds the updates of groups. Of each group the newest record is delivered, if it is not the last one that was.

    It keeps the key and the group of every record in focus, waiting or not: if the newest record of a group is deleted,
    leaves the focus or moves to another group, the newest of those left takes its place.
    """

    def __init__(
        self,
        topic: Topic,
        builder: MessageBuilder,
        paths: tuple[str, ...],
        find: Callable[[bytes], Record | None],
        entitlement: Entitlement | None = None,
    ) -> None:
        """Begin without records.

        Args:
            topic: the topic.
            builder: builds the messages of the subscription.
            paths: the paths whose values make a group; a record that has none of them is a group by itself.
            find: returns the record of a key as it is now.
            entitlement: the fields that the subscriber may see: others make no group; None: all.
        """
        self._topic = topic
        self._builder = builder
        self._entitlement = entitlement
        self._values = [compile_expression(path).value for path in paths]
        self._find = find
        self.released_bytes = 0
        """The size of the record that was released last, encoded."""
        self._turns = 0
        self._groups: dict[Hashable, _Group] = {}
        self._group_of: dict[bytes, _Group] = {}
        self._waiting: OrderedDict[Hashable, int] = OrderedDict()  # When the first update of a group came.

    def __len__(self) -> int:
        """The number of groups that wait."""
        return len(self._waiting)

    @property
    def held(self) -> dict[bytes, Record | None]:
        """The newest records of the groups that wait; the subscriber may have other members of them."""
        waiting = [self._groups[name] for name in self._waiting if name in self._groups]
        return {group.newest[0]: None for group in waiting}

    @property
    def began_ms(self) -> int | None:
        """Arrival of the first update of the group that has waited longest; None if none waits."""
        return next(iter(self._waiting.values()), None)

    def load(self, records: Iterable[ParsedRecord]) -> Iterable[ParsedRecord]:
        """Take the records in focus at the beginning, none of which waits; returns the same records, in order."""
        kept, names = [], {}
        for record, value in records:
            assert record.key is not None
            kept.append(record)
            names[record.key] = self._name(record.key, value)
        for record in sorted(kept, key=_age):
            self._put(record.key, names[record.key])  # type: ignore[arg-type, index]
        for group in self._groups.values():
            group.delivered = group.newest[1]
        return self._topic.parsed(kept)

    def add(self, change: FocusChange, now_ms: int) -> None:
        """Fold an update."""
        update = change.update
        name = self._name(update.key, update.new_value) if change.now else None
        before = self._group_of.get(update.key)
        if before is not None and before.name != name and self._leave(update.key, before):
            self._wait(before.name, now_ms)
        if name is not None:
            self._put(update.key, name)
            self._wait(name, now_ms)

    def release(self) -> Message | None:
        """Release the group that has waited longest; returns its newest record, or None if that was sent before."""
        name, _ = self._waiting.popitem(last=False)
        group = self._groups.get(name)
        if group is None:
            return None
        key, turn = group.newest
        if turn == group.delivered:
            return None
        group.delivered = turn
        record = self._find(key)
        assert record is not None, "a record in focus is in the view"
        self.released_bytes = len(record.value or b"")
        return self._builder.full("publish", record, self._topic.value(record))

    def _name(self, key: bytes, record: Value) -> Hashable:
        visible = record if self._entitlement is None else self._entitlement.visible(record)
        values = [value(visible) for value in self._values]
        return repr(values) if any(value is not None for value in values) else key

    def _wait(self, name: Hashable, now_ms: int) -> None:
        """Begin the interval of a group, unless it runs."""
        self._waiting.setdefault(name, now_ms)

    def _put(self, key: bytes, name: Hashable) -> None:
        """Make a record the newest of its group."""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group(name)
        group.members.pop(key, None)
        self._turns += 1
        group.members[key] = self._turns
        self._group_of[key] = group

    def _leave(self, key: bytes, group: _Group) -> bool:
        """Take a record out of its group; whether another one is the newest now."""
        del self._group_of[key]
        was_newest = group.newest[0] == key
        del group.members[key]
        if not group.members:
            del self._groups[group.name]
        return was_newest and bool(group.members)


def _age(record: Record) -> tuple[int, int, bytes]:
    """The sort key of records by age, the oldest first; offsets count within a partition only."""
    return record.timestamp_ms, record.offset, record.key or b""
