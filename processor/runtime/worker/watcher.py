"""Runs the periodic jobs of a worker on one thread: it looks at topics, at waiting input, at rivals and former states.

No stream thread waits for their answers. A stream thread knows without a request how far its running partitions are
behind; the input of partitions that do not run, and dead letters, are counted here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from processor.errors import Stop
from processor.installation.topic_check import log_warnings
from processor.runtime.task_state import TaskState
from processor.topics import changes, kept_ms

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Iterable, Sequence

    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.groups import GroupInspector
    from processor.runtime.loop.clients import RetentionHeadroom, WaitingRecords
    from processor.runtime.loop.task_reports import PipelineReport
    from processor.topics import ActualTopic, Problem
    from processor.topics.family import TopicSpec

log = structlog.stdlib.get_logger("sowstream.watcher")

INTERVAL_S: Final = 10.0
"""Time between two looks at the topics, each of two requests to one broker, and between two at a pipeline's backlog.

The looks at the topics also show an idle worker that Kafka is away."""
_AGAIN_S: Final = 1.0
_SILENT_S: Final = 5.0  # Pause after a look that Kafka has not answered.
_LOOKS: Final = 15
"""Looks in a row, a second apart, that must agree: a starting broker may take as long to load its topics, or may
describe them as they were before it went down. Meanwhile other checks end the pipeline before harm is done: the send to
a missing topic, the assignment of partitions beyond the settings, an offset that the state has already."""
_ASK_TIMEOUT_S: Final = 5.0


_FAILED_S: Final = 10.0  # Pause after a job that raised.
_LETTERS_EVERY: Final = 6
"""Dead letters are counted with each sixth look at a pipeline."""


class Job(NamedTuple):
    """Work that is done from time to time."""

    name: str
    """Its name in log lines."""
    run: Callable[[], float]
    """Does it once; returns the seconds until the next time. It may wait for Kafka for some seconds."""
    first_s: float = 0.0
    """Seconds until the first time."""


class Watcher:
    """One thread that runs the jobs of a worker, each when it is due.

    Holds and orders are not among them: `ControlThread` writes and reads them within a fifth of a second, also while a
    job waits for Kafka.
    """

    def __init__(
        self, jobs: Sequence[Job], stop: threading.Event, *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Create it; nothing runs before `run`.

        Args:
            jobs: in the order in which they begin, if several are due.
            stop: ends it.
            clock_s: a clock that does not jump, in seconds.
        """
        self._stop = stop
        self._clock_s = clock_s
        self._due_s = {job: clock_s() + job.first_s for job in jobs}

    def run(self) -> None:
        """Run the jobs until `stop` is set."""
        while True:
            job, due_s = min(self._due_s.items(), key=lambda entry: entry[1])
            if self._stop.wait(max(0.0, due_s - self._clock_s())):
                return
            try:
                pause_s = job.run()
            except Exception:
                log.exception("a periodic job failed", job=job.name)
                pause_s = _FAILED_S
            self._due_s[job] = self._clock_s() + pause_s


class UnconfirmedChanges:
    """Changes that looks have reported: real ones, or stale answers of a broker that was asked while it started."""

    def __init__(self) -> None:
        self._looks: dict[Problem, int] = {}

    def confirm(self, refused: Iterable[Problem]) -> list[Problem]:
        """Count the changes of a look, none if Kafka was silent; returns those that enough looks in a row agree on."""
        self._looks = {problem: self._looks.get(problem, 0) + 1 for problem in refused}
        confirmed = [problem for problem, looks in self._looks.items() if looks >= _LOOKS]
        for problem in confirmed:
            del self._looks[problem]
        return confirmed


