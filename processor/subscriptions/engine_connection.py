"""One subscriber: the messages of all its subscriptions, in order, until it takes them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from processor.errors import ConfigurationError
from processor.subscriptions.engine_subscription import EngineSubscription, too_slow
from processor.subscriptions.focus import focus_of
from processor.subscriptions.message_queue import Addressed, MessageQueue, QueuedEnd, QueuedSnapshot
from processor.subscriptions.records.order_build import OrderBuild
from processor.subscriptions.replace import FocusNow, replaced, withdrawn
from processor.subscriptions.request.subscriber_message import PAUSE_MESSAGE, Message
from processor.subscriptions.resume import Bookmark, bookmark_of, refusal, resumed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from processor.subscriptions.conflation_buffers import Deadlines
    from processor.subscriptions.engine_subscription import Routes
    from processor.subscriptions.message_queue import Sharing
    from processor.subscriptions.records.current_records import CurrentRecords
    from processor.subscriptions.records.grouping import Grouping
    from processor.subscriptions.records.update_history import UpdateHistory
    from processor.subscriptions.request.subscribed_topic import ParsedRecord
    from processor.subscriptions.request.subscription_spec import SubscriptionSpec
    from processor.subscriptions.request.turn import Build
    from processor.subscriptions.request.update import Update

QUEUE_MAX: Final = 10_000
"""Messages that wait for a subscriber; further updates are conflated, per key."""


class Connection:
    """One subscriber, made by `Engine.connect`."""

    def __init__(
        self,
        records: CurrentRecords,
        routes: Routes[Connection],
        deadlines: Deadlines[EngineSubscription],
        sharing: Sharing,
        queue_max: int,
        *,
        queue_bytes: int | None = None,
        on_waiting: Callable[[], None] | None = None,
        history: UpdateHistory | None = None,
    ) -> None:
        """Begin without a subscription: with the parts of an engine, and the limits of `Engine.connect`."""
        self.queue_max: Final = queue_max
        """With so many messages waiting, updates are conflated."""
        self.ended_id: str | None = None
        """The subscription that ended with the error that `take` raised last."""
        self._history = history
        self._records = records
        self._routes = routes
        self._deadlines = deadlines
        self._sharing = sharing
        self._subscriptions: dict[str, EngineSubscription] = {}
        self._numbered = 0
        self._sends_ids = False
        self._unnamed: EngineSubscription | None = None  # The one that messages without `sub_ids` are for.
        self._queue = MessageQueue(queue_max, queue_bytes, on_waiting)
        self._unshared: list[Addressed] = []  # The messages of the update in hand, by subscription.
        self._holding: dict[EngineSubscription, None] = {}  # Those that hold updates until there is room.
        self._late: dict[EngineSubscription, None] = {}  # Those whose time has come, for which there is no room.

    @property
    def is_full(self) -> bool:
        """True if so many messages wait that updates are conflated."""
        return self._queue.is_full

    @property
    def waiting_bytes(self) -> int:
        """The size of the records whose messages wait, encoded."""
        return self._queue.waiting_bytes

    @property
    def has_waiting(self) -> bool:
        """True if `take` would return a message or raise."""
        if self._queue.entries:
            return True
        return bool(self._holding) and any(subscription.waits_for_room for subscription in self._holding)

    @property
    def held_since_ms(self) -> int | None:
        """Begin of the oldest conflation interval; None if none runs, or there is no room to send at its end."""
        if self.is_full:
            return None
        began = [subscription.began_ms for subscription in self._subscriptions.values()]
        return min((began_ms for began_ms in began if began_ms is not None), default=None)

    @property
    def is_catching_up(self) -> bool:
        """True if the next messages are of a snapshot, or of the changes since a bookmark: to take them is work."""
        return self._queue.begins_with_snapshot

    def begin_turn(self) -> None:
        """Begin a turn, within which `take` reads snapshots."""
        if self._records.turn is not None:
            self._records.turn.begin()

    def subscribe(
        self, spec: SubscriptionSpec, sub_id: str | None = None, *, resumes: bool = False, build: Build | None = None
    ) -> EngineSubscription:
        """Begin a subscription with the records of now.

        Args:
            spec: its filter and options.
            sub_id: its name on this connection; None: a number. Messages carry names as soon as one was given, or there
                are two subscriptions.
            resumes: whether it resumes from a state that was kept, where records stay until they are deleted. Otherwise
                its snapshot leaves out expired records.
            build: the build of `Engine.prepare`, which is ready; None: there was nothing to build.

        Raises:
            ConfigurationError: the name is taken.
            SowstreamError: a record cannot be parsed, or a third party's function raised.
        """
        if sub_id is not None and sub_id in self._subscriptions:
            raise ConfigurationError(f"there is a subscription {sub_id!r} on this connection already")
        self._sends_ids = self._sends_ids or sub_id is not None or bool(self._subscriptions)
        while sub_id is None or sub_id in self._subscriptions:
            self._numbered += 1
            sub_id = str(self._numbered)
        over_ms = None if resumes else self._records.wall_ms()
        subscription, records = self._begin(spec, sub_id, over_ms, build=build)
        if spec.snapshot:
            subscription.is_catching_up = True
            snapshot = spec.builder.snapshot(records, (sub_id,) if self._sends_ids else ())
            self._queue.append(QueuedSnapshot(subscription, snapshot))
        subscription.low = None if spec.snapshot else self._records.positions_now
        return subscription

    def resume(self, spec: SubscriptionSpec, sub_id: str, bookmark: Bookmark) -> EngineSubscription | str:
        """Go on with a subscription from a bookmark: deliver the changes since then, and then updates.

        Returns:
            The subscription, or the reason for which it cannot be resumed.

        Raises:
            SowstreamError: a record cannot be parsed, or a third party's function raised.
        """
        has_turns = self._records.turn is not None
        if (reason := refusal(spec, self._history, bookmark, has_turns=has_turns)) is not None:
            return reason
        assert self._history is not None
        assert sub_id not in self._subscriptions
        self._sends_ids = True
        subscription, _ = self._begin(spec, sub_id, None, has_records=True)
        self._catch_up(subscription, resumed(spec, subscription, self._records, self._history, bookmark))
        subscription.low = bookmark.low
        return subscription

    def replace(
        self, subscription: EngineSubscription, spec: SubscriptionSpec, *, build: Build | None = None
    ) -> EngineSubscription:
        """Change the request of a subscription in one step: only what leaves the focus and what enters it is sent.

        Raises:
            ConfigurationError: the messages of the old or the new request are about groups.
            SowstreamError: a record cannot be parsed, or a third party's function raised; nothing has changed.
        """
        if subscription.grouping is not None or spec.grouping is not None:
            raise ConfigurationError(
                "a subscription with a projection cannot be replaced; end it, and begin another one"
            )
        had = FocusNow(subscription, self._records)
        fresh, _ = self._begin(spec, subscription.sub_id, None, has_records=True, replaces=subscription, build=build)
        self._catch_up(fresh, replaced(had, FocusNow(fresh, self._records), self._records))
        return fresh

    def withdraw(self, subscription: EngineSubscription) -> bool:
        """End a subscription: its records leave with the reason `entitlement`. Returns whether messages wait for it."""
        had = FocusNow(subscription, self._records)
        self._remove(subscription)
        dropped = self._drop_messages(subscription)
        if had.is_empty and not dropped:
            return False
        self._catch_up(subscription, withdrawn(subscription, had, dropped))
        return True

    def forget_messages(self, subscription: EngineSubscription) -> bool:
        """Drop the messages that wait for a subscription; returns whether there were any, or a snapshot."""
        return bool(self._drop_messages(subscription)) or subscription.is_catching_up

    def bookmark(self, subscription: EngineSubscription) -> Bookmark | None:
        """The bookmark behind the messages that were taken; None: the snapshot was not, so there is none yet."""
        is_idle = not self._queue.entries and not subscription.is_catching_up
        return bookmark_of(subscription, self._history, self._records.positions_now, is_idle=is_idle)

    def _begin(
        self,
        spec: SubscriptionSpec,
        sub_id: str,
        over_ms: int | None,
        *,
        has_records: bool = False,
        replaces: EngineSubscription | None = None,
        build: Build | None = None,
    ) -> tuple[EngineSubscription, Iterable[ParsedRecord]]:
        """Begin to deliver updates to a subscription; arguments as `focus_of`; returns it with the records in focus."""
        current = self._records
        grouping: Grouping | None = None
        rows = spec
        if spec.grouping is not None:
            grouping, rows = self._sharing.groupings.grouping_of(spec, current, over_ms), spec.of_rows()
            current, over_ms = grouping.rows, None
        focus = focus_of(rows, current, over_ms, has_records=has_records)
        if isinstance(build, OrderBuild) and build.keeps_records:
            matching: Iterable[ParsedRecord] = build.ordered()
        else:
            matching = current.matching(rows, over_ms)
        records = focus.load(matching, received=has_records or spec.counts_as_received)
        subscription = EngineSubscription(current.topic, sub_id, spec, focus, current.find, grouping)
        records = subscription.load(records)
        if replaces is not None:
            self._remove(replaces)
        self._subscriptions[sub_id] = subscription
        if not self._sends_ids:
            self._unnamed = subscription
        if spec.live:
            self._routes.add(subscription, self)
        return subscription, records

    def _catch_up(self, subscription: EngineSubscription, messages: Iterator[Message]) -> None:
        """Queue the messages that lead a subscriber to the records of now."""
        ids = (subscription.sub_id,) if self._sends_ids else ()
        subscription.is_catching_up = True
        addressed = (one if one is PAUSE_MESSAGE else one.addressed(ids) for one in messages)
        self._queue.append(QueuedSnapshot(subscription, addressed))

    def unsubscribe(self, subscription: EngineSubscription) -> None:
        """End a subscription at once: its waiting messages are dropped, and its error if it has ended with one."""
        self._remove(subscription)
        if subscription.sub_id not in self._subscriptions:  # Else it ended before, and another one has its name.
            self._drop_messages(subscription)

    def take(self, messages_max: int) -> list[Message]:
        """Take the next messages, at most so many; none if none waits, or none was found within the turn.

        Raises:
            SowstreamError: a subscription has ended with it; the others go on.
        """
        taken: list[Message] = []
        while (room := messages_max - len(taken)) > 0:
            if not self._queue.entries:
                if not self._release_next():
                    break
                continue
            first = self._queue.entries[0]
            if isinstance(first, Message):
                taken.append(first)
                self._queue.pop()
            elif isinstance(first, QueuedEnd):
                if taken:
                    break  # These messages came before the end.
                self._queue.pop()
                self._schedule_late()
                self.ended_id = first.subscription.sub_id
                raise first.error
            elif not self._take_snapshot(first, room, taken):
                break
        self._schedule_late()
        return taken

    def take_next(self) -> Message | None:
        """Take the next message; None where `take` returns none.

        Raises:
            SowstreamError: as `take`.
        """
        queue = self._queue
        if queue.entries and isinstance(message := queue.entries[0], Message):
            queue.pop()
            if self._late:
                self._schedule_late()
            return message
        if not queue.entries and not self._holding:
            return None
        messages = self.take(1)
        return messages[0] if messages else None

    def close(self) -> None:
        """End all subscriptions and drop all messages."""
        for subscription in list(self._subscriptions.values()):
            self._remove(subscription)
        self._queue.clear()

    def deliver(self, subscription: EngineSubscription, update: Update, now_ms: int, *, was: bool, now: bool) -> bool:
        """Queue the messages of an update for one subscription, or hold the update.

        Args:
            subscription: one of this connection.
            update: the update.
            now_ms: the time.
            was: whether the filter matched the record before.
            now: whether it does after the update.

        Returns:
            True for the first message of an update that other subscriptions may share: `share` must be called when all
            of them have seen the update.
        """
        unshared = self._unshared
        is_first = not unshared
        try:
            if was and now and not self._queue.is_full and (message := subscription.plain_delta(update)) is not None:
                self._send(subscription, update, message)
                return is_first and bool(unshared)
            for change in subscription.changes(update, was=was, now=now):
                is_full = self._queue.is_full
                message = subscription.changed(change, now_ms, is_full=is_full)
                if message is None:
                    if subscription.waiting:
                        self._schedule(subscription)
                elif is_full:
                    raise too_slow(subscription, self.queue_max)
                else:
                    self._send(subscription, change.update, message)
        except Exception as error:  # noqa: BLE001 - Whatever it is, the others go on.
            unshared[:] = [one for one in unshared if one.subscription is not subscription]
            self.fail(subscription, error)
        return is_first and bool(unshared)

    def _send(self, subscription: EngineSubscription, update: Update, message: Message) -> None:
        """Queue a message, or leave it to `share` where another subscription may get the same."""
        if not self._sends_ids:
            self._queue.append(message, len(update.new.value or b""))
        elif len(self._subscriptions) == 1 and subscription.grouping is None and not self._unshared:
            self._queue.append(update.addressed(message, subscription.sub_id), len(update.new.value or b""))
        else:
            self._unshared.append(Addressed(subscription, update, message))

    def share(self) -> None:
        """Queue the messages of the update in hand, which all subscriptions have seen."""
        unshared, self._unshared = self._unshared, []
        size = len(unshared[0].update.new.value or b"")
        try:
            for message in self._sharing.messages(unshared):
                self._queue.append(message, size)
        except Exception as error:  # noqa: BLE001 - Whatever it is, other connections go on.
            failure = unshared[0].subscription.topic.failure(error)
            for subscription in dict.fromkeys(one.subscription for one in unshared):
                self.fail(subscription, failure)

    def release_due(self, subscription: EngineSubscription, now_ms: int) -> None:
        """Queue the held updates of a subscription that are due, as far as there is room."""
        while not self.is_full and (due_ms := subscription.due_ms) is not None and due_ms <= now_ms:
            if not self._release(subscription):
                return
        self._schedule(subscription)

    def fail(self, subscription: EngineSubscription, error: Exception) -> None:
        """End a subscription with an error, which `take` raises behind the messages before it."""
        self._remove(subscription)
        self._queue.append(QueuedEnd(subscription, subscription.topic.failure(error)))

    def _schedule(self, subscription: EngineSubscription) -> None:
        """Let a subscription that holds updates send them later: at a time, or when there is room."""
        if subscription.interval_ms is None:
            self._holding[subscription] = None
            self._queue.notify()
        elif (due_ms := subscription.due_ms) is not None:
            if self.is_full:
                self._late[subscription] = None
            elif subscription not in self._deadlines:
                self._deadlines.put(subscription, due_ms)

    def _schedule_late(self) -> None:
        """If there is room again, give their deadlines back to subscriptions that were late."""
        if self._late and not self.is_full:
            late, self._late = self._late, {}
            for subscription in late:
                self._schedule(subscription)

    def _remove(self, subscription: EngineSubscription) -> None:
        """End a subscription; its waiting messages stay."""
        if self._subscriptions.get(subscription.sub_id) is subscription:
            del self._subscriptions[subscription.sub_id]
            self._holding.pop(subscription, None)
            self._late.pop(subscription, None)
            if self._routes.remove(subscription):
                self._deadlines.discard(subscription)

    def _drop_messages(self, subscription: EngineSubscription) -> list[Message]:
        """Drop the messages for a subscription alone, and take its name from messages for others too."""
        dropped = self._queue.drop(subscription, self._unnamed)
        self._schedule_late()
        return dropped

    def _take_snapshot(self, waiting: QueuedSnapshot, room: int, taken: list[Message]) -> bool:
        """Take messages from the first snapshot; its error takes its place. Returns False where it pauses."""
        subscription, messages = waiting
        before = len(taken)
        try:
            for message in islice(messages, room):
                if message is PAUSE_MESSAGE:
                    return False
                taken.append(message)
        except Exception as error:  # noqa: BLE001 - As in `deliver`.
            self._remove(subscription)
            self._drop_messages(subscription)  # They are updates of records that the subscriber does not have.
            self._queue.put_first(QueuedEnd(subscription, subscription.topic.failure(error)))
            return True
        if len(taken) - before < room:
            self._queue.pop()
            subscription.is_catching_up = False
            if not subscription.is_live:
                self._remove(subscription)
        return True

    def _release_next(self) -> bool:
        """Queue the update of one key that was held until there is room; False if there was none."""
        while self._holding:
            subscription = next(iter(self._holding))
            del self._holding[subscription]
            if subscription.waits_for_room:
                if self._release(subscription) and subscription.waits_for_room:
                    self._holding[subscription] = None  # At the end: the others have their turn first.
                return True
        return False

    def _release(self, subscription: EngineSubscription) -> bool:
        """Queue the held update of one key; False if that ended the subscription."""
        try:
            message = subscription.release()
        except Exception as error:  # noqa: BLE001 - As in `deliver`.
            self.fail(subscription, error)
            return False
        if message is not None:
            one = message.addressed((subscription.sub_id,)) if self._sends_ids else message
            self._queue.append(one, subscription.released_bytes)
        return True
