"""The focus of a subscription: decides whether an update brings a record into focus, keeps it there or takes it out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from processor.filter.evaluation import NO_METADATA
from processor.subscriptions.request.subscribed_topic import PAUSE
from processor.subscriptions.request.top_n import TopN
from processor.subscriptions.request.turn import LargeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from processor.record import Record, Value
    from processor.subscriptions.records.current_records import CurrentRecords
    from processor.subscriptions.request.record_order import SortKey, SortOrder
    from processor.subscriptions.request.subscribed_topic import ParsedRecord, Topic
    from processor.subscriptions.request.subscription_spec import SubscriptionSpec
    from processor.subscriptions.request.turn import Turn
    from processor.subscriptions.request.update import Update


class FocusChange(NamedTuple):
    """The change that an update made to one record of a subscription's focus."""

    update: Update
    """The update; of a record that another one's update moved in or out, an update from the record to itself."""
    was: bool
    """True if the record was in focus before."""
    now: bool
    """True if it is in focus after."""
    received: bool
    """True if the subscriber received the record, rather than being supposed to have it."""


class Focus(Protocol):
    """Keeps track of the records that a subscriber has."""

    def load(self, records: Iterable[ParsedRecord], *, received: bool) -> Iterable[ParsedRecord]:
        """Take the records that match at the beginning, and return those in focus, in order.

        Args:
            records: the records that match.
            received: whether they count as received by the subscriber.
        """

    def open_partition(self, partition: int, offset: int) -> None:
        """Begin to deliver a new partition at an offset."""

    def mark_not_sent(self, key: bytes) -> None:
        """Note that an update of a record in focus, which the subscriber never received, was not sent either."""

    def changes(self, update: Update, *, was: bool, now: bool) -> Sequence[FocusChange]:
        """The changes by an update, where the filter matched the record before (`was`) and after it (`now`)."""


def focus_of(
    spec: SubscriptionSpec, records: CurrentRecords, over_ms: int | None, *, has_records: bool = False
) -> Focus:
    """The focus for a new subscription.

    Args:
        spec: the subscription.
        records: the records of the topic.
        over_ms: the time by which expired records are left out of its snapshot; None: none is.
        has_records: whether the subscriber has the records in focus already, or gets them in another way.
    """
    if spec.options.is_window:
        assert spec.order is not None
        window = TopN(spec.options.top_n, spec.options.skip_n, records.orders.places_of(spec))
        return TopNFocus(records.topic, spec.order, window, records.find)
    if spec.filter is not None and spec.filter.moves_by_itself:
        is_late = records.turn is not None and not spec.options.conflation_key
        return RememberedFocus(records.topic, is_read_as_taken=is_late, turn=records.turn)
    return MatchingFocus(records.positions, has_snapshot=has_records or spec.snapshot, over_ms=over_ms)


class MatchingFocus:
    """The focus of a filter by record values: a record was in focus if it matched before, so nothing is kept.

    With a snapshot the subscriber received all records that matched at the beginning, except expired ones. Without one
    it is supposed to have them, and received those with an update since the beginning.
    """

    def __init__(self, began: Mapping[int, int], *, has_snapshot: bool, over_ms: int | None) -> None:
        """Begin.

        Args:
            began: the first offset of each partition that is delivered.
            has_snapshot: whether the subscriber gets a snapshot.
            over_ms: the time by which expired records are left out of it; None: none is.
        """
        self._began = dict(began)
        self._has_snapshot = has_snapshot
        self._over_ms = over_ms if has_snapshot else None
        self._not_sent: set[bytes] = set()  # Records with an update since the beginning that was not sent.

    def load(self, records: Iterable[ParsedRecord], *, received: bool) -> Iterable[ParsedRecord]:  # noqa: ARG002
        """All records are in focus."""
        return records

    def open_partition(self, partition: int, offset: int) -> None:
        """Updates from this offset on are delivered."""
        self._began[partition] = offset

    def mark_not_sent(self, key: bytes) -> None:
        """Mark a record as updated but not sent; by its offset alone it would count as received."""
        self._not_sent.add(key)

    def keeps(self, update: Update) -> bool:
        """Return whether a record that matches before and after an update just stays, and nothing need be noted."""
        return not self._not_sent and (self._over_ms is None or not update.before.is_over(self._over_ms))

    def changes(self, update: Update, *, was: bool, now: bool) -> Sequence[FocusChange]:
        """One change, of the record itself."""
        received = was
        if was:
            assert update.old is not None
            if self._over_ms is not None and update.before.is_over(self._over_ms):
                # A worker's clock may be behind: an update with a time that is over is delivered all the same.
                received = was = update.old.offset >= self._began[update.partition]
            elif not self._has_snapshot:
                received = update.old.offset >= self._began[update.partition] and update.key not in self._not_sent
                self._not_sent.discard(update.key)
        return (FocusChange(update, was, now, received),)


