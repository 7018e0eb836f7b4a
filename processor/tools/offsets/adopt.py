"""Says where stopped workers are to begin: group offsets and input positions, written in one transaction.

Both are written together, so that a worker never meets one without the other. Nobody may be in the group: a worker that
runs would commit its own offsets over them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from processor.config import Config
from processor.errors import Stop, TransactionAborted
from processor.kafka.producers.transactional_producer import TransactionalProducer
from processor.store.marks import POSITION_NAME
from processor.tools.offsets.stand import PartitionStand, Stand
from processor.wire.input_position import InputPosition
from processor.wire.sow_headers import source_offset

Origin: TypeAlias = Literal["sow", "earliest", "latest"]
"""Where a begin is taken from: what the outputs say, the oldest input record kept, or the end of the input."""


class _Begin(NamedTuple):
    """Where a partition is to begin."""

    offset: int
    note: str = ""


class Adoption:
    """New offsets for some partitions of one pipeline; nothing is written before `write`. One thread only."""

    def __init__(self, config: Config, stand: Stand, origin: Origin, partition: int | None = None) -> None:
        """Decide on the offsets.

        Args:
            config: the settings; their `application_id` is the one that goes on.
            stand: looks at the pipeline.
            origin: where the offsets are taken from.
            partition: the only one that is meant; None: all.

        Raises:
            Stop: workers run, or the outputs do not say where they stand.
        """
        self._config, self._stand, self._origin = config, stand, origin
        stands = stand.look()
        self.stands: list[PartitionStand] = [one for one in stands if partition in (None, one.partition)]
        """The partitions that are meant, as they are now."""
        if not self.stands:
            raise Stop(f"{stand.pipeline.source} has no partition {partition}: it has 0 to {len(stands) - 1}")
        self._refuse_members()
        self._begins = self._decide()

    @property
    def offsets(self) -> dict[int, int]:
        """Where each partition is to begin."""
        return {number: begin.offset for number, begin in self._begins.items()}

    def meaning(self, stand: PartitionStand) -> str:
        """What it means for one partition, in a few words."""
        to, reached = self._begins[stand.partition].offset, self._reached(stand)
        if reached is None:
            return "begins there"
        if to == reached:
            return "goes on where the outputs stand"
        if to < reached:
            return f"{reached - to:,} offsets are merged again"
        return f"{to - reached:,} offsets are skipped"

    def write(self) -> None:
        """Write them.

        Raises:
            Stop: a worker has come, or Kafka did not take the transaction; nothing was changed then.
        """
        pipeline, config = self._stand.pipeline, self._config
        producer = TransactionalProducer(
            config.kafka,
            transactional_id=f"{self._stand.group}.adopt",
            transaction_timeout_s=config.runtime.transaction_timeout_s,
        )
        try:
            producer.start()
            self._refuse_members()
            if self._stand.has_mark_topic:
                for number, begin in self._begins.items():
                    position = InputPosition(config.application_id, self._stand.topic_id, begin.offset, begin.note)
                    producer.send(pipeline.output("mark"), number, [(POSITION_NAME, bytes(position), [])])
            notes = {number: begin.note for number, begin in self._begins.items()}
            producer.begin_commit(pipeline.source, self.offsets, self._stand.group_metadata(), notes=notes)
            producer.finish_commit()
        except TransactionAborted as error:
            raise Stop(f"adopting offsets of {pipeline.name}: {error}. Run the same command again") from error
        finally:
            producer.close()

    def _reached(self, stand: PartitionStand) -> int | None:
        """Up to where the input is in the outputs, as far as it is known of this topic."""
        if stand.position is not None:
            return stand.position.offset if stand.position.topic_id == self._stand.topic_id else None
        return stand.committed

    def _refuse_members(self) -> None:
        """Neither ours nor those of the application that made the outputs may run."""
        others = {self._stand.group_of(one.position.application_id) for one in self.stands if one.position is not None}
        for group in sorted({self._stand.group, *others}):
            self._stand.refuse_members(group)

    def _decide(self) -> dict[int, _Begin]:
        if self._origin == "earliest":
            return {one.partition: _Begin(one.oldest) for one in self.stands}
        if self._origin == "latest":
            return {one.partition: _Begin(one.end) for one in self.stands}
        begins = {}
        unknown = []
        for one in self.stands:
            if one.position is None:
                unknown.append(one)
            elif one.position.topic_id != self._stand.topic_id:
                raise self._refused(
                    one,
                    f"its outputs were made of another topic of this name (id {one.position.topic_id}), whose offsets "
                    "mean nothing here. Where everything was merged before it was copied, --from latest goes on",
                )
            else:
                begins[one.partition] = _Begin(one.position.offset, one.position.note)
        if unknown:
            begins |= self._by_sources(unknown)
        for one in self.stands:
            if begins[one.partition].offset < one.oldest:
                raise self._refused(one, f"the outputs stand at {begins[one.partition].offset}, but the oldest is "
                                    f"{one.oldest}: records are gone, and --from earliest skips them")  # fmt: skip
        return begins

    def _by_sources(self, stands: list[PartitionStand]) -> dict[int, _Begin]:
        """By the header `source` of SOW records: behind the last input record that any of them names."""
        config, pipeline = self._config, self._stand.pipeline
        first = stands[0]
        section = config.topics.get(pipeline.name)
        if section is None or not section.sow or not section.source_header:
            raise self._refused(first, "the mark topic does not say it, and its SOW records do not name their input")
        if config.guarantee == "at_least_once":
            raise self._refused(
                first, "the mark topic does not say it, and without transactions the last SOW records may lack some"
            )
        reached = self._sources()
        begins = {}
        for one in stands:
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
        """The highest input offset that SOW records of each partition name."""
        source = self._stand.pipeline.source
        reached: dict[int, int] = {}
        cut = self._stand.cut(self._stand.pipeline.output("sow"))
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

    def _refused(self, stand: PartitionStand, why: str) -> Stop:
        return Stop(
            f"--from sow: {self._stand.pipeline.source} partition {stand.partition}: {why}. Else say --from earliest "
            "(everything that is kept is merged again) or --from latest (what waits is skipped)"
        )
