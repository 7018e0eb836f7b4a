"""Rebuilds a view: its internal topics are deleted and made again, and its stages begin with the first records.

The rows stay on the SOW topic until workers start: these find a table without members, delete all rows, and write them
again as the table grows. So subscribers receive each deletion and each new row, and versions go on without gaps.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from processor.errors import ConfigurationError, Stop
from processor.hosting.pipeline import family_of
from processor.installation.configured_pipelines import pipelines
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.publisher import Publisher
from processor.repair.adoption import Adoption
from processor.repair.worker_positions import WorkerPositions
from processor.wire.partition_marks import LIVES_NAME, highest_version, mark_above
from processor.wire.record_headers import version_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.config import Config
    from processor.topics.family import TopicSpec

_KEPT: Final = frozenset(("sow", "delta", "dlq", "mark"))
"""The roles of a view's own topics that stay: readers know them, and the marks have the versions of deleted rows."""

_GONE_S: Final = 60.0
_LOOK_S: Final = 0.2


class ViewRebuild:
    """One rebuild of a view. It may be repeated after a failure in the middle."""

    def __init__(self, config: Config, name: str, show: Callable[[str], None] = lambda _: None) -> None:
        """Find the topics of the view.

        Args:
            config: the settings.
            name: the view.
            show: called with each step, in words.

        Raises:
            ConfigurationError: no such view.
        """
        if name not in config.views:
            raise ConfigurationError(config.no_topic(name, list(config.views)).replace("topic", "view", 1))
        self._config = config
        self._name = name
        self._show = show
        self._admin = Admin(config.kafka, config.connect_timeout_s)
        self.stages = pipelines(config, [name])
        """The stages, in the order in which records pass through them."""
        self.topics: list[TopicSpec] = [
            spec for stage in self.stages for spec in family_of(stage) if stage.name != name or spec.role not in _KEPT
        ]
        """The topics that are deleted and made again; none where the view has one stage."""

    def run(self) -> None:
        """Rebuild the view.

        Raises:
            Stop: its workers run, or Kafka refuses or does not answer.
        """
        # A former rebuild may have ended in the middle.
        self._admin.create([spec for stage in self.stages for spec in family_of(stage)])
        for stage in self.stages:
            with WorkerPositions(self._config, stage.name) as workers:
                workers.refuse_members(workers.group)
        used = self._used()
        self._keep(used)
        names = [spec.name for spec in self.topics]
        if names:
            self._show(f"deleting {', '.join(names)}")
            self._admin.delete(names)
            self._await_gone(names)
            self._admin.create(self.topics)
        for stage in self.stages:
            with WorkerPositions(self._config, stage.name) as workers:
                Adoption(self._config, workers, "earliest", used=used if stage.name == self._name else None).write()
            self._show(f"{stage.name} begins with the first record of {stage.source}")

    def _keep(self, used: dict[int, int]) -> None:
        """Note the versions in the marks, for a repetition: offsets and marks go with the input."""
        publisher = Publisher(self._config.kafka)
        with WorkerPositions(self._config, self._name) as workers:
            for one in workers.read():
                mark = mark_above(used.get(one.partition, 0), workers.topic_id, one.committed or 0, one.lives)
                topic = workers.pipeline.output("mark")
                publisher.send(topic, LIVES_NAME, bytes(mark), partition=one.partition)
        publisher.flush()

    def _used(self) -> dict[int, int]:
        """The versions of rows in each partition above which new rows begin."""
        with WorkerPositions(self._config, self._name) as workers:
            used = {
                one.partition: highest_version(one.lives, workers.topic_id, one.committed or 0)
                for one in workers.read()
            }
            cut = workers.cut(workers.pipeline.output("sow"))
            try:
                for partition, batch in cut.between({}, cut.ends):
                    rows = [1 + (version_of(row.headers) or 0) for row in batch]
                    used[partition] = max([used.get(partition, 0), *rows])
            finally:
                cut.close()
        return used

    def _await_gone(self, names: list[str]) -> None:
        """Wait until Kafka has deleted the topics: until then it refuses to make new ones of the same names."""
        deadline_s = time.monotonic() + _GONE_S
        while present := self._admin.cluster().topics.keys() & set(names):
            if time.monotonic() > deadline_s:
                raise Stop(f"Kafka has not deleted {', '.join(sorted(present))}; run the same command again")
            time.sleep(_LOOK_S)
