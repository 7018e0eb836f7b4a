"""The messages of one connection: one for all subscriptions that an update is for, and the queue of those that wait.

::

    subscription   filter      asked for                 an update of one record
    a              /qty > 10   select=[-/,+/qty]           ─┐
    b              /qty < 90   select=[-/,+/note]          ─┼─▶ one message with id, qty, note and the time,
    c              (all)       select=[-/], timestamp      ─┘   sub_ids a, b, c

The queue is limited by number and by bytes: when it is full, updates are conflated.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from processor.subscriptions.records.grouping import SharedGroupings
from processor.subscriptions.request.subscriber_message import Message, MessageBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from processor.errors import SowstreamError
    from processor.subscriptions.engine_subscription import EngineSubscription
    from processor.subscriptions.records.grouping import Grouping
    from processor.subscriptions.request.subscriber_message import Style
    from processor.subscriptions.request.update import Update


UNIONS_MAX: Final = 256
"""Unions of select lists that are kept compiled; the least recently used one is dropped first."""


class Addressed(NamedTuple):
    """A message of one update for one subscription."""

    subscription: EngineSubscription
    update: Update
    message: Message


class Sharing:
    """Builds the messages of updates that several subscriptions share; one for all connections of an engine."""

    def __init__(self) -> None:
        self.groupings: Final = SharedGroupings()
        """The groupings of running subscriptions."""
        self._unions: dict[frozenset[Style], MessageBuilder] = {}

    def messages(self, addressed: Sequence[Addressed]) -> Iterable[Message]:
        """The messages of one update for one connection: one for each record and command.

        Args:
            addressed: the message that each subscription would get if it were the only one.
        """
        if len(addressed) == 1:
            [(subscription, update, message)] = addressed
            return (update.addressed(message, subscription.sub_id),)
        return self._shared(addressed)

    def _shared(self, addressed: Sequence[Addressed]) -> Iterator[Message]:
        """The messages of an update that several subscriptions of a connection share."""
        # The keys of rows are those of groups: subscriptions with other groups have other rows.
        groups: dict[tuple[Grouping | None, bytes, str, Style | None], list[Addressed]] = {}
        for one in addressed:
            name = one.subscription.grouping, one.update.key, one.message.command, _own_style(one)
            groups.setdefault(name, []).append(one)
        for group in groups.values():
            yield self._message(group).addressed(tuple([one.subscription.sub_id for one in group]))

    def _message(self, group: Sequence[Addressed]) -> Message:
        """The message of one record with all fields that a subscription of the group selects; full if one gets all."""
        full = next((message for _, _, message in group if not message.delta), None)
        message = group[0].message if full is None else full
        builders = {subscription.builder.style: subscription.builder for subscription, _, _ in group}
        if len(builders) > 1:
            message = _united(message, group[0].update, self._union(builders))
        if not message.delta:
            return message
        # A subscription whose empty updates were left out has an older record than the others.
        bases = [base for _, _, message in group if (base := message.delta_base) is not None]
        base = min(bases, default=None)
        return message if base == message.delta_base else message._replace(delta_base=base)

    def _union(self, builders: dict[Style, MessageBuilder]) -> MessageBuilder:
        styles = frozenset(builders)
        union = self._unions.pop(styles, None) or MessageBuilder.union(list(builders.values()))
        self._unions[styles] = union
        if len(self._unions) > UNIONS_MAX:
            del self._unions[next(iter(self._unions))]
        return union


def _own_style(one: Addressed) -> Style | None:
    """The style of a delta that is not united with others; None: it is.

    With `+/a/b`, a change of `a` from an object to a number removes `a`: from the number alone no subscriber sees that.
    """
    builder = one.subscription.builder
    is_nested = builder.select is not None and builder.select.is_nested
    return builder.style if is_nested and one.message.delta and one.message.removed else None


def _united(message: Message, update: Update, union: MessageBuilder) -> Message:
    """The same message, built by a union."""
    if message.command == "oof":
        return update.oof_message(union)
    if not message.delta:
        return update.full_message(union)
    delta = update.delta_message(union)
    assert delta is not None, "a union leaves no update out"
    return delta


UNLIMITED_BYTES: Final = 2**62
"""No limit of bytes."""
ENTRY_BYTES: Final = 200
"""Approximate size of a queued message besides its record."""


class QueuedSnapshot(NamedTuple):
    """A snapshot that waits, or the rest of one that was taken in part; also what leads to the records of now."""

    subscription: EngineSubscription
    messages: Iterator[Message]


class QueuedEnd(NamedTuple):
    """The error that ended a subscription, behind all its messages."""

    subscription: EngineSubscription
    error: SowstreamError


Queued: TypeAlias = "Message | QueuedSnapshot | QueuedEnd"


class MessageQueue:
    """Messages, snapshots and ends, in the order in which a subscriber takes them."""

    def __init__(self, queue_max: int, queue_bytes: int | None, on_waiting: Callable[[], None] | None) -> None:
        """Begin empty.

        Args:
            queue_max: with so many entries it is full.
            queue_bytes: with records of so many bytes, too; None: no limit.
            on_waiting: called with each entry that is put there.
        """
        self.entries: Final[deque[Queued]] = deque()
        """The entries, the next one first."""
        self.waiting_bytes = 0
        """The size of the records whose messages wait, encoded."""
        self.queue_max: Final = queue_max
        """With so many entries it is full."""
        self._bytes_max = UNLIMITED_BYTES if queue_bytes is None else queue_bytes
        self._sizes: deque[int] = deque()
        self._on_waiting = on_waiting

    def __len__(self) -> int:
        """The number of entries."""
        return len(self.entries)

    @property
    def is_full(self) -> bool:
        """True if so much waits that updates are conflated."""
        return len(self.entries) >= self.queue_max or self.waiting_bytes >= self._bytes_max

    @property
    def begins_with_snapshot(self) -> bool:
        """True if the next messages must be made first."""
        return bool(self.entries) and type(self.entries[0]) is QueuedSnapshot

    def append(self, entry: Queued, size: int = 0) -> None:
        """Put an entry at the end; `size` is that of its record, encoded."""
        size += ENTRY_BYTES
        self.entries.append(entry)
        self._sizes.append(size)
        self.waiting_bytes += size
        if self._on_waiting is not None:
            self._on_waiting()

    def notify(self) -> None:
        """Notify the subscriber of updates that wait besides the entries."""
        if self._on_waiting is not None:
            self._on_waiting()

    def pop(self) -> None:
        """Drop the first entry."""
        self.entries.popleft()
        self.waiting_bytes -= self._sizes.popleft()

    def put_first(self, entry: Queued) -> None:
        """Put an entry before all others."""
        self.entries.appendleft(entry)
        self._sizes.appendleft(0)

    def clear(self) -> None:
        """Drop all entries."""
        self.entries.clear()
        self._sizes.clear()
        self.waiting_bytes = 0

    def drop(self, subscription: EngineSubscription, unnamed: EngineSubscription | None) -> list[Message]:
        """Drop the messages for a subscription alone, and take its name from messages for others too.

        Returns:
            The messages that it does not get.
        """
        entries, sizes = list(self.entries), list(self._sizes)
        self.clear()
        dropped: list[Message] = []
        for entry, size in zip(entries, sizes, strict=True):
            left = _without(entry, subscription, unnamed)
            if left is not None:
                self.entries.append(left)
                self._sizes.append(size)
                self.waiting_bytes += size
            if left is not entry and isinstance(entry, Message):
                dropped.append(entry)
        return dropped


def _without(waiting: Queued, subscription: EngineSubscription, unnamed: EngineSubscription | None) -> Queued | None:
    """A queued message without one of its subscriptions; None if it is for no other."""
    if not isinstance(waiting, Message):
        # By name: the snapshot of a subscription that was replaced since may wait too.
        return None if waiting.subscription.sub_id == subscription.sub_id else waiting
    if not waiting.sub_ids:
        return None if subscription is unnamed else waiting
    if subscription.sub_id not in waiting.sub_ids:
        return waiting
    others = tuple(sub_id for sub_id in waiting.sub_ids if sub_id != subscription.sub_id)
    return waiting.addressed(others) if others else None
