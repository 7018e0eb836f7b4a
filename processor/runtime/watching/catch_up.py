"""Logs how far a pipeline has come with the input that was there when it started."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.stdlib.get_logger("sowstream.progress")

BACKLOG_MIN: Final = 20_000
"""Least number of records of a backlog whose progress is logged."""

_EVERY_S: Final = 5.0

_UNKNOWN_S: Final = 10.0
"""Time after which a backlog is known: Kafka says where a partition ends with its first records."""


class CatchUp:
    """The progress of one pipeline through its backlog, such as the build of a view over a topic that has records."""

    def __init__(self, pipeline: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begin without a backlog.

        Args:
            pipeline: its name.
            clock_s: the monotonic clock.
        """
        self._pipeline = pipeline
        self._clock_s = clock_s
        self._until_s = 0.0  # A backlog that is first seen later is no beginning, but ordinary delay.
        self._began_s = self._logged_s = 0.0
        self._most = 0  # The largest number of records that remained; 0: there is no backlog.

    def expect(self) -> None:
        """Expect a backlog: partitions have been added, or are being restored."""
        self._until_s = self._clock_s() + _UNKNOWN_S

    def update(self, left: int) -> None:
        """Log the progress every few seconds, and the end.

        Args:
            left: the number of records that remain, of all partitions.
        """
        now_s = self._clock_s()
        if self._most == 0:
            if left < BACKLOG_MIN or now_s > self._until_s:
                return
            self._began_s = now_s
            self._logged_s = now_s - _EVERY_S
        self._most = max(self._most, left)
        if left < BACKLOG_MIN and now_s > self._until_s:
            log.info("caught up", pipeline=self._pipeline, records=self._most, seconds=round(now_s - self._began_s, 1))
            self._most = 0
        elif now_s - self._logged_s >= _EVERY_S:
            self._logged_s = now_s
            done = 100 * (self._most - left) // self._most
            log.info("catching up", pipeline=self._pipeline, records_left=left, percent=done)
