"""The delta merge without transactions: a crash leaves the first part of the records that were sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import QueueConfig, TopicConfig
from processor.hosting.commit_metadata import CommitMetadata, Ends, Redelivered
from processor.store.memory import MemoryStore
from processor.testing import ProcessorTestDriver
from processor.wire.publisher_mark import mark_record

Stage = Literal["deltas", "sow", "acks"]

_STAGES: dict[Stage, tuple[str, ...]] = {
    "deltas": ("delta", "dlq", "publish"),
    "sow": ("sow",),
    "acks": ("mark", "ack"),
}


class StagedDriver(ProcessorTestDriver):
    """One partition without transactions, whose stream time is that of the clock."""

    def __init__(
        self, place: Mapping[str, int] | None = None, queues: Mapping[str, QueueConfig] | None = None, **settings: Any
    ) -> None:
        """Create the driver; `place` is the number of the partition, and how many there are."""
        self._noted = str(CommitMetadata(Ends(0, 0), ""))
        topic = TopicConfig.model_validate({"source_header": True, **settings})
        super().__init__(DeltaMerge, topic, name="orders", topic=topic, queues=queues, behind_ms=0, **(place or {}))

    def commit(self) -> None:
        """Every stage, then the input position with the place in SOW that it stands for."""
        self._noted = str(self._task.commit_metadata_with_ends)
        super().commit()

    def die(self, stage: Stage, part: float = 1.0, *, keep_store: bool = False) -> None:
        """Kill the process in a stage: earlier ones are done, and of this one a part, from its beginning."""
        if self._task.marks is not None:
            self._send("mark", [mark_record(name, text) for name, text in self._task.marks.staged])
        is_over = False
        messages = tuple(role for role in self._logs if "." in role)
        for name, roles in _STAGES.items():
            for role in (*roles, *messages) if name == "deltas" else roles:
                log = self._logs[role]  # type: ignore[index]
                kept = 0 if is_over else len(log.open) if name != stage else round(len(log.open) * part)
                log.committed += log.open[:kept]
                log.open = []
            is_over = is_over or name == stage
        self._begin(self._store if keep_store else MemoryStore(), self._task.committed_offset)
        self.feed()

    def _restore(self, offset: int) -> None:
        self._task.redelivered = redelivered = Redelivered.from_metadata(offset, self._noted)
        self._task.committed_note = CommitMetadata.read(self._noted).note
        assert redelivered is not None
        redelivered.take(self._logs["sow"].committed)
        assert self._task.marks is not None
        self._task.marks.wipe()
        log = self._logs["mark"]
        log.committed, every = (
            [mark for mark in log.committed if mark.offset < redelivered.mark_position],
            log.committed,
        )
        super()._restore(offset)
        log.committed = every
