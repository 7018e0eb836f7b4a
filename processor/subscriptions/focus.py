"""Which records a subscriber has: what an update of one key means for its subscription, and for other keys of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from processor.filter.record_metadata import NO_FACTS
from processor.subscriptions.update import Change
from processor.wire.metadata import is_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from processor.record import Record, Value
    from processor.subscriptions.message_builder import Topic
    from processor.subscriptions.order import Order, SortKey
    from processor.subscriptions.top_n import Window


Found: TypeAlias = "tuple[Record, Value]"
"""A record that matches, and what it says, parsed."""


class Step(NamedTuple):
    """What became of one key for one subscription."""

    change: Change
    """The update; where another key's update was the cause, one that changed nothing."""
    was: bool
    """Whether the record was in focus before."""
    now: bool
    """Whether it is."""
    received: bool
    """Whether the subscriber was told of it, rather than supposed to have it."""


class Focus(Protocol):
    """One way to know."""

    def load(self, found: Iterable[Found], *, told: bool) -> Iterable[Found]:
        """Take the records that match at the beginning, and say which of them are in focus, in order.

        Args:
            found: what matches.
            told: whether the subscriber is told of them.
        """

    def opened(self, partition: int, offset: int) -> None:
        """Hear of a partition nobody has read before, and where it begins."""

    def silent(self, key: bytes) -> None:
        """Hear that the subscriber, who was never told of a record in focus, was not told of its last update either."""

    def steps(self, change: Change, *, was: bool, now: bool) -> Sequence[Step]:
        """What an update means, where the filter matched the record before, and matches it now."""


class Matching:
    """What matched before is what the subscriber has: nothing needs to be kept.

    Without a snapshot it is supposed to have what it was never told of; what was told is what came after the beginning.
    With one it has what was there before, but for records whose time was over.
    """

    def __init__(self, began: Mapping[int, int], *, has_snapshot: bool, over_ms: int | None) -> None:
        """Begin.

        Args:
            began: the offsets from which on updates are told.
            has_snapshot: whether the subscriber gets what was there before.
            over_ms: records whose time was over then are not in its snapshot; None: all are.
        """
        self._began = dict(began)
        self._has_snapshot = has_snapshot
        self._over_ms = over_ms if has_snapshot else None
        self._silent: set[bytes] = set()  # Updated since it began, and not told even so.

    def load(self, found: Iterable[Found], *, told: bool) -> Iterable[Found]:  # noqa: ARG002
        """All of them."""
        return found

    def opened(self, partition: int, offset: int) -> None:
        """What comes is told."""
        self._began[partition] = offset

    def silent(self, key: bytes) -> None:
        """Its offset will say that it was told."""
        self._silent.add(key)

    def steps(self, change: Change, *, was: bool, now: bool) -> Sequence[Step]:
        """The update itself."""
        received = was
        if was:
            assert change.old is not None
            if self._over_ms is not None and is_over(change.old, self._over_ms):
                # A worker's clock may be behind: an update may come with a time that is over, and is told even so.
                received = was = change.old.offset >= self._began[change.partition]
            elif not self._has_snapshot:
                received = change.old.offset >= self._began[change.partition] and change.key not in self._silent
                self._silent.discard(change.key)
        return (Step(change, was, now, received),)


class Remembered:
    """What was told is remembered: for a filter whose answer changes by itself, so that nobody can ask it later."""

    def __init__(self, topic: Topic) -> None:
        """Begin with nothing told; the topic says how to parse its records."""
        self._topic = topic
        self._keys: set[bytes] = set()

    def load(self, found: Iterable[Found], *, told: bool) -> Iterable[Found]:
        """All of them, found now: later the filter would answer otherwise."""
        matching = [record for record, _ in found]
        if told:
            self._keys.update(record.key for record in matching if record.key is not None)
        return self._topic.parsed(matching)

    def opened(self, partition: int, offset: int) -> None:
        """It is all the same."""

    def silent(self, key: bytes) -> None:
        """Never: what was not told is told whole."""

    def steps(self, change: Change, *, was: bool, now: bool) -> Sequence[Step]:  # noqa: ARG002
        """The update itself."""
        had = change.key in self._keys
        if now:
            self._keys.add(change.key)
        else:
            self._keys.discard(change.key)
        return (Step(change, had, now, had),)


class Windowed:
    """The records of an order from one place to another: who comes in pushes somebody out."""

    def __init__(self, topic: Topic, order: Order, window: Window, find: Callable[[bytes], Record | None]) -> None:
        """Begin with an empty window.

        Args:
            topic: what the records are.
            order: what is compared.
            window: the places.
            find: tells the record of a key as it is now.
        """
        self._topic = topic
        self._order = order
        self._window = window
        self._find = find
        self._told: set[bytes] = set()

    def load(self, found: Iterable[Found], *, told: bool) -> Iterable[Found]:
        """Those in the window."""
        for record, value in found:
            assert record.key is not None
            self._window.put(record.key, self._place(record.key, value, record))
        keys = self._window.keys()
        if told:
            self._told.update(keys)
        return self._topic.parsed([record for record in map(self._find, keys) if record is not None])

    def opened(self, partition: int, offset: int) -> None:
        """It is all the same."""

    def silent(self, key: bytes) -> None:
        """It was not told after all."""
        self._told.discard(key)

    def steps(self, change: Change, *, was: bool, now: bool) -> Sequence[Step]:  # noqa: ARG002
        """The update itself, and whom it lets in or pushes out; who leaves goes first."""
        key, window = change.key, self._window
        had = key in window
        # The window knows what was in it: a filter's answer may have changed by itself.
        moved = window.put(key, self._place(key, change.new_value, change.new)) if now else window.remove(key)
        has = key in window
        steps = [self._step(other, change, was=True) for other in moved.left if other != key]
        if had or has:
            steps.append(Step(change, had, has, key in self._told))
        steps += [self._step(other, change, was=False) for other in moved.entered if other != key]
        for step in steps:
            (self._told.add if step.now else self._told.discard)(step.change.key)
        return steps

    def _place(self, key: bytes, value: Value, record: Record) -> SortKey:
        return self._order.key(key, value, self._topic.facts(record) if self._order.uses_facts else NO_FACTS)

    def _step(self, key: bytes, cause: Change, *, was: bool) -> Step:
        """A key that an update of another one let in or pushed out."""
        record = self._find(key)
        assert record is not None
        change = Change(self._topic, cause.partition, key, record, record)
        return Step(change, was, not was, key in self._told)
