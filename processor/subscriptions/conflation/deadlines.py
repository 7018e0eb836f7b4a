"""Who is due when: the earliest first, whoever else waits."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
"""What is due."""


class Due(Generic[Item]):
    """Items with a time each. A change takes O(log n); what was taken out is dropped from the heap when it comes up."""

    def __init__(self) -> None:
        self._times_ms: dict[Item, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, Item]] = []
        self._turns = 0

    def __contains__(self, item: Item) -> bool:
        """Whether an item has a time."""
        return item in self._times_ms

    def __len__(self) -> int:
        """How many have."""
        return len(self._times_ms)

    def put(self, item: Item, time_ms: int) -> None:
        """Give an item that has none a time."""
        assert item not in self._times_ms
        self._turns += 1
        self._times_ms[item] = (time_ms, self._turns)
        heappush(self._heap, (time_ms, self._turns, item))

    def discard(self, item: Item) -> None:
        """Take an item's time from it, if it has one."""
        self._times_ms.pop(item, None)
        if len(self._heap) > 2 * len(self._times_ms) + 100:  # Else those that left early would be kept.
            self._heap = [
                (*time, left) for left, time in self._times_ms.items()
            ]  # In the order of turns, not of times.
            self._heap.sort(key=lambda entry: entry[:2])

    @property
    def first_ms(self) -> int | None:
        """The earliest time; None if there is none."""
        heap = self._heap
        while heap and self._times_ms.get(heap[0][2]) != heap[0][:2]:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop(self, now_ms: int) -> list[Item]:
        """The items whose time has come, the earliest first; they have none any more."""
        items = []
        while (first_ms := self.first_ms) is not None and first_ms <= now_ms:
            item = heappop(self._heap)[2]
            del self._times_ms[item]
            items.append(item)
        return items
