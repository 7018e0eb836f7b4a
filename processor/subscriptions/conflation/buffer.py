"""The conflation buffer of a subscription: for each key, the record that the subscriber has and the update to send."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from processor.merge import add_touched
from processor.wire.record_headers import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from processor.merge import Touched
    from processor.record import Record
    from processor.subscriptions.focus import FocusChange
    from processor.subscriptions.message import Message
    from processor.subscriptions.message_builder import MessageBuilder
    from processor.subscriptions.topic import ParsedRecord, Topic


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
        oldest = next(iter(self._held.values()), None)
        return None if oldest is None else oldest.began_ms

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
