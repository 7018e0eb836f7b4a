"""Replaces the request of a subscription: the messages that lead from the old focus to the new one in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.wire.metadata import NO_HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from processor.record import Record
    from processor.subscriptions.current_records import CurrentRecords
    from processor.subscriptions.message import Message
    from processor.subscriptions.spec import SubscriptionSpec
    from processor.subscriptions.subscription import EngineSubscription


def focus_keys(spec: SubscriptionSpec, subscription: EngineSubscription, records: CurrentRecords) -> list[bytes]:
    """The keys of the records in focus now, in the order of a window."""
    if (window := subscription.window) is not None:
        return window.keys()
    return [record.key for record, _ in records.in_focus(spec) if record.key is not None]


def replaced(
    old: SubscriptionSpec,
    new: SubscriptionSpec,
    *,
    held: Mapping[bytes, Record | None],
    had: list[bytes],
    has: list[bytes],
    records: CurrentRecords,
) -> Iterator[Message]:
    """The messages of one step; records are looked up now, and messages are built as they are taken.

    Args:
        old: the request before.
        new: the request from now on.
        held: the keys with an update that waits, each with the record that the subscriber has; None: it has none.
        had: the keys in focus by the old request.
        has: the keys in focus by the new one.
        records: the records of now.
    """
    stays = frozenset(has)
    owned = {key: None for key in had if key not in held} | {
        key: None for key, base in held.items() if base is not None
    }
    left = {key: records.find(key) for key in owned if key not in stays}
    sends_all = old.builder.style != new.builder.style
    due = [key for key in has if sends_all or key in held or key not in owned] if new.has_state else []
    entered = {key: records.find(key) for key in due}
    return _messages(new, records, held, left, entered)


def _messages(
    new: SubscriptionSpec,
    records: CurrentRecords,
    held: Mapping[bytes, Record | None],
    left: Mapping[bytes, Record | None],
    entered: Mapping[bytes, Record | None],
) -> Iterator[Message]:
    builder, topic = new.builder, records.topic
    for key, record in left.items():
        base = held.get(key)
        if record is not None:
            value = topic.value(record)
            is_allowed = new.entitlement is None or new.entitlement.allows(value, topic.metadata_of(record))
            yield builder.full("oof", record, value, "match") if is_allowed else builder.withdrawn(record, value)
        elif base is not None:
            yield builder.withdrawn(base, topic.value(base))
    for record in entered.values():
        if record is not None:
            yield builder.full("publish", record, topic.value(record))


def owned_records(subscription: EngineSubscription, records: CurrentRecords) -> dict[bytes, Record]:
    """The records, or rows, that a subscriber may have: those in focus, and those with an update that waits."""
    spec = subscription.spec
    if subscription.grouping is not None:
        records, spec = subscription.grouping.rows, spec.of_rows()
    keys = focus_keys(spec, subscription, records)
    held = {key: base for key, base in subscription.held.items() if base is not None}
    return held | {key: record for key in keys if (record := records.find(key)) is not None}


def withdrawn(
    subscription: EngineSubscription, records: Mapping[bytes, Record], dropped: list[Message]
) -> Iterator[Message]:
    """The messages for records that a subscriber may not see any more.

    Args:
        subscription: the subscription.
        records: the records that it may have, by key.
        dropped: messages that it did not get; it may have other records of their keys.
    """
    builder, topic = subscription.builder, subscription.topic
    for record in records.values():
        yield builder.withdrawn(record, topic.value(record))
    for message in dropped:
        if message.command == "oof":
            data = topic.key.only(message.data) if type(message.data) is dict else None
            yield message._replace(data=data, reason="entitlement", headers=NO_HEADERS, correlation_id=None)
