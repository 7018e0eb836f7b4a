"""The collaborators of a stream thread."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.kafka.admin.questions import PartitionQuestion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.api import Codec
    from processor.hosting.output_limits import OutputLimits
    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.questions import Question
    from processor.kafka.clients.group_consumer import AssignmentListener, GroupConsumer
    from processor.runtime.loop.committer import Committer
    from processor.runtime.loop.held_tasks import Notices
    from processor.runtime.loop.task_reports import PipelineReport
    from processor.runtime.recovery.restorer import Restorer
    from processor.runtime.recovery.standbys import Standbys
    from processor.runtime.task import Task


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


_QUIET_MS: Final = 1_000
_DUE_MS: Final = 100
"""Time between two questions for the end of a partition, and the same while records of its state are due."""
_AGAIN_MS: Final = 10_000
"""The same while the partition has no leader, or an answer is not reached, as that of a log that was cut off since."""


class _End(NamedTuple):
    """The end of a partition, asked for at a time."""

    offset: int
    asked_ms: int


class SeenInput:
    """Finds for each task a time before which its input had no further record. One thread only.

    Kafka is asked for the end of the input: a task that has read up to the answer has every record from before the
    question, however long poll, commit or processing took since. The end that a consumer reports proves less: it is as
    old as the last answer of the partition's leader, which may have gone, and leaves out records behind an open
    transaction.
    """

    def __init__(self, admin: Admin, topic: str, clock_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        """Ask nothing yet.

        Args:
            admin: sends the questions.
            topic: the input topic.
            clock_ms: the wall clock, milliseconds since the epoch.
        """
        self._admin, self._topic, self._clock_ms = admin, topic, clock_ms
        self._question = PartitionQuestion(
            f"the end of {topic} partition {{}}", admin.renewal, self._ask, pause_max_s=_AGAIN_MS / 1000
        )
        self._asked_ms: dict[int, int] = {}
        self._ends: dict[int, _End] = {}  # The answers up to which the tasks have not read yet.

    def look(self, tasks: Sequence[Task], ended: Mapping[int, int]) -> None:
        """Note in running tasks how far they have read; cheap, to be called in each turn of the loop.

        Args:
            tasks: the running tasks.
            ended: by partition without a further record for now, the offset of its end.
        """
        for number in self._asked_ms.keys() - {task.partition for task in tasks}:
            self._question.forget(number)
            self._ends.pop(number, None)
            del self._asked_ms[number]
        for number, offset in self._question.turn().items():
            if number not in self._ends or offset < self._ends[number].offset:
                self._ends[number] = _End(offset, self._asked_ms[number])
        now_ms = self._clock_ms()
        for task in tasks:
            number, position = task.partition, task.next_offset
            if number in ended and not task.is_paused and not task.left:
                task.reached_end()
                position = max(position, ended[number])
            if number in self._ends and position >= self._ends[number].offset:
                task.has_seen(self._ends.pop(number).asked_ms)
            pause_ms = _DUE_MS if task.state.next_due_ms <= now_ms else _QUIET_MS
            is_open = number in self._ends
            since_ms = self._asked_ms[number] if is_open else task.seen_ms
            if abs(now_ms - since_ms) >= (_AGAIN_MS if is_open else pause_ms):
                self._question.want(number)

    def _ask(self, partitions: Sequence[int]) -> Mapping[int, Question[int]]:
        self._asked_ms |= dict.fromkeys(partitions, self._clock_ms())
        return self._admin.ask_offsets(self._topic, partitions, "end")


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
    seen: SeenInput
    """Finds how far the tasks know their input."""
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
