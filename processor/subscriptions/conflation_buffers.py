"""The conflation buffers of subscriptions: for each key, the record that the subscriber has and the update to send.

With `conflation_key`, records with the same values wait as one group::

    record, group    B,X   A,X   A,Y              delete A
    newest of X       B     A     B
    newest of Y                   A               none is left
                      ╰─ interval of X ─╮ B is delivered
                                  ╰─ interval of Y ─╮ nothing is delivered
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Generic, TypeVar

from processor.filter import compile_expression
from processor.filter.aggregate import plain
from processor.merge import add_touched
from processor.values.key_text import key_text
from processor.wire.record_headers import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from processor.merge import Touched
    from processor.record import Record, Value
    from processor.subscriptions.focus import FocusChange
    from processor.subscriptions.request.entitlement import Entitlement
    from processor.subscriptions.request.subscribed_topic import ParsedRecord, Topic
    from processor.subscriptions.request.subscriber_message import Message, MessageBuilder


Item = TypeVar("Item", bound=Hashable)
"""The item that a deadline is for."""


class Deadlines(Generic[Item]):
    """Items with a deadline each. A change takes O(log n); discarded items leave the heap when their turn comes."""

    def __init__(self) -> None:
        self._times_ms: dict[Item, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, Item]] = []
        self._turns = 0

    def __contains__(self, item: Item) -> bool:
        """Return whether an item has a deadline."""
        return item in self._times_ms

    def __len__(self) -> int:
        """The number of items with a deadline."""
        return len(self._times_ms)

    def put(self, item: Item, time_ms: int) -> None:
        """Give an item its deadline; it has none yet."""
        assert item not in self._times_ms
        self._turns += 1
        self._times_ms[item] = (time_ms, self._turns)
        heappush(self._heap, (time_ms, self._turns, item))

    def discard(self, item: Item) -> None:
        """Remove the deadline of an item, if it has one."""
        self._times_ms.pop(item, None)
        if len(self._heap) > 2 * len(self._times_ms) + 100:  # Otherwise discarded items would stay.
            self._heap = [
                (*time, left) for left, time in self._times_ms.items()
            ]  # In the order of turns, not of times.
            self._heap.sort(key=lambda entry: entry[:2])

    @property
    def first_ms(self) -> int | None:
        """The earliest deadline; None if there is none."""
        heap = self._heap
        while heap and self._times_ms.get(heap[0][2]) != heap[0][:2]:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop(self, now_ms: int) -> list[Item]:
        """Remove and return the items that are due, earliest first."""
        items = []
        while (first_ms := self.first_ms) is not None and first_ms <= now_ms:
            item = heappop(self._heap)[2]
            del self._times_ms[item]
            items.append(item)
        return items


class DeltaBases:
    """The base versions of records whose last updates were left out, as nothing changed for the subscriber."""

    def __init__(self) -> None:
        self._versions: dict[bytes, int | None] = {}

    def add_left_out(self, key: bytes, base: int | None) -> None:
        """Note that an update was not sent; `base` is the version of the record before it."""
        self._versions.setdefault(key, base)

    def take(self, key: bytes, base: int | None) -> int | None:
        """The version that the subscriber has, by default `base`, the one before the update that is sent now."""
        return self._versions.pop(key, base) if self._versions else base


class PendingUpdate:
    """The updates of one key, folded into one."""

    __slots__ = ("base", "base_version", "began_ms", "last", "matches", "touched", "was_received")

    def __init__(self, base: Record | None, base_version: int | None, *, was_received: bool, began_ms: int) -> None:
        self.base = base
        """The record that the subscriber has; None if it has none."""
        self.base_version = base_version
        """The version of it that was sent last."""
        self.was_received = was_received
        """True if the subscriber received that record, rather than being supposed to have it."""
        self.began_ms = began_ms
        """Arrival of the first of the updates, by the engine's clock."""
        self.last: Record
        """The last of the updates."""
        self.matches = False
        """True if the record is in focus after it."""
        self.touched: Touched = {}
        """The paths at which one of the updates differs from the record that the subscriber has."""


class ConflationBuffer:
    """Folds the updates of each key; keys that have waited longest are released first."""

    def __init__(
        self,
        topic: Topic,
        builder: MessageBuilder,
        bases: DeltaBases,
        *,
        sends_oof: bool,
        not_sent: Callable[[bytes], None],
    ) -> None:
        """Begin without updates.

        Args:
            topic: the topic.
            builder: builds the messages of the subscription.
            bases: the base versions of the subscription.
            sends_oof: whether the subscription has the option `oof`.
            not_sent: called with the key of a record in focus whose held update is not sent after all.
        """
        self._topic = topic
        self._builder = builder
        self._bases = bases
        self._sends_oof = sends_oof
        self._not_sent = not_sent
        self.released_bytes = 0
        """The size of the record that was released last, encoded."""
        self._held: OrderedDict[bytes, PendingUpdate] = OrderedDict()

    def __len__(self) -> int:
        """The number of keys that wait."""
        return len(self._held)

    @property
    def held(self) -> dict[bytes, Record | None]:
        """The keys that wait, each with the record that the subscriber has; None: it has none."""
        return {key: pending.base if pending.was_received else None for key, pending in self._held.items()}

    @property
    def began_ms(self) -> int | None:
        """Arrival of the first update of the key that has waited longest; None if no key waits."""
        # It is asked with each frame, and to iterate over an empty `OrderedDict` takes long.
        return next(iter(self._held.values())).began_ms if self._held else None

    def load(self, records: Iterable[ParsedRecord]) -> Iterable[ParsedRecord]:
        """Take the records in focus at the beginning; none of them waits."""
        return records

    def add(self, change: FocusChange, now_ms: int) -> None:
        """Fold an update."""
        update, was, now, received = change
        held = self._held.get(update.key)
        if held is None:
            base = update.old if was else None
            base_version = self._bases.take(update.key, None if base is None else version_of(base.headers))
            held = self._held[update.key] = PendingUpdate(base, base_version, was_received=received, began_ms=now_ms)
        held.last, held.matches = update.new, now
        if held.base is not None and self._builder.builds_deltas:
            add_touched(held.touched, update.touched_since(held.base, self._builder.select, now=now))

    def release(self) -> Message | None:
        """Release the key that has waited longest; returns its message, or None if there is nothing to send."""
        key, held = self._held.popitem(last=False)
        last, base = held.last, held.base
        self.released_bytes = len(last.value or b"")
        if held.matches:
            value = self._topic.value(last)
            if base is None or not self._builder.builds_deltas:
                return self._builder.full("publish", last, value)
            message = self._builder.delta(last, value, self._topic.value(base), held.base_version, held.touched)
            if message is None:
                self._bases.add_left_out(key, held.base_version)
                if self._sends_oof and not held.was_received:
                    self._not_sent(key)
            return message
        if base is None or not self._sends_oof or not held.was_received:
            return None
        value = None if last.value is None else self._topic.value(last)
        return self._builder.out_of_focus(last, value, self._topic.value(base), is_conflated=True)


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
        loaded, names = [], {}
        for record, value in records:
            assert record.key is not None
            loaded.append(record)
            names[record.key] = self._name(record.key, value)
        for record in sorted(loaded, key=_age):
            self._put(record.key, names[record.key])  # type: ignore[arg-type, index]
        for group in self._groups.values():
            group.delivered = group.newest[1]
        return self._topic.parsed(loaded)

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
        values = [plain(value(visible)) for value in self._values]
        return tuple(map(key_text, values)) if any(value is not None for value in values) else key

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
