"""Keeps a successor from repeating work: the input seen behind the committed position, and the rejected records."""

from __future__ import annotations

import re
from bisect import bisect_left
from heapq import nlargest
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.api import Record

NOTE_BYTES_MAX: Final = 1000
"""Longest note; of the rejected records it names the newest, and a successor may reject older ones again."""

_NOTE: Final = re.compile(r"seen (at least )?([0-9]{1,19})(?: rejected((?: [0-9]{1,19})+))?")


class ReplayGuard:
    """The stretch of input between the committed position, that of the oldest pending update, and the last record read.

    The next owner of the partition reads these records again. The states of their keys show which of them were
    delivered, except for keys that were deleted. So nothing is delivered before all of them have come again: a key that
    was inserted, delivered, deleted and delivered again was, read a second time at once, never there. The note that is
    committed with the position lists the records that were rejected.
    """

    def __init__(self, noted: str) -> None:
        """Read the predecessor's note; there is none if a tool set the position."""
        note = _NOTE.fullmatch(noted)
        self.until = -1 if note is None else int(note[2])
        """The offset after the last record that was seen."""
        self.is_noted = note is not None
        """True if a predecessor left a note; a tool that sets the group's offsets leaves none."""
        self.is_exact = note is not None and note[1] is None
        """True if no predecessor has seen more. If the position was set back, one may have read up to the end."""
        self._again_until = None if note is None else self.until
        self._came_until = 0
        self.rejected = set() if note is None else {self.until - int(back) for back in (note[3] or "").split()}
        """Offsets of the records that were rejected, as far as they are behind the committed position."""

    def parted(self, records: Sequence[Record]) -> tuple[Sequence[Record], Sequence[Record]]:
        """Divide the next records: those that a predecessor may have seen, and those that none has seen."""
        if self._again_until is None:
            return records, []
        offsets = [record.offset for record in records]
        first_new = bisect_left(offsets, self._again_until)
        return records[:first_new], records[first_new:]

    def took(self, records: Sequence[Record]) -> None:
        """Note that these records have been seen."""
        self._came_until = records[-1].offset + 1
        self.until = max(self.until, self._came_until)

    def unrejected(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records that no predecessor rejected."""
        if not self.rejected:
            return records
        return [record for record in records if record.offset not in self.rejected]

    def note(self, held_offset: int | None) -> str:
        """Return the note for a successor that begins at an offset; None: after the last record that came."""
        begin = self._came_until if held_offset is None else held_offset
        # Earlier records do not come again.
        self.rejected = {offset for offset in self.rejected if offset >= begin}
        text = f"seen {self.until}" if self.is_exact else f"seen at least {self.until}"
        if not self.rejected:
            return text
        back = " ".join([str(self.until - offset) for offset in nlargest(NOTE_BYTES_MAX // 2, self.rejected)])
        text = f"{text} rejected {back}"
        return text if len(text) <= NOTE_BYTES_MAX else text[: text.rindex(" ", 0, NOTE_BYTES_MAX + 1)]
