"""Replaces the request of a subscription: the messages that lead from the old focus to the new one in one step.

The records are those of the moment of the step, but they are read, and the messages built, as they are taken: a focus
may be large, and others may wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.filter.evaluation import NO_METADATA
from processor.subscriptions.focus import RememberedFocus
from processor.subscriptions.request.subscribed_topic import PAUSE
from processor.subscriptions.request.subscriber_message import PAUSE_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from processor.record import Record, Value
    from processor.subscriptions.engine_subscription import EngineSubscription
    from processor.subscriptions.records.current_records import CurrentRecords
    from processor.subscriptions.request.subscribed_topic import ParsedRecord
    from processor.subscriptions.request.subscriber_message import Message


class FocusNow:
    """The records in focus of a subscription, or its rows, as they are when this object is made."""

    def __init__(self, subscription: EngineSubscription, records: CurrentRecords) -> None:
        """Note them; `records` are those of the topic."""
        self.spec: Final = subscription.spec
        """The request."""
        self.held: Final[Mapping[bytes, Record | None]] = dict(subscription.held)
        """The keys whose updates wait, each with the record that the subscriber has; None: it has none."""
        spec, focus = subscription.spec, subscription.focus
        if subscription.grouping is not None:
            records, spec = subscription.grouping.rows, spec.of_rows()
        self.topic: Final = records.topic
        """The topic of the records."""
        self._turn = records.turn
        self._filter = spec.filter
        self._remembered = focus if isinstance(focus, RememberedFocus) else None
        self._keys: frozenset[bytes] | None = None
        if (window := subscription.window) is not None:
            keys = window.keys()
            self._keys = frozenset(keys)
            self._candidates: Iterable[Record] = [one for one in map(records.find, keys) if one is not None]
        else:
            self._candidates = records.including(spec.filter)

    @property
    def is_empty(self) -> bool:
        """True if it is known that no record is in focus, and the subscriber has none."""
        return self._keys is not None and not self._keys and not any(self.held.values())

    def records(self) -> Iterator[ParsedRecord]:
        """The records in focus, in the order of a window, with `PAUSE` where a turn is over. It is called once."""
        value_of, turn = self.topic.value, self._turn
        for record in self._candidates:
            value = value_of(record)
            if self.includes(record, value):
                yield record, value
            if turn is not None and turn.is_over:
                yield PAUSE
        if self._remembered is not None:
            self._remembered.end_reading()

    def includes(self, record: Record, value: Value) -> bool:
        """Return whether a record is in focus."""
        if self._keys is not None:
            return record.key in self._keys
        if self._remembered is not None and not self._remembered.is_reading:
            return (record.key or b"") in self._remembered
        selection = self._filter
        if selection is None:
            return True
        return selection.matches(value, self.topic.metadata_of(record) if selection.uses_metadata else NO_METADATA)

    def remember(self, record: Record) -> None:
        """Note that the subscriber has a record in focus."""
        if self._remembered is not None and self._remembered.is_reading:
            self._remembered.remember(record.key or b"")


def replaced(had: FocusNow, has: FocusNow, records: CurrentRecords) -> Iterator[Message]:
    """The messages of one step; leaving records come first.

    Args:
        had: the focus by the old request.
        has: the focus by the new one.
        records: the records of now.
    """
    waiting = {key: records.find(key) for key, base in had.held.items() if base is not None}
    return _messages(had, has, waiting)


def _messages(had: FocusNow, has: FocusNow, waiting: Mapping[bytes, Record | None]) -> Iterator[Message]:
    held, builder, topic = had.held, has.spec.builder, had.topic
    entitlement = has.spec.entitlement

    def left(record: Record, value: Value) -> Message:
        is_allowed = entitlement is None or entitlement.allows(value, topic.metadata_of(record))
        return builder.full("oof", record, value, "match") if is_allowed else builder.withdrawn(record, value)

    for parsed in had.records():
        if parsed is PAUSE:
            yield PAUSE_MESSAGE
        elif parsed[0].key not in held and not has.includes(*parsed):
            yield left(*parsed)
    for key, record in waiting.items():
        base = held[key]
        if record is None:
            assert base is not None
            yield builder.withdrawn(base, topic.value(base))
        elif not has.includes(record, value := topic.value(record)):
            yield left(record, value)
    if not has.spec.has_state:
        return
    sends_all = had.spec.builder.style != has.spec.builder.style
    for parsed in has.records():
        if parsed is PAUSE:
            yield PAUSE_MESSAGE
            continue
        record, value = parsed
        has.remember(record)
        if sends_all or record.key in held or not had.includes(record, value):
            yield builder.full("publish", record, value)


def withdrawn(subscription: EngineSubscription, had: FocusNow, dropped: list[Message]) -> Iterator[Message]:
    """The messages for records that a subscriber may not see any more.

    Args:
        subscription: the subscription.
        had: its focus.
        dropped: messages that it did not get; it may have other records of their keys.
    """
    builder, topic = subscription.builder, subscription.topic
    bases = {key: base for key, base in had.held.items() if base is not None}
    for parsed in had.records():
        if parsed is PAUSE:
            yield PAUSE_MESSAGE
            continue
        record, value = parsed
        bases.pop(record.key or b"", None)
        yield builder.withdrawn(record, value)
    for base in bases.values():
        yield builder.withdrawn(base, topic.value(base))
    for message in dropped:
        if message.command == "oof":
            data = topic.key.only(message.data) if type(message.data) is dict else None
            yield message.without_record(data)
