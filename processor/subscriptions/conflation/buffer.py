"""The conflation buffer of a subscription: for each key, the record that the subscriber has and the update to send."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from processor.merge import add_touched, touch
from processor.subscriptions.message_builder import gone_reason
from processor.wire.sow_headers import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from processor.merge import Touched
    from processor.record import Record
    from processor.subscriptions.focus import Found, Step
    from processor.subscriptions.message import Message
    from processor.subscriptions.message_builder import Teller, Topic


class Bases:
    """The versions that a subscriber has of records whose last updates were left out, as nothing changed for it."""

    def __init__(self) -> None:
        self._versions: dict[bytes, int | None] = {}

    def left_out(self, key: bytes, base: int | None) -> None:
        """An update was not sent; `base` is the version of the record before it."""
        self._versions.setdefault(key, base)

    def take(self, key: bytes, base: int | None) -> int | None:
        """The version that the subscriber has where `base` is the one before the update that is sent now."""
        return self._versions.pop(key, base) if self._versions else base


class Held:
    """The updates of one key that were folded."""

    __slots__ = ("base", "base_version", "began_ms", "last", "matches", "touched", "was_received")

    def __init__(self, base: Record | None, base_version: int | None, *, was_received: bool, began_ms: int) -> None:
        self.base = base
        """The record that the subscriber has; None if it has none."""
        self.base_version = base_version
        """The version of it that was sent last."""
        self.was_received = was_received
        """Whether the subscriber was told of it, rather than supposed to have it."""
        self.began_ms = began_ms
        """When the first of the updates came."""
        self.last: Record
        """The last of the updates."""
        self.matches = False
        """Whether the record is in focus after it."""
        self.touched: Touched = {}
        """Where one of the updates was not what the subscriber has."""


class Hold:
    """Folds updates; those that have waited longest come first."""

    def __init__(
        self, topic: Topic, teller: Teller, bases: Bases, *, tells_oof: bool, silent: Callable[[bytes], None]
    ) -> None:
        """Begin with nothing.

        Args:
            topic: what the records are.
            teller: the messages of the subscription.
            bases: the versions that the subscriber has.
            tells_oof: whether it wants to know what goes out of focus.
            silent: called with the key of a record in focus of which nothing is sent after all.
        """
        self._topic = topic
        self._teller = teller
        self._bases = bases
        self._tells_oof = tells_oof
        self._silent = silent
        self._held: OrderedDict[bytes, Held] = OrderedDict()

    def __len__(self) -> int:
        """How many keys wait."""
        return len(self._held)

    @property
    def began_ms(self) -> int | None:
        """When the first update of the key came that has waited longest; None if nothing waits."""
        oldest = next(iter(self._held.values()), None)
        return None if oldest is None else oldest.began_ms

    def load(self, found: Iterable[Found]) -> Iterable[Found]:
        """Take the records in focus at the beginning, of which nothing waits."""
        return found

    def add(self, step: Step, now_ms: int) -> None:
        """Fold an update."""
        change, was, now, received = step
        held = self._held.get(change.key)
        if held is None:
            base = change.old if was else None
            base_version = self._bases.take(change.key, None if base is None else version_of(base.headers))
            held = self._held[change.key] = Held(base, base_version, was_received=received, began_ms=now_ms)
        held.last, held.matches = change.new, now
        if held.base is not None and self._teller.tells_deltas:
            before = change.old_value if held.base is change.old else self._topic.value(held.base)
            selected = self._teller.selected
            touch(held.touched, selected(before), [selected(change.new_value) if now else None])
            if now and (touched := change.touched) is not None:
                add_touched(held.touched, touched)

    def release(self) -> Message | None:
        """What to tell of the key that has waited longest, which waits no more; None if that is nothing."""
        key, held = self._held.popitem(last=False)
        last, base = held.last, held.base
        if held.matches:
            value = self._topic.value(last)
            if base is None or not self._teller.tells_deltas:
                return self._teller.whole("publish", last, value)
            message = self._teller.delta(last, value, self._topic.value(base), held.base_version, held.touched)
            if message is None:
                self._bases.left_out(key, held.base_version)
                if self._tells_oof and not held.was_received:
                    self._silent(key)
            return message
        if base is None or not self._tells_oof or not held.was_received:
            return None
        reason = "match" if last.value is not None else gone_reason(last)
        return self._teller.whole("oof", last, self._topic.value(base), reason)
