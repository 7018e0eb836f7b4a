"""The top n: the first records of an order, and those that enter and leave as records change places.

::

    in order        a  b │ c  d  e │ f  g  h …
                    skip_n    top_n
    put x before a  x  a │ b  c  d │ e  f  g …      entered: b, left: e
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.subscriptions.places import Places

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.subscriptions.order import SortKey
    from processor.subscriptions.places import PlaceChange


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
