"""The input position in the mark topic: the input record up to which a partition's outputs have come.

It is written with each transaction that moves it, as one record for each partition (`wire.input_position`).

The group's offsets say the same, and are what a worker begins with. But Kafka forgets them when nobody is in the group
for `offsets.retention.minutes`, anybody may set or delete them, another `application_id` has none, and a mirrored
cluster translates them to earlier ones. To merge input that is in the SOW topic already would add it up twice: so the
two are compared whenever a partition begins, and where they contradict each other the partition is held until
`sowstream offsets adopt` says where to begin.

With a transaction the position is that of the transaction's own offsets. Without one it is sent when Kafka has
acknowledged the SOW records before it, so that it is never ahead of the SOW topic; its note says where that ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import structlog

from processor.errors import PartitionHeld
from processor.hosting.commit_metadata import Note
from processor.store.marks import POSITION_NAME
from processor.wire.input_position import InputPosition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.runtime.task import Task

log = structlog.stdlib.get_logger("sowstream.positions")


class Found(NamedTuple):
    """What is known of a partition's input when its outputs are restored."""

    committed: int | None
    """The offset of the group; None: it has none."""
    note: str | None
    """What stands beside it."""
    oldest: int
    """The oldest input offset that Kafka keeps."""
    has_records: bool
    """Whether the SOW topic has any."""


class Beginning(NamedTuple):
    """Where a partition's input begins."""

    offset: int
    """The first offset to process."""
    note: str | None
    """What stands beside it."""


class InputPositions:
    """Writes and judges the input positions of one pipeline. One thread only."""

    def __init__(self, application_id: str, family: str, source: str, advice: str = "") -> None:
        """Make one; `topic_id` is set before anything is written or judged.

        Args:
            application_id: ours.
            family: the pipeline's name.
            source: its input topic.
            advice: a sentence on what else may have happened, and what is to be done then.
        """
        self._advice = advice
        self._application_id = application_id
        self._family = family
        self._source = source
        self.topic_id = ""
        """Kafka's id of the input topic; empty until it is known."""

    def value(self, offset: int, note: str) -> bytes:
        """A position of ours, as it is written."""
        return bytes(InputPosition(self._application_id, self.topic_id, offset, note))

    def stage(self, task: Task) -> None:
        """Have a task's position sent with the transaction that is about to be committed, if it has moved."""
        marks = task.marks
        if marks is None or task.is_behind:
            return  # What comes again up to there is in the SOW topic already, and so is the position.
        value = self.value(max(task.committable_offset, task.committed_offset), str(task.note))
        if value != marks.get(POSITION_NAME):
            marks.put(POSITION_NAME, value)

    def changed(
        self, tasks: Mapping[int, Task], offsets: Mapping[int, int], notes: Mapping[int, str]
    ) -> dict[int, bytes]:
        """The positions to be sent beside offsets that are committed without a transaction, by partition."""
        values = {number: self.value(offset, notes[number]) for number, offset in offsets.items()}
        sent = {}
        for number, value in values.items():
            marks = tasks[number].marks
            if marks is not None and value != marks.get(POSITION_NAME):
                marks.note(POSITION_NAME, value)
                sent[number] = value
        return sent

    def begin(self, partition: int, found: Found, position: InputPosition | None) -> Beginning:
        """Decide where a partition's input begins, once its outputs are restored.

        Raises:
            PartitionHeld: what there is contradicts itself, or says nothing.
        """
        committed = found.committed
        if position is None:
            if committed is None and found.has_records:
                raise self._lost(partition, "the group has no offset, and nothing says which input its outputs have")
            beginning = Beginning(found.oldest, None) if committed is None else Beginning(committed, found.note)
        else:
            self._refuse_foreign(partition, position)
            beginning = self._compared(partition, found, position)
        self.refuse_gone(partition, beginning.offset, found.oldest)
        return beginning

    def refuse_gone(self, partition: int, offset: int, oldest: int) -> None:
        """Hold a partition whose next input record is not there any more.

        Raises:
            PartitionHeld: it is not.
        """
        if offset < oldest:
            raise PartitionHeld(
                "input_gone",
                f"{self._source} partition {partition}: the group stands at offset {offset}, but the oldest record "
                f"kept is {oldest}. Records were deleted before they were processed; nothing is skipped silently: stop "
                f"the workers, then sowstream offsets adopt {self._family} --from earliest goes on with the oldest",
            )

    def _refuse_foreign(self, partition: int, position: InputPosition) -> None:
        """Hold what was made by another application, or of another topic."""
        if position.topic_id != self.topic_id:
            raise self._lost(
                partition,
                f"its outputs were made of another topic of this name (id {position.topic_id}, now {self.topic_id}), "
                "as on a mirrored cluster or where the topic was made anew: no offset of that one holds here",
            )
        if position.application_id != self._application_id:
            raise self._lost(
                partition,
                f"its outputs were made by application_id {position.application_id!r} up to offset {position.offset}, "
                f"and this one is {self._application_id!r}: two must not write the same topics",
            )

    def _compared(self, partition: int, found: Found, position: InputPosition) -> Beginning:
        """The group's offset and the position: mostly the same."""
        committed = found.committed
        if committed is None:
            log.warning(
                "the group has no offset; going on where the outputs stand",
                topic=self._source, partition=partition, offset=position.offset,
            )  # fmt: skip
            return Beginning(position.offset, position.note)
        if Note.read(found.note).ends is not None:
            # Committed by us, without a transaction: records behind it that are in the SOW topic are recognised.
            return Beginning(committed, found.note)
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
        return Beginning(committed, found.note)

    def _lost(self, partition: int, why: str) -> PartitionHeld:
        adopt = f"sowstream offsets adopt {self._family} --from"
        return PartitionHeld(
            "offsets_lost",
            f"{self._source} partition {partition}: {why}. Look with `sowstream offsets show {self._family}`, stop the "
            f"workers, then say where to begin: `{adopt} sow` (behind what the outputs have), `{adopt} earliest` "
            f"(everything is merged again) or `{adopt} latest` (what waits is skipped){self._advice}",
        )
