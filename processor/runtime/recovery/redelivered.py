"""Finds the redelivered records: input records whose results are in SOW although their offsets were never committed.

Only a worker without transactions leaves such records, when it dies between the two. With each input offset it commits
the end of SOW at that time. A SOW record behind that end which names an uncommitted input record proves that the input
record has been applied. Without such metadata, as in a new group or after a reset, the worker commits it first: older
SOW records may stem from an earlier run over the same input, which is to be merged again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.hosting.commit_metadata import CommitMetadata
from processor.wire.record_headers import source_offset

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.record import Record


class Redelivered:
    """The redelivered records of one partition, collected while its SOW topic is restored."""

    def __init__(self, start_offset: int, position: int, mark_position: int) -> None:
        """Begin without redelivered records.

        Args:
            start_offset: the committed input offset.
            position: the SOW offset in its metadata.
            mark_position: the mark offset in its metadata; marks behind it are created again with their input.
        """
        self.start_offset: Final = start_offset
        self.position: Final = position
        self.mark_position: Final = mark_position
        self.applied: Final[dict[int, list[bytes]]] = {}
        """Offset of each redelivered input record, with the keys of the SOW records that it changed."""

    @classmethod
    def from_metadata(cls, start_offset: int, text: str | None) -> Redelivered | None:
        """Create it from offset metadata; None without ends in it, as after a transaction, which leaves no records."""
        ends = CommitMetadata.read(text).ends
        return None if ends is None else cls(start_offset, ends.sow, ends.mark)

    @property
    def until(self) -> int:
        """Offset of the last redelivered input record; -1 if there is none."""
        return max(self.applied, default=-1)

    def take(self, records: Iterable[Record]) -> None:
        """Collect from the next records of the SOW topic."""
        for record in records:
            if record.offset < self.position:
                continue
            offset = source_offset(record.headers)
            if offset is not None and offset >= self.start_offset:
                self.applied.setdefault(offset, []).append(record.key or b"")
