"""Reads the input position of each partition of a pipeline: from the group, the mark topic, and Kafka."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, Self

from processor.client.feeds.snapshot_boundary import SnapshotBoundary
from processor.config import Config
from processor.errors import Stop, TopicFenced, counted
from processor.hosting.commit_metadata import CommitMetadata
from processor.installation.configured_pipelines import pipeline_of
from processor.installation.control_topic import ControlTopic
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.topic_lookup import TopicLookup
from processor.kafka.clients.log_reader import LogReader, patiently
from processor.store.marks import POSITION_NAME
from processor.wire.control import MOVED
from processor.wire.partition_marks import HALF_WRITTEN, LIVES_NAME, InputPosition, LivesMark

_ASK_TIMEOUT_S: Final = 0.5
_PATIENCE_S: Final = 30.0

COLUMNS: Final = ("partition", "group", "outputs", "oldest", "end", "waiting", "state")
"""The columns of the table of `sowstream offsets show`."""


class PartitionPosition(NamedTuple):
    """The position in one partition of the input."""

    partition: int
    """The partition number."""
    committed: int | None
    """The group's offset; None: it has none."""
    note: str | None
    """The offset metadata committed with it."""
    position: InputPosition | None
    """The position in the mark topic; None: it has none."""
    oldest: int
    """The oldest offset that Kafka keeps."""
    end: int
    """The offset after the last record."""
    lives: LivesMark | None
    """The mark of the versions of lives; None: the mark topic has none."""
    state: str
    """The state of a worker that starts there, in a few words: `ok`, or the reason for holding it."""

    @property
    def begin(self) -> int:
        """The input offset at which a worker begins, unless it holds the partition."""
        if self.committed is not None:
            return self.committed
        return self.oldest if self.position is None else self.position.offset


def first_held(positions: Iterable[PartitionPosition], sow_ends: Mapping[int, int]) -> PartitionPosition | None:
    """Return the first position at which a worker holds its partition; None: it holds none."""
    for one in positions:
        is_unknown = one.committed is None and one.position is None
        if sow_ends.get(one.partition, 0) > 0 if is_unknown else not one.state.startswith("ok"):
            return one
    return None


def first_uncommitted(notes: Mapping[int, str | None], sow_ends: Mapping[int, int]) -> int | None:
    """Return the first partition in which a worker without transactions died before it committed its offset.

    Only a worker recognises the input of its last records when it comes again.

    Args:
        notes: the metadata of the group's offset of each partition.
        sow_ends: the ends of the SOW topic.
    """
    for partition, note in notes.items():
        noted = CommitMetadata.read(note).ends
        if noted is not None and noted.sow < sow_ends[partition]:
            return partition
    return None


def state_of(one: PartitionPosition, topic_id: str, application_id: str) -> str:
    """Return the state in a few words; `InputPositions.begin` decides the same for the worker.

    Args:
        one: the position.
        topic_id: Kafka's id of the input topic.
        application_id: the id of the workers' installation.
    """
    position, committed = one.position, one.committed
    if position is None:
        if committed is None:
            return "no offset and no position"
    elif position.topic_id != topic_id:
        return "outputs are of another input topic"
    elif position.note == HALF_WRITTEN:
        return "outputs are half written by a hand_over"
    elif position.application_id != application_id:
        return f"outputs are of application_id {position.application_id}"
    elif committed is not None and committed < position.offset and CommitMetadata.read(one.note).ends is None:
        return "group was set back"
    if (committed is not None or position is not None) and one.begin < one.oldest:
        return "records are gone"
    return "ok" if committed is not None else "ok, group has no offset"


def as_row(one: PartitionPosition) -> tuple[str, ...]:
    """A row of the table; `-` for missing values."""
    begin = one.committed if one.committed is not None else one.position and one.position.offset
    waiting = None if begin is None else max(0, one.end - max(begin, one.oldest))
    outputs = None if one.position is None else one.position.offset
    numbers = (one.partition, one.committed, outputs, one.oldest, one.end, waiting)
    return (*("-" if number is None else str(number) for number in numbers), one.state)


