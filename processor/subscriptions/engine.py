"""The engine: takes the updates of one topic and delivers each to the subscriptions that it concerns.

An update is parsed once, its delta computed once, and a filter evaluated once, however many subscriptions share them.
Calls go one way::

    engine → connection → subscription → focus, conflation buffer → message builder
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.errors import SowstreamError
from processor.subscriptions.conflation_buffers import Deadlines
from processor.subscriptions.engine_connection import QUEUE_MAX, Connection
from processor.subscriptions.engine_subscription import Routes
from processor.subscriptions.focus import TopNFocus
from processor.subscriptions.message_queue import Sharing
from processor.subscriptions.records.current_records import CurrentRecords, wall_ms
from processor.subscriptions.records.grouping import GroupingBuild
from processor.subscriptions.records.order_build import OrderBuild
from processor.subscriptions.request.update import Update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from processor.record import Record
    from processor.subscriptions.engine_subscription import EngineSubscription, FilterGroup
    from processor.subscriptions.records.update_history import UpdateHistory
    from processor.subscriptions.request.subscribed_topic import RecordView, Topic
    from processor.subscriptions.request.subscription_spec import SubscriptionSpec
    from processor.subscriptions.request.turn import Build, Turn


class Engine:
    """The subscriptions to one topic, on one thread. It reads the wall clock once for each subscription, else none."""

    def __init__(
        self,
        topic: Topic,
        view: RecordView,
        wall_ms: Callable[[], int] = wall_ms,
        *,
        history: UpdateHistory | None = None,
        indexes: Iterable[tuple[str, ...]] = (),
        orders: Iterable[str] = (),
        turn: Turn | None = None,
    ) -> None:
        """Begin without subscribers.

        Args:
            topic: the topic.
            view: its records; `NoRecords` is enough where no subscription `needs_view`.
            wall_ms: the wall clock, milliseconds since the epoch, by which records expire.
            history: keeps the last updates, so that subscriptions can be resumed; None: none are kept.
            indexes: the declared indexes: lists of paths by whose values records are found without a scan.
            orders: the declared orders of all records: their windows find them ready.
            turn: the limit of work that can go on later, where others wait: `prepare` comes before each `subscribe`,
                and `Connection.begin_turn` before each `take`. None: there is no limit.

        Raises:
            FilterError: a declared order cannot be meant.
        """
        self.topic: Final = topic
        """The topic."""
        self._records = CurrentRecords(topic, view, wall_ms, indexes, orders, turn)
        self._memo_index = self._records.memo_index
        self._orders = self._records.orders
        self._routes: Routes[Connection] = Routes(turn)
        self._deadlines: Deadlines[EngineSubscription] = Deadlines()  # Of subscriptions that hold updates until a time.
        self._sharing: Final = Sharing()
        self._history: Final = history

    @property
    def positions(self) -> Mapping[int, int]:
        """The next offset of each partition; the same object until one of them moves."""
        return self._records.positions_now

    def connect(
        self,
        queue_max: int = QUEUE_MAX,
        *,
        queue_bytes: int | None = None,
        on_waiting: Callable[[], None] | None = None,
    ) -> Connection:
        """Connect a subscriber.

        Args:
            queue_max: how many messages may wait for it before updates are conflated.
            queue_bytes: how many bytes of records, encoded, may wait before that; None: no limit but `queue_max`.
            on_waiting: called when a message begins to wait; None: the subscriber asks.
        """
        return Connection(
            self._records,
            self._routes,
            self._deadlines,
            self._sharing,
            queue_max,
            queue_bytes=queue_bytes,
            on_waiting=on_waiting,
            history=self._history,
        )

    def load(self, partition: int, records: Sequence[Record]) -> None:
        """Take records of the past, in order, and deliver none of them. Must come before the first snapshot."""
        if records:
            self._records.store(partition, records)
            self.open(partition, records[-1].offset + 1)

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
            self.open(partition, records[0].offset)
        history = self._history
        if history is not None:
            history.mark(now_ms, current.positions_now)
        current.move(partition, records[-1].offset + 1)
        followers = self._routes, self._memo_index, self._orders, self._sharing.groupings
        if history is None and not any(followers):
            current.store(partition, records)
            return
        keyed = [(record.key, record) for record in records if record.key is not None]
        latest = current.begin_batch(partition, [key for key, _ in keyed], records)
        for key, record in keyed:
            old = latest[key]
            latest[key] = record if record.value is not None else None
            if old is not None or record.value is not None:
                if history is not None:
                    history.add(partition, key, old, record)
                self._deliver(Update(self.topic, partition, key, old, record), now_ms)
        current.end_batch()

    def advance(self) -> None:
        """Go on for one turn with an index that is being built, and with freeing what is not used any more."""
        self._memo_index.advance()
        if (turn := self._records.turn) is not None:
            turn.free()

    def punctuate(self, now_ms: int) -> None:
        """Send the held updates that are due by the clock of `take`."""
        for subscription in self._deadlines.pop(now_ms):
            self._routes.receiver_of(subscription).release_due(subscription, now_ms)

    @property
    def due_ms(self) -> int | None:
        """Time at which `punctuate` has updates to send; None: not before another update comes."""
        return self._deadlines.first_ms

    def open(self, partition: int, offset: int) -> None:
        """Begin to deliver a partition at an offset, where the view stands."""
        self._records.move(partition, offset)
        if self._history is not None:
            self._history.begin(partition, offset)
        for subscription, _ in self._routes:
            if subscription.grouping is None:  # Rows are not in partitions.
                subscription.focus.open_partition(partition, offset)

    def reach(self, partition: int, offset: int) -> None:
        """Move a partition on to an offset before which no record is left."""
        if offset > self._records.positions.get(partition, -1):
            self._records.move(partition, offset)

    def index(self) -> None:
        """Build the declared indexes and orders; call it when the records of the past are loaded."""
        self._memo_index.build_declared()
        self._orders.build_declared()

    def prepare(self, spec: SubscriptionSpec) -> Build | None:
        """Begin to build the order or the groups of a subscription in slices, so that `subscribe` finds them ready.

        Returns:
            The build, which is to be given to `release` after `subscribe`; None: there is nothing to build.

        Raises:
            ConfigurationError: it could not begin within a turn.
        """
        if spec.grouping is not None:
            return self._sharing.groupings.prepare(spec, self._records)
        return self._orders.prepare(spec)

    def release(self, build: Build) -> None:
        """Let go of a build of `prepare`."""
        if isinstance(build, OrderBuild):
            self._orders.release(build)
        elif isinstance(build, GroupingBuild):
            self._sharing.groupings.release(build)

    def find(self, key: bytes) -> Record | None:
        """The record of a key; None if there is none."""
        return self._records.find(key)

    def ended_with(self, key: bytes) -> int:
        """The version with which the record of a key ended last; -1: its end is not among the last ones."""
        return -1 if self._history is None else self._history.ended_with(key)

    def _deliver(self, update: Update, now_ms: int) -> None:
        """Deliver an update to every subscription that it concerns."""
        self._memo_index.changed(update)
        self._orders.changed(update)
        self._sharing.groupings.changed(update)
        if not self._routes:
            return
        try:
            groups = self._routes.candidates(update)
        except SowstreamError as error:  # It may concern any of them.
            for subscription, connection in list(self._routes):
                self._fail(subscription, connection, error)
            return
        unshared: list[Connection] = []
        for group in groups:
            try:
                was, now = update.matches(group.filter)
            except Exception as error:  # noqa: BLE001 - Whatever it is, the others go on.
                failure = self.topic.failure(error)
                for subscription, connection in list(group.members.items()):
                    self._fail(subscription, connection, failure)
                continue
            if not was and not now and not group.moves_by_itself:
                continue
            if group.windows:
                self._place(group, update, now=now)
            for subscription, connection in list(group.members.items()):
                if connection.deliver(subscription, update, now_ms, was=was, now=now):
                    unshared.append(connection)
        for connection in unshared:
            connection.share()

    def _place(self, group: FilterGroup[Connection], update: Update, *, now: bool) -> None:
        """Put an updated record at its place in the orders of a group's windows."""
        for subscription in list(group.windows.values()):
            focus = subscription.focus
            assert isinstance(focus, TopNFocus)
            try:
                focus.place(update, now=now)
            except Exception as error:  # noqa: BLE001 - As above.
                places, failure = focus.window.places, self.topic.failure(error)
                for member, connection in list(group.members.items()):
                    if member.window is not None and member.window.places is places:
                        self._fail(member, connection, failure)

    def _fail(self, subscription: EngineSubscription, connection: Connection, error: SowstreamError) -> None:
        """End a subscription with an error; the order of its window missed an update."""
        if subscription.window is not None:
            self._orders.fail(subscription.window.places, error)
        connection.fail(subscription, error)
