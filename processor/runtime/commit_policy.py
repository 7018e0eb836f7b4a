"""When to commit: soon while little comes, seldom while much does."""

from __future__ import annotations


class CommitPolicy:
    """Decides from what it is told; it reads no clock.

    A transaction costs tens of milliseconds however much is in it. A thread that mostly waits for input commits as
    soon as the input runs dry, which keeps latency near the cost of a commit. One that mostly works lets the
    transaction grow up to the interval, which keeps that cost small. What was done because the clock asked for it is
    committed as soon as the input runs dry, whatever else there is to do: while that commit lasts, the next one's share
    gathers, so that a busier thread commits more at a time rather than more often.
    """

    def __init__(self, *, interval_s: float, records_max: int) -> None:
        self._interval_s = interval_s
        self._records_max = records_max
        self._records = 0
        self._first_s: float | None = None
        self._worked_s = 0.0
        self._is_urgent = False

    def worked(self, now_s: float, seconds: float, records: int, *, is_urgent: bool = False) -> None:
        """Something was done that wants to be committed.

        Args:
            now_s: when it ended.
            seconds: how long it took.
            records: how many records it was for.
            is_urgent: whether the clock asked for it.
        """
        self._is_urgent = self._is_urgent or is_urgent
        if self._first_s is None:
            self._first_s = now_s - seconds
        self._worked_s += seconds
        self._records += records

    def due(self, now_s: float, *, drained: bool) -> bool:
        """Whether to commit now; `drained` says that no further input was waiting."""
        if self._first_s is None:
            return False
        open_s = now_s - self._first_s
        if open_s >= self._interval_s or self._records >= self._records_max:
            return True
        return drained and (self._is_urgent or self._worked_s * 2 <= open_s)

    def committed(self) -> None:
        """Begin anew."""
        self._records, self._first_s, self._worked_s, self._is_urgent = 0, None, 0.0, False
