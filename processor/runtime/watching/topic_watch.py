"""Watches the topics of a running worker: one that grew, went or was made anew ends its pipelines in time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import structlog

from processor.errors import Stop
from processor.hosting.pipeline import source_spec
from processor.hosting.topic_check import tell
from processor.runtime import input_room
from processor.topics import changes, grown, kept_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from processor.hosting.pipeline import Pipeline
    from processor.kafka.admin.admin import Admin
    from processor.topics import FoundTopic, Problem
    from processor.topics.family import TopicSpec

log = structlog.stdlib.get_logger("sowstream.topics")

INTERVAL_S: Final = 10.0
"""Time between two looks: two questions to one broker each. A worker that has nothing else to ask notices by them that
Kafka is away."""
_AGAIN_S: Final = 1.0
_SILENT_S: Final = 5.0  # Where Kafka has not answered.
_LOOKS: Final = 15
"""Looks in a row, a second apart, that must agree: a broker that starts may take as long to know its topics, or know
them as they were when it went down. What would be harm meanwhile ends the pipeline otherwise: records that no topic
takes, partitions beyond the settings', offsets that the state has already."""
_ASK_TIMEOUT_S: Final = 5.0


class Doubts:
    """Changes that looks have found: real, or news of long ago from a broker that was asked while it started."""

    def __init__(self) -> None:
        self._looks: dict[Problem, int] = {}

    def looked(self, refused: Iterable[Problem]) -> list[Problem]:
        """Take what a look found, nothing if Kafka was silent; what so many looks in a row have found."""
        self._looks = {problem: self._looks.get(problem, 0) + 1 for problem in refused}
        believed = [problem for problem, looks in self._looks.items() if looks >= _LOOKS]
        for problem in believed:
            del self._looks[problem]
        return believed


class TopicWatch:
    """Looks at topics again and again, on a thread and a connection of its own."""

    def __init__(
        self,
        admin: Admin,
        specs: Sequence[TopicSpec],
        *,
        stop: threading.Event,
        on_change: Callable[[Stop, Collection[str]], None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Make a watch; nothing is asked before `start`.

        Args:
            admin: a connection of its own.
            specs: the topics as they should be.
            stop: ends it.
            on_change: hears, on the watch's thread, what no pipeline may go on with, and the topics' names. A topic is
                then looked at as if for the first time.
            interval_s: time between two looks.
        """
        self._admin = admin
        self._specs = {spec.name: spec for spec in specs}
        self._stop = stop
        self._on_change = on_change
        self._interval_s = interval_s
        self._before: dict[str, FoundTopic] = {}
        self._doubts = Doubts()
        self._thread = threading.Thread(target=self._run, name="topic watch", daemon=True)

    def start(self) -> None:
        """Take the first look soon, and begin to compare."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for its end, once `stop` is set."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            now = self._look()
            wrong = [] if now is None else changes(self._specs.values(), self._before, now)
            refused = [problem for problem in wrong if problem.severity == "refuse"]
            pause_s = min(_AGAIN_S, self._interval_s) if refused else self._interval_s
            if now is None:  # The look also tells whether Kafka is away, and when it is back.
                pause_s = min(_SILENT_S, self._interval_s)
            doubtful = {problem.topic for problem in refused}
            self._remember({name: topic for name, topic in (now or {}).items() if name not in doubtful})
            believed = self._doubts.looked(refused)
            self._tell([problem for problem in wrong if problem.severity == "warn"] + believed)

    def _look(self) -> dict[str, FoundTopic] | None:
        """The topics now; None if Kafka does not say."""
        try:
            return self._admin.found(list(self._specs), _ASK_TIMEOUT_S)
        except Stop as error:
            log.debug("topics not looked at", why=str(error))
            self._admin.refresh()  # Which tells a silent broker from a Kafka that is away.
            return None

    def _remember(self, now: Mapping[str, FoundTopic]) -> None:
        self._before.update(now)
        for name, topic in now.items():
            input_room.tell(name, kept_ms(topic))

    def _tell(self, wrong: Sequence[Problem]) -> None:
        """Say what has changed, and who must not go on."""
        if refused := tell(wrong, "topic changed"):
            topics = {problem.topic for problem in wrong if problem.severity == "refuse"}
            for topic in topics:
                self._before.pop(topic, None)
            self._on_change(Stop(f"topics changed while the worker ran:\n{refused}"), topics)


def refuse_grown(pipeline: Pipeline, partitions: Sequence[int]) -> None:
    """Take no partition beyond those of the settings: the group may hear of new ones before the watch does.

    Raises:
        Stop: there is one.
    """
    least = max(partitions, default=-1) + 1
    if least > pipeline.topic.partitions:
        raise Stop(f"topics changed while the worker ran:\n  {grown(source_spec(pipeline), least)}")
