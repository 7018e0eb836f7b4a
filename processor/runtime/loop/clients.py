"""The collaborators of a stream thread."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from processor.api import Codec
    from processor.hosting.output_limits import OutputLimits
    from processor.kafka.clients.group_consumer import AssignmentListener, GroupConsumer
    from processor.runtime.loop.committer import Committer
    from processor.runtime.loop.held_tasks import Notices
    from processor.runtime.loop.task_reports import PipelineReport
    from processor.runtime.recovery.restorer import Restorer
    from processor.runtime.recovery.standbys import Standbys


class RetentionHeadroom:
    """The time that Kafka keeps the next unprocessed record of each partition. Written by one thread."""

    def __init__(self) -> None:
        """Begin without topics."""
        self._retention_ms: dict[str, float] = {}

    def set_retention(self, topic: str, retention_ms: int | None) -> None:
        """Set how long a topic keeps each record, in milliseconds; None: for ever."""
        self._retention_ms[topic] = math.inf if retention_ms is None else float(retention_ms)

    def of_partitions(
        self, topic: str, lags: Mapping[int, int], times_ms: Mapping[int, int], now_ms: int
    ) -> dict[int, float]:
        """Seconds until Kafka may delete or compact the next record of each partition, as far as they are known.

        A lower bound: the next record is as old as the last one, or younger. Negative if records may be lost already.

        Args:
            topic: the input topic.
            lags: the number of waiting records, by partition.
            times_ms: the timestamp of the last processed record, by partition; 0 before the first.
            now_ms: the wall clock.
        """
        retention_ms = self._retention_ms.get(topic)
        if retention_ms is None:
            return {}
        return {
            partition: (retention_ms - max(0, now_ms - times_ms[partition] if lag else 0)) / 1000
            for partition, lag in lags.items()
            if not lag or times_ms[partition]
        }


class WaitingRecords:
    """The records that waited for one pipeline at the last look. The watch writes; mappings are replaced as a whole."""

    def __init__(self) -> None:
        self.input: Mapping[int, int] = {}
        """The input offsets still to be processed, of partitions that do not run."""
        self.letters: Mapping[int, int] = {}
        """The dead letters that were not sent back, of all partitions."""


class Clients(NamedTuple):
    """The collaborators of a stream thread; created by the worker, owned by the thread."""

    consumer: Callable[[AssignmentListener], GroupConsumer]
    """Joins the group and calls the listener with its partitions."""
    committer: Committer
    """Sends the outputs, and commits them with the input offsets."""
    restorer: Restorer
    """Restores the states of partitions."""
    standbys: Standbys
    """Keeps the states of partitions that may be assigned later."""
    beat: Callable[[], None] = lambda: None
    """Shows the watchdog that the thread is not stuck."""
    notices: Notices | None = None
    """Publishes held partitions, and receives operators' orders."""
    fenced: Callable[[], None] = lambda: None
    """Called when another process has taken the transactional id."""
    limits: OutputLimits | None = None
    """The size limits of outputs, and of the bytes that may wait."""
    headroom: RetentionHeadroom | None = None
    """The retention time of the input, for a gauge."""
    backlog: WaitingRecords | None = None
    """What waits in Kafka of partitions that do not run, and of dead letters, for gauges."""
    report: PipelineReport | None = None
    """Shows the tasks to the health pages."""
    input_codec: Codec | None = None
    """The message type of the input, if it is not that of the records."""
