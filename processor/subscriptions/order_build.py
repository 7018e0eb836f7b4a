"""The order of a window that is built in slices, so that a thread with other work can go on in between.

An order of a million records takes seconds. Updates in the meantime are put in their places at once. The scan sees the
records of the beginning, and leaves the keys of these updates out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.errors import SowstreamError
from processor.filter.record_metadata import NO_METADATA
from processor.wire.metadata import is_over

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.record import Record, Value
    from processor.subscriptions.order import SortKey
    from processor.subscriptions.places import Places
    from processor.subscriptions.spec import SubscriptionSpec
    from processor.subscriptions.topic import Topic
    from processor.subscriptions.update import Update

SLICE_RECORDS: Final = 250
"""Records of one slice: about 2 ms."""


class OrderBuild:
    """Builds the places of the records that a filter matches, in one order."""

    def __init__(
        self, topic: Topic, spec: SubscriptionSpec, places: Places, records: Iterable[Record], over_ms: int
    ) -> None:
        """Begin with the records of now.

        Args:
            topic: the topic.
            spec: a window; its filter and its order count.
            places: empty; they are filled.
            records: include all matches.
            over_ms: records that had expired by this time are left out.
        """
        assert spec.order is not None
        self.places: Final = places
        """The places, complete when `is_done`."""
        self.users = 0
        """Those who hold it: it follows the updates until the last of them lets it go."""
        self.is_done = False
        """True if all records are in it."""
        self._topic = topic
        self._filter = spec.filter
        self._order = spec.order
        self._records = iter(records)
        self._over_ms = over_ms
        self._updated: set[bytes] = set()
        self._error: SowstreamError | None = None

    def advance(self, records_max: int = SLICE_RECORDS) -> bool:
        """Take the next slice; returns whether all are taken.

        Raises:
            SowstreamError: a record cannot be parsed, or a third party's function raised.
        """
        if self._error is not None:
            raise self._error
        if self.is_done:
            return True
        try:
            for _ in range(records_max):
                record = next(self._records, None)
                if record is None:
                    self.is_done = self.places.is_loaded = True
                    self._updated.clear()
                    return True
                key = record.key or b""
                if key in self._updated or is_over(record, self._over_ms):
                    continue
                value = self._topic.value(record)
                if self._matches(value, record):
                    self.places.append(key, self._sort_key(key, value, record))
        except SowstreamError as error:
            self._error = error
            raise
        return False

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
        if not self.is_done:
            self._updated.add(update.key)
        try:
            _, now = update.matches(self._filter)
            if now:
                self.places.put(update.key, self._sort_key(update.key, update.new_value, update.new))
            else:
                self.places.remove(update.key)
        except SowstreamError as error:
            self._error = error

    def _matches(self, value: Value, record: Record) -> bool:
        selection = self._filter
        if selection is None:
            return True
        return selection.matches(value, self._topic.metadata_of(record) if selection.uses_metadata else NO_METADATA)

    def _sort_key(self, key: bytes, value: Value, record: Record) -> SortKey:
        metadata = self._topic.metadata_of(record) if self._order.uses_metadata else NO_METADATA
        return self._order.key(key, value, metadata)
