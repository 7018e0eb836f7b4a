"""Resumes a subscription: the messages that lead a subscriber from its bookmark to the records of now.

A bookmark has two positions. The subscriber has received every update before `low`, and none at or after `high`.
They differ while updates wait for it: then the records that changed in between are uncertain, and each of them is
delivered in full, or as an `oof` if it is not in focus any more and was at some time in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from processor.filter.evaluation import NO_METADATA
from processor.merge import add_touched, touch
from processor.subscriptions.focus import TopNFocus
from processor.subscriptions.request.subscriber_message import PAUSE_MESSAGE
from processor.subscriptions.request.update import Update

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processor.merge import Touched
    from processor.record import Record
    from processor.subscriptions.engine_subscription import EngineSubscription
    from processor.subscriptions.records.current_records import CurrentRecords
    from processor.subscriptions.records.update_history import Positions, UpdateHistory
    from processor.subscriptions.request.record_order import SortKey
    from processor.subscriptions.request.subscriber_message import Message
    from processor.subscriptions.request.subscription_spec import SubscriptionSpec
    from processor.subscriptions.request.turn import Turn


SINCE_MAX: Final = 25_000
"""Updates since a bookmark that are looked at within a turn."""
WINDOW_SINCE_MAX: Final = 2_500
"""The same for a window, whose places of then are found."""


class Bookmark(NamedTuple):
    """The place of a subscriber in the updates of a topic."""

    low: Positions
    """Every update before these positions was delivered."""
    high: Positions
    """No update at or after these positions was delivered."""


class _Changes:
    """The updates of one key since a bookmark."""

    __slots__ = ("is_uncertain", "updates")

    def __init__(self) -> None:
        self.updates: Final[list[Update]] = []
        self.is_uncertain = False
        """True if the subscriber may have received some of them."""


def bookmark_of(
    subscription: EngineSubscription, history: UpdateHistory | None, now: Positions, *, is_idle: bool
) -> Bookmark | None:
    """The bookmark behind the messages of a subscription that were taken; None: its snapshot was not.

    Args:
        subscription: the subscription; the begin of its bookmark is moved on.
        history: the past updates.
        now: the positions before the next updates.
        is_idle: whether no message waits for it, except updates that it holds itself.
    """
    if is_idle:
        since_ms = subscription.held_since_ms
        if since_ms is None:
            subscription.low = now
        elif history is not None and (before := history.positions_before(since_ms)) is not None:
            subscription.low = before
    return None if subscription.low is None else Bookmark(subscription.low, now)


def refusal(
    spec: SubscriptionSpec, history: UpdateHistory | None, bookmark: Bookmark, *, has_turns: bool = False
) -> str | None:
    """The reason for which a subscription cannot be resumed; None: it can. With turns, others wait meanwhile."""
    if spec.filter is not None and spec.filter.moves_by_itself:
        return "the answer of the filter changes with the clock"
    if spec.grouping is not None:
        return "projection: the rows of the bookmark are not kept"
    if spec.options.conflation_key:
        return "conflation_key: the groups of the bookmark are not kept"
    if history is None or not history.reaches(bookmark.low):
        return "the bookmark is too old: updates since then are not kept any more"
    if spec.options.is_window and dict(bookmark.low) != dict(bookmark.high):
        return "the window of the bookmark is not known: updates were waiting for it"
    if has_turns and history.count_since(bookmark.low) > (WINDOW_SINCE_MAX if spec.options.is_window else SINCE_MAX):
        return "more has changed since the bookmark than can be looked at in between other work"
    return None


def resumed(
    spec: SubscriptionSpec,
    subscription: EngineSubscription,
    records: CurrentRecords,
    history: UpdateHistory,
    bookmark: Bookmark,
) -> Iterator[Message]:
    """The messages for what changed since a bookmark that `refusal` does not refuse; leaving records come first.

    What has changed is looked at now; the messages are built as they are taken.
    """
    changes: dict[bytes, _Changes] = {}
    for partition, past in history.since(bookmark.low):
        of_key = changes.get(past.key)
        if of_key is None:
            of_key = changes[past.key] = _Changes()
        of_key.updates.append(Update(records.topic, partition, past.key, past.old, past.new))
        if past.offset < bookmark.high[partition]:
            of_key.is_uncertain = True
    focus = subscription.focus
    if isinstance(focus, TopNFocus):
        return _of_window(spec, subscription, records, focus, changes)
    return _of_filter(spec, subscription, changes, bookmark, records.turn)


def _of_filter(
    spec: SubscriptionSpec,
    subscription: EngineSubscription,
    changes: dict[bytes, _Changes],
    bookmark: Bookmark,
    turn: Turn | None,
) -> Iterator[Message]:
    """The messages of a subscription without a window."""
    builder = spec.builder
    for of_key in changes.values():
        if turn is not None and turn.is_over:
            yield PAUSE_MESSAGE
        updates = of_key.updates
        matches = [update.matches(spec.filter) for update in updates]
        was, now, last = matches[0][0], matches[-1][1], updates[-1]
        if now:
            # A record that left meanwhile came back, perhaps as another life of its key: it is sent in full.
            stayed = was and all(after for _, after in matches)
            if stayed and not of_key.is_uncertain and builder.builds_deltas:
                if (message := _delta(subscription, updates, [after for _, after in matches])) is not None:
                    yield message
            else:
                yield last.full_message(builder)
            continue
        if not spec.options.oof:
            continue
        seen = updates[0].old if was else None
        for update, (_, after) in zip(updates, matches, strict=True):
            if after and update.new.offset < bookmark.high[update.partition]:
                seen = update.new
        if seen is not None:
            yield builder.out_of_focus(last.new, last.new_value, last.value_of(seen))


def _of_window(
    spec: SubscriptionSpec,
    subscription: EngineSubscription,
    records: CurrentRecords,
    focus: TopNFocus,
    changes: dict[bytes, _Changes],
) -> Iterator[Message]:
    """The messages of a window, which both looks of are taken at once."""
    places = {key: _place_before(spec, records, of_key.updates[0]) for key, of_key in changes.items()}
    before = focus.window.keys_before(places)
    in_window = focus.window.keys()
    now = {key: records.find(key) for key in in_window}
    gone = {key: records.find(key) for key in before if key not in now}
    return _window_messages(spec, subscription, changes, before=frozenset(before), now=now, gone=gone)


def _window_messages(
    spec: SubscriptionSpec,
    subscription: EngineSubscription,
    changes: dict[bytes, _Changes],
    *,
    before: frozenset[bytes],
    now: dict[bytes, Record | None],
    gone: dict[bytes, Record | None],
) -> Iterator[Message]:
    builder, topic = spec.builder, subscription.topic
    for key, record in gone.items() if spec.options.oof else ():
        if key in changes:
            last = changes[key].updates[-1]
            yield builder.out_of_focus(last.new, last.new_value, changes[key].updates[0].old_value)
        elif record is not None:
            value = topic.value(record)
            yield builder.out_of_focus(record, value, value)
    for key, record in now.items():
        if record is None or (key in before and key not in changes):
            continue
        updates = changes[key].updates if key in changes else []
        if key in before and builder.builds_deltas and all(update.new.value is not None for update in updates):
            message = _delta(subscription, updates, [update.new.value is not None for update in updates])
            if message is not None:
                yield message
        else:
            yield builder.full("publish", record, topic.value(record))


def _delta(subscription: EngineSubscription, updates: list[Update], in_focus: list[bool]) -> Message | None:
    """The delta of several updates of a record that the subscriber has, with every path that was touched."""
    builder = subscription.builder
    first, last = updates[0], updates[-1]
    before = builder.selected(first.old_value)
    touched: Touched = {}
    for update, is_in in zip(updates, in_focus, strict=True):
        touch(touched, before, [builder.selected(update.new_value) if is_in else None])
        if is_in and (named := update.touched) is not None:
            add_touched(touched, named)
    message = builder.delta(last.new, last.new_value, first.old_value, first.old_version, touched)
    if message is None:
        subscription.note_left_out(last.key, first.old_version)
    return message


def _place_before(spec: SubscriptionSpec, records: CurrentRecords, first: Update) -> SortKey | None:
    """The place in the order that the record before an update had; None: it had none."""
    was, _ = first.matches(spec.filter)
    if not was:
        return None
    assert spec.order is not None
    assert first.old is not None
    metadata = records.topic.metadata_of(first.old) if spec.order.uses_metadata else NO_METADATA
    return spec.order.key(first.key, first.old_value, metadata)
