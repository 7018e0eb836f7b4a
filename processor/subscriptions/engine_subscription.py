"""The subscriptions of an engine: one, which builds messages or holds updates; and all of them, by their filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from processor.errors import SubscriberTooSlow
from processor.subscriptions.conflation_buffers import ConflationBuffer, DeltaBases, GroupBuffer
from processor.subscriptions.focus import MatchingFocus, TopNFocus
from processor.subscriptions.request.filter_index import FilterIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from processor.filter import Filter
    from processor.record import Record
    from processor.subscriptions.focus import Focus, FocusChange
    from processor.subscriptions.records.grouping import Grouping
    from processor.subscriptions.records.update_history import Positions
    from processor.subscriptions.request.subscribed_topic import ParsedRecord, Topic
    from processor.subscriptions.request.subscriber_message import Message
    from processor.subscriptions.request.subscription_spec import SubscriptionSpec
    from processor.subscriptions.request.top_n import TopN
    from processor.subscriptions.request.turn import Turn
    from processor.subscriptions.request.update import Update


class EngineSubscription:
    """A running subscription. It knows its focus and its buffer; the queue of messages is its connection's."""

    def __init__(
        self,
        topic: Topic,
        sub_id: str,
        spec: SubscriptionSpec,
        focus: Focus,
        find: Callable[[bytes], Record | None],
        grouping: Grouping | None = None,
    ) -> None:
        """Begin without an update.

        Args:
            topic: the topic.
            sub_id: its name on the connection.
            spec: its filter and options.
            focus: decides which records the subscriber has.
            find: returns the record of a key as it is now.
            grouping: the groups of an aggregated subscription, whose `topic`, `focus` and `find` are of its rows.
        """
        self.spec: Final = spec
        """Its request."""
        self.topic: Final = topic
        """The topic."""
        self.low: Positions | None = None
        """Every update before these positions was delivered; None: its snapshot was not."""
        self.is_catching_up = False
        """True if messages that lead to the records of now wait: a snapshot, or the changes since a bookmark."""
        self.sub_id: Final = sub_id
        """Its name on the connection."""
        self.filter: Final = spec.filter
        """Selects its records; None: all."""
        self.is_live: Final = spec.live
        """True if updates follow its snapshot."""
        self.grouping: Final = grouping
        """The groups of an aggregated subscription; None: its messages are about records."""
        self.focus: Final = focus
        """Decides which records the subscriber has."""
        self.builder: Final = spec.builder
        """Builds its messages."""
        self._options = spec.options
        conflation = spec.options.conflation
        self.interval_ms: Final = None if conflation in (None, "auto", "none") else round(float(conflation) * 1000)
        """Time for which updates of a key are held; None: as long as the subscriber has no room for them."""
        self._always_holds = conflation == "auto" or self.interval_ms is not None
        self._never_holds = conflation == "none"
        is_plain = grouping is None and self.builder.builds_deltas and not self._always_holds
        self._plain_focus = focus if is_plain and isinstance(focus, MatchingFocus) else None
        self._bases = DeltaBases()
        self._buffer: ConflationBuffer | GroupBuffer = (
            GroupBuffer(topic, self.builder, spec.options.conflation_key, find, spec.entitlement)
            if spec.options.conflation_key
            else ConflationBuffer(
                topic, self.builder, self._bases, sends_oof=spec.options.oof, not_sent=focus.mark_not_sent
            )
        )

    @property
    def waiting(self) -> int:
        """The number of keys, or groups of them, whose updates are held."""
        return len(self._buffer)

    @property
    def window(self) -> TopN | None:
        """Its window; None if it has none."""
        return self.focus.window if isinstance(self.focus, TopNFocus) else None

    @property
    def held(self) -> dict[bytes, Record | None]:
        """The keys whose updates are held, each with the record that the subscriber has; None: it has none."""
        return self._buffer.held

    @property
    def held_since_ms(self) -> int | None:
        """Time of the first update that is held now; None if none is."""
        return self._buffer.began_ms

    @property
    def released_bytes(self) -> int:
        """The size of the record that was released last, encoded."""
        return self._buffer.released_bytes

    def note_left_out(self, key: bytes, base: int | None) -> None:
        """Note that an update was not sent, as nothing changed; `base` is the version of the record before it."""
        self._bases.add_left_out(key, base)

    @property
    def began_ms(self) -> int | None:
        """Begin of the oldest interval; None if no update is held until a time."""
        return None if self.interval_ms is None else self._buffer.began_ms

    @property
    def due_ms(self) -> int | None:
        """End of the oldest interval; None if no update is held until a time."""
        began_ms = self._buffer.began_ms
        return None if began_ms is None or self.interval_ms is None else began_ms + self.interval_ms

    @property
    def waits_for_room(self) -> bool:
        """True if updates are held that are to be sent as soon as the subscriber has room."""
        return self.interval_ms is None and len(self._buffer) > 0

    def load(self, records: Iterable[ParsedRecord]) -> Iterable[ParsedRecord]:
        """Take the records in focus at the beginning; returns the same records, for the snapshot."""
        return self._buffer.load(records)

    def plain_delta(self, update: Update) -> Message | None:
        """The delta of an update before and after which the filter matches: that of most updates of most subscribers.

        Returns:
            The message to send at once. None: `changes` and `changed` decide, as there is more to it.

        Raises:
            SowstreamError: as `changes`.
        """
        focus = self._plain_focus
        if focus is None or len(self._buffer) or not focus.keeps(update):
            return None
        return self._delta(update)

    def changes(self, update: Update, *, was: bool, now: bool) -> Iterable[FocusChange]:
        """The changes that an update makes to the records, or the rows, that the subscriber has.

        Args:
            update: the update of a record.
            was: whether the filter matched the record before.
            now: whether it does after the update.

        Raises:
            SowstreamError: a record cannot be parsed, or a third party's function raised.
        """
        if self.grouping is None:
            return self.focus.changes(update, was=was, now=now)
        rows = self.grouping.changes(update, now=now)
        if isinstance(self.focus, TopNFocus):
            return self.focus.row_changes([(row.update, row.now) for row in rows])
        changes: list[FocusChange] = []
        for row in rows:
            changes += self.focus.changes(row.update, was=row.was, now=row.now)
        return changes

    def changed(self, change: FocusChange, now_ms: int, *, is_full: bool) -> Message | None:
        """Take the change that an update made to one record of the focus.

        Args:
            change: the change.
            now_ms: the time.
            is_full: whether the queue of the connection is full; then the update is held, unless conflation is `none`.

        Returns:
            The message to send at once. None: the update is held, or the subscriber need not see it.

        Raises:
            SowstreamError: a third party's function raised, or no worker wrote a record like this.
        """
        update, was, now, received = change
        if not was and not now:
            return None
        buffer = self._buffer
        # Held updates are sent first: while there are any, all updates are held.
        if self._always_holds or len(buffer) or (is_full and not self._never_holds):
            buffer.add(change, now_ms)
            return None
        message = self._message(change)
        if message is None and now and self._options.oof and not received:
            self.focus.mark_not_sent(update.key)
        return message

    def release(self) -> Message | None:
        """Release the key that was held longest; returns its message, or None if there is nothing to send."""
        return self._buffer.release()

    def _message(self, change: FocusChange) -> Message | None:
        """The message of an update that is not held; None if there is nothing to send."""
        update, was, now, received = change
        if now and was and self.builder.builds_deltas:
            return self._delta(update)
        self._bases.take(update.key, None)  # The subscriber has the full record as it is now, or none.
        if now:
            return update.full_message(self.builder)
        if not was or not received or not self._options.oof:
            return None
        return update.oof_message(self.builder)

    def _delta(self, update: Update) -> Message | None:
        """The delta of an update, based on the version that the subscriber has; None if nothing changed for it."""
        message = update.delta_message(self.builder)
        if message is None:
            self._bases.add_left_out(update.key, update.old_version)
            return None
        base = self._bases.take(update.key, message.delta_base)
        return message if base == message.delta_base else message._replace(delta_base=base)


