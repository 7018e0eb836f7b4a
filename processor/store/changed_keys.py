"""The keys of a state that are not in its store yet, in key order, for scans."""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
