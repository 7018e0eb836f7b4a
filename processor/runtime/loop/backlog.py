"""Counts what waits in Kafka for a process: input of partitions that do not run, and dead letters.

A stream thread knows without a request how far its running partitions are behind. All else is asked for here, on a
thread of its own, so that no stream thread waits for an answer.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from processor.errors import Stop
from processor.runtime.task_state import TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from processor.kafka.admin.groups import GroupInspector
    from processor.runtime.loop.task_reports import PipelineReport

log = structlog.stdlib.get_logger("sowstream.backlog")

INTERVAL_S: Final = 10.0
"""Time between two looks at the input; a process whose partitions all run asks for nothing."""
_LETTERS_EVERY: Final = 6
"""Dead letters are counted with each sixth look."""
_ASK_TIMEOUT_S: Final = 5.0


class WaitingRecords:
    """The records that waited for one pipeline at the last look. The watch writes; mappings are replaced as a whole."""

    def __init__(self) -> None:
        self.input: Mapping[int, int] = {}
        """The input offsets still to be processed, of partitions that do not run."""
        self.letters: Mapping[int, int] = {}
        """The dead letters that were not sent back, of all partitions."""


class WatchedPipeline(NamedTuple):
    """A pipeline whose backlog is wanted."""

    group: str
    """Its consumer group."""
    source: str
    """Its input topic."""
    letters: str
    """Its dead-letter topic."""
    letters_group: str
    """The consumer group of those who send dead letters back."""
    report: PipelineReport
    """The states of its partitions in this process."""
    backlog: WaitingRecords
    """Takes the answers."""


class BacklogWatch:
    """Asks periodically for the backlogs of a process's pipelines, on a thread and a connection of its own."""

    def __init__(
        self,
        groups: GroupInspector,
        watched: Sequence[WatchedPipeline],
        *,
        stop: threading.Event,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Create a watch; it sends no request before `start`.

        Args:
            groups: a connection of its own.
            watched: the pipelines.
            stop: ends it.
            interval_s: time between two looks.
        """
        self._groups = groups
        self._watched = watched
        self._stop = stop
        self._interval_s = interval_s
        self._thread = threading.Thread(target=self._run, name="backlog watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def _run(self) -> None:
        looks = 0
        while not self._stop.wait(self._interval_s):
            for one in self._watched:
                self.look(one, counts_letters=looks % _LETTERS_EVERY == 0)
            looks += 1
            self._groups.rest()  # A connection a group, to count once a minute.

    def look(self, one: WatchedPipeline, *, counts_letters: bool) -> None:
        """Ask for the backlog of a pipeline; what Kafka does not answer, or hides, is left as it was.

        Args:
            one: the pipeline.
            counts_letters: whether dead letters are counted, too.
        """
        tasks = one.report.tasks
        try:
            idle = [number for number, task in tasks.items() if task.state is not TaskState.RUNNING]
            one.backlog.input = self._behind(one.group, one.source, idle)
            if counts_letters:
                one.backlog.letters = self._behind(one.letters_group, one.letters, tasks)
        except Stop as error:
            log.debug("backlog unknown", group=one.group, why=str(error))

    def _behind(self, group: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The number of offsets between a group's position and the end of each partition.

        Without a position all that is kept counts.

        Raises:
            Stop: no answer, or the rights are missing.
        """
        places = [(topic, number) for number in partitions]
        if not places:
            return {}
        positions = self._groups.offsets({group: places}, _ASK_TIMEOUT_S)[group]
        ends = self._groups.ends(places, is_committed=False, timeout_s=_ASK_TIMEOUT_S)
        begins = self._groups.begins(places, timeout_s=_ASK_TIMEOUT_S)
        return {
            place[1]: max(0, end - max(begin, positions.get(place) or 0))
            for place in places
            if (end := ends[place]) is not None and (begin := begins[place]) is not None
        }
