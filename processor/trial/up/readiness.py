"""Finds in a worker's log which topics of the settings are ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from processor.installation.configured_pipelines import pipelines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from processor.config import Config
    from processor.hosting.pipeline import Pipeline


class ReadyTopic(NamedTuple):
    """A topic of the settings of which every assigned partition runs."""

    name: str
    """Its configured name."""
    partitions: int
    """The partitions that this worker has."""

    def sentence(self, took_s: float) -> str:
        """A line for people."""
        plural = "" if self.partitions == 1 else "s"
        return f"{self.name}: {self.partitions} partition{plural}, ready in {took_s:.1f} s"


class Readiness:
    """The topics of the settings that are not ready yet.

    A worker logs the partitions that it gets of an input topic (`assigned`), and for each the end of its restore
    (`restored`), under the topic of the pipeline's records, or its input topic if it keeps none. A view with stages is
    ready when each of them is.
    """

    def __init__(self, config: Config, names: Iterable[str] = ()) -> None:
        """Begin with none ready.

        Args:
            config: the settings.
            names: the topics that the worker runs; none: all.

        Raises:
            ConfigurationError: the settings of a topic are invalid.
        """
        self._waiting = {name: pipelines(config, [name]) for name in [*names] or config.names}
        self._assigned: dict[str, set[int]] = {}
        self._restored: dict[str, set[int]] = {}

    @property
    def is_complete(self) -> bool:
        """True if all topics are ready."""
        return not self._waiting

    def take(self, event: Mapping[str, Any]) -> Sequence[ReadyTopic]:
        """Take an event of the worker's log; returns the topics that it makes ready."""
        topic = str(event.get("topic"))
        match event.get("event"):
            case "assigned":
                self._assigned.setdefault(topic, set()).update(event["partitions"])
            case "restored" | "took over from standby":
                self._restored.setdefault(topic, set()).add(event["partition"])
            case "let go":
                self._assigned.get(topic, set()).difference_update(event["partitions"])
            case _:
                return ()
        ready = list(self._ready())
        for one in ready:
            del self._waiting[one.name]
        return ready

    def _ready(self) -> Iterator[ReadyTopic]:
        for name, stages in self._waiting.items():
            if all(self._is_ready(stage) for stage in stages):
                yield ReadyTopic(name, len(self._assigned[stages[-1].source]))

    def _is_ready(self, stage: Pipeline) -> bool:
        assigned = self._assigned.get(stage.source)
        restored = self._restored.get(stage.output("sow") if stage.has_state else stage.source, set())
        return bool(assigned) and restored.issuperset(assigned or ())
