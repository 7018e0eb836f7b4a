"""The records of a topic at this moment, in the middle of a batch too."""

from __future__ import annotations

import time
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from processor.filter.evaluation import NO_METADATA, RecordMetadata
from processor.subscriptions.records.memo_index import MemoIndex
from processor.subscriptions.records.shared_orders import SharedOrders
from processor.subscriptions.request.subscribed_topic import PAUSE
from processor.wire.subscriber_headers import is_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from processor.filter import Filter
    from processor.record import Record
    from processor.subscriptions.request.record_order import SortOrder
    from processor.subscriptions.request.subscribed_topic import ParsedRecord, RecordView, Topic
    from processor.subscriptions.request.subscription_spec import SubscriptionSpec
    from processor.subscriptions.request.turn import Turn


def wall_ms() -> int:
    """The wall clock, milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class CurrentRecords:
    """The view of a topic's records, with the updates of the batch that an engine is working on laid over it."""

    def __init__(
        self,
        topic: Topic,
        view: RecordView,
        wall_ms: Callable[[], int],
        indexes: Iterable[tuple[str, ...]] = (),
        orders: Iterable[str] = (),
        turn: Turn | None = None,
    ) -> None:
        """Begin with the records of the view.

        Args:
            topic: the topic.
            view: the records before the first update.
            wall_ms: the wall clock, milliseconds since the epoch, by which records expire.
            indexes: the declared indexes.
            orders: the declared orders.
            turn: the limit of work that can go on later; None: there is none.

        Raises:
            FilterError: a declared order cannot be meant.
        """
        self.topic: Final = topic
        """The topic."""
        self.wall_ms: Final = wall_ms
        """The wall clock, milliseconds since the epoch."""
        self.positions: Final[dict[int, int]] = {}
        """The next offset of each partition."""
        self.turn: Final = turn
        """The limit of work that can go on later; None: there is none."""
        self.memo_index: Final = MemoIndex(topic, view, indexes, turn)
        """Finds records by values at a path."""
        self._view = view
        self._batch: dict[bytes, Record | None] = {}
        self._frozen_positions: Mapping[int, int] | None = None
        self.orders: Final = SharedOrders(topic, self.including, wall_ms, orders, turn)
        """The orders of windows."""

    @property
    def positions_now(self) -> Mapping[int, int]:
        """The next offset of each partition; the same object until one of them moves, and never changed."""
        if self._frozen_positions is None:
            self._frozen_positions = dict(self.positions)
        return self._frozen_positions

    def move(self, partition: int, offset: int) -> None:
        """Set the next offset of a partition."""
        self.positions[partition] = offset
        self._frozen_positions = None

    def store(self, partition: int, records: Sequence[Record]) -> None:
        """Take the next records of a partition, which no subscription needs to see one by one."""
        self.memo_index.clear()
        self._view.put(partition, records)

    def begin_batch(
        self, partition: int, keys: Sequence[bytes], records: Sequence[Record]
    ) -> dict[bytes, Record | None]:
        """Take the next records of a partition, which are to be seen one by one.

        Returns:
            The records of the keys before the batch; the caller replaces each when its update is seen.
        """
        self._batch = dict(self._view.get_many(keys, partition))
        self._view.put(partition, records)
        return self._batch

    def end_batch(self) -> None:
        """End the batch: every update was seen."""
        self._batch = {}

    def find(self, key: bytes) -> Record | None:
        """The record of a key; None if there is none."""
        if key in self._batch:
            return self._batch[key]
        return self._view.get_many([key])[key]

    def matching(self, spec: SubscriptionSpec, over_ms: int | None) -> Iterable[ParsedRecord]:
        """The records with which a subscription begins, in its order if it has one.

        Args:
            spec: the subscription.
            over_ms: records that had expired by this time are left out; None: none is.

        Returns:
            The records, with `PAUSE` where a turn is over, unless all are needed at once.
        """
        if not spec.reads_all:
            return ()
        if spec.options.is_window:
            # The focus of a window orders them itself, and asks for none if the order is there.
            return self._selected_when_asked(spec.filter, over_ms)
        matching = self.selected(spec.filter, over_ms, pauses=spec.is_read_as_taken)
        if spec.order is None:
            return matching
        # With turns a build has made the order, unless the records are not asked for.
        order = spec.order
        return self._sorted(order, matching) if self.turn is None else self._sorted_when_asked(order, matching)

    def _sorted_when_asked(self, order: SortOrder, matching: Iterable[ParsedRecord]) -> Iterator[ParsedRecord]:
        """Records in an order, which is made when the first of them is asked for."""
        yield from self._sorted(order, matching)

    def _sorted(self, order: SortOrder, matching: Iterable[ParsedRecord]) -> Iterator[ParsedRecord]:
        """Records in an order."""
        metadata_of = self.topic.metadata_of if order.uses_metadata else _no_metadata
        places = [(order.key(record.key or b"", value, metadata_of(record)), record) for record, value in matching]
        places.sort(key=itemgetter(0))
        return self.topic.parsed([record for _, record in places])

    def selected(
        self, selection: Filter | None, over_ms: int | None, *, pauses: bool = False
    ) -> Iterator[ParsedRecord]:
        """The records that a filter selects, in no order.

        Args:
            selection: the filter; None: all records.
            over_ms: records that had expired by this time are left out; None: none is.
            pauses: whether `PAUSE` comes where a turn is over.
        """
        records = self.including(selection)
        if over_ms is not None:
            records = (record for record in records if not is_over(record, over_ms))
        return self._filtered(selection, records, self.turn if pauses else None)

    def _selected_when_asked(self, selection: Filter | None, over_ms: int | None) -> Iterator[ParsedRecord]:
        """The records that a filter selects when the first of them is asked for."""
        yield from self.selected(selection, over_ms)

    def including(self, selection: Filter | None) -> Iterable[Record]:
        """Records of now that include all matches of a filter."""
        records = self.memo_index.records(selection)
        return self._view.scan() if records is None else records

    def _filtered(
        self, selection: Filter | None, records: Iterable[Record], turn: Turn | None
    ) -> Iterator[ParsedRecord]:
        parsed, metadata_of = self.topic.value, self.topic.metadata_of
        uses_metadata = selection is not None and selection.uses_metadata
        for record in records:
            value = parsed(record)
            if selection is None or selection.matches(value, metadata_of(record) if uses_metadata else NO_METADATA):
                yield record, value
            if turn is not None and turn.is_over:
                yield PAUSE


def _no_metadata(_record: Record) -> RecordMetadata:
    """The metadata of a record for expressions that use none."""
    return NO_METADATA