def too_slow(subscription: EngineSubscription, queue_max: int) -> SubscriberTooSlow:
    """Return the error of a subscriber whose queue is full and whose updates may not be folded."""
    return SubscriberTooSlow(
        f"subscription {subscription.sub_id} to {subscription.topic.name}: {queue_max:,} messages wait to be taken, "
        "and with conflation=none none of them may be folded; read faster, or leave the option out"
    )


Receiver = TypeVar("Receiver")
"""The receiver of a subscription's messages."""

_ABSENT: Final = object()
_SLOTS_AT_ONCE: Final = 100
"""Slots of a filter that leave the index at once; a list of 7,000 texts takes 7 ms, and a client may have a hundred."""


class FilterGroup(Generic[Receiver]):
    """The subscriptions with one filter, which is evaluated once for all of them."""

    def __init__(self, selection: Filter | None) -> None:
        self.filter: Final = selection
        """The filter; None: all records match."""
        self.moves_by_itself: Final = selection is not None and selection.moves_by_itself
        """True if a record may match later without an update."""
        self.members: Final[dict[EngineSubscription, Receiver]] = {}
        """The subscriptions, in the order in which they began, with their receivers."""
        self.windows: Final[dict[int, EngineSubscription]] = {}
        """Of each shared order of records, one subscription whose window has it."""

    def index_windows(self) -> None:
        """Note one window for each order."""
        self.windows.clear()
        for subscription in self.members:
            if subscription.grouping is None and (window := subscription.window) is not None:
                self.windows.setdefault(id(window.places), subscription)


