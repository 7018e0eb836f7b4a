"""One update of one key, parsed at most once however many subscriptions look at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.errors import RecordRejected
from processor.wire.sow_headers import version_of
from processor.wire.touched import touched_paths

if TYPE_CHECKING:
    from processor.filter import Filter
    from processor.merge import Touched
    from processor.record import Record, Value
    from processor.subscriptions.message import Message
    from processor.subscriptions.message_builder import Teller, Topic

_UNREAD: Final = object()


class Change:
    """What a key was, and what it is now."""

    __slots__ = ("_new_value", "_old_value", "_told", "_topic", "key", "new", "old", "partition")

    def __init__(self, topic: Topic, partition: int, key: bytes, old: Record | None, new: Record) -> None:
        self.partition = partition
        """The partition of the key."""
        self.key = key
        """The Kafka record key."""
        self.old = old
        """The record before; None if there was none, or nobody knows."""
        self.new = new
        """The update; one without a value says that the record is gone."""
        self._topic = topic
        self._old_value: Value = _UNREAD
        self._new_value: Value = _UNREAD
        self._told: dict[object, Message | None] = {}

    @property
    def old_value(self) -> Value | None:
        """The parsed record before; None if there was none.

        Raises:
            Stop: it is not what a worker wrote.
        """
        if self._old_value is _UNREAD:
            self._old_value = None if self.old is None else self._topic.value(self.old, self.partition)
        return self._old_value

    @property
    def old_version(self) -> int | None:
        """The version of the record before; None if there was none."""
        return None if self.old is None else version_of(self.old.headers)

    @property
    def new_value(self) -> Value | None:
        """The parsed record now; None if there is none.

        Raises:
            Stop: as `old_value`.
        """
        if self._new_value is _UNREAD:
            self._new_value = None if self.new.value is None else self._topic.value(self.new, self.partition)
        return self._new_value

    @property
    def touched(self) -> Touched | None:
        """Of a conflated topic: paths that moved since the record before and came back; None if there are none.

        Raises:
            Stop: the header is not what a worker wrote.
        """
        try:
            return touched_paths(self.new.headers, self.new_value)
        except RecordRejected as error:
            raise self._topic.unreadable(self.new, error, self.partition) from error

    def focus(self, filter: Filter | None) -> tuple[bool, bool]:  # noqa: A002 - AMPS' name
        """Whether the record matched before, and whether it does now.

        Raises:
            RecordRejected: a third party's function raised.
            Stop: a record is not what a worker wrote.
        """
        old, new = self.old, self.new
        if filter is None:
            return old is not None, new.value is not None
        if filter.uses_facts:
            topic = self._topic
            return (
                old is not None and filter.matches(self.old_value, topic.facts(old)),
                new.value is not None and filter.matches(self.new_value, topic.facts(new)),
            )
        return (
            old is not None and filter.matches(self.old_value),
            new.value is not None and filter.matches(self.new_value),
        )

    def whole(self, teller: Teller) -> Message:
        """The record now, as an update; made once for all subscriptions of a style."""
        memo = teller.style
        if (message := self._told.get(memo)) is None:
            message = self._told[memo] = teller.whole("publish", self.new, self.new_value)
        return message

    def delta(self, teller: Teller) -> Message | None:
        """What changed; made once likewise."""
        memo = (teller.style, teller.no_empties)
        if memo not in self._told:
            self._told[memo] = teller.delta(self.new, self.new_value, self.old_value, self.old_version, self.touched)
        return self._told[memo]
