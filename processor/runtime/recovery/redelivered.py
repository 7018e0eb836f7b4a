"""The end of a SOW topic that stands for input whose offsets were never committed, because its worker died in between.

Only a worker without transactions leaves one. With each input offset it commits where SOW ended at that time; whatever
lies behind that place, and names an input record that will come again, has been applied. Where there is no such note,
as in a new group or after a reset, it commits one before it sends anything: what SOW has by then may come of another
life of the input, and what is given again is to be merged again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.hosting.commit_metadata import Note
from processor.wire.sow_headers import source_offset

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.record import Record


class Tail:
    """One partition's, as a restore reads it."""

    def __init__(self, start_offset: int, position: int, mark_position: int) -> None:
        """Make an empty one.

        Args:
            start_offset: the committed input offset.
            position: the SOW offset that was committed beside it.
            mark_position: the offset of the mark topic; marks behind it are made again as their input comes again.
        """
        self.start_offset: Final = start_offset
        self.position: Final = position
        self.mark_position: Final = mark_position
        self.applied: Final[dict[int, list[bytes]]] = {}
        """Offset of each input record that will come again and is in SOW, with the keys of the records it changed."""

    @classmethod
    def noted(cls, start_offset: int, text: str | None) -> Tail | None:
        """The one that a note tells of; None without a note, as after a transaction: nothing is left over then."""
        ends = Note.read(text).ends
        return None if ends is None else cls(start_offset, ends.sow, ends.mark)

    @property
    def until(self) -> int:
        """Offset of the last input record that is in SOW; -1 if none is that comes again."""
        return max(self.applied, default=-1)

    def take(self, records: Iterable[Record]) -> None:
        """See the next records of the SOW topic."""
        for record in records:
            if record.offset < self.position:
                continue
            offset = source_offset(record.headers)
            if offset is not None and offset >= self.start_offset:
                self.applied.setdefault(offset, []).append(record.key or b"")
