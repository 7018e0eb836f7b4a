"""The records of a topic at this moment, in the middle of a batch too."""

from __future__ import annotations

import time
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from processor.filter.record_metadata import NO_METADATA, RecordMetadata
from processor.subscriptions.indexes.memo_index import MemoIndex
from processor.wire.metadata import is_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from processor.filter import Filter
    from processor.record import Record
    from processor.subscriptions.record_view import RecordView
    from processor.subscriptions.spec import SubscriptionSpec
    from processor.subscriptions.topic import ParsedRecord, Topic


def wall_ms() -> int:
    """The wall clock, milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class CurrentRecords:
    """The view of a topic's records, with the updates of the batch that an engine is working on laid over it."""

    def __init__(self, topic: Topic, view: RecordView, wall_ms: Callable[[], int]) -> None:
        """Begin with the records of the view.

        Args:
            topic: the topic.
            view: the records before the first update.
            wall_ms: the wall clock, milliseconds since the epoch, by which records expire.
        """
        self.topic: Final = topic
        """The topic."""
        self.wall_ms: Final = wall_ms
        """The wall clock, milliseconds since the epoch."""
        self.positions: Final[dict[int, int]] = {}
        """The next offset of each partition."""
        self.memo_index: Final = MemoIndex(topic, view)
        """Finds records by values at a path."""
        self._view = view
        self._batch: dict[bytes, Record | None] = {}

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
        """
        if not spec.reads_all:
            return ()
        records = self.memo_index.records(spec.filter)
        if records is None:
            records = self._view.scan()
        if over_ms is not None:
            records = (record for record in records if not is_over(record, over_ms))
        matching = self._filtered(spec.filter, records)
        order = spec.order
        if order is None or spec.options.is_window:  # The focus of a window orders them itself.
            return matching
        metadata_of = self.topic.metadata_of if order.uses_metadata else _no_metadata
        places = [(order.key(record.key or b"", value, metadata_of(record)), record) for record, value in matching]
        places.sort(key=itemgetter(0))
        return self.topic.parsed([record for _, record in places])

    def _filtered(self, selection: Filter | None, records: Iterable[Record]) -> Iterator[ParsedRecord]:
        parsed, metadata_of = self.topic.value, self.topic.metadata_of
        uses_metadata = selection is not None and selection.uses_metadata
        for record in records:
            value = parsed(record)
            if selection is None or selection.matches(value, metadata_of(record) if uses_metadata else NO_METADATA):
                yield record, value


def _no_metadata(_record: Record) -> RecordMetadata:
    """The metadata of a record for expressions that use none."""
    return NO_METADATA
