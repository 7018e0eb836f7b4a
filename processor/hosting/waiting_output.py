"""The output of a partition that waits in memory, and the size of the next slice of records that makes more."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from processor.errors import ProcessorFailed

if TYPE_CHECKING:
    from collections.abc import Callable

TURN_S: Final = 0.1
"""Longest time for which a processor receives records before outputs are sent and other threads have a turn."""

_FIRST_RECORDS: Final = 64
_EXCESS: Final = 2  # So many times what may wait is made by one slice, at most, unless it is of one record.


class WaitingOutput:
    """Counts the bytes that are forwarded and not sent yet, and limits the records that may make more of them.

    A processor that asks `is_enough` receives all records that there are. One that does not ask is bounded by the
    size of its slices: few records at first, then more of them while its outputs are small and its calls are short.
    """

    def __init__(self, bytes_max: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing waiting.

        Args:
            bytes_max: how much may wait.
            clock_s: a clock that does not jump, in seconds.
        """
        self.size_bytes = 0
        """Bytes of the values that wait."""
        self._bytes_max = bytes_max
        self._clock_s = clock_s
        self._records_max = _FIRST_RECORDS
        self._until_s = sys.float_info.max  # No time counts before the first turn.
        self._began_s = 0.0
        self._began_bytes = 0
        self._records = 0  # Of the slice that a processor has in hand; 0: it has none.

    def begin_turn(self) -> None:
        """Start the clock of a turn: a processor is about to receive records."""
        self._until_s = self._clock_s() + TURN_S

    def is_enough(self, more_bytes: int = 0) -> bool:
        """Return whether so much waits, or the turn has lasted so long, that no more should be made now."""
        return self.size_bytes + more_bytes >= self._bytes_max or self._clock_s() >= self._until_s

    def add(self, size_bytes: int) -> None:
        """Add bytes that wait.

        Raises:
            ProcessorFailed: one slice makes far too much: it is rolled back, and the next one is smaller.
        """
        self.size_bytes += size_bytes
        if self._records > 1 and self.size_bytes - self._began_bytes > _EXCESS * self._bytes_max:
            raise ProcessorFailed(
                f"{self._records} records made more than {_EXCESS * self._bytes_max} bytes of outputs"
            )

    def sent(self) -> None:
        """Count nothing as waiting any more: all was sent."""
        self.size_bytes = 0

    def begin_slice(self, records: int) -> int:
        """Return how many of so many records a processor receives at once."""
        self._records = min(records, self._records_max)
        self._began_bytes, self._began_s = self.size_bytes, self._clock_s()
        return self._records

    def end_slice(self) -> None:
        """End a slice: the next one has fewer records if this one made much output or took long."""
        records, self._records = self._records, 0
        share = (self.size_bytes - self._began_bytes) / self._bytes_max
        share = max(share, (self._clock_s() - self._began_s) / TURN_S)
        if share > 0.5:
            self._records_max = max(1, min(records // 2, int(records / share)))
        elif share < 0.25 and records == self._records_max:
            self._records_max *= 2

    def rewound(self) -> None:
        """Forget the bytes that waited; the next slice is smaller, as the one that failed may have been too large."""
        if self._records:
            self._records_max = max(1, self._records // 4)
        self.size_bytes = self._records = 0
