"""The records that the caller waits for, shared out among the brokers so that no more come than it takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_WAIT_MS: Final = 250
"""The longest wait of a fetch for its first record. A broker answers one request of a connection after the other, so
outcomes and the end of the member wait for as long."""
_WAIT_HELD_MS: Final = 50
"""The same while records are held, whose outcomes may come, or brokers take turns."""
_PATIENCE_MIN_S: Final = 0.01


class FetchGrant(NamedTuple):
    """A fetch that one broker may be asked for."""

    records_max: int
    wait_ms: int


class Demand:
    """How many records each broker may be asked for. Not safe for threads by itself."""

    def __init__(self, records_max: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begin without a caller.

        Args:
            records_max: most records that are held at a time.
            clock_s: a clock that does not jump, in seconds.
        """
        self._records_max, self._clock_s = records_max, clock_s
        self._until_s = -1.0
        self._granted: dict[int, int] = {}
        self._turns: list[int] = []

    def wait_for(self, seconds: float) -> None:
        """The caller waits for records."""
        self._until_s = self._clock_s() + max(seconds, _PATIENCE_MIN_S)

    def satisfied(self) -> None:
        """The caller has records, and waits no longer."""
        self._until_s = -1.0

    @property
    def is_waiting(self) -> bool:
        """Whether the caller waits."""
        return self._clock_s() < self._until_s

    def grant(self, node: int, nodes: Collection[int], held: int) -> FetchGrant | None:
        """A fetch from a broker; None: it has to wait for its turn, or for the caller.

        Args:
            node: the broker.
            nodes: all brokers that have partitions for us.
            held: number of records that are held.
        """
        free = self._records_max - held - sum(self._granted.values())
        if free <= 0 or node in self._granted or not self.is_waiting:
            return None
        self._turns = [one for one in self._turns if one in nodes] + [one for one in nodes if one not in self._turns]
        idle = [one for one in self._turns if one not in self._granted]
        if node not in idle[:free]:
            return None
        takes_turns = len(nodes) > self._records_max - held
        self._turns.remove(node)
        self._turns.append(node)
        self._granted[node] = max(1, free // len(idle))
        return FetchGrant(self._granted[node], _WAIT_HELD_MS if held or takes_turns else _WAIT_MS)

    def returned(self, node: int) -> None:
        """The broker's fetch has ended; its records are held now."""
        self._granted.pop(node, None)
