"""The places of all records that match a filter, in one order: shared by the windows of all queries with both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sortedcontainers import SortedList

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.subscriptions.order import SortKey


class PlaceChange(NamedTuple):
    """The places of one key before and after a change, counted from 0."""

    key: bytes
    """The SOW key."""
    before: int | None
    """Its place before; None: it had none."""
    after: int | None
    """Its place after; None: it has none."""


class Places:
    """Every key at its place in an order. A change takes O(log n)."""

    def __init__(self) -> None:
        """Begin without keys."""
        self.order: Final[SortedList[SortKey]] = SortedList()
        """The sort keys of all records."""
        self.sort_keys: Final[dict[bytes, SortKey]] = {}
        """The sort key of each SOW key."""
        self.last: PlaceChange | None = None
        """The last change; None: the order did not change by it."""
        self.windows = 0
        """The number of running windows: with none, updates do not reach it any more."""
        self.is_loaded = False
        """True if the records of now are in it."""

    def load(self, places: Iterable[tuple[bytes, SortKey]]) -> None:
        """Take the first records, all at once."""
        self.sort_keys.update(places)
        self.order.update(self.sort_keys.values())
        self.is_loaded = True

    def put(self, key: bytes, sort_key: SortKey) -> PlaceChange | None:
        """Put a key at its place; None: it was there.

        Args:
            key: the SOW key.
            sort_key: its place; its last part is the key.
        """
        old = self.sort_keys.get(key)
        if old == sort_key:
            self.last = None
            return None
        before = None if old is None else self._take_out(old)
        self.sort_keys[key] = sort_key
        self.order.add(sort_key)
        self.last = PlaceChange(key, before, self.order.bisect_left(sort_key))
        return self.last

    def remove(self, key: bytes) -> PlaceChange | None:
        """Remove a key; None: it was not there."""
        old = self.sort_keys.pop(key, None)
        self.last = None if old is None else PlaceChange(key, self._take_out(old), None)
        return self.last

    def _take_out(self, sort_key: SortKey) -> int:
        place = int(self.order.bisect_left(sort_key))
        del self.order[place]
        return place
