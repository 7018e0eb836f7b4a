"""Logs rejected records: the first of each reason and topic in a minute, then the number of the others."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable


log = structlog.stdlib.get_logger("sowstream.rejections")

PERIOD_S: Final = 60.0
"""Time for which records of one reason are counted after the one that was logged (producers.md, rule 8)."""


@dataclass(slots=True)
class _Period:
    """The rejections of one reason since one of them was logged."""

    began_s: float
    """Time of that log line, on the monotonic clock."""
    more: int = 0
    """Number of rejections since."""


class RejectionLog:
    """The log lines about the rejected records of one input topic. One thread only.

    A record that is read again after a rollback is counted again.
    """

    def __init__(self, topic: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Create a log without periods.

        Args:
            topic: the input topic.
            clock_s: a clock that does not jump, in seconds.
        """
        self._topic = topic
        self._clock_s = clock_s
        self._periods: dict[str, _Period] = {}

    def add(self, partition: int, offset: int, reason: str, detail: str) -> None:
        """Log a rejected record, or count it if another of this reason was logged less than a minute ago."""
        self.flush()
        period = self._periods.get(reason)
        if period is not None:
            period.more += 1
            return
        self._periods[reason] = _Period(self._clock_s())
        log.warning(
            "record rejected",
            topic=self._topic,
            partition=partition,
            offset=offset,
            reason=reason,
            detail=detail,
        )

    def flush(self) -> None:
        """Log the number of further rejections of each minute that is over. Called about once a second."""
        now_s = self._clock_s()
        for reason, period in [*self._periods.items()]:
            if now_s - period.began_s < PERIOD_S:
                continue
            del self._periods[reason]
            if period.more:
                log.warning(
                    "more records rejected", topic=self._topic, reason=reason, count=period.more, seconds=PERIOD_S
                )
