"""What one subscriber is to be sent: the messages of all its subscriptions, in order, until it takes them."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from processor.errors import ConfigurationError, SowstreamError
from processor.subscribe.message import Message
from processor.subscribe.subscription import Subscription, snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from processor.subscribe.engine import Engine
    from processor.subscribe.focus import Found
    from processor.subscribe.subscription import Request
    from processor.subscribe.teller import Teller

_Queued: TypeAlias = "Message | Iterator[Message] | SowstreamError"

QUEUE_MAX: Final = 10_000
"""Messages that wait for a subscriber; more are folded, per key."""


class Connection:
    """One subscriber, made by `Engine.connect`."""

    def __init__(self, engine: Engine, queue_max: int) -> None:
        self.queue_max: Final = queue_max
        """From how many waiting messages on updates are folded."""
        self._engine = engine
        self._subscriptions: dict[str, Subscription] = {}
        self._numbered = 0
        self._says_ids = False
        self._queue: deque[_Queued] = deque()
        self._round: list[tuple[Subscription, Message]] = []  # What the update in hand tells, for each subscription.
        self._folding: dict[Subscription, None] = {}  # Those that hold updates back until there is room.

    @property
    def is_full(self) -> bool:
        """Whether so much waits that updates are folded."""
        return len(self._queue) >= self.queue_max

    @property
    def has_waiting(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._queue) or any(subscription.waits_for_room for subscription in self._folding)

    def subscribe(self, request: Request, sub_id: str | None = None) -> Subscription | None:
        """Begin a subscription with the state of now.

        Args:
            request: what is wanted.
            sub_id: its name on this connection; None: a number. With a name, or a second subscription, messages say
                which they are for.

        Returns:
            What can be closed; None if nothing follows the snapshot.

        Raises:
            ConfigurationError: there is one of this name.
        """
        if sub_id is not None and sub_id in self._subscriptions:
            raise ConfigurationError(f"there is a subscription {sub_id!r} on this connection already")
        self._says_ids = self._says_ids or sub_id is not None or bool(self._subscriptions)
        while sub_id is None or sub_id in self._subscriptions:
            self._numbered += 1
            sub_id = str(self._numbered)
        focus = self._engine.focus(request)
        found = focus.load(self._engine.found(request), told=request.snapshot)
        made = Subscription(self._engine.topic, self, sub_id, request, focus)
        self._subscriptions[sub_id] = made
        if request.live:
            self._engine.add(made)
        if request.snapshot:
            self._queue.append(self._snapshot(made, request.teller, found))
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
            elif isinstance(first, SowstreamError):
                if taken:
                    break  # They were told before.
                self._queue.popleft()
                raise first
            else:
                self._pull(first, room, taken)
        return taken

    def close(self) -> None:
        """End all its subscriptions; nothing waits any more."""
        for subscription in list(self._subscriptions.values()):
            self.remove(subscription)
        self._queue.clear()

    def tell(self, subscription: Subscription, message: Message) -> None:
        """Take what the update in hand tells a subscription."""
        if not self._round:
            self._engine.telling(self)
        self._round.append((subscription, message))

    def told(self) -> None:
        """The update in hand has told all: send what says the same once."""
        told, self._round = self._round, []
        if not self._says_ids:
            self._queue.extend(message for _, message in told)
            return
        groups: dict[object, list[tuple[Subscription, Message]]] = {}
        for subscription, message in told:
            same = (message.command, message.reason, message.sow_key, subscription.style)
            groups.setdefault(same, []).append((subscription, message))
        for group in groups.values():
            # A whole record serves those too that asked for deltas.
            message = next((message for _, message in group if not message.delta), group[0][1])
            self._queue.append(message._replace(sub_ids=tuple(subscription.sub_id for subscription, _ in group)))

    def folds(self, subscription: Subscription) -> None:
        """Hear that a subscription holds updates back until there is room."""
        self._folding[subscription] = None

    def release_due(self, subscription: Subscription, now_ms: int) -> None:
        """Tell what a subscription holds back and is due, as far as there is room."""
        while (due_ms := subscription.due_ms) is not None and due_ms <= now_ms and not self.is_full:
            self._send(subscription)

    def remove(self, subscription: Subscription) -> None:
        """End a subscription."""
        if self._subscriptions.pop(subscription.sub_id, None) is not None:
            self._folding.pop(subscription, None)
            self._engine.remove(subscription)

    def fail(self, subscription: Subscription, error: SowstreamError) -> None:
        """End a subscription with an error, which `take` raises when it comes to it."""
        self.remove(subscription)
        self._queue.append(error)

    def _pull(self, messages: Iterator[Message], room: int, taken: list[Message]) -> None:
        """Add what comes next in a snapshot, the first that waits, and put what ends it in its place."""
        before = len(taken)
        try:
            for message in islice(messages, room):
                taken.append(message)  # noqa: PERF402 - what came before an error is kept.
        except SowstreamError as error:
            self._queue[0] = error
            return
        if len(taken) - before < room:
            self._queue.popleft()

    def _release(self) -> bool:
        """Tell of one key that was held back until there is room; whether there was one."""
        for subscription in list(self._folding):
            if subscription.waits_for_room:
                self._send(subscription)
                # The others have their turn.
                self._folding.pop(subscription)
                if subscription.waits_for_room:
                    self._folding[subscription] = None
                return True
            del self._folding[subscription]
        return False

    def _send(self, subscription: Subscription) -> None:
        try:
            message = subscription.release()
        except SowstreamError as error:
            self.fail(subscription, error)
            return
        if message is not None:
            self._queue.append(message._replace(sub_ids=(subscription.sub_id,)) if self._says_ids else message)

    def _snapshot(self, subscription: Subscription, teller: Teller, found: Iterable[Found]) -> Iterator[Message]:
        """The state of the world, for one subscription."""
        sub_ids = (subscription.sub_id,) if self._says_ids else ()
        try:
            for message in snapshot(teller, found):
                yield message._replace(sub_ids=sub_ids) if sub_ids else message
        finally:
            if not subscription.is_live:
                self.remove(subscription)
