"""How far the input was seen before the position that is committed: what a successor must not do a second time."""

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
    """What lies between the committed input position, which is that of the oldest pending update, and the last read.

    The records between them come again to whoever has the partition next. Which of them were delivered the state of
    their keys knows, save for keys that were deleted. So nothing is told before all of them have come again: what was
    inserted, delivered, deleted and delivered again is, read once more as a whole, a key that was never there. Which of
    them were rejected a note says, committed with the position.
    """

    def __init__(self, noted: str) -> None:
        """Read what the predecessor noted; nothing, where somebody else set the position."""
        found = _NOTE.fullmatch(noted)
        self.until = -1 if found is None else int(found[2])
        """The offset after the last record that was seen."""
        self.is_noted = found is not None
        """Whether a predecessor left word; somebody who sets the group's offsets leaves none."""
        self.is_exact = found is not None and found[1] is None
        """Whether nobody has seen more than that. Where the position was set back somebody may have, up to the end."""
        self._again_until = None if found is None else self.until
        self._came_until = 0
        self.rejected = set() if found is None else {self.until - int(back) for back in (found[3] or "").split()}
        """Offsets of the records that were rejected, as far as they are behind the committed position."""

    def parted(self, records: Sequence[Record]) -> tuple[Sequence[Record], Sequence[Record]]:
        """The next records: first those that a predecessor may have seen, then those that none has seen."""
        if self._again_until is None:
            return records, []
        offsets = [record.offset for record in records]
        first_new = bisect_left(offsets, self._again_until)
        return records[:first_new], records[first_new:]

    def took(self, records: Sequence[Record]) -> None:
        """These have been seen."""
        self._came_until = records[-1].offset + 1
        self.until = max(self.until, self._came_until)

    def unrejected(self, records: Sequence[Record]) -> Sequence[Record]:
        """Those that no predecessor rejected."""
        if not self.rejected:
            return records
        return [record for record in records if record.offset not in self.rejected]

    def note(self, held_offset: int | None) -> str:
        """What a successor is to know that begins there; None: after the last record that came."""
        begin = self._came_until if held_offset is None else held_offset
        # What lies before comes no more.
        self.rejected = {offset for offset in self.rejected if offset >= begin}
        text = f"seen {self.until}" if self.is_exact else f"seen at least {self.until}"
        if not self.rejected:
            return text
        back = " ".join([str(self.until - offset) for offset in nlargest(NOTE_BYTES_MAX // 2, self.rejected)])
        text = f"{text} rejected {back}"
        return text if len(text) <= NOTE_BYTES_MAX else text[: text.rindex(" ", 0, NOTE_BYTES_MAX + 1)]
