"""The engine: takes the updates of one topic, finds whom each concerns, and lets it be told.

An update is parsed once, its delta computed once, and a filter evaluated once, however many subscriptions share them.
"""

from __future__ import annotations

import time
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from processor.errors import SowstreamError
from processor.filter.record_metadata import NO_FACTS
from processor.subscriptions.conflation.deadlines import Due
from processor.subscriptions.connection import QUEUE_MAX, Connection
from processor.subscriptions.focus import Matching, Remembered, Windowed
from processor.subscriptions.indexes.filter_index import FilterIndex
from processor.subscriptions.indexes.memo_index import Lookup
from processor.subscriptions.share import Sharing
from processor.subscriptions.top_n import Window
from processor.subscriptions.update import Change
from processor.wire.metadata import is_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from processor.filter import Facts, Filter
    from processor.record import Record
    from processor.subscriptions.focus import Focus, Found
    from processor.subscriptions.message_builder import Topic
    from processor.subscriptions.record_view import View
    from processor.subscriptions.subscription import Request, Subscription


_ABSENT: Final = object()


def wall_ms() -> int:
    """The wall clock, milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class _Group:
    """The subscriptions with one filter."""

    def __init__(self, selection: Filter | None) -> None:
        self.filter = selection
        self.moves_by_itself = selection is not None and selection.moves_by_itself
        self.subscriptions: dict[Subscription, None] = {}


class Engine:
    """The subscriptions to one topic. One thread; of clocks it reads the wall clock alone, once for a subscription."""

    def __init__(self, topic: Topic, view: View, wall_ms: Callable[[], int] = wall_ms) -> None:
        """Make one without subscribers.

        Args:
            topic: what its records are.
            view: what is known of them; `NoView` is enough where no request `needs_view`.
            wall_ms: the wall clock, milliseconds since the epoch, which says whether a record's time is over.
        """
        self.topic: Final = topic
        """What its records are."""
        self.wall_ms: Final = wall_ms
        """The wall clock."""
        self.sharing: Final = Sharing()
        """Makes the messages that are for several subscriptions."""
        self._view = view
        self._positions: dict[int, int] = {}
        self._groups: dict[str | None, _Group] = {}
        self._index: FilterIndex[_Group] = FilterIndex()
        self._lookup = Lookup(topic, view)
        self._due: Due[Subscription] = Due()  # Those that hold updates back until a time.
        self._latest: dict[bytes, Record | None] = {}  # Of the keys of the batch in hand: the state of this moment.
        self._telling: list[Connection] = []
        self._now_ms = 0

    def connect(self, queue_max: int = QUEUE_MAX) -> Connection:
        """A new subscriber.

        Args:
            queue_max: how many messages may wait for it before updates are folded.
        """
        return Connection(self, queue_max)

    def load(self, partition: int, records: Sequence[Record]) -> None:
        """Take records of the past, in order: nobody is told of them. To be done before anybody asks for a snapshot."""
        if records:
            self._lookup.clear()
            self._view.put(partition, records)
            self._open(partition, records[-1].offset + 1)

    def take(self, partition: int, records: Sequence[Record], now_ms: int) -> None:
        """Take the next committed SOW records of a partition, in order, and tell of them.

        Args:
            partition: the number.
            records: what came; tombstones are deletes.
            now_ms: milliseconds, of any clock that is not set back: what is held back would wait for it.
        """
        if not records:
            return
        if partition not in self._positions:
            self._open(partition, records[0].offset)
        self._positions[partition] = records[-1].offset + 1
        if not self._groups:
            self._lookup.clear()  # With nobody to tell, updates are not looked at.
            self._view.put(partition, records)
            return
        self._now_ms = now_ms
        keyed = [record for record in records if record.key is not None]
        latest = self._latest = dict(self._view.get_many([record.key for record in keyed], partition))  # type: ignore[misc]
        self._view.put(partition, records)
        for record in keyed:
            key = record.key
            assert key is not None
            old = latest[key]
            latest[key] = record if record.value is not None else None
            if old is not None or record.value is not None:
                self._tell(Change(self.topic, partition, key, old, record))
        self._latest = {}

    def punctuate(self, now_ms: int) -> None:
        """Tell what was held back and is due by the same clock."""
        for subscription in self._due.pop(now_ms):
            subscription.release_due(now_ms)

    @property
    def due_ms(self) -> int | None:
        """When `punctuate` has something to do next; None: not before an update comes."""
        return self._due.first_ms

    def focus(self, request: Request, over_ms: int | None) -> Focus:
        """How to know what the subscriber has of a request.

        Args:
            request: what is wanted.
            over_ms: the time that records have at least, if those whose time is over are left out of its snapshot.
        """
        if request.options.is_window:
            assert request.order is not None
            window = Window(request.options.top_n, request.options.skip_n)
            return Windowed(self.topic, request.order, window, self.find)
        if request.filter is not None and request.filter.moves_by_itself:
            return Remembered(self.topic)
        return Matching(self._positions, has_snapshot=request.snapshot, over_ms=over_ms)

    def found(self, request: Request, over_ms: int | None) -> Iterable[Found]:
        """The records of now that match a request, in its order where it has one.

        Args:
            request: what is wanted.
            over_ms: records whose time was over then are left out; None: none is.
        """
        if not request.looks_at_all:
            return ()
        records = self._lookup.records(request.filter)
        if records is None:
            records = self._view.scan()
        if over_ms is not None:
            records = (record for record in records if not is_over(record, over_ms))
        found = self._matching(request.filter, records)
        order = request.order
        if order is None or request.options.is_window:  # A window orders them itself.
            return found
        facts_of = self.topic.facts if order.uses_facts else _no_facts
        places = [(order.key(record.key or b"", value, facts_of(record)), record) for record, value in found]
        places.sort(key=itemgetter(0))
        return self.topic.parsed([record for _, record in places])

    def add(self, subscription: Subscription) -> None:
        """Tell a subscription from now on."""
        selection = subscription.filter
        text = None if selection is None else selection.text
        group = self._groups.get(text)
        if group is None:
            group = self._groups[text] = _Group(selection)
            self._index.add(selection, group)
        group.subscriptions[subscription] = None

    def remove(self, subscription: Subscription) -> None:
        """Tell it no more."""
        text = None if subscription.filter is None else subscription.filter.text
        group = self._groups.get(text)
        if group is None or group.subscriptions.pop(subscription, _ABSENT) is _ABSENT:
            return  # It ended with its snapshot.
        self._due.discard(subscription)
        if not group.subscriptions:
            del self._groups[text]
            self._index.remove(group.filter, group)

    def telling(self, connection: Connection) -> None:
        """Hear that the update in hand tells a connection something."""
        self._telling.append(connection)

    def wake(self, subscription: Subscription, due_ms: int) -> None:
        """Let `punctuate` come to a subscription when its time has come."""
        if subscription not in self._due:
            self._due.put(subscription, due_ms)

    def _open(self, partition: int, offset: int) -> None:
        """Begin to tell of a partition at an offset."""
        self._positions[partition] = offset
        for subscription in self._subscriptions():
            subscription.opened(partition, offset)

    def _tell(self, change: Change) -> None:
        """Tell everybody whom an update concerns."""
        self._lookup.changed(change)
        try:
            groups = self._concerned(change)
        except SowstreamError as error:  # Nobody can know whom it concerns.
            for subscription in list(self._subscriptions()):
                subscription.fail(error)
            return
        for group in groups:
            try:
                was, now = change.focus(group.filter)
            except SowstreamError as error:
                for subscription in list(group.subscriptions):
                    subscription.fail(error)
                continue
            if not was and not now and not group.moves_by_itself:
                continue
            for subscription in list(group.subscriptions):
                try:
                    subscription.changed(change, self._now_ms, was=was, now=now)
                except SowstreamError as error:
                    subscription.fail(error)
        if self._telling:
            for connection in self._telling:
                connection.told()
            self._telling.clear()

    def _subscriptions(self) -> Iterator[Subscription]:
        return (subscription for group in self._groups.values() for subscription in group.subscriptions)

    def _concerned(self, change: Change) -> Iterable[_Group]:
        """The groups whose filter may match the record, before or after."""
        new_value = change.new_value  # Also where nobody asks it: one that cannot be parsed is to be told to all.
        if not self._index.asks_records:
            return list(self._groups.values())
        candidates = self._index.candidates
        after = list(candidates(new_value))
        if change.old is None:
            return after
        before = list(candidates(change.old_value))
        return after if before == after else list(dict.fromkeys(chain(before, after)))

    def _matching(self, selection: Filter | None, records: Iterable[Record]) -> Iterator[Found]:
        topic = self.topic
        parsed = topic.value
        for record in records:
            value = parsed(record)
            if selection is None or selection.matches(value, topic.facts(record) if selection.uses_facts else NO_FACTS):
                yield record, value

    def find(self, key: bytes) -> Record | None:
        """The record of a key as it is at this moment of the batch in hand."""
        if key in self._latest:
            return self._latest[key]
        return self._view.get_many([key])[key]


def _no_facts(_record: Record) -> Facts:
    """What is known of a record where nobody asks."""
    return NO_FACTS
