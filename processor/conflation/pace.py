"""How long an interval is now: fixed, or as the backlog asks for; and longer while nobody could use what is told."""

from __future__ import annotations

from typing import Final

FAR_BEHIND_MS: Final = 10_000
"""So far behind its input, at least, a reader skips ahead."""

NEAR_MS: Final = 1_000
"""What lies between a record's timestamp and its being read is no backlog up to here: commits and fetches."""

SKIPPED_INTERVALS: Final = 10
"""While skipping ahead an interval is so many times as long, so that readers of the copy are not left without news."""

_STEP: Final = 2.0
_RELAX: Final = 0.8


class Pace:
    """The interval of all keys of a window, felt from how far its reader is behind its input.

    - **Fixed**, `wait_ms` is the interval.
    - **Auto**, it lies between a floor and a ceiling. Once an interval the backlog is looked at: one of more than the
      interval (and a second) doubles it, none takes a fifth of it back. The longer it is, the more updates become one,
      and the less there is to tell.
    - **Far behind**, by ten seconds and two intervals, either kind is ten times as long until the backlog is gone: the
      input is read through to the last states, and what has been overtaken is not told.
    """

    def __init__(self, floor_ms: int, ceiling_ms: int) -> None:
        """Begin at the floor, with no backlog; a fixed interval has a ceiling that is its floor."""
        self._floor_ms = floor_ms
        self._ceiling_ms = ceiling_ms
        self._next_ms = 0
        self.interval_ms = floor_ms
        """How long an interval is now, milliseconds."""
        self.is_far_behind = False
        """Whether it skips ahead."""

    @property
    def wait_ms(self) -> int:
        """How long a key waits that began to wait, milliseconds."""
        return self.interval_ms * SKIPPED_INTERVALS if self.is_far_behind else self.interval_ms

    def feel(self, now_ms: int, lag_ms: int) -> None:
        """Take note of the backlog: how much older the last record read is than the clock; 0 if none is waiting."""
        backlog_ms = lag_ms - NEAR_MS
        if self.is_far_behind:
            self.is_far_behind = backlog_ms > self.interval_ms
        else:
            self.is_far_behind = lag_ms > max(FAR_BEHIND_MS, 2 * self.interval_ms)
        if self._ceiling_ms == self._floor_ms or now_ms < self._next_ms:
            return
        if backlog_ms > self.interval_ms:
            self.interval_ms = min(self._ceiling_ms, int(self.interval_ms * _STEP))
        elif backlog_ms <= 0:
            self.interval_ms = max(self._floor_ms, int(self.interval_ms * _RELAX))
        self._next_ms = now_ms + self.interval_ms

    def shift(self, by_ms: int) -> None:
        """The clock was set back by so much."""
        self._next_ms -= by_ms
