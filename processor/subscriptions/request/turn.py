"""The turn of work on an event loop: the time that it may take before others have theirs.

To free a container of a million objects takes a third of a second, in one step. Where others wait, the large ones are
left to the turn when the last reference to them is gone, and are emptied in slices::

    the last reference goes ──▶ LargeDict, LargeSet, Places ──▶ Turn.leave ──▶ Turn.free, a turn at a time
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sortedcontainers import SortedList

_Key = TypeVar("_Key")
_Entry = TypeVar("_Entry")

TURN_S: Final = 0.008
"""Longest turn of work that can go on later: a scan, a sort, the rows of groups."""
LARGE: Final = 5_000
"""Entries that are not freed at once: about 1 ms."""
_STEP_ENTRIES: Final = 100


class Turn:
    """One turn after the other. An engine without one works to the end, as it has a thread of its own."""

    __slots__ = ("_left", "_until_s")

    def __init__(self) -> None:
        self._until_s = 0.0
        self._left: deque[Iterator[None]] = deque()

    def begin(self) -> None:
        """Begin the next turn."""
        self._until_s = perf_counter() + TURN_S

    @property
    def is_over(self) -> bool:
        """True if others should have their turn."""
        return perf_counter() >= self._until_s

    def leave(self, steps: Iterator[None]) -> None:
        """Leave the steps that free something to later turns."""
        self._left.append(steps)

    def leave_large(self, container: dict[_Key, _Entry] | set[_Key] | SortedList[_Key]) -> None:
        """Leave the entries of a container, if they are many: from here on the steps refer to it, until it is empty."""
        if len(container) > LARGE:
            self.leave(emptied(container))

    def free(self) -> None:
        """Go on to free what was left, for one turn."""
        left = self._left
        if not left:
            return
        self.begin()
        while left:
            for _ in left[0]:
                if self.is_over:
                    return
            left.popleft()


class LargeDict(dict[_Key, _Entry]):
    """A dictionary whose entries are freed in turns when nothing refers to it any more."""

    __slots__ = ("_turn",)

    def __init__(self, turn: Turn | None) -> None:
        """Begin empty; without a turn it is freed at once."""
        super().__init__()
        self._turn = turn

    def __del__(self) -> None:
        """Leave the entries to later turns."""
        if self._turn is not None:
            self._turn.leave_large(self)


class LargeSet(set[_Key]):
    """A set whose members are freed in turns when nothing refers to it any more."""

    __slots__ = ("_turn",)

    def __init__(self, turn: Turn | None) -> None:
        """Begin empty; without a turn it is freed at once."""
        super().__init__()
        self._turn = turn

    def __del__(self) -> None:
        """Leave the members to later turns."""
        if self._turn is not None:
            self._turn.leave_large(self)


def emptied(container: dict[_Key, _Entry] | set[_Key] | SortedList[_Key]) -> Iterator[None]:
    """Empty a container, and the dictionaries in it, some entries in each step."""
    while container:
        for _ in range(min(_STEP_ENTRIES, len(container))):
            entry = container.popitem()[1] if isinstance(container, dict) else container.pop()
            if isinstance(entry, dict) and len(entry) > LARGE:
                yield from emptied(entry)
        yield


class Build(Protocol):
    """Work before a subscription begins, which goes on turn by turn: an order, or groups."""

    def is_ready(self, depth: int) -> bool:
        """Return whether the first `depth` places are there."""

    def advance(self) -> bool:
        """Work for a turn; returns whether all is done."""
