"""The windows of an order: the places of all records that match, and the first n of them.

The places of one filter and one order are shared by the windows of all queries with both. While an order is built, its
first places are there before the others (`order_build.py`)::

    order:  a  b  c  d  e │ bound     later, not sorted yet:  x  p  k  z …

As records change places, others enter a window and leave it::

    in order        a  b │ c  d  e │ f  g  h …
                    skip_n    top_n
    put x before a  x  a │ b  c  d │ e  f  g …      entered: b, left: e
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from sortedcontainers import SortedList

from processor.subscriptions.request.turn import LargeDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from processor.subscriptions.request.record_order import SortKey
    from processor.subscriptions.request.turn import Turn


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


class Moved(NamedTuple):
    """The keys that one change moved in and out of the top n."""

    left: tuple[bytes, ...]
    """Keys that were in it and are not any more."""
    entered: tuple[bytes, ...]
    """Keys that are in it and were not."""


_NOTHING: Final = Moved((), ())
FAR: Final = 2**62
"""A place behind every other."""


class TopN:
    """The window of `top_n` keys behind the first `skip_n` of an order. Windows of one order share its places."""

    def __init__(self, top_n: int | None, skip_n: int, places: Places | None = None) -> None:
        """Begin with the places of now.

        Args:
            top_n: the size of the window; None: all to the end.
            skip_n: how many keys come before it.
            places: the order; None: an empty one of its own.
        """
        self.places: Final = Places() if places is None else places
        """The order of all keys."""
        self._begin: Final = skip_n
        self._end: Final = FAR if top_n is None else skip_n + top_n
        self._is_empty: Final = top_n == 0

    def __contains__(self, key: bytes) -> bool:
        """Return whether a key is in the window."""
        sort_key = self.places.sort_keys.get(key)
        if sort_key is None or self._is_empty:
            return False
        order = self.places.order
        if self._begin > 0 and (len(order) <= self._begin or sort_key < order[self._begin]):
            return False
        return len(order) <= self._end or sort_key < order[self._end]

    def put(self, key: bytes, sort_key: SortKey) -> Moved:
        """Put a key at its place, in the window or not.

        Args:
            key: the SOW key.
            sort_key: its place; its last part is the key.
        """
        return self.moved(self.places.put(key, sort_key))

    def remove(self, key: bytes) -> Moved:
        """Remove a key, if it is there."""
        return self.moved(self.places.remove(key))

    def moved(self, move: PlaceChange | None) -> Moved:
        """The keys that the last change of the order moved in and out."""
        if move is None or self._is_empty:
            return _NOTHING
        begin, end = self._begin, self._end
        before = FAR if move.before is None else move.before
        after = FAR if move.after is None else move.after
        if min(before, after) >= end:
            return _NOTHING
        order = self.places.order
        size = len(order)
        left: list[bytes] = []
        entered: list[bytes] = []
        if begin <= before < end and not begin <= after < end:
            left.append(move.key)
        if begin <= after < end and not begin <= before < end:
            entered.append(move.key)
        if before < after:  # The keys between the two places move back by one.
            if before < begin <= after and begin - 1 < size:
                left.append(order[begin - 1][-1])
            if before < end <= after and end - 1 < size:
                entered.append(order[end - 1][-1])
        else:  # They move on by one.
            if after < begin <= before and begin < size:
                entered.append(order[begin][-1])
            if after < end <= before and end < size:
                left.append(order[end][-1])
        return Moved(tuple(left), tuple(entered)) if left or entered else _NOTHING

    def keys(self) -> list[bytes]:
        """The keys in the window, in order."""
        return [sort_key[-1] for sort_key in self.places.order.islice(self._begin, self._end)]

    def keys_before(self, changed: Mapping[bytes, SortKey | None]) -> list[bytes]:
        """The keys that were in the window when some keys had other places, in order.

        Args:
            changed: the keys with other places then; None: a key was not in the order.
        """
        if self._is_empty:
            return []
        self.places.reach(FAR)  # Keys that have changed may have been behind those that are at their places.
        order, sort_keys = self.places.order, self.places.sort_keys
        then = [sort_key for sort_key in changed.values() if sort_key is not None]
        start = max(0, self._begin - len(changed))
        near = list(islice(order.islice(start), self._end - start + len(changed)))
        unchanged = [sort_key for sort_key in near if sort_key[-1] not in changed]
        if not unchanged:
            start = 0
            stop = self._end + len(changed)
            unchanged = [sort_key for sort_key in islice(order, stop) if sort_key[-1] not in changed]
        # The number of unchanged keys before the first one of `unchanged`.
        skipped = 0
        if start:
            skipped = start - sum(
                1 for key in changed if (now := sort_keys.get(key)) is not None and order.bisect_left(now) < start
            )
        window = sorted([*unchanged, *then])
        return [sort_key[-1] for sort_key in window[self._begin - skipped : self._end - skipped]]