class Routes(Generic[Receiver]):
    """Finds the subscriptions that an update may concern."""

    def __init__(self, turn: Turn | None = None) -> None:
        """Begin without subscriptions.

        Args:
            turn: filters of many values leave the index in turns, as others wait; None: all of them at once.
        """
        self._turn = turn
        self._groups: dict[str | None, FilterGroup[Receiver]] = {}
        self._index: FilterIndex[FilterGroup[Receiver]] = FilterIndex()

    def __bool__(self) -> bool:
        """Return whether there is any subscription."""
        return bool(self._groups)

    def __iter__(self) -> Iterator[tuple[EngineSubscription, Receiver]]:
        """Every subscription with its receiver."""
        return (member for group in self._groups.values() for member in group.members.items())

    def add(self, subscription: EngineSubscription, receiver: Receiver) -> None:
        """Route updates to a subscription from now on."""
        selection = subscription.filter
        text = _text(subscription)
        group = self._groups.get(text)
        if group is None:
            group = self._groups[text] = FilterGroup(selection)
            self._index.add(selection, group, subscription.spec.index_slots)
        group.members[subscription] = receiver
        if subscription.grouping is not None:
            subscription.grouping.subscriptions += 1
        elif subscription.window is not None:
            subscription.window.places.windows += 1
            group.index_windows()

    def remove(self, subscription: EngineSubscription) -> bool:
        """Route no more updates to a subscription; False if none were, as it ended with its snapshot."""
        text = _text(subscription)
        group = self._groups.get(text)
        if group is None or group.members.pop(subscription, _ABSENT) is _ABSENT:
            return False
        if subscription.grouping is not None:
            subscription.grouping.subscriptions -= 1
        elif subscription.window is not None:
            subscription.window.places.windows -= 1
        if not group.members:
            del self._groups[text]
            slots = sum(map(len, (subscription.spec.index_slots or {}).values()))
            if self._turn is not None and slots > _SLOTS_AT_ONCE:
                self._turn.leave(self._removal(group))
            else:
                self._index.remove(group.filter, group)
        elif subscription.window is not None:
            group.index_windows()
        return True

    def _removal(self, group: FilterGroup[Receiver]) -> Iterator[None]:
        """Take a group without members out of the index, in one step."""
        self._index.remove(group.filter, group)
        yield

    def receiver_of(self, subscription: EngineSubscription) -> Receiver:
        """The receiver of a subscription that is routed."""
        return self._groups[_text(subscription)].members[subscription]

    def candidates(self, update: Update) -> Iterable[FilterGroup[Receiver]]:
        """The groups whose filter the record may match, before or after an update.

        Raises:
            SowstreamError: the record cannot be parsed, which every subscriber must learn.
        """
        new_value = update.new_value
        if not self._index.asks_records:
            return list(self._groups.values())
        return self._index.candidates(new_value, update.old_value)


def _text(subscription: EngineSubscription) -> str | None:
    """The text of a subscription's filter."""
    return None if subscription.filter is None else subscription.filter.text
