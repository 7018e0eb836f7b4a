"""The length of a conflation interval: fixed, or longer while the reader is behind its input (`interval: auto`)."""

from __future__ import annotations

from typing import Final

NEAR_MS: Final = 1_000
"""A difference of this size between a record's timestamp and the clock is no backlog: commits and fetches take time."""

_STEP: Final = 2.0
_RELAX: Final = 0.8


class AdaptiveInterval:
    """The length of the interval of all keys, fixed or by the backlog.

    - **Fixed**, the interval stays as it is, however far the reader is behind its input and however much clocks differ.
      A reader that is behind folds more all the same, as more updates of a key meet in one interval.
    - **Auto**, it lies between a floor and a ceiling. Once an interval the backlog is looked at: one of more than the
      interval (and a second) doubles it, none takes a fifth of it back. The longer it is, the more updates become one,
      and the fewer are delivered.
    """

    def __init__(self, floor_ms: int, ceiling_ms: int) -> None:
        """Begin at the floor, with no backlog; a fixed interval has a ceiling that is its floor."""
        self._floor_ms = floor_ms
        self._ceiling_ms = ceiling_ms
        self._next_ms = 0
        self.interval_ms = floor_ms
        """The length of an interval now, milliseconds."""

    def observe_lag(self, now_ms: int, lag_ms: int) -> None:
        """Adapt the interval to the backlog: the age of the last record read; 0 if no record is waiting."""
        if self._ceiling_ms == self._floor_ms or now_ms < self._next_ms:
            return
        backlog_ms = lag_ms - NEAR_MS
        if backlog_ms > self.interval_ms:
            self.interval_ms = min(self._ceiling_ms, int(self.interval_ms * _STEP))
        elif backlog_ms <= 0:
            self.interval_ms = max(self._floor_ms, int(self.interval_ms * _RELAX))
        self._next_ms = now_ms + self.interval_ms

    def shift(self, by_ms: int) -> None:
        """Adjust to a clock that was set back."""
        self._next_ms -= by_ms
