"""The queue of one subscriber: the messages of all its subscriptions, in order, until it takes them."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from processor.errors import ConfigurationError, SowstreamError, SubscriberTooSlow
from processor.subscriptions.focus import focus_of
from processor.subscriptions.message import Message
from processor.subscriptions.share import Addressed
from processor.subscriptions.subscription import EngineSubscription

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processor.subscriptions.conflation.deadlines import Deadlines
    from processor.subscriptions.current_records import CurrentRecords
    from processor.subscriptions.routes import Routes
    from processor.subscriptions.share import Sharing
    from processor.subscriptions.spec import SubscriptionSpec
    from processor.subscriptions.update import Update

QUEUE_MAX: Final = 10_000
"""Messages that wait for a subscriber; further updates are conflated, per key."""


class _Snapshot(NamedTuple):
    """A snapshot that waits, or the rest of one that was taken in part."""

    subscription: EngineSubscription
    messages: Iterator[Message]


class _End(NamedTuple):
    """The error that ended a subscription, behind all its messages."""

    subscription: EngineSubscription
    error: SowstreamError


_Queued: TypeAlias = "Message | _Snapshot | _End"


class Connection:
    """One subscriber, made by `Engine.connect`."""

    def __init__(
        self,
        records: CurrentRecords,
        routes: Routes[Connection],
        deadlines: Deadlines[EngineSubscription],
        sharing: Sharing,
        queue_max: int,
    ) -> None:
        """Begin without a subscription.

        Args:
            records: the records of the topic.
            routes: the engine's routes, for the subscriptions of this subscriber.
            deadlines: the engine's deadlines, for those that hold updates until a time.
            sharing: joins messages that are for several subscriptions.
            queue_max: with so many messages waiting, updates are conflated.
        """
        self.queue_max: Final = queue_max
        """With so many messages waiting, updates are conflated."""
        self._records = records
        self._routes = routes
        self._deadlines = deadlines
        self._sharing = sharing
        self._subscriptions: dict[str, EngineSubscription] = {}
        self._numbered = 0
        self._sends_ids = False
        self._unnamed: EngineSubscription | None = None  # The one that messages without `sub_ids` are for.
        self._queue: deque[_Queued] = deque()
        self._unshared: list[Addressed] = []  # The messages of the update in hand, by subscription.
        self._holding: dict[EngineSubscription, None] = {}  # Those that hold updates until there is room.
        self._late: dict[EngineSubscription, None] = {}  # Those whose time has come, for which there is no room.

    @property
    def is_full(self) -> bool:
        """Whether so many messages wait that updates are conflated."""
        return len(self._queue) >= self.queue_max

    @property
    def has_waiting(self) -> bool:
        """Whether `take` would return a message or raise."""
        return bool(self._queue) or any(subscription.waits_for_room for subscription in self._holding)

    @property
    def held_since_ms(self) -> int | None:
        """When the oldest conflation interval began; None if none runs, or there is no room to send at its end."""
        if self.is_full:
            return None
        began = [subscription.began_ms for subscription in self._subscriptions.values()]
        return min((began_ms for began_ms in began if began_ms is not None), default=None)

    def subscribe(
        self, spec: SubscriptionSpec, sub_id: str | None = None, *, resumes: bool = False
    ) -> EngineSubscription:
        """Begin a subscription with the records of now.

        Args:
            spec: its filter and options.
            sub_id: its name on this connection; None: a number. Messages carry names as soon as one was given, or there
                are two subscriptions.
            resumes: whether it resumes from a state that was kept, where records stay until they are deleted. Otherwise
                its snapshot leaves out expired records.

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
        current = self._records
        over_ms = None if resumes else current.wall_ms()
        focus = focus_of(spec, current, over_ms)
        records = focus.load(current.matching(spec, over_ms), received=spec.counts_as_received)
        subscription = EngineSubscription(current.topic, sub_id, spec, focus, current.find)
        records = subscription.load(records)
        self._subscriptions[sub_id] = subscription
        if not self._sends_ids:
            self._unnamed = subscription
        if spec.live:
            self._routes.add(subscription, self)
        if spec.snapshot:
            ids = (sub_id,) if self._sends_ids else ()
            self._queue.append(_Snapshot(subscription, spec.builder.snapshot(records, ids)))
        return subscription

    def unsubscribe(self, subscription: EngineSubscription) -> None:
        """End a subscription at once: its waiting messages are dropped, and its error if it has ended with one."""
        self._remove(subscription)
        if subscription.sub_id not in self._subscriptions:  # Else it ended before, and another one has its name.
            self._drop_messages(subscription)

    def take(self, messages_max: int) -> list[Message]:
        """Take the next messages, at most so many; none if none waits.

        Raises:
            SowstreamError: a subscription has ended with it; the others go on.
        """
        taken: list[Message] = []
        while (room := messages_max - len(taken)) > 0:
            if not self._queue:
                if not self._release_next():
                    break
                continue
            first = self._queue[0]
            if isinstance(first, Message):
                taken.append(first)
                self._queue.popleft()
            elif isinstance(first, _End):
                if taken:
                    break  # These messages came before the end.
                self._queue.popleft()
                self._schedule_late()
                raise first.error
            else:
                self._take_snapshot(first, room, taken)
        self._schedule_late()
        return taken

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
        queue, unshared = self._queue, self._unshared
        is_first = not unshared
        try:
            for change in subscription.focus.changes(update, was=was, now=now):
                is_full = len(queue) >= self.queue_max
                message = subscription.changed(change, now_ms, is_full=is_full)
                if message is None:
                    if subscription.waiting:
                        self._schedule(subscription)
                elif is_full:
                    raise self._too_slow(subscription)
                elif self._sends_ids:
                    unshared.append(Addressed(subscription, change.update, message))
                else:
                    queue.append(message)
        except SowstreamError as error:
            self.fail(subscription, error)
        return is_first and bool(unshared)

    def share(self) -> None:
        """Queue the messages of the update in hand, which all subscriptions have seen."""
        unshared, self._unshared = self._unshared, []
        self._queue.extend(self._sharing.messages(unshared))

    def release_due(self, subscription: EngineSubscription, now_ms: int) -> None:
        """Queue the held updates of a subscription that are due, as far as there is room."""
        while not self.is_full and (due_ms := subscription.due_ms) is not None and due_ms <= now_ms:
            if not self._release(subscription):
                return
        self._schedule(subscription)

    def fail(self, subscription: EngineSubscription, error: SowstreamError) -> None:
        """End a subscription with an error, which `take` raises behind the messages before it."""
        self._remove(subscription)
        self._queue.append(_End(subscription, error))

    def _too_slow(self, subscription: EngineSubscription) -> SubscriberTooSlow:
        return SubscriberTooSlow(
            f"subscription {subscription.sub_id} to {self._records.topic.name}: {self.queue_max:,} messages wait to be "
            "taken, and with conflation=none none of them may be folded; read faster, or leave the option out"
        )

    def _schedule(self, subscription: EngineSubscription) -> None:
        """Let a subscription that holds updates send them later: at a time, or when there is room."""
        if subscription.interval_ms is None:
            self._holding[subscription] = None
        elif (due_ms := subscription.due_ms) is not None:
            if len(self._queue) >= self.queue_max:
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

    def _drop_messages(self, subscription: EngineSubscription) -> None:
        """Drop the messages for a subscription alone, and take its name from messages for others too."""
        left = [_without(waiting, subscription, self._unnamed) for waiting in self._queue]
        self._queue = deque(waiting for waiting in left if waiting is not None)
        self._schedule_late()

    def _take_snapshot(self, waiting: _Snapshot, room: int, taken: list[Message]) -> None:
        """Take messages from a snapshot, which is first in the queue; an error in it takes its place."""
        subscription, messages = waiting
        before = len(taken)
        try:
            for message in islice(messages, room):
                taken.append(message)  # noqa: PERF402 - the messages before an error are kept.
        except SowstreamError as error:
            self._remove(subscription)
            self._drop_messages(subscription)  # They are updates of records that the subscriber does not have.
            self._queue.appendleft(_End(subscription, error))
            return
        if len(taken) - before < room:
            self._queue.popleft()
            if not subscription.is_live:
                self._remove(subscription)

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
        except SowstreamError as error:
            self.fail(subscription, error)
            return False
        if message is not None:
            self._queue.append(message.addressed((subscription.sub_id,)) if self._sends_ids else message)
        return True


def _without(waiting: _Queued, subscription: EngineSubscription, unnamed: EngineSubscription | None) -> _Queued | None:
    """A queued message without one of its subscriptions; None if it is for no other."""
    if not isinstance(waiting, Message):
        return None if waiting.subscription is subscription else waiting
    if not waiting.sub_ids:
        return None if subscription is unnamed else waiting
    if subscription.sub_id not in waiting.sub_ids:
        return waiting
    others = tuple(sub_id for sub_id in waiting.sub_ids if sub_id != subscription.sub_id)
    return waiting.addressed(others) if others else None
