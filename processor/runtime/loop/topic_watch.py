"""Watches the topics of a running worker: one that grew, vanished or was recreated ends its pipelines in time."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Final

import structlog

from processor.errors import Stop
from processor.hosting.pipeline import source_spec
from processor.installation.topic_check import log_warnings
from processor.topics import changes, grown, kept_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from processor.hosting.pipeline import Pipeline
    from processor.kafka.admin.admin import Admin
    from processor.topics import ActualTopic, Problem
    from processor.topics.family import TopicSpec

log = structlog.stdlib.get_logger("sowstream.topics")

INTERVAL_S: Final = 10.0
"""Time between two looks, each of two requests to one broker. They also show an idle worker that Kafka is away."""
_AGAIN_S: Final = 1.0
_SILENT_S: Final = 5.0  # Pause after a look that Kafka has not answered.
_LOOKS: Final = 15
"""Looks in a row, a second apart, that must agree: a starting broker may take as long to load its topics, or may
describe them as they were before it went down. Meanwhile other checks end the pipeline before harm is done: the send to
a missing topic, the assignment of partitions beyond the settings, an offset that the state has already."""
_ASK_TIMEOUT_S: Final = 5.0


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
    """Looks at topics periodically, on a thread and a connection of its own."""

    def __init__(
        self,
        admin: Admin,
        specs: Sequence[TopicSpec],
        *,
        stop: threading.Event,
        on_change: Callable[[Stop, Collection[str]], None],
        headroom: RetentionHeadroom | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Create a watch; it sends no request before `start`.

        Args:
            admin: a connection of its own.
            specs: the topics as they should be.
            stop: ends it.
            on_change: called on the watch's thread with the changes that end pipelines, and the names of the topics. A
                topic is then looked at as if for the first time.
            headroom: takes the retention time of each topic; None: nothing does.
            interval_s: time between two looks.
        """
        self._admin = admin
        self._specs = {spec.name: spec for spec in specs}
        self._stop = stop
        self._on_change = on_change
        self._headroom = headroom or RetentionHeadroom()
        self._interval_s = interval_s
        self._before: dict[str, ActualTopic] = {}
        self._unconfirmed = UnconfirmedChanges()
        self._thread = threading.Thread(target=self._run, name="topic watch", daemon=True)

    def start(self) -> None:
        """Take the first look soon, and begin to compare."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, once `stop` is set."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            now = self._look()
            wrong = [] if now is None else changes(self._specs.values(), self._before, now)
            refused = [problem for problem in wrong if problem.severity == "refuse"]
            pause_s = min(_AGAIN_S, self._interval_s) if refused else self._interval_s
            if now is None:  # The look also detects whether Kafka is away, and when it is back.
                pause_s = min(_SILENT_S, self._interval_s)
            doubtful = {problem.topic for problem in refused}
            self._remember({name: topic for name, topic in (now or {}).items() if name not in doubtful})
            confirmed = self._unconfirmed.confirm(refused)
            self._report([problem for problem in wrong if problem.severity == "warn"] + confirmed)

    def _look(self) -> dict[str, ActualTopic] | None:
        """Describe the topics as they are now; None if Kafka does not answer."""
        try:
            return self._admin.describe_topics(list(self._specs), _ASK_TIMEOUT_S)
        except Stop as error:
            log.debug("topics not looked at", why=str(error))
            self._admin.refresh()  # To distinguish a silent broker from a Kafka that is away.
            return None

    def _remember(self, now: Mapping[str, ActualTopic]) -> None:
        self._before.update(now)
        for name, topic in now.items():
            self._headroom.set_retention(name, kept_ms(topic))

    def _report(self, wrong: Sequence[Problem]) -> None:
        """Log the changes, and end the pipelines that must not go on."""
        if refused := log_warnings(wrong, "topic changed"):
            topics = {problem.topic for problem in wrong if problem.severity == "refuse"}
            for topic in topics:
                self._before.pop(topic, None)
            self._on_change(Stop(f"topics changed while the worker ran:\n{refused}"), topics)


def refuse_grown(pipeline: Pipeline, partitions: Sequence[int]) -> None:
    """Refuse partitions beyond those of the settings: the group may assign new ones before the watch sees them.

    Raises:
        Stop: a partition is beyond them.
    """
    least = max(partitions, default=-1) + 1
    if least > pipeline.topic.partitions:
        raise Stop(f"topics changed while the worker ran:\n  {grown(source_spec(pipeline), least)}")
