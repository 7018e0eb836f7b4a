"""Follows one order step by step; after it is finished and was shown for a while, the next one."""

from __future__ import annotations

from typing import Final, NamedTuple

_DONE: Final = (b'"state":"filled"', b'"state":"cancelled"')
_LOOKED_AT_S: Final = 2.5
_GIVEN_UP_S: Final = 20.0
_STEPS_MAX: Final = 6


class OrderStep(NamedTuple):
    """One delta of the order."""

    after_s: float
    """Seconds since the order was new."""
    delta: str
    """The delta as received."""
    removed: str | None
    """The removed paths."""


class OrderFollower:
    """One order, and its changes so far."""

    def __init__(self) -> None:
        self.key: str | None = None
        """The order's key; None before the first one."""
        self.steps: list[OrderStep] = []
        """Its latest deltas."""
        self._began_s = 0.0
        self._done_s: float | None = None

    def take(self, now_s: float, key: str, delta: bytes, kind: str, removed: str | None) -> None:
        """Process a delta of any order."""
        if kind == "insert" and self._is_free(now_s):
            self.key, self.steps, self._began_s, self._done_s = key, [], now_s, None
        if key != self.key or kind == "delete":
            return
        self.steps = [*self.steps, OrderStep(now_s - self._began_s, delta.decode(), removed)][-_STEPS_MAX:]
        if any(end in delta for end in _DONE):
            self._done_s = now_s

    def _is_free(self, now_s: float) -> bool:
        if self.key is None or now_s - self._began_s > _GIVEN_UP_S:
            return True
        return self._done_s is not None and now_s - self._done_s > _LOOKED_AT_S
