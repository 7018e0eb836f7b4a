"""Indexes of the states in front of a store: the changed keys in order, for scans, and the states that expire next."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from processor.record import Stored
    from processor.store.contract import Expiring, Store

    Layer = Mapping[bytes, Stored | None]

_INSERTED_MAX: Final = 32
"""Most keys that are put in place one by one; more are sorted together, which costs a pass over all keys."""


class ChangedKeys:
    """A sorted set of keys. Keys are added in any order, and put in place by the next look."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        """Begin with these keys."""
        self._known = set(keys)
        self._sorted = sorted(self._known)
        self._new: list[bytes] = []

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._known)

    def add(self, keys: Iterable[bytes]) -> None:
        """Add keys, of which some may be there."""
        known = self._known
        new = [key for key in keys if key not in known]
        if new:
            self._new += new
            known.update(new)

    def first(self, after: bytes | None, keys_max: int) -> Sequence[bytes]:
        """Return the next keys behind `after`, at most `keys_max`, in order."""
        self._sort()
        begin = 0 if after is None else bisect_right(self._sorted, after)
        return self._sorted[begin : begin + keys_max]

    def _sort(self) -> None:
        new, self._new = self._new, []
        if len(new) <= _INSERTED_MAX:
            for key in new:
                insort(self._sorted, key)
        else:
            self._sorted += sorted(new)
            self._sorted.sort()  # Two sorted runs: they are merged.


_ROWS_MIN: Final = 64
_ROWS_MAX: Final = 4096  # Rows of the store's index read at a time.


class Expiry:
    """Finds the states that are due without reading the others.

    ::

        heap     states put since the last write to the store, and states returned as due that may still be due
        rows     the store's index, continued from the end of the last call

    The index is out of date for a key with an unwritten state: the layers have the newest. All entries are dropped when
    the store or a layer loses something, and are built again from the remaining states.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.first_ms: float = 0
        """No state is due before this time, milliseconds since the epoch."""
        self._heap: list[Expiring] = []
        # The one entry of a key that counts. A later expiry waits until this one is reached, so that a key that is put
        # again and again has one entry and not thousands.
        self._scheduled: dict[bytes, int] = {}
        self._rows: list[Expiring] = []  # Rows read ahead, in reverse order.
        self._read_to: Expiring | None = None
        self._is_read = False

    def put(self, changes: Layer) -> None:
        """Enter states that were put into a layer."""
        expiring = [(stored[2], key) for key, stored in changes.items() if stored is not None and stored[2] > 0]
        for entry in expiring:
            expires_at_ms, key = entry
            if expires_at_ms < self._scheduled.get(key, math.inf):
                self._scheduled[key] = expires_at_ms
                heappush(self._heap, entry)
                self.first_ms = min(self.first_ms, expires_at_ms)

    def restart(self, layers: Iterable[Layer], *, same: bool) -> None:
        """Rebuild the entries after the store has changed or a layer has lost something.

        Args:
            layers: the layers in front of the store now.
            same: whether every key kept its state, and only its layer changed.
        """
        self._heap, self._scheduled = [], {}
        self._rows, self._read_to, self._is_read = [], None, False
        if not same:
            self.first_ms = 0
        for layer in layers:
            self.put(layer)

    def due(self, newest: Layer, until_ms: int, keys_max: int) -> list[Expiring]:
        """The keys of states that expire until then, in order of time, at most `keys_max`.

        Args:
            newest: the state of every key that is in a layer.
            until_ms: milliseconds since the epoch.
            keys_max: the most to return.
        """
        due: list[Expiring] = []
        while len(due) < keys_max:
            entry = self._next(until_ms, keys_max)
            if entry is None:
                break
            # A state in the index and in a layer appears twice, one entry right after the other.
            if self._holds(entry, newest) and (not due or due[-1] != entry):
                due.append(entry)
        if due:
            self.first_ms = due[0][0]
            self._heap += due  # They stay due until they are put again.
            heapify(self._heap)
        return due

    def _next(self, until_ms: int, keys_max: int) -> Expiring | None:
        """Remove the next entry from the heap or the index, unless it expires later."""
        if not self._rows and not self._is_read:
            self._read(min(max(keys_max, _ROWS_MIN), _ROWS_MAX))
        heap, rows = self._heap, self._rows
        if not heap and not rows:
            self.first_ms = math.inf
            return None
        from_heap = not rows or (bool(heap) and heap[0] <= rows[-1])
        entry = heap[0] if from_heap else rows[-1]
        if entry[0] > until_ms:
            self.first_ms = entry[0]
            return None
        return heappop(heap) if from_heap else rows.pop()

    def _read(self, rows_max: int) -> None:
        rows = self._store.expiring(self._read_to, rows_max)
        self._is_read = len(rows) < rows_max
        if rows:
            self._read_to = rows[-1]
        rows.reverse()
        self._rows = rows

    def _holds(self, entry: Expiring, newest: Layer) -> bool:
        """Return whether an entry still has the expiry of its key; a key with a later expiry gets a new entry."""
        expires_at_ms, key = entry
        if key not in newest:
            return True  # The entry is from the index, and the key was not put since.
        if self._scheduled.get(key) != expires_at_ms:
            return False
        stored = newest[key]
        now_ms = 0 if stored is None else stored.expires_at_ms
        if now_ms == expires_at_ms:
            return True
        if now_ms > 0:
            self._scheduled[key] = now_ms
            heappush(self._heap, (now_ms, key))
        else:
            del self._scheduled[key]
        return False
