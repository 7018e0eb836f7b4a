"""Compares restored states with the keys of their input, after an outage in which deletes may have gone from it."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

import structlog

from processor.kafka.clients.log_reader import Position
from processor.runtime.recovery.log_replay import LogReplay, PresentKeys
from processor.runtime.recovery.restore_range import place_question

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.kafka.admin.admin import Admin
    from processor.kafka.clients.log_reader import LogReader
    from processor.runtime.recovery.input_position import Start
    from processor.runtime.recovery.job import RestoreJob, Stalls
    from processor.runtime.task import Task

log = structlog.stdlib.get_logger("sowstream.restore")

_LATE_MIN_MS: Final = 600_000
"""A healthy task reads up to a second late, and more during a slow commit: no reason to restore."""


class InputComparison:
    """The comparisons of a restorer's partitions: one at a time, as the keys of the input are in memory."""

    def __init__(
        self,
        admin: Admin,
        reader: LogReader,
        source: str,
        jobs: dict[int, RestoreJob],
        stalls: Stalls,
        horizons_ms: Mapping[str, float],
        *,
        is_on: bool,
    ) -> None:
        """Begin without a comparison.

        Args:
            admin: asked for the ends of the input.
            reader: reads the input.
            source: the input topic.
            jobs: the partitions that are being restored, which the restorer changes.
            stalls: when each of them has made progress.
            horizons_ms: the retention time of deletes in each compacted topic, as far as it is known.
            is_on: whether the input is compacted, and the plug-in does not compare it with a table itself.
        """
        self._reader = reader
        self._source = source
        self._jobs = jobs
        self._stalls = stalls
        self._horizons_ms = horizons_ms
        self._ask_end = place_question(admin, source, "end")
        self.is_on = is_on

    def lacks_deletes(self, task: Task) -> bool:
        """Return whether a running task reads a copy's input so late that deletes may be gone from it.

        It is to be restored again: its state is then compared with the keys of the input.
        """
        if not self.is_on:
            return False
        now_ms = time.time() * 1000
        return now_ms - task.stream_time_ms > self._late_ms and now_ms > task.compare_after_ms

    def note(self, task: Task, start: Start, offset: int) -> None:
        """Note the time for which a task that begins now needs no comparison with its input."""
        # One has found all deletes that had gone by now; without one the next record is a young one.
        pause_ms = self._late_ms if start.lacks_deletes(offset) else _LATE_MIN_MS
        task.compare_after_ms = max(task.compare_after_ms, time.time() * 1000 + pause_ms)

    def begin(self, job: RestoreJob, start: Start, offset: int) -> bool:
        """Begin the comparison of a restored partition if it needs one, or let it wait; False: it needs none."""
        if job.present is not None or not start.lacks_deletes(offset):
            return False
        if (present := self._present_keys(job.task, start)) is None:
            return False
        if self.current is not None:
            job.is_ready_to_compare = True
            return True
        log.info("comparing with the input", topic=self._source, partition=job.task.partition, end=start.end)
        job.present = job.logs[self._source] = present
        self._reader.add([Position(self._source, job.task.partition, start.oldest)])
        return True

    @property
    def current(self) -> RestoreJob | None:
        """The partition that is being compared."""
        return next((job for job in self._jobs.values() if job.present is not None), None)

    def take_next(self) -> RestoreJob | None:
        """Take the next partition that waits, if none is being compared; one without progress goes behind them."""
        waiting = [job for job in self._jobs.values() if job.is_ready_to_compare]
        for job in waiting:
            self._stalls.moved(job.task.partition)  # It waits for its turn, which is no stall.
        current = self.current
        if waiting and current is not None and self._stalls.is_slow(current.task.partition):
            partition = current.task.partition
            self._reader.remove(self._source, partition)
            self.forget(partition)
            del current.logs[self._source], self._jobs[partition]
            current.present, current.is_ready_to_compare = None, True
            self._jobs[partition] = current
        if not waiting or self.current is not None:
            return None
        waiting[0].is_ready_to_compare = False
        return waiting[0]

    def awaits_end(self, job: RestoreJob, part: LogReplay) -> bool:
        """Return whether a log that has come to its end is a comparison that must go on to the end of now.

        Kafka may have removed records on the way, as their keys have newer ones behind the end of before.
        """
        if part is not job.present or job.present.has_present_end:
            return False
        self._ask_end.want(part.partition)
        return True

    def take_ended(self) -> list[tuple[RestoreJob, PresentKeys]]:
        """Set the ends for which comparisons have waited; returns those that have come to them."""
        ended = []
        for partition, end in self._ask_end.turn().items():
            job = self._jobs[partition]
            assert job.present is not None
            job.present.target, job.present.has_present_end = max(end, job.present.target), True
            if job.present.position >= job.present.target:
                ended.append((job, job.present))
        return ended

    def forget(self, partition: int) -> None:
        """Drop the question for the end of a partition."""
        self._ask_end.forget(partition)

    @property
    def _late_ms(self) -> float:
        """The time after which a running task reads an input so late that deletes may be gone from it."""
        return max(self._horizons_ms.get(self._source, math.inf), _LATE_MIN_MS)

    def _present_keys(self, task: Task, start: Start) -> PresentKeys | None:
        """Create the log of the keys that an input has; None if the task has no records, or cannot take its deletes."""
        if not task.state.scan(None, 1):
            return None
        if task.pipeline.processor_type.keeps_input_keys:
            return PresentKeys(self._source, task.partition, start.oldest, start.end, task.state)
        log.error(
            "deletes of the input may be missing",
            topic=self._source,
            partition=task.partition,
            why="the group was away for longer than its delete.retention.ms",
            remedy="rebuild the family; a plug-in that declares `keeps_input_keys` is compared with its input",
        )
        return None