class TopicMonitor:
    """Looks at the topics of a running worker: one that grew, vanished or was recreated ends its pipelines in time."""

    def __init__(
        self,
        admin: Admin,
        specs: Sequence[TopicSpec],
        *,
        on_change: Callable[[Stop, Collection[str]], None],
        headroom: RetentionHeadroom,
    ) -> None:
        """Create a monitor; it sends no request before `run`.

        Args:
            admin: the connection.
            specs: the topics as they should be.
            on_change: called with the changes that end pipelines, and the names of the topics. A topic is then looked
                at as if for the first time.
            headroom: takes the retention time of each topic.
        """
        self._admin = admin
        self._specs = {spec.name: spec for spec in specs}
        self._on_change = on_change
        self._headroom = headroom
        self._before: dict[str, ActualTopic] = {}
        self._unconfirmed = UnconfirmedChanges()

    def run(self) -> float:
        """Look at the topics once, and compare them with the look before; returns the seconds until the next one."""
        now = self._look()
        wrong = [] if now is None else changes(self._specs.values(), self._before, now)
        refused = [problem for problem in wrong if problem.severity == "refuse"]
        pause_s = _AGAIN_S if refused else INTERVAL_S
        if now is None:  # The look also detects whether Kafka is away, and when it is back.
            pause_s = _SILENT_S
        doubtful = {problem.topic for problem in refused}
        for name, topic in (now or {}).items():
            if name not in doubtful:
                self._before[name] = topic
                self._headroom.set_retention(name, kept_ms(self._specs[name], topic))
        confirmed = self._unconfirmed.confirm(refused)
        self._report([problem for problem in wrong if problem.severity == "warn"] + confirmed)
        return pause_s

    def _look(self) -> dict[str, ActualTopic] | None:
        """Describe the topics as they are now; None if Kafka does not answer."""
        try:
            return self._admin.describe_topics(list(self._specs), _ASK_TIMEOUT_S)
        except Stop as error:
            log.debug("topics not looked at", why=str(error))
            self._admin.refresh()  # To distinguish a silent broker from a Kafka that is away.
            return None

    def _report(self, wrong: Sequence[Problem]) -> None:
        """Log the changes, and end the pipelines that must not go on."""
        if refused := log_warnings(wrong, "topic changed"):
            topics = {problem.topic for problem in wrong if problem.severity == "refuse"}
            for topic in topics:
                self._before.pop(topic, None)
            self._on_change(Stop(f"topics changed while the worker ran:\n{refused}"), topics)


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
    """Asks for the backlogs of a process's pipelines, of one after the other; where all partitions run, for nothing."""

    def __init__(self, admin: Admin, groups: GroupInspector, watched: Sequence[WatchedPipeline]) -> None:
        """Create a watch; it sends no request before `run`.

        Args:
            admin: asked which dead letters were certainly not sent back.
            groups: a connection of its own: committed offsets are asked for by a consumer of each group.
            watched: the pipelines.
        """
        self._admin = admin
        self._groups = groups
        self._watched = watched
        self._looks = 0

    def run(self) -> float:
        """Ask for the backlog of the next pipeline; returns the seconds until the one after it has its turn."""
        turns, number = divmod(self._looks, len(self._watched))
        self.look(self._watched[number], counts_letters=turns % _LETTERS_EVERY == 0)
        self._looks += 1
        if self._looks % len(self._watched) == 0:
            self._groups.rest()  # A connection a group, to count once a minute.
        return INTERVAL_S / len(self._watched)

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
                one.backlog.letters = self._behind(one.letters_group, one.letters, tasks, are_letters=True)
        except Stop as error:
            log.debug("backlog unknown", group=one.group, why=str(error))

    def _behind(
        self, group: str, topic: str, partitions: Iterable[int], *, are_letters: bool = False
    ) -> dict[int, int]:
        """The number of offsets between a group's position and the end of each partition.

        Without a position all that is kept counts, but of dead letters those that were certainly not sent back.

        Raises:
            Stop: no answer, or the rights are missing.
        """
        places = [(topic, number) for number in partitions]
        if not places:
            return {}
        positions = self._groups.offsets({group: places}, _ASK_TIMEOUT_S)[group]
        ends = self._groups.bounds(places, "end", _ASK_TIMEOUT_S)
        begins = self._groups.bounds(places, "oldest", _ASK_TIMEOUT_S)
        lost = [place[1] for place in places if are_letters and ends[place] and positions.get(place) is None]
        unread = self._admin.unread_offsets(topic, lost, _ASK_TIMEOUT_S) if lost else {}
        return {
            place[1]: max(0, end - max(begin, positions.get(place) or unread.get(place[1], 0)))
            for place in places
            if (end := ends[place]) is not None and (begin := begins[place]) is not None
        }
