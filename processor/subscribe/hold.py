"""What is held back for one subscription: of each key what the subscriber has, and what it is to be told."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from processor.merge import add_touched, touch
from processor.record import Value
from processor.subscribe.teller import gone_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from processor.merge import Touched
    from processor.record import Record
    from processor.subscribe.focus import Step
    from processor.subscribe.message import Message
    from processor.subscribe.teller import Teller, Topic


class Held:
    """The updates of one key that were folded."""

    __slots__ = ("base", "began_ms", "last", "matches", "touched", "was_received")

    def __init__(self, base: Record | None, *, was_received: bool, began_ms: int) -> None:
        self.base = base
        """The record that the subscriber has; None if it has none."""
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
        self,
        topic: Topic,
        teller: Teller,
        *,
        tells_oof: bool,
        key: Callable[[Value], Hashable] | None,
        silent: Callable[[bytes], None],
    ) -> None:
        """Begin with nothing.

        Args:
            topic: what the records are.
            teller: the messages of the subscription.
            tells_oof: whether it wants to know what goes out of focus.
            key: by what records are folded; None: by their key.
            silent: hears of the key of a record in focus that nothing is told of after all.
        """
        self._topic = topic
        self._teller = teller
        self._tells_oof = tells_oof
        self._key = key
        self._silent = silent
        self.held: Final[OrderedDict[Hashable, Held]] = OrderedDict()
        """What waits; to be looked at only."""
        self._groups: dict[bytes, Hashable] = {}  # Of a record that waits under another key than its own: which.

    def __len__(self) -> int:
        """How many keys wait."""
        return len(self.held)

    @property
    def began_ms(self) -> int | None:
        """When the first update of the key came that has waited longest; None if nothing waits."""
        oldest = next(iter(self.held.values()), None)
        return None if oldest is None else oldest.began_ms

    def add(self, step: Step, now_ms: int) -> None:
        """Fold an update."""
        change = step.change
        if self._key is None:
            self._fold(change.key, step, now_ms)
            return
        group = self._key(change.new_value) if step.now else None
        if step.now and group is None:
            group = change.key
        before = self._groups.get(change.key)
        if before is not None and before != group:
            # It has gone, or waits under other values now: it is not to be told as it was.
            del self._groups[change.key], self.held[before]
        if group is None:
            return
        # It takes the place of whichever waits there, at the same time.
        if (waiting := self.held.get(group)) is not None and waiting.last.key is not None:
            self._groups.pop(waiting.last.key, None)
        self._groups[change.key] = group
        self._fold(group, step, now_ms)

    def _fold(self, key: Hashable, step: Step, now_ms: int) -> None:
        change, was, now, received = step
        held = self.held.get(key)
        if held is None:
            base = change.old if was else None
            held = self.held[key] = Held(base, was_received=received, began_ms=now_ms)
        held.last, held.matches = change.new, now
        if held.base is not None and self._teller.tells_deltas:
            before = change.old_value if held.base is change.old else self._topic.value(held.base)
            selected = self._teller.selected
            touch(held.touched, selected(before), [selected(change.new_value) if now else None])
            if now and (touched := change.touched) is not None:
                add_touched(held.touched, touched)

    def release(self) -> Message | None:
        """What to tell of the key that has waited longest, which waits no more; None if that is nothing."""
        _, held = self.held.popitem(last=False)
        last, base = held.last, held.base
        if self._key is not None and last.key is not None:
            self._groups.pop(last.key, None)
        if held.matches:
            value = self._topic.value(last)
            if base is not None and self._teller.tells_deltas:
                message = self._teller.delta(last, value, self._topic.value(base), held.touched)
                if message is None and self._tells_oof and not held.was_received:
                    self._silent(last.key)  # type: ignore[arg-type]
                return message
            return self._teller.whole("publish", last, value)
        if base is None or not self._tells_oof or not held.was_received:
            return None
        reason = "match" if last.value is not None else gone_reason(last)
        return self._teller.whole("oof", last, self._topic.value(base), reason)
