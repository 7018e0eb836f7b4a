"""A queue of deadlines, earliest first."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
"""The item that a deadline is for."""


class Deadlines(Generic[Item]):
    """Items with a deadline each. A change takes O(log n); discarded items leave the heap when their turn comes."""

    def __init__(self) -> None:
        self._times_ms: dict[Item, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, Item]] = []
        self._turns = 0

    def __contains__(self, item: Item) -> bool:
        """Return whether an item has a deadline."""
        return item in self._times_ms

    def __len__(self) -> int:
        """The number of items with a deadline."""
        return len(self._times_ms)

    def put(self, item: Item, time_ms: int) -> None:
        """Give an item its deadline; it has none yet."""
        assert item not in self._times_ms
        self._turns += 1
        self._times_ms[item] = (time_ms, self._turns)
        heappush(self._heap, (time_ms, self._turns, item))

    def discard(self, item: Item) -> None:
        """Remove the deadline of an item, if it has one."""
        self._times_ms.pop(item, None)
        if len(self._heap) > 2 * len(self._times_ms) + 100:  # Otherwise discarded items would stay.
            self._heap = [
                (*time, left) for left, time in self._times_ms.items()
            ]  # In the order of turns, not of times.
            self._heap.sort(key=lambda entry: entry[:2])

    @property
    def first_ms(self) -> int | None:
        """The earliest deadline; None if there is none."""
        heap = self._heap
        while heap and self._times_ms.get(heap[0][2]) != heap[0][:2]:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop(self, now_ms: int) -> list[Item]:
        """Remove and return the items that are due, earliest first."""
        items = []
        while (first_ms := self.first_ms) is not None and first_ms <= now_ms:
            item = heappop(self._heap)[2]
            del self._times_ms[item]
            items.append(item)
        return items
