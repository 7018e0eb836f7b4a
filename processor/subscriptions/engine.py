"""The engine: takes the updates of one topic and delivers each to the subscriptions that it concerns.

An update is parsed once, its delta computed once, and a filter evaluated once, however many subscriptions share them.
Calls go one way::

    engine → connection → subscription → focus, conflation buffer → message builder
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.errors import SowstreamError
from processor.subscriptions.conflation.deadlines import Deadlines
from processor.subscriptions.connection import QUEUE_MAX, Connection
from processor.subscriptions.current_records import CurrentRecords, wall_ms
from processor.subscriptions.routes import Routes
from processor.subscriptions.share import Sharing
from processor.subscriptions.update import Update

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from processor.record import Record
    from processor.subscriptions.record_view import RecordView
    from processor.subscriptions.subscription import EngineSubscription
    from processor.subscriptions.topic import Topic


class Engine:
    """The subscriptions to one topic, on one thread. It reads the wall clock once for each subscription, else none."""

    def __init__(self, topic: Topic, view: RecordView, wall_ms: Callable[[], int] = wall_ms) -> None:
        """Begin without subscribers.

        Args:
            topic: the topic.
            view: its records; `NoRecords` is enough where no subscription `needs_view`.
            wall_ms: the wall clock, milliseconds since the epoch, by which records expire.
        """
        self.topic: Final = topic
        """The topic."""
        self._records = CurrentRecords(topic, view, wall_ms)
        self._memo_index = self._records.memo_index
        self._routes: Routes[Connection] = Routes()
        self._deadlines: Deadlines[EngineSubscription] = Deadlines()  # Of subscriptions that hold updates until a time.
        self._sharing: Final = Sharing()

    def connect(self, queue_max: int = QUEUE_MAX) -> Connection:
        """Connect a subscriber.

        Args:
            queue_max: how many messages may wait for it before updates are conflated.
        """
        return Connection(self._records, self._routes, self._deadlines, self._sharing, queue_max)

    def load(self, partition: int, records: Sequence[Record]) -> None:
        """Take records of the past, in order, and deliver none of them. Must come before the first snapshot."""
        if records:
            self._records.store(partition, records)
            self._open(partition, records[-1].offset + 1)

    def take(self, partition: int, records: Sequence[Record], now_ms: int) -> None:
        """Take the next committed SOW records of a partition, in order, and deliver them.

        Args:
            partition: the number.
            records: the records; tombstones are deletes.
            now_ms: milliseconds, of any clock that is never set back: held updates would wait for it.
        """
        if not records:
            return
        current = self._records
        if partition not in current.positions:
            self._open(partition, records[0].offset)
        current.positions[partition] = records[-1].offset + 1
        if not self._routes:
            current.store(partition, records)
            return
        keyed = [(record.key, record) for record in records if record.key is not None]
        latest = current.begin_batch(partition, [key for key, _ in keyed], records)
        for key, record in keyed:
            old = latest[key]
            latest[key] = record if record.value is not None else None
            if old is not None or record.value is not None:
                self._deliver(Update(self.topic, partition, key, old, record), now_ms)
        current.end_batch()

    def punctuate(self, now_ms: int) -> None:
        """Send the held updates that are due by the clock of `take`."""
        for subscription in self._deadlines.pop(now_ms):
            self._routes.receiver_of(subscription).release_due(subscription, now_ms)

    @property
    def due_ms(self) -> int | None:
        """When `punctuate` has updates to send; None: not before another update comes."""
        return self._deadlines.first_ms

    def _open(self, partition: int, offset: int) -> None:
        """Begin to deliver a partition at an offset."""
        self._records.positions[partition] = offset
        for subscription, _ in self._routes:
            subscription.focus.open_partition(partition, offset)

    def _deliver(self, update: Update, now_ms: int) -> None:
        """Deliver an update to every subscription that it concerns."""
        self._memo_index.changed(update)
        try:
            groups = self._routes.candidates(update)
        except SowstreamError as error:  # It may concern any of them.
            for subscription, connection in list(self._routes):
                connection.fail(subscription, error)
            return
        unshared: list[Connection] = []
        for group in groups:
            try:
                was, now = update.matches(group.filter)
            except SowstreamError as error:
                for subscription, connection in list(group.members.items()):
                    connection.fail(subscription, error)
                continue
            if not was and not now and not group.moves_by_itself:
                continue
            for subscription, connection in list(group.members.items()):
                if connection.deliver(subscription, update, now_ms, was=was, now=now):
                    unshared.append(connection)
        for connection in unshared:
            connection.share()
