"""The places of all records that match a filter, in one order: shared by the windows of all queries with both.

While an order is built, its first places are there before the others (`order_build.py`)::

    order:  a  b  c  d  e │ bound     later, not sorted yet:  x  p  k  z …
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from sortedcontainers import SortedList

from processor.subscriptions.turn import LargeDict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.subscriptions.order import SortKey
    from processor.subscriptions.turn import Turn


class PlaceChange(NamedTuple):
    """The places of one key before and after a change, counted from 0."""

    key: bytes
    """The SOW key."""
    before: int | None
    """Its place before; None: it had none, or one that is not known yet."""
    after: int | None
    """Its place after; None: it has none, or one that is not known yet."""


class LaterPlaces(Protocol):
    """The keys of an order that is being built that are not at their places yet: those from `Places.bound` on."""

    def add(self, sort_key: SortKey) -> None:
        """Add a key that is not below the bound."""

    def discard(self, sort_key: SortKey) -> None:
        """Remove a key that is not below the bound."""

    def reach(self, depth: int) -> None:
        """Put keys at their places until more than `depth` are there, or all."""


class Places:
    """Every key at its place in an order. A change takes O(log n)."""

    def __init__(self, turn: Turn | None = None) -> None:
        """Begin without keys; with a turn they are freed in slices in the end."""
        self.order: Final[SortedList[SortKey]] = SortedList()
        """The sort keys of all records; while there is a bound, of those below it."""
        self.sort_keys: Final[dict[bytes, SortKey]] = LargeDict(turn)
        """The sort key of each SOW key."""
        self.last: PlaceChange | None = None
        """The last change; None: the order did not change by it."""
        self.windows = 0
        """The number of running windows: with none, updates do not reach it any more."""
        self.is_loaded = False
        """True if the records of now are in it."""
        self.bound: SortKey | None = None
        """The keys below it are at their places, and no others; None: all are."""
        self.later: LaterPlaces | None = None
        """The keys that are not at their places; None if there is no bound."""
        self._depth = 0  # More keys than this are at their places, or all: the windows look so far.
        self._turn = turn

    def __del__(self) -> None:
        """Leave the order to later turns: an iteration over it must refer to the places."""
        if self._turn is not None:
            self._turn.leave_large(self.order)

    def load(self, places: Iterable[tuple[bytes, SortKey]]) -> None:
        """Take the first records, all at once."""
        self.sort_keys.update(places)
        self.order.update(self.sort_keys.values())
        self.is_loaded = True

    def has_reached(self, depth: int) -> bool:
        """Return whether more than `depth` keys are at their places, or all."""
        return self.bound is None or len(self.order) > depth

    def reach(self, depth: int) -> None:
        """Put at least `depth` keys, and one more, at their places, and keep so many there when others are removed."""
        self._depth = max(self._depth, depth)
        if not self.has_reached(depth):
            assert self.later is not None
            self.later.reach(depth)

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
        after = None
        if self.bound is None or sort_key < self.bound:
            self.order.add(sort_key)
            after = self.order.bisect_left(sort_key)
        else:
            assert self.later is not None
            self.later.add(sort_key)
        self.last = PlaceChange(key, before, after)
        return self.last

    def remove(self, key: bytes) -> PlaceChange | None:
        """Remove a key; None: it was not there."""
        old = self.sort_keys.pop(key, None)
        self.last = None if old is None else PlaceChange(key, self._take_out(old), None)
        return self.last

    def _take_out(self, sort_key: SortKey) -> int | None:
        if self.bound is not None and sort_key >= self.bound:
            assert self.later is not None
            self.later.discard(sort_key)
            return None
        place = int(self.order.bisect_left(sort_key))
        del self.order[place]
        if self.bound is not None:
            self.reach(self._depth)
        return place
