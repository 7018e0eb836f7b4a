"""The top n: the first records of an order, and those that enter and leave as records change places.

::

    in order        a  b │ c  d  e │ f  g  h …
                    skip_n    top_n
    put x before a  x  a │ b  c  d │ e  f  g …      entered: b, left: e
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sortedcontainers import SortedList

from processor.subscriptions.order import SortKey


class Moved(NamedTuple):
    """The keys that one change moved in and out of the top n."""

    left: tuple[bytes, ...]
    """Keys that were in it and are not any more."""
    entered: tuple[bytes, ...]
    """Keys that are in it and were not."""


_NOTHING: Final = Moved((), ())


class TopN:
    """Keeps every key in its order, and knows which `top_n` of them come behind the first `skip_n`.

    A change takes O(log n) of all keys; the window is found by its bounds, near the beginning of the list.
    """

    def __init__(self, top_n: int | None, skip_n: int) -> None:
        """Begin without keys.

        Args:
            top_n: the size of the window; None: all to the end.
            skip_n: how many keys come before it.
        """
        self._begin: Final = skip_n
        self._end: Final = None if top_n is None else skip_n + top_n
        self._is_empty: Final = top_n == 0
        self._order: SortedList[SortKey] = SortedList()
        self._sort_keys: dict[bytes, SortKey] = {}

    def __contains__(self, key: bytes) -> bool:
        """Whether a key is in the window."""
        sort_key = self._sort_keys.get(key)
        return sort_key is not None and self._has(sort_key)

    def put(self, key: bytes, sort_key: SortKey) -> Moved:
        """Put a key at its place, in the window or not.

        Args:
            key: the SOW key.
            sort_key: its place; its last part is the key.
        """
        before = self._sort_keys.get(key)
        if before == sort_key:
            return _NOTHING
        gone = _NOTHING if before is None else self._take_out(before)
        self._sort_keys[key] = sort_key
        come = self._put_in(sort_key)
        return come if before is None else _both(gone, come)

    def remove(self, key: bytes) -> Moved:
        """Remove a key, if it is there."""
        sort_key = self._sort_keys.pop(key, None)
        return _NOTHING if sort_key is None else self._take_out(sort_key)

    def keys(self) -> list[bytes]:
        """The keys in the window, in order."""
        return [sort_key[-1] for sort_key in self._order.islice(self._begin, self._end)]

    def _has(self, sort_key: SortKey) -> bool:
        """Whether a place that is taken is in the window."""
        return not self._is_empty and not self._is_before(sort_key) and not self._is_behind(sort_key)

    def _is_before(self, sort_key: SortKey) -> bool:
        order, begin = self._order, self._begin
        return begin > 0 and (len(order) <= begin or sort_key < order[begin])

    def _is_behind(self, sort_key: SortKey) -> bool:
        order, end = self._order, self._end
        return end is not None and len(order) > end and not sort_key < order[end]

    def _put_in(self, sort_key: SortKey) -> Moved:
        """Take a place: all behind it move by one."""
        order, end = self._order, self._end
        order.add(sort_key)
        if self._is_empty or self._is_behind(sort_key):
            return _NOTHING
        left = (order[end][-1],) if end is not None and len(order) > end else ()
        if not self._is_before(sort_key):
            return Moved(left, (sort_key[-1],))
        return Moved(left, (order[self._begin][-1],)) if len(order) > self._begin else _NOTHING

    def _take_out(self, sort_key: SortKey) -> Moved:
        """Remove a place: all behind it move back by one."""
        order, end = self._order, self._end
        if self._is_empty or self._is_behind(sort_key):
            order.remove(sort_key)
            return _NOTHING
        entered = (order[end][-1],) if end is not None and len(order) > end else ()
        if not self._is_before(sort_key):
            left: tuple[bytes, ...] = (sort_key[-1],)
        else:
            left = (order[self._begin][-1],) if len(order) > self._begin else ()
        order.remove(sort_key)
        return Moved(left, entered) if left or entered else _NOTHING


def _both(one: Moved, other: Moved) -> Moved:
    """Two changes as one: a key that only passed through, or came back, has not moved."""
    left, entered = one.left + other.left, one.entered + other.entered
    return Moved(
        tuple(key for key in left if key not in entered),
        tuple(key for key in entered if key not in left),
    )
