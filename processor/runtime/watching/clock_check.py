"""Warns when the clock of this machine is behind the records that it reads.

Outputs carry the time of this machine (merge.md, "Headers"), and Kafka deletes deltas and dead letters by that time:
a clock that is days behind has them deleted early. A clock that is more than an hour ahead needs no check of its own,
as Kafka refuses the outputs (`message.timestamp.after.max.ms`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.stdlib.get_logger("sowstream.clock")

BEHIND_MAX_S: Final = 3_660.0
"""How far input may be ahead of the clock without a warning: an hour, which brokers allow publishers, and a minute."""
_PERIOD_S: Final = 60.0


class ClockCheck:
    """Compares the clock with the records of one input topic; a warning at most once a minute. One thread only."""

    def __init__(self, topic: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Start without a warning.

        Args:
            topic: the input topic.
            clock_s: a clock that does not jump, in seconds.
        """
        self._topic = topic
        self._clock_s = clock_s
        self._next_s = 0.0

    def compare(self, timestamp_ms: int, now_ms: int) -> None:
        """Warn if a record's timestamp is too far ahead of the clock, both in milliseconds since the epoch."""
        behind_s = (timestamp_ms - now_ms) / 1000
        if behind_s <= BEHIND_MAX_S or self._clock_s() < self._next_s:
            return
        self._next_s = self._clock_s() + _PERIOD_S
        log.warning(
            "records are from the future",
            topic=self._topic,
            seconds_ahead=round(behind_s),
            remedy="set the clock of this machine, or that of the publisher: Kafka deletes deltas and dead letters by "
            "the time of this machine",
        )
