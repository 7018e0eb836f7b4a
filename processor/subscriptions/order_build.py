"""The order of a window that is built in slices, so that a thread with other work can go on in between.

::

    scan: the records of the beginning ──▶ sort ──▶ catch up: the updates since the beginning ──▶ done: follow updates

The scan sees the records of the beginning, and leaves out the keys of updates; these wait until all else is sorted.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from processor.errors import SowstreamError
from processor.filter.record_metadata import NO_METADATA
from processor.subscriptions.places import Places
from processor.subscriptions.sliced_sort import sorted_in_slices
from processor.wire.metadata import is_over

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from processor.filter import Filter
    from processor.record import Record, Value
    from processor.subscriptions.order import SortKey, SortOrder
    from processor.subscriptions.topic import Topic
    from processor.subscriptions.update import Update

SLICE_RECORDS: Final = 250
"""Records of one slice: about 2 ms."""
_SORTED_PER_RECORD: Final = 4
"""So many keys are sorted in the time in which one record is read."""


class OrderBuild:
    """Builds the places of the records that a filter matches, in one order."""

    def __init__(
        self, topic: Topic, selection: Filter | None, order: SortOrder, records: Iterable[Record], over_ms: int
    ) -> None:
        """Begin with the records of now.

        Args:
            topic: the topic.
            selection: matches the records of the order; None: all.
            order: the order.
            records: include all matches.
            over_ms: records that had expired by this time are left out.
        """
        self.places: Final = Places()
        """The places, complete when `is_done`."""
        self.users = 0
        """Those who hold it: it is not dropped until the last of them lets it go."""
        self.is_done = False
        """True if all records are in it."""
        self._topic = topic
        self._filter = selection
        self._order = order
        self._records = iter(records)
        self._over_ms = over_ms
        self._scanned: list[SortKey] = []
        self._parts: Iterator[list[SortKey]] | None = None  # Sorted; None: the scan goes on.
        self._updated: dict[bytes, SortKey | None] = {}  # The last place of each updated key; None: it has none.
        self._is_sorted = False
        self._error: SowstreamError | None = None

    @property
    def has_failed(self) -> bool:
        """True if it cannot be completed, or missed an update."""
        return self._error is not None

    def fail(self, error: SowstreamError) -> None:
        """Note that an update is not in it."""
        self._error = error

    def advance(self, records_max: int = SLICE_RECORDS) -> bool:
        """Take the next slice; returns whether all are taken.

        Args:
            records_max: how many records are read, or the keys that are sorted in the same time.

        Raises:
            SowstreamError: a record cannot be parsed, or a third party's function raised.
        """
        if self._error is not None:
            raise self._error
        if self.is_done:
            return True
        try:
            if self._parts is None:
                self._scan(records_max)
            elif not self._is_sorted:
                self._sort(records_max * _SORTED_PER_RECORD)
            else:
                self._catch_up(records_max)
        except SowstreamError as error:
            self._error = error
            raise
        return self.is_done

    def finish(self) -> None:
        """Take all slices that are left.

        Raises:
            SowstreamError: as `advance`.
        """
        while not self.advance():
            pass

    def changed(self, update: Update) -> None:
        """Put an updated record in its place, while no window does it."""
        if self.places.windows or self._error is not None:
            return
        key = update.key
        try:
            _, now = update.matches(self._filter)
            sort_key = self._sort_key(key, update.new_value, update.new) if now else None
        except SowstreamError as error:
            self._error = error
            return
        if self.is_done or (self._is_sorted and key not in self._updated):
            self._place(key, sort_key)
        else:
            self._updated[key] = sort_key

    def _scan(self, records_max: int) -> None:
        """Read the next records."""
        sort_keys, scanned, updated = self.places.sort_keys, self._scanned, self._updated
        value_of, selection, over_ms = self._topic.value, self._filter, self._over_ms
        needs_value = selection is not None or self._order.text is not None
        count = 0
        for record in islice(self._records, records_max):
            count += 1
            key = record.key or b""
            if key in updated or is_over(record, over_ms):
                continue
            value = value_of(record) if needs_value else None
            if selection is None or self._matches(selection, value, record):
                sort_keys[key] = sort_key = self._sort_key(key, value, record)
                scanned.append(sort_key)
        if count < records_max:
            self._parts = sorted_in_slices(scanned, SLICE_RECORDS * _SORTED_PER_RECORD)

    def _sort(self, keys_max: int) -> None:
        """Put the next keys, in order, at the end."""
        assert self._parts is not None
        count, add = 0, self.places.order.add
        while count < keys_max:
            part = next(self._parts, None)
            if part is None:
                self._is_sorted = True
                self._scanned = []
                return
            for sort_key in part:
                add(sort_key)
            count += len(part)
            if not part:  # Some keys were spread over buckets.
                return

    def _catch_up(self, records_max: int) -> None:
        """Put the next updated keys in their places."""
        for _ in range(min(records_max, len(self._updated))):
            self._place(*self._updated.popitem())
        if not self._updated:
            self.is_done = self.places.is_loaded = True

    def _place(self, key: bytes, sort_key: SortKey | None) -> None:
        if sort_key is None:
            self.places.remove(key)
        else:
            self.places.put(key, sort_key)

    def _matches(self, selection: Filter, value: Value, record: Record) -> bool:
        return selection.matches(value, self._topic.metadata_of(record) if selection.uses_metadata else NO_METADATA)

    def _sort_key(self, key: bytes, value: Value, record: Record) -> SortKey:
        metadata = self._topic.metadata_of(record) if self._order.uses_metadata else NO_METADATA
        return self._order.key(key, value, metadata)