class WorkerPositions:
    """Reads the positions of one pipeline. Leave its `with` to close the connections. One thread only."""

    def __init__(self, config: Config, topic: str) -> None:
        """Find the pipeline's topics.

        Raises:
            ConfigurationError: no such topic in the settings, or at Kafka.
            Stop: Kafka refuses, or does not answer.
        """
        self.pipeline = pipeline_of(config, topic)
        self._config = config
        self.group = f"{config.group_prefix}.{topic}"
        """The consumer group of its workers."""
        self.admin = Admin(config.kafka, config.connect_timeout_s)
        self.partitions = range(TopicLookup(self.admin).partitions(self.pipeline.source))
        """The partitions of the input."""
        self.topic_id = self.admin.topic_id(self.pipeline.source)
        """Kafka's id of the input topic."""
        self.has_mark_topic = self.pipeline.keeps_position and (
            self.pipeline.output("mark") in self.admin.cluster().topics
        )
        """True if there is a topic for the input position."""
        self._control = ControlTopic(config.kafka, self.admin, prefix=config.topic_prefix)
        self._reader = LogReader(config.kafka, group=self.group)

    def group_of(self, application_id: str) -> str:
        """The consumer group of another application's workers for this pipeline."""
        return f"{self._config.topic_prefix}{application_id}.{self.pipeline.name}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def read(self) -> list[PartitionPosition]:
        """Read the present position of every partition.

        Raises:
            Stop: Kafka refuses, or does not answer.
        """
        source = self.pipeline.source
        ends = self.admin.end_offsets(source, self.partitions)
        marks = self.marks((POSITION_NAME, LIVES_NAME))
        positions = []
        for number in self.partitions:
            committed, note = self._committed(number)
            oldest = self._oldest(number)
            own = marks.get(number, {})
            position, lives = InputPosition.read(own.get(POSITION_NAME)), LivesMark.read(own.get(LIVES_NAME))
            one = PartitionPosition(number, committed, note, position, oldest, ends[number], lives, "")
            positions.append(one._replace(state=state_of(one, self.topic_id, self._config.application_id)))
        return positions

    def refuse_members(self, group: str) -> None:
        """Refuse if a group has members.

        Raises:
            Stop: the group has members; or Kafka refuses, or does not answer.
        """
        hosts = self.admin.ask_group(group, self.pipeline.source, _PATIENCE_S).answer().hosts
        if members := sorted(hosts.values()):
            raise Stop(
                f"the group {group} has {counted(len(members), 'member')}, such as one at {members[0]}: their "
                "offsets would be changed under them. Stop the workers first; those that were killed leave after the "
                "session timeout"
            )

    def refuse_fenced(self) -> None:
        """Refuse if Spark merges the topic, or its merge is being moved.

        Raises:
            TopicFenced: workers must not merge it now.
        """
        entries = self._control.read(self._config.application_id)
        if self.has_mark_topic:
            fence = self._control.fence(entries, self.pipeline.name, self.pipeline.output("mark"))
        else:
            fence = None if entries is None else entries.fences.get(self.pipeline.name)
        if fence is not None and fence.is_up and fence.phase != MOVED:  # Workers forward the input of a moved topic.
            name = self.pipeline.name
            raise TopicFenced(f"{name}: offsets of its workers cannot be set now: {fence.sentence(name)}")

    def cut(self, kafka_topic: str) -> SnapshotBoundary:
        """A reader of one of its topics up to the present end."""
        partitions = range(TopicLookup(self.admin).partitions(kafka_topic))
        has_marks = kafka_topic in (self.pipeline.output("sow"), self.pipeline.output("delta"))
        return SnapshotBoundary(
            self._config.kafka,
            self.admin,
            topic=kafka_topic,
            partitions=partitions,
            group=self.group,
            has_marks=has_marks,
        )

    def group_metadata(self) -> Any:
        """The proof of a transaction that may commit offsets of the group."""
        return self._reader.group_metadata()

    def marks(self, names: Collection[bytes] | None = None) -> dict[int, dict[bytes, bytes | None]]:
        """The last value of the marks of these names, by partition and name; None: of all."""
        if not self.has_mark_topic:
            return {}
        last: dict[int, dict[bytes, bytes | None]] = {}
        cut = self.cut(self.pipeline.output("mark"))
        try:
            for partition, batch in cut.between({}, cut.ends):
                for record in batch:
                    if record.key is not None and (names is None or record.key in names):
                        last.setdefault(partition, {})[record.key] = record.value
        finally:
            cut.close()
        return last

    def _committed(self, partition: int) -> tuple[int | None, str | None]:
        source = self.pipeline.source
        return patiently(
            lambda: self._reader.committed_with_note(source, partition, _ASK_TIMEOUT_S), self._question(partition)
        )

    def _oldest(self, partition: int) -> int:
        source = self.pipeline.source
        return patiently(lambda: self._reader.bounds(source, partition, _ASK_TIMEOUT_S), self._question(partition))[0]

    def _question(self, partition: int) -> str:
        return f"asking where {self.pipeline.source} partition {partition} stands"
