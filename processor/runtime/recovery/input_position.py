"""The input position in the mark topic: the next input offset after those that a partition's outputs contain.

One record for each partition is written with each transaction that moves the position (`wire.partition_marks`).

A worker begins with the group's offsets, which normally agree. But Kafka deletes them when the group has been empty for
`offsets.retention.minutes`, any user may set or delete them, another `application_id` has none, and a mirrored cluster
translates them to earlier ones. Merging input twice would add it up twice. So position and offset are compared whenever
a partition begins, and if they contradict each other the partition is held until `sowstream offsets adopt` decides.

With a transaction the position is that of the transaction's own offsets. Without one it is sent after Kafka has
acknowledged the SOW records before it, so that it is never ahead of the SOW topic; its `note` is the offset metadata
with the end of that topic.
"""

from __future__ import annotations

import hashlib
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import structlog

from processor.config import ConflatedConfig
from processor.errors import DefinitionChanged, PartitionHeld
from processor.filter.parse import parse
from processor.hosting.commit_metadata import CommitMetadata, Redelivered
from processor.store.marks import FENCE_NAME, POSITION_NAME
from processor.wire.partition_marks import HALF_WRITTEN, HAND_OVER_AGAIN, InputPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from processor.hosting.pipeline import Pipeline
    from processor.runtime.task import Task

log = structlog.stdlib.get_logger("sowstream.positions")


def settled_by_records(pipeline: Pipeline) -> dict[str, str]:
    """A digest of each setting that must stay as it is while a pipeline has records; views compare theirs themselves.

    The topic directory has most of them, too, but a worker starts without an answer from it.
    """
    values: dict[str, object] = {}
    if isinstance(pipeline.settings, ConflatedConfig):
        text = pipeline.settings.filter
        values = {"filter": None if text is None else parse(text)}  # Another spelling is the same filter.
    elif not pipeline.derived_from:
        fields = "key", "key_format", "message_type", "sow"
        values = {name: getattr(pipeline.topic, name) for name in fields}
    return {name: hashlib.sha256(repr(value).encode()).hexdigest()[:12] for name, value in values.items()}


class Start(NamedTuple):
    """The offset at which a partition's input continues, by the group's offset."""

    offset: int
    """The next input offset."""
    redelivered: Redelivered | None = None
    """The input records behind it whose results may be in SOW; None after a transaction."""
    is_new: bool = False
    """True if the group has no offset."""
    metadata: str | None = None
    """The metadata of the group's offset."""
    oldest: int = 0
    """The oldest input offset that Kafka keeps."""
    end: int = 0
    """The end of an input whose deletes do not stay; 0 for any other."""
    young: int = 0
    """The first offset of that input with a record not older than deletes stay there; -1: there is none."""

    def lacks_deletes(self, offset: int) -> bool:
        """Return whether a delete behind an input offset may be gone from the input, with the record before it."""
        # Compaction never removes the last offset of a partition. Records are in the order of their times.
        return 0 < offset < self.end - 1 and not 0 <= self.young <= offset


class Beginning(NamedTuple):
    """The beginning of a partition's input."""

    offset: int
    """The first offset to process."""
    metadata: str | None
    """The metadata of that offset."""


