"""Sorts many keys in slices, so that a thread with other work can go on in between.

A sorted list that takes a million keys in random order misses the processor's caches with each of them. Keys that were
spread over buckets, and are sorted there, take a third of that time, and no step of it takes long::

    keys ──▶ buckets between 1/500 of the keys, as a random sample has them ──▶ sorted, bucket by bucket, lowest first
"""

from __future__ import annotations

import random
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from processor.subscriptions.order import SortKey

BUCKET_KEYS: Final = 500
"""Keys of a bucket on average; the largest of a thousand has about seven times as many."""


class SlicedSort:
    """Keys that are sorted in slices. More of them may be added above those that were returned."""

    def __init__(self, keys: list[SortKey], above: SortKey | None = None, bucket_keys: int = BUCKET_KEYS) -> None:
        """Begin with keys in any order.

        Args:
            keys: the keys; the list belongs to the sort from then on.
            above: smaller keys are left out; None: none is.
            bucket_keys: the keys of a bucket on average.
        """
        self.bound: SortKey | None = above
        """All keys below it were returned or left out, and none that is not; None: before the first of them."""
        self.is_done = False
        """True if all keys were returned."""
        self._keys = keys
        self._above = above
        self._spread = 0  # Keys that are in buckets, or were left out.
        self._next_bucket = 0
        count = len(keys) // bucket_keys
        # Any sample will do: it decides how long a slice takes, and nothing else.
        self._bounds = sorted(random.Random(count).sample(keys, count))  # noqa: S311
        self._buckets: list[list[SortKey]] = [[] for _ in range(count + 1)]

    def add(self, key: SortKey) -> None:
        """Add a key that is not below `bound`, before all are sorted."""
        if self._spread < len(self._keys):
            self._keys.append(key)
        else:
            self._buckets[bisect_right(self._bounds, key)].append(key)

    def advance(self, keys_max: int) -> list[SortKey]:
        """Sort the next slice: spread so many keys, or sort so many, and at most a bucket more.

        Returns:
            The next keys in order; none while keys are spread.
        """
        if self._spread < len(self._keys):
            self._spread_keys(keys_max)
            return []
        part: list[SortKey] = []
        while len(part) < keys_max and not self.is_done:
            number = self._next_bucket
            bucket, self._buckets[number] = self._buckets[number], []
            bucket.sort()
            part += bucket
            self._next_bucket = number + 1
            self.is_done = number == len(self._bounds)
            if not self.is_done and (self.bound is None or self.bound < self._bounds[number]):
                self.bound = self._bounds[number]
        if self.is_done:
            self._keys, self._bounds, self._buckets = [], [], []
        return part

    def _spread_keys(self, keys_max: int) -> None:
        bounds, buckets, above = self._bounds, self._buckets, self._above
        end = self._spread + keys_max
        for key in self._keys[self._spread : end]:
            if above is None or key >= above:
                buckets[bisect_right(bounds, key)].append(key)
        self._spread = end
