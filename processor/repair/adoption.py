"""Sets the place where stopped workers will start: group offsets and input positions, written in one transaction.

Both are written together, so that a worker never sees one without the other. The group must have no members: a running
worker would commit its own offsets over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from processor.config import Config
from processor.errors import Stop, TransactionAborted
from processor.kafka.admin.groups import GroupInspector
from processor.kafka.clients.transactional_producer import TransactionalProducer
from processor.repair.worker_positions import PartitionPosition, WorkerPositions
from processor.store.marks import OWN_NAMES, POSITION_NAME
from processor.wire.control import OF_SPARK
from processor.wire.partition_marks import (
    HALF_WRITTEN,
    HAND_OVER_AGAIN,
    LIVES_NAME,
    InputPosition,
    LivesMark,
    highest_version,
    mark_above,
)
from processor.wire.record_headers import source_offset

Origin: TypeAlias = Literal["sow", "earliest", "latest"]
"""The source of a start offset: the outputs, the oldest input record kept, or the end of the input."""


class _Begin(NamedTuple):
    """The start of a partition."""

    offset: int
    note: str = ""


class Adoption:
    """New offsets for some partitions of one pipeline; `write` writes them. One thread only."""

    def __init__(
        self,
        config: Config,
        workers: WorkerPositions,
        origin: Origin,
        partition: int | None = None,
        *,
        used: Mapping[int, int] | None = None,
    ) -> None:
        """Decide on the offsets.

        Args:
            config: the settings; their `application_id` is the one that will run.
            workers: reads the present offsets of the pipeline.
            origin: the source of the offsets.
            partition: the only partition to change; None: all.
            used: the highest version in each partition, where the outputs are rebuilt; other marks are deleted.

        Raises:
            Stop: workers run, Spark merges the topic, or the outputs do not contain their input position.
        """
        workers.refuse_fenced()
        self._config, self._workers, self._origin = config, workers, origin
        positions = workers.read()
        self.positions: list[PartitionPosition] = [one for one in positions if partition in (None, one.partition)]
        """The partitions to change, with their present offsets."""
        if not self.positions:
            raise Stop(f"{workers.pipeline.source} has no partition {partition}: it has 0 to {len(positions) - 1}")
        self._refuse_members()
        self._begins = self._decide()
        self._used = used

    @property
    def _former_settings(self) -> list[Config]:
        """The settings as they were under each other application that wrote the outputs."""
        names = {one.position.application_id.removesuffix(OF_SPARK) for one in self.positions if one.position}
        names -= {self._config.application_id}
        return [self._config.model_copy(update={"application_id": name}) for name in sorted(names)]

    @property
    def _queues(self) -> list[str]:
        """The queues over the topic."""
        return [name for name, _ in self._config.queues_over(self._workers.pipeline.name)]

    @property
    def queue_steps(self) -> list[str]:
        """For each queue over the topic whose messages would be delivered again, a sentence with the remedy."""
        config = self._config
        return [
            f"The share group {config.share_group(queue)} is new: it begins with the oldest message, and delivers "
            f"those again that {former.share_group(queue)} has acknowledged. When none waits there, and before its own "
            f"consumers start, set it to the end: kafka-share-groups.sh --reset-offsets --to-latest --execute --group "
            f"{config.share_group(queue)} --topic {config.kafka_names.topic(queue, 'queue')}"
            for queue in self._queues
            for former in self._former_settings
        ]

    @property
    def offsets(self) -> dict[int, int]:
        """The new start offset of each partition."""
        return {number: begin.offset for number, begin in self._begins.items()}

    def meaning(self, one: PartitionPosition) -> str:
        """The effect on one partition, in a few words."""
        to, reached = self._begins[one.partition].offset, self._reached(one)
        if reached is None:
            return "begins there"
        if to == reached:
            return "goes on where the outputs stand"
        if to < reached:
            return f"{reached - to:,} offsets are merged again"
        return f"{to - reached:,} offsets are skipped"

    def write(self) -> None:
        """Write the offsets.

        Raises:
            Stop: a worker has started, a move to Spark has begun, or Kafka refused; nothing was changed.
        """
        pipeline, config = self._workers.pipeline, self._config
        producer = TransactionalProducer(
            config.kafka,
            transactional_id=f"{self._workers.group}.adopt",
            transaction_timeout_s=config.runtime.transaction_timeout_s,
        )
        try:
            producer.start()
            self._refuse_members()
            self._workers.refuse_fenced()
            self._take_over_letters()
            if self._workers.has_mark_topic:
                for number, begin in self._begins.items():
                    position = InputPosition(config.application_id, self._workers.topic_id, begin.offset, begin.note)
                    producer.send(pipeline.output("mark"), number, [(POSITION_NAME, bytes(position), [])])
                for number, lives in self._lives().items():
                    producer.send(pipeline.output("mark"), number, [(LIVES_NAME, bytes(lives), [])])
                for number, marks in (self._workers.marks() if self._used is not None else {}).items():
                    names = [name for name, value in marks.items() if value is not None and name not in OWN_NAMES]
                    producer.send(pipeline.output("mark"), number, [(name, None, []) for name in names])
            notes = {number: begin.note for number, begin in self._begins.items()}
            producer.begin_commit(pipeline.source, self.offsets, self._workers.group_metadata(), notes=notes)
            producer.finish_commit()
        except TransactionAborted as error:
            raise Stop(f"adopting offsets of {pipeline.name}: {error}. Run the same command again") from error
        finally:
            producer.close()

    def _take_over_letters(self) -> None:
        """Take over which dead letters another application has sent back: without a position they would wait again."""
        config, admin = self._config, self._workers.admin
        groups, there = GroupInspector(config.kafka), admin.cluster().topics
        for former in self._former_settings:
            for name in (self._workers.pipeline.name, *self._queues):
                own, topic = config.letters_group(name), config.kafka_names.topic(name, "dlq")
                before = former.letters_group(name)
                places = [(topic, partition) for partition in range(there.get(topic, 0))]
                offsets = groups.offsets({own: places, before: places}) if places else {}
                moved = {
                    place[1]: offset
                    for place, offset in offsets.get(before, {}).items()
                    if offset is not None and offset > (offsets[own][place] or 0)
                }
                if moved:
                    admin.set_offsets(own, topic, moved)

    def _lives(self) -> dict[int, LivesMark]:
        """The marks with which lives begin above those of the input that is merged again, by partition."""
        marks, topic_id = {}, self._workers.topic_id
        for one in self.positions:
            begin, reached = self._begins[one.partition].offset, self._reached(one)
            used = (self._used or {}).get(one.partition, 0)
            if reached is None or begin < reached:
                used = max(used, highest_version(one.lives, topic_id, one.end if reached is None else reached))
            mark = mark_above(used, topic_id, begin, one.lives)
            if mark.base > (0 if one.lives is None else one.lives.base):
                marks[one.partition] = mark
        return marks

    def _reached(self, one: PartitionPosition) -> int | None:
        """The input offset up to which the outputs are complete, as far as it is known."""
        if one.position is not None:
            return one.position.offset if one.position.topic_id == self._workers.topic_id else None
        return one.committed

    def _refuse_members(self) -> None:
        """Refuse if workers of ours, or of the application that wrote the outputs, are running."""
        others = {
            self._workers.group_of(one.position.application_id) for one in self.positions if one.position is not None
        }
        for group in sorted({self._workers.group, *others}):
            self._workers.refuse_members(group)

    def _decide(self) -> dict[int, _Begin]:
        if self._origin == "earliest":
            return {one.partition: _Begin(one.oldest) for one in self.positions}
        if self._origin == "latest":
            return {one.partition: _Begin(one.end) for one in self.positions}
        begins = {}
        unknown = []
        for one in self.positions:
            if one.position is not None and one.position.note == HALF_WRITTEN:
                raise Stop(f"{self._workers.pipeline.source} partition {one.partition}: {HAND_OVER_AGAIN}")
            if one.position is None or one.position.application_id == f"{self._config.application_id}{OF_SPARK}":
                # Spark moves the position with the merge, and not while it merges.
                unknown.append(one)
            elif one.position.topic_id != self._workers.topic_id:
                raise self._refused(
                    one,
                    f"its outputs were made of another topic of this name (id {one.position.topic_id}), whose offsets "
                    "mean nothing here. Where everything was merged before it was copied, --from latest goes on",
                )
            else:
                begins[one.partition] = _Begin(one.position.offset, one.position.note)
        if unknown:
            begins |= self._by_sources(unknown)
        for one in self.positions:
            if begins[one.partition].offset < one.oldest:
                raise self._refused(one, f"the outputs stand at {begins[one.partition].offset}, but the oldest is "
                                    f"{one.oldest}: records are gone, and --from earliest skips them")  # fmt: skip
        return begins

    def _by_sources(self, positions: list[PartitionPosition]) -> dict[int, _Begin]:
        """Derive start offsets from the headers `source` of SOW records: after the last input record in any of them."""
        config, pipeline = self._config, self._workers.pipeline
        first = positions[0]
        section = config.topics.get(pipeline.name)
        if section is None or not section.sow or not section.source_header:
            raise self._refused(first, "the mark topic does not say it, and its SOW records do not name their input")
        if config.guarantee == "at_least_once":
            raise self._refused(
                first, "the mark topic does not say it, and without transactions the last SOW records may lack some"
            )
        reached = self._sources()
        begins = {}
        for one in positions:
            begin = reached.get(one.partition, -1) + 1
            if begin == 0 and one.committed is not None:
                begin = one.committed
            if begin == 0:
                raise self._refused(one, "the mark topic does not say it, and no SOW record names an input record")
            if begin > one.end:
                raise self._refused(
                    one, f"SOW records name input up to {begin - 1}, and the input ends at {one.end}: it is another one"
                )
            begins[one.partition] = _Begin(begin)
        return begins

    def _sources(self) -> dict[int, int]:
        """The highest input offset in the SOW records of each partition."""
        source = self._workers.pipeline.source
        reached: dict[int, int] = {}
        cut = self._workers.cut(self._workers.pipeline.output("sow"))
        try:
            for partition, batch in cut.between({}, cut.ends):
                prefix = f"{source}/{partition}/".encode()
                for record in batch:
                    offset = source_offset(record.headers, prefix)
                    if offset is not None:
                        reached[partition] = max(reached.get(partition, -1), offset)
        finally:
            cut.close()
        return reached

    def _refused(self, one: PartitionPosition, why: str) -> Stop:
        return Stop(
            f"--from sow: {self._workers.pipeline.source} partition {one.partition}: {why}. Else say --from earliest "
            "(everything that is kept is merged again) or --from latest (what waits is skipped)"
        )