class RememberedFocus:
    """The focus of a filter by the clock: it remembers the keys, as the filter cannot be asked about the past."""

    def __init__(self, topic: Topic, *, is_read_as_taken: bool = False, turn: Turn | None = None) -> None:
        """Begin with no record.

        Args:
            topic: parses records.
            is_read_as_taken: whether `load` asks the filter when a record is taken, and not at once.
            turn: its keys are freed in turns; None: at once.
        """
        self._topic = topic
        self._keys: set[bytes] = LargeSet(turn)
        self._is_read_as_taken = is_read_as_taken
        self._updated: set[bytes] | None = None  # While records are read: the keys with an update since then.

    def __contains__(self, key: bytes) -> bool:
        """Return whether a record is in focus."""
        return key in self._keys

    def remember(self, key: bytes) -> None:
        """Note that a record of the beginning is sent; an update that came since then decides by itself."""
        if self._updated is None or key not in self._updated:
            self._keys.add(key)

    @property
    def is_reading(self) -> bool:
        """True while the records of the beginning are read, one by one."""
        return self._updated is not None

    def begin_reading(self) -> None:
        """Note that the records of the beginning are about to be read, one by one."""
        self._updated = set()

    def end_reading(self) -> None:
        """Note that all of them were read."""
        self._updated = None

    def _remembered(self, records: Iterable[ParsedRecord]) -> Iterator[ParsedRecord]:
        for parsed in records:
            if parsed is not PAUSE:
                self.remember(parsed[0].key or b"")
            yield parsed
        self.end_reading()

    def load(self, records: Iterable[ParsedRecord], *, received: bool) -> Iterable[ParsedRecord]:
        """All records are in focus. They are read at once, unless others wait: later the filter answers otherwise."""
        if self._is_read_as_taken:
            self.begin_reading()
            return self._remembered(records) if received else records
        matching = [record for record, _ in records]
        if received:
            self._keys.update(record.key for record in matching if record.key is not None)
        return self._topic.parsed(matching)

    def open_partition(self, partition: int, offset: int) -> None:
        """Do nothing: offsets do not matter here."""

    def mark_not_sent(self, key: bytes) -> None:
        """Do nothing: a record that was not received is sent as a full record."""

    def changes(self, update: Update, *, was: bool, now: bool) -> Sequence[FocusChange]:  # noqa: ARG002
        """One change, of the record itself."""
        had = update.key in self._keys
        if self._updated is not None:
            self._updated.add(update.key)
        if now:
            self._keys.add(update.key)
        else:
            self._keys.discard(update.key)
        return (FocusChange(update, had, now, had),)


class TopNFocus:
    """The focus of a subscription with `top_n` or `skip_n`: a record that comes in may push another one out.

    The order is shared: `Engine` puts each update in its place before the windows of that order look at it.
    """

    def __init__(self, topic: Topic, order: SortOrder, window: TopN, find: Callable[[bytes], Record | None]) -> None:
        """Begin with no record received.

        Args:
            topic: the topic.
            order: the order of the records.
            window: the places of the order that are in focus.
            find: returns the record of a key as it is now.
        """
        self.order: Final = order
        """The order of the records."""
        self.window: Final = window
        """The places of the order that are in focus."""
        self._topic = topic
        self._find = find
        self._received: set[bytes] = set()

    def load(self, records: Iterable[ParsedRecord], *, received: bool) -> Iterable[ParsedRecord]:
        """The records among the top n are in focus; the order is loaded if no other window has loaded it."""
        places = self.window.places
        if not places.is_loaded:
            places.load(
                (record.key or b"", self._sort_key(record.key or b"", value, record)) for record, value in records
            )
        keys = self.window.keys()
        if received:
            self._received.update(keys)
        return self._topic.parsed([record for record in map(self._find, keys) if record is not None])

    def open_partition(self, partition: int, offset: int) -> None:
        """Do nothing: offsets do not matter here."""

    def mark_not_sent(self, key: bytes) -> None:
        """Mark a record as not received after all."""
        self._received.discard(key)

    def place(self, update: Update, *, now: bool) -> None:
        """Put an updated record at its place in the shared order."""
        key = update.key
        if now:
            self.window.places.put(key, update.after.sort_key(self.order, key))
        else:
            self.window.places.remove(key)

    def changes(self, update: Update, *, was: bool, now: bool) -> Sequence[FocusChange]:  # noqa: ARG002
        """The change of the record itself, and of those that it lets in or pushes out; those that leave come first."""
        key, window = update.key, self.window
        moved = window.moved(window.places.last)
        # A filter's answer may have changed by itself, so the order is asked which records were in it.
        has = key in window
        had = key in moved.left or (has and key not in moved.entered)
        changes = [self._moved(other, update, was=True) for other in moved.left if other != key]
        if had or has:
            changes.append(FocusChange(update, had, has, key in self._received))
        changes += [self._moved(other, update, was=False) for other in moved.entered if other != key]
        for change in changes:
            (self._received.add if change.now else self._received.discard)(change.update.key)
        return changes

    def row_changes(self, rows: Sequence[tuple[Update, bool]]) -> list[FocusChange]:
        """The changes of a window of groups, whose order is its own, by one update of a record.

        Args:
            rows: the updates of the rows that it changed, each with whether there is a row after it.
        """
        before = self.window.keys()
        for update, now in rows:
            self.place(update, now=now)
        after = self.window.keys()
        had, has = frozenset(before), frozenset(after)
        updates = {update.key: update for update, _ in rows}
        changes = []
        for key in (*(key for key in before if key not in has), *after):
            if key in updates:
                changes.append(FocusChange(updates[key], key in had, key in has, key in self._received))
            elif key not in had or key not in has:
                changes.append(self._moved(key, rows[0][0], was=key in had))
        for change in changes:
            (self._received.add if change.now else self._received.discard)(change.update.key)
        return changes

    def _sort_key(self, key: bytes, value: Value, record: Record) -> SortKey:
        metadata = self._topic.metadata_of(record) if self.order.uses_metadata else NO_METADATA
        return self.order.key(key, value, metadata)

    def _moved(self, key: bytes, cause: Update, *, was: bool) -> FocusChange:
        """The change of a record that an update of another one let in or pushed out."""
        record = self._find(key)
        assert record is not None
        return FocusChange(cause.standing(record), was, not was, key in self._received)
