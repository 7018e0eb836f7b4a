"""What one subscriber is to be sent: the messages of all its subscriptions, in order, until it takes them."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from processor.errors import ConfigurationError, SowstreamError
from processor.subscriptions.message import Message
from processor.subscriptions.share import Addressed
from processor.subscriptions.subscription import Subscription, snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processor.subscriptions.engine import Engine
    from processor.subscriptions.subscription import Request
    from processor.subscriptions.update import Change

QUEUE_MAX: Final = 10_000
"""Messages that wait for a subscriber; more are folded, per key."""


class _Snapshot(NamedTuple):
    """A snapshot that waits, or of which a part was taken."""

    subscription: Subscription
    messages: Iterator[Message]


class _End(NamedTuple):
    """What ended a subscription, behind all that it was told before."""

    subscription: Subscription
    error: SowstreamError


_Queued: TypeAlias = "Message | _Snapshot | _End"


class Connection:
    """One subscriber, made by `Engine.connect`."""

    def __init__(self, engine: Engine, queue_max: int) -> None:
        self.queue_max: Final = queue_max
        """From how many waiting messages on updates are folded."""
        self._engine = engine
        self._subscriptions: dict[str, Subscription] = {}
        self._numbered = 0
        self._says_ids = False
        self._unnamed: Subscription | None = None  # The one that messages without `sub_ids` are for.
        self._queue: deque[_Queued] = deque()
        self._update: list[Addressed] = []  # The messages of the update in hand, by subscription.
        self._folding: dict[Subscription, None] = {}  # Those that hold updates back until there is room.
        self._late: dict[Subscription, None] = {}  # Those that do so until a time, for which there is no room.

    @property
    def is_full(self) -> bool:
        """Whether so much waits that updates are folded."""
        return len(self._queue) >= self.queue_max

    @property
    def has_waiting(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._queue) or any(subscription.waits_for_room for subscription in self._folding)

    def subscribe(self, request: Request, sub_id: str | None = None, *, resumes: bool = False) -> Subscription:
        """Begin a subscription with the state of now.

        Args:
            request: what is wanted.
            sub_id: its name on this connection; None: a number. With a name, or a second subscription, messages say
                which they are for.
            resumes: whether it goes on from a state that was kept, where records are left until they are deleted; else
                its snapshot leaves out those whose time is over.

        Returns:
            What can be closed.

        Raises:
            ConfigurationError: there is one of this name.
            SowstreamError: a record, or a third party's function, cannot be used for what must be known at once.
        """
        if sub_id is not None and sub_id in self._subscriptions:
            raise ConfigurationError(f"there is a subscription {sub_id!r} on this connection already")
        self._says_ids = self._says_ids or sub_id is not None or bool(self._subscriptions)
        while sub_id is None or sub_id in self._subscriptions:
            self._numbered += 1
            sub_id = str(self._numbered)
        engine = self._engine
        over_ms = None if resumes else engine.wall_ms()
        focus = engine.focus(request, over_ms)
        found = focus.load(engine.found(request, over_ms), told=request.is_known)
        made = Subscription(engine.topic, self, sub_id, request, focus, engine.find)
        found = made.load(found)
        self._subscriptions[sub_id] = made
        if not self._says_ids:
            self._unnamed = made
        if request.live:
            engine.add(made)
        if request.snapshot:
            ids = (sub_id,) if self._says_ids else ()
            self._queue.append(_Snapshot(made, snapshot(request.teller, found, ids)))
        return made

    def take(self, messages_max: int) -> list[Message]:
        """The next messages, at most so many; none if nothing waits.

        Raises:
            SowstreamError: a subscription has ended with it; the others go on.
        """
        taken: list[Message] = []
        while (room := messages_max - len(taken)) > 0:
            if not self._queue:
                if not self._release():
                    break
                continue
            first = self._queue[0]
            if isinstance(first, Message):
                taken.append(first)
                self._queue.popleft()
            elif isinstance(first, _End):
                if taken:
                    break  # They were told before.
                self._queue.popleft()
                self._wake()
                raise first.error
            else:
                self._pull(first, room, taken)
        self._wake()
        return taken

    def close(self) -> None:
        """End all its subscriptions; nothing waits any more."""
        for subscription in list(self._subscriptions.values()):
            self.remove(subscription)
        self._queue.clear()

    def tell(self, subscription: Subscription, change: Change, message: Message) -> None:
        """Take a message of the update in hand for a subscription."""
        if not self._says_ids:
            self._queue.append(message)
            return
        if not self._update:
            self._engine.telling(self)
        self._update.append(Addressed(subscription, change, message))

    def told(self) -> None:
        """Queue the messages of the update in hand, which all subscriptions have seen."""
        update, self._update = self._update, []
        self._queue.extend(self._engine.sharing.messages(update))

    def folds(self, subscription: Subscription) -> None:
        """Hear that a subscription holds updates back: until a time, or until there is room."""
        if subscription.interval_ms is None:
            self._folding[subscription] = None
        elif (due_ms := subscription.due_ms) is not None:
            self._engine.wake(subscription, due_ms)
        elif subscription.waiting:
            self._late[subscription] = None

    def release_due(self, subscription: Subscription, now_ms: int) -> None:
        """Tell what a subscription holds back and is due, as far as there is room."""
        while (due_ms := subscription.due_ms) is not None and due_ms <= now_ms:
            if not self._send(subscription):
                return
        self.folds(subscription)

    def end(self, subscription: Subscription) -> None:
        """End a subscription whose subscriber wants nothing more of it, not even what waits."""
        self.remove(subscription)
        if subscription.sub_id not in self._subscriptions:  # Else it ended before, and the name is another's.
            self._forget(subscription)

    def remove(self, subscription: Subscription) -> None:
        """End a subscription: nothing is added to what waits for it."""
        if self._subscriptions.get(subscription.sub_id) is subscription:
            del self._subscriptions[subscription.sub_id]
            self._folding.pop(subscription, None)
            self._late.pop(subscription, None)
            self._engine.remove(subscription)

    def fail(self, subscription: Subscription, error: SowstreamError) -> None:
        """End a subscription with an error, which `take` raises when it comes to it."""
        self.remove(subscription)
        self._queue.append(_End(subscription, error))

    def _pull(self, waiting: _Snapshot, room: int, taken: list[Message]) -> None:
        """Add what comes next in a snapshot, the first that waits, and put what ends it in its place."""
        subscription, messages = waiting
        before = len(taken)
        try:
            for message in islice(messages, room):
                taken.append(message)  # noqa: PERF402 - what came before an error is kept.
        except SowstreamError as error:
            self.remove(subscription)
            self._forget(subscription)  # Updates of records it was never told of.
            self._queue.appendleft(_End(subscription, error))
            return
        if len(taken) - before < room:
            self._queue.popleft()
            if not subscription.is_live:
                self.remove(subscription)

    def _wake(self) -> None:
        """If there is room again, let those go on that wait for a time."""
        if self._late and not self.is_full:
            late, self._late = self._late, {}
            for subscription in late:
                self.folds(subscription)

    def _forget(self, subscription: Subscription) -> None:
        """Drop what waits for a subscription alone, and its name from what waits for others too."""
        left = [_without(waiting, subscription, self._unnamed) for waiting in self._queue]
        self._queue = deque(waiting for waiting in left if waiting is not None)
        self._wake()

    def _release(self) -> bool:
        """Tell of one key that was held back until there is room; whether there was one."""
        while self._folding:
            subscription = next(iter(self._folding))
            del self._folding[subscription]
            if subscription.waits_for_room:
                if self._send(subscription) and subscription.waits_for_room:
                    self._folding[subscription] = None  # Behind the others: they have their turn.
                return True
        return False

    def _send(self, subscription: Subscription) -> bool:
        """Tell of one key that was held back; False if that ended the subscription."""
        try:
            message = subscription.release()
        except SowstreamError as error:
            self.fail(subscription, error)
            return False
        if message is not None:
            self._queue.append(message.addressed((subscription.sub_id,)) if self._says_ids else message)
        return True


def _without(waiting: _Queued, subscription: Subscription, unnamed: Subscription | None) -> _Queued | None:
    """What is left of something that waits when a subscription wants nothing more; None if that is nothing."""
    if not isinstance(waiting, Message):
        return None if waiting.subscription is subscription else waiting
    if not waiting.sub_ids:
        return None if subscription is unnamed else waiting
    if subscription.sub_id not in waiting.sub_ids:
        return waiting
    others = tuple(sub_id for sub_id in waiting.sub_ids if sub_id != subscription.sub_id)
    return waiting.addressed(others) if others else None
