"""Moves a topic to another one, which takes its place with another number of partitions.

::

    merging ──claim──▶ resharding ──────copy────────▶ moved, new partitions wait ──▶ moved
       ▲                   │          records, marks       (where the input had grown)
       └─ no worker left ──┘

======  ==============================================================  ===========================================
step    does                                                            after a death
======  ==============================================================  ===========================================
check   topics and settings; changes nothing
claim   raises the fence, also in the marks of the topic: workers       the same command goes on
        commit, leave the group and wait; one that starts without the
        control topic is held by the marks
drain   waits until the group is empty and no transaction is open;      as above
        gives up if that takes too long, which lowers the fence
copy    copies records and marks to the new topics                      as above, from the beginning
move    in one transaction: tells readers, sets the begin of the new    as above
        workers, and lowers the fence to `moved`: workers forward the
        input of the old topic, and merge that of the new one
settle  waits for the old partitions before grown ones are forwarded    as above
======  ==============================================================  ===========================================

Publishers go on all the while: what they publish to the old topic waits there, and is forwarded to the new one.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.errors import ConfigurationError, Stop
from processor.hosting.pipeline import GROWS_WITH_INPUT, family_of
from processor.installation.hold import who
from processor.installation.topic_check import problems_of
from processor.kafka.admin.topic_changes import TopicChanges
from processor.repair.fenced_move import FencedMove
from processor.repair.record_copy import RecordCopy
from processor.repair.worker_positions import WorkerPositions, first_held
from processor.store.marks import POSITION_NAME
from processor.wire.control import MOVED, RESHARDING, WORKERS, Fence
from processor.wire.forwarding import MOVED_RETENTION_MS, moved_record
from processor.wire.partition_marks import LIVES_NAME, InputPosition, highest_version, mark_above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self, TypeAlias

    from processor.config import Config
    from processor.record import Outgoing

    _Records: TypeAlias = tuple[str, int, list[Outgoing]]  # Of a Kafka topic and partition.

STEPS: Final = ("check", "claim", "drain", "copy", "move", "settle")
"""The steps, in their order."""
_LOOK_S: Final = 0.3


class Resharded(NamedTuple):
    """The outcome."""

    moved_to: str
    """The topic that has taken the place."""
    records: int
    """SOW records that were written to it, deletes included; 0 where an earlier run had moved the topic."""
    stood_s: float
    """Seconds during which no worker merged: from the claim until workers may go on."""
    forgotten: int = 0
    """Marks of publishers that a partition of it has no room for."""


def dependents(config: Config, topic: str) -> list[str]:
    """The conflated topics, views, queues and processors that are made of a topic, and do not follow it."""
    queues = [name for name, queue in config.queues.items() if queue.underlying == topic]
    views = [name for name, view in config.views.items() if topic in view.inputs]
    return [*(name for name in config.names if config.underlying(name) == topic and name not in views), *views, *queues]


class Reshard:
    """One move of one topic. Leave its `with` to end it. One thread only."""

    def __init__(
        self,
        config: Config,
        topic: str,
        *,
        timeout_s: float,
        on_step: Callable[[str], None] = lambda _: None,
        on_copied: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Connect to the topics.

        Args:
            config: the settings, with the topic that takes the place.
            topic: the topic that moves.
            timeout_s: longest wait for the workers; if they have not left by then, they go on.
            on_step: called with the name of each step as it begins.
            on_copied: called with the number of records of each batch that is copied.

        Raises:
            ConfigurationError: the settings name no topic that takes its place.
            Stop: Kafka refuses, or does not answer.
        """
        name = config.successor(topic) if topic in config.topics else None
        if name is None:
            config.root(topic)  # Says whether there is such a topic at all.
            raise ConfigurationError(
                f"no topic takes the place of {topic}: add a section `topics.<new name>` with the settings of {topic}, "
                f"`moved_from: {topic}` and another number of `partitions`, then run `sowstream topics apply`, and "
                "start the workers with the new settings"
            )
        self.moved_to = name
        """The topic that takes the place."""
        self._config, self._topic, self._timeout_s = config, topic, timeout_s
        self._on_step, self._on_copied = on_step, on_copied
        self._resources = ExitStack()
        self._old = WorkerPositions(config, topic)
        self._new = WorkerPositions(config, name)
        self._fenced = FencedMove(
            config.kafka,
            config.kafka_names,
            config.application_id,
            topic,
            self._old.pipeline.topic.partitions,
            group=self._old.group,
            command="resharding",
            producer="reshard",
            transaction_timeout_s=config.runtime.transaction_timeout_s,
            remedy="Nothing has changed, and the workers go on; stop those that do not leave, then run the same "
            "command again",
        )

    def __enter__(self) -> Self:
        """Fence an earlier run, which may be only thought dead, and read the fence; all is closed if that fails."""
        with ExitStack() as resources:
            for one in (self._old, self._new, self._fenced):
                resources.enter_context(one)
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def run(self) -> Resharded:
        """Make the move, or go on with one that has died.

        Raises:
            ConfigurationError: topics or settings do not fit, or another command changes who merges.
            Stop: the workers have not left, or Kafka refuses. The message has the next step.
        """
        records, forgotten, stood_s = 0, 0, 0.0
        self._on_step("check")
        self.check()
        if self._fenced.fence.phase == MOVED:
            # The marks of an earlier version are not all there.
            self._fenced.write(self._fenced.fence, self._moved_marks())
        else:
            # Also a claim of an earlier run, or of an earlier version, which did not write it into the marks.
            self._on_step("claim")
            self._write_fence(RESHARDING)
            began_s = time.monotonic()
            offsets = self._drained()
            ends = self._ends(self._old, "sow")
            self._on_step("copy")
            copy = self._copy()
            records, forgotten = copy.records, copy.forgotten
            self._refuse_merged(offsets, ends)
            self._on_step("move")
            self._move(offsets, copy.used)
            stood_s = time.monotonic() - began_s
        if self._fenced.fence.waiting:
            self._on_step("settle")
            self._settle()
        return Resharded(self.moved_to, records, stood_s, forgotten)

    def cancel(self) -> bool:
        """Let the workers of the topic merge on, if a move has begun and nothing was moved; return whether it had.

        Raises:
            ConfigurationError: the topic has moved, or another command changes who merges.
            Stop: Kafka refuses.
        """
        if self._fenced.fence.phase == WORKERS:
            return False
        if self._fenced.fence.phase != RESHARDING:
            raise ConfigurationError(
                f"{self._topic}: there is no move to cancel: {self._fenced.fence.sentence(self._topic)}"
            )
        self._write_fence(WORKERS)
        return True

    def check(self) -> None:
        """Refuse what cannot succeed, before anything is changed.

        Raises:
            ConfigurationError: topics or settings do not fit, or another command changes who merges.
            Stop: Kafka refuses, or does not answer.
        """
        fence, new = self._fenced.fence, self._new.pipeline
        if fence.phase not in (WORKERS, RESHARDING, MOVED) or (fence.is_up and fence.moved_to != self.moved_to):
            raise ConfigurationError(f"{self._topic} cannot move now: {fence.sentence(self._topic)}")
        anywhere = [name for name in (self._topic, self.moved_to)
                    if self._config.topics[name].foreign_partition == "accept"]  # fmt: skip
        if anywhere and fence.phase != MOVED:
            raise ConfigurationError(
                f"{anywhere[0]} has foreign_partition: accept: its keys may be in any partition. A move chooses the "
                "partition of each key by its hash, and keys would be in two of them. Publish its records to the new "
                "topic instead"
            )
        problems = problems_of(self._old.admin, family_of(new))
        if refused := [str(problem) for problem in problems if problem.severity == "refuse"]:
            raise ConfigurationError(f"the topics of {self.moved_to} cannot be used:\n  " + "\n  ".join(refused))
        if not self._old.has_mark_topic:
            raise ConfigurationError(
                f"{self._old.pipeline.output('mark')} does not exist, in which workers find that {self._topic} moves: "
                "run `sowstream topics apply`, and restart the workers"
            )
        if fence.phase == WORKERS and any(self._ends(self._new, "sow").values()):
            raise ConfigurationError(
                f"{new.output('sow')} has records already, as after a move that was given up, and {self._topic} can "
                f"only move to an empty topic: delete the topics of {self.moved_to} and run `sowstream topics apply`, "
                "or name another one"
            )
        if fence.phase == WORKERS:
            self._refuse_lost()

    def _refuse_lost(self) -> None:
        """Refuse a topic whose workers would be held, because it is not known where its input goes on."""
        if (one := first_held(self._old.read(), self._ends(self._old, "sow"))) is not None:
            raise ConfigurationError(
                f"{self._topic} cannot move now: partition {one.partition} of its input: {one.state}; `sowstream "
                f"offsets show {self._topic}` says more, and `sowstream offsets adopt` sets where it goes on"
            )

    def _drained(self) -> dict[int, int]:
        """Wait until no worker merges; returns the input offset of each partition, at which forwarding begins."""
        self._on_step("drain")
        try:
            self._fenced.await_workers(self._timeout_s)
            return self._offsets()
        except Stop:
            self._write_fence(WORKERS)
            raise

    def _offsets(self) -> dict[int, int]:
        """The input offset of each partition at which its workers, or the forwarding, would begin."""
        return {one.partition: one.begin for one in self._old.read()}

    def _refuse_merged(self, offsets: dict[int, int], ends: dict[int, int]) -> None:
        """Make sure that no worker has merged during the copy, such as one that was only thought dead."""
        if (reason := self._fenced.busy()) or self._offsets() != offsets or self._ends(self._old, "sow") != ends:
            raise Stop(
                f"resharding {self._topic}: a worker that does not heed the fence has merged during the copy"
                f"{f' ({reason})' if reason else ''}. Nothing was moved: stop it, then run the same command again"
            )

    def _copy(self) -> RecordCopy:
        old, new = self._old.pipeline, self._new.pipeline
        copy = RecordCopy(
            self._config.kafka,
            self._old.cut,
            partitions=old.topic.partitions,
            new_partitions=new.topic.partitions,
            on_copied=self._on_copied,
        )
        copy.copy_records(old.output("sow"), new.output("sow"))
        copy.copy_marks(old.output("mark"), new.output("mark"))
        return copy

    def _move(self, offsets: dict[int, int], used: int) -> None:
        """Let the workers of both topics go on, and tell the readers of the old one.

        Args:
            offsets: the input offset of each old partition at which forwarding begins.
            used: a version above those of all records.
        """
        old, partitions = self._old.pipeline, self._old.pipeline.topic.partitions
        if len(offsets) > partitions:
            changes = TopicChanges(self._config.kafka)
            for role in GROWS_WITH_INPUT:
                if role != "publish":
                    changes.grow(old.output(role), len(offsets))
        # A key may come from any old partition, also one without a record now.
        for one in self._old.read():
            used = max(used, highest_version(one.lives, self._old.topic_id, offsets[one.partition]))
        records = [*self._begins(used), *self._moved_marks()]
        self._write_fence(MOVED, offsets=offsets, waiting=list(range(partitions, len(offsets))), records=records)

    def _begins(self, used: int) -> Iterator[_Records]:
        """The marks with which each partition of the new topic begins, besides those of its publishers.

        Args:
            used: the highest version of any record that there was.
        """
        topic = self._new.pipeline.output("mark")
        for one in self._new.read():
            position = InputPosition(self._config.application_id, self._new.topic_id, one.oldest)
            lives = mark_above(used, self._new.topic_id, one.oldest)
            yield topic, one.partition, [(POSITION_NAME, bytes(position), []), (LIVES_NAME, bytes(lives), [])]

    def _moved_marks(self) -> list[_Records]:
        """The records that tell readers of the old topic; they are tombstones, which must stay."""
        old = self._old.pipeline
        settings = {"delete.retention.ms": str(MOVED_RETENTION_MS)}
        TopicChanges(self._config.kafka).set_config(old.output("sow"), settings)
        mark = moved_record(self.moved_to)
        partitions = range(old.topic.partitions)
        return [(old.output(role), partition, [mark]) for role in ("sow", "delta") for partition in partitions]

    def _settle(self) -> None:
        """Wait until the old partitions are forwarded up to their present ends, then let the new ones follow."""
        waiting = set(self._fenced.fence.waiting)
        ends = {one.partition: one.end for one in self._old.read() if one.partition not in waiting}
        while self._has_records_before(ends):
            time.sleep(_LOOK_S)
        self._write_fence(MOVED, offsets=self._fenced.fence.offsets)

    def _has_records_before(self, ends: dict[int, int]) -> bool:
        """Return whether records wait before these offsets: a partition may end in the markers of transactions."""
        begins = {one.partition: one.committed or 0 for one in self._old.read()}
        todo = {partition: end for partition, end in ends.items() if begins[partition] < end}
        if not todo:
            return False
        cut = self._old.cut(self._old.pipeline.source)
        try:
            return any(batch for _, batch in cut.between(begins, todo))
        finally:
            cut.close()

    def _ends(self, workers: WorkerPositions, role: str) -> dict[int, int]:
        return workers.admin.end_offsets(workers.pipeline.output(role), range(workers.pipeline.topic.partitions))

    def _write_fence(
        self,
        phase: str,
        *,
        offsets: dict[int, int] | None = None,
        waiting: list[int] | None = None,
        records: Iterable[_Records] = (),
    ) -> None:
        """Write a phase of the fence, in one transaction with records."""
        fence = Fence(
            at_ms=int(time.time() * 1000),
            phase=phase,
            number=self._fenced.fence.number,
            topic_id=self._old.topic_id,
            offsets=offsets or {},
            by=who(),
            moved_to="" if phase == WORKERS else self.moved_to,
            waiting=waiting or [],
        )
        self._fenced.write(fence, records)
