"""An update of one key, parsed at most once however many subscriptions use it."""

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
    from processor.subscriptions.message_builder import MessageBuilder
    from processor.subscriptions.topic import Topic

_UNREAD: Final = object()


class Update:
    """The records of a key before and after an update, with the messages that were built of it."""

    __slots__ = ("_addressed", "_messages", "_new_value", "_old_value", "_topic", "key", "new", "old", "partition")

    def __init__(self, topic: Topic, partition: int, key: bytes, old: Record | None, new: Record) -> None:
        self.partition = partition
        """The partition of the key."""
        self.key = key
        """The Kafka record key."""
        self.old = old
        """The record before; None if there was none, or it is not known."""
        self.new = new
        """The record after; a tombstone has no value."""
        self._topic = topic
        self._old_value: Value = _UNREAD
        self._new_value: Value = _UNREAD
        self._messages: dict[object, Message | None] = {}
        self._addressed: dict[tuple[int, str], tuple[Message, Message]] = {}

    @property
    def old_value(self) -> Value | None:
        """The parsed record before; None if there was none.

        Raises:
            Stop: no worker wrote it like this.
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
        """The parsed record after; None for a tombstone.

        Raises:
            Stop: as `old_value`.
        """
        if self._new_value is _UNREAD:
            self._new_value = None if self.new.value is None else self._topic.value(self.new, self.partition)
        return self._new_value

    def value_of(self, record: Record) -> Value:
        """The parsed value of another record of this key.

        Raises:
            Stop: as `old_value`.
        """
        return self._topic.value(record, self.partition)

    @property
    def touched(self) -> Touched | None:
        """Of a conflated topic, the paths that changed since the record before and changed back; None: no such path.

        Raises:
            Stop: no worker wrote the header like this.
        """
        try:
            return touched_paths(self.new.headers, self.new_value)
        except RecordRejected as error:
            raise self._topic.unreadable(self.new, error, self.partition) from error

    def matches(self, filter: Filter | None) -> tuple[bool, bool]:  # noqa: A002 - AMPS' name
        """True if a filter matches the record before, and whether it matches the record after.

        Raises:
            RecordRejected: a third party's function raised.
            Stop: no worker wrote a record like this.
        """
        old, new = self.old, self.new
        if filter is None:
            return old is not None, new.value is not None
        if filter.uses_metadata:
            topic = self._topic
            return (
                old is not None and filter.matches(self.old_value, topic.metadata_of(old)),
                new.value is not None and filter.matches(self.new_value, topic.metadata_of(new)),
            )
        return (
            old is not None and filter.matches(self.old_value),
            new.value is not None and filter.matches(self.new_value),
        )

    def addressed(self, message: Message, sub_id: str) -> Message:
        """A message of this update for one subscription; the same object for all connections that give it this name."""
        memo = id(message), sub_id
        if (made := self._addressed.get(memo)) is None:
            # The message is kept, so that its id stays its own.
            made = self._addressed[memo] = message, message.addressed((sub_id,))
        return made[1]

    def full_message(self, builder: MessageBuilder) -> Message:
        """The message with the full record after; built once for all subscriptions of a style."""
        memo = builder.style
        if (message := self._messages.get(memo)) is None:
            message = self._messages[memo] = builder.full("publish", self.new, self.new_value)
        return message

    def delta_message(self, builder: MessageBuilder) -> Message | None:
        """The message with the delta, None if it is empty and not wanted; built once for all of a style."""
        memo = (builder.style, builder.no_empties)
        if memo not in self._messages:
            self._messages[memo] = builder.delta(
                self.new, self.new_value, self.old_value, self.old_version, self.touched
            )
        return self._messages[memo]