class InputPositions:
    """Writes the input positions of one pipeline, and compares them with the group's offsets. One thread only."""

    def __init__(
        self,
        application_id: str,
        family: str,
        source: str,
        advice: str = "",
        *,
        fenced: Callable[[bytes], str | None] = lambda _: None,
        settings: Mapping[str, str] = MappingProxyType({}),
        remedy: str = "",
    ) -> None:
        """Create it; `topic_id` must be set before a position is written or compared.

        Args:
            application_id: the id of this installation.
            family: the pipeline's name.
            source: its input topic.
            advice: a sentence for error messages, on another possible cause and its remedy.
            fenced: called with the fence in a partition's marks; returns the reason to hold it, or None.
            settings: a digest of each setting that the records are made of, see `settled_by_records`.
            remedy: the steps after one of them was changed.
        """
        self._settings, self._remedy = settings, remedy
        self._fenced = fenced
        self._advice = advice
        self._application_id = application_id
        self._family = family
        self._source = source
        self.topic_id = ""
        """Kafka's id of the input topic; empty until it is known."""

    def value(self, offset: int, metadata: str) -> bytes:
        """Format a position of this installation as the mark topic stores it."""
        return bytes(InputPosition(self._application_id, self.topic_id, offset, metadata, self._settings))

    def stage(self, task: Task) -> None:
        """Stage a task's position, if it has moved, for the transaction that is about to be committed."""
        marks = task.marks
        if marks is not None and (position := task.new_position) is not None:
            offset, metadata = position
            marks.put_changed(POSITION_NAME, self.value(offset, str(metadata)))

    def changed(self, task: Task, offset: int, metadata: str) -> bytes | None:
        """Return a task's position for an offset that is committed without a transaction; None if it has not moved."""
        value = self.value(offset, metadata)
        if task.marks is None or value == task.marks.get(POSITION_NAME):
            return None
        task.marks.note(POSITION_NAME, value)
        return value

    def decide(self, task: Task, start: Start, *, has_records: bool) -> Beginning:
        """Decide where the input of a restored task begins, by the group's offset and the position in its marks.

        Raises:
            PartitionHeld: they contradict each other, or both are missing; or a fence is in its marks.
            DefinitionChanged: the records of its state are of other settings.
        """
        position = None
        if task.marks is not None:
            self.refuse_fenced(task.partition, task.marks.get(FENCE_NAME))
            position = InputPosition.read(task.marks.get(POSITION_NAME))
        if position is not None and task.state.scan(None, 1):
            self.refuse_changed(position)
        return self.begin(task.partition, start, position, has_records=has_records)

    def begin(
        self, partition: int, start: Start, position: InputPosition | None, *, has_records: bool = True
    ) -> Beginning:
        """Decide where a partition's input begins, once its outputs are restored.

        Args:
            partition: its number.
            start: where it begins by the group's offset; the oldest input where the group has none.
            position: that of its outputs; None: they have none.
            has_records: whether the SOW topic has any records.

        Raises:
            PartitionHeld: offset and position contradict each other, or both are missing.
        """
        if position is None:
            if start.is_new and has_records:
                raise self._lost(partition, "the group has no offset, and nothing says which input its outputs have")
            beginning = Beginning(start.offset, start.metadata)
        else:
            self._refuse_foreign(partition, position)
            beginning = self._compared(partition, start, position)
        self.refuse_gone(partition, beginning.offset, start.oldest)
        return beginning

    def refuse_fenced(self, partition: int, fence: bytes | None) -> None:
        """Hold a partition that another engine merges, or whose topic has moved, by the fence in its marks.

        Raises:
            PartitionHeld: it is.
        """
        if fence is not None and (why := self._fenced(fence)) is not None:
            raise PartitionHeld("fenced", f"{self._source} partition {partition}: {why}")

    def refuse_changed(self, position: InputPosition) -> None:
        """Refuse settings with which the records of a partition would be others.

        Raises:
            DefinitionChanged: with the choice.
        """
        changed = [name for name, value in self._settings.items() if position.settings.get(name, value) != value]
        if changed:
            raise DefinitionChanged(
                f"{self._family}: its records were made with another {' and '.join(changed)}, and new ones "
                f"would differ; set {'it' if len(changed) == 1 else 'them'} back, or {self._remedy}"
            )

    def refuse_gone(self, partition: int, offset: int, oldest: int) -> None:
        """Hold a partition whose next input record has been deleted.

        Raises:
            PartitionHeld: it has.
        """
        if offset < oldest:
            raise PartitionHeld(
                "input_gone",
                f"{self._source} partition {partition}: the group stands at offset {offset}, but the oldest record "
                f"kept is {oldest}. Records were deleted before they were processed; nothing is skipped silently: stop "
                f"the workers, then sowstream offsets adopt {self._family} --from earliest goes on with the oldest",
            )

    def _refuse_foreign(self, partition: int, position: InputPosition) -> None:
        """Hold a partition whose outputs come from another application, or from another input topic."""
        if position.topic_id != self.topic_id:
            raise self._lost(
                partition,
                f"its outputs were made of another topic of this name (id {position.topic_id}, now {self.topic_id}), "
                "as on a mirrored cluster or where the topic was made anew: no offset of that one holds here",
            )
        if position.note == HALF_WRITTEN:
            raise PartitionHeld("offsets_lost", f"{self._source} partition {partition}: {HAND_OVER_AGAIN}")
        if position.application_id != self._application_id:
            raise self._lost(
                partition,
                f"its outputs were made by application_id {position.application_id!r} up to offset {position.offset}, "
                f"and this one is {self._application_id!r}: two must not write the same topics",
            )

    def _compared(self, partition: int, start: Start, position: InputPosition) -> Beginning:
        """Compare the group's offset with the position, which normally agree."""
        committed = start.offset
        if start.is_new:
            log.warning(
                "the group has no offset; going on where the outputs stand",
                topic=self._source, partition=partition, offset=position.offset,
            )  # fmt: skip
            return Beginning(position.offset, position.note)
        if CommitMetadata.read(start.metadata).ends is not None:
            # Committed by a worker without a transaction: redelivered records behind it are recognised.
            return Beginning(committed, start.metadata)
        if committed < position.offset:
            raise self._lost(
                partition,
                f"the group stands at offset {committed}, but its outputs have the input up to offset "
                f"{position.offset}: somebody has set the group back, and those records would be merged twice",
            )
        if committed > position.offset:
            log.warning(
                "the group is ahead of the outputs; records between were merged by an older version, or are skipped",
                topic=self._source, partition=partition, offset=committed, position=position.offset,
            )  # fmt: skip
        return Beginning(committed, start.metadata)

    def _lost(self, partition: int, why: str) -> PartitionHeld:
        adopt = f"sowstream offsets adopt {self._family} --from"
        return PartitionHeld(
            "offsets_lost",
            f"{self._source} partition {partition}: {why}. Look with `sowstream offsets show {self._family}`, stop the "
            f"workers, then say where to begin: `{adopt} sow` (behind what the outputs have), `{adopt} earliest` "
            f"(everything is merged again) or `{adopt} latest` (what waits is skipped){self._advice}",
        )
