"""The text beside a committed input offset: how far the outputs follow from it, and what the processor noted.

::

    sow 60 mark 7                        without transactions: where SOW and marks ended
    sowstream noted TEXT                 what the processor noted
    sow 60 mark 7 sowstream noted TEXT   both

Whoever sets offsets with other tools writes something else there, or nothing: then there is no note.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

NOTED_BYTES_MAX: Final = 1_000
"""Of a processor's text, in UTF-8. Kafka takes 4,096 beside an offset, as shipped (`offset.metadata.max.bytes`)."""

_NOTE: Final = re.compile(r"(?:sow ([0-9]{1,18}) mark ([0-9]{1,18}))?(?:(?(1) )sowstream noted (.*))?", flags=re.DOTALL)


class Ends(NamedTuple):
    """Where the topics ended that follow from the input before an offset."""

    sow: int
    """Offset of the SOW topic."""
    mark: int
    """Offset of the mark topic."""


class Note(NamedTuple):
    """What stands beside an offset."""

    ends: Ends | None
    """None where a transaction committed it, or nobody noted anything."""
    noted: str
    """What the processor noted; empty if it noted nothing."""

    @classmethod
    def read(cls, text: str | None) -> Note:
        """Understand what is found; a text of somebody else's is none."""
        found = _NOTE.fullmatch(text or "")
        if found is None:
            return cls(None, "")
        return cls(Ends(int(found[1]), int(found[2])) if found[1] else None, found[3] or "")

    def __str__(self) -> str:
        """As it is committed."""
        ends = [] if self.ends is None else [f"sow {self.ends.sow} mark {self.ends.mark}"]
        return " ".join(ends + ([f"sowstream noted {self.noted}"] if self.noted else []))


def checked(noted: str) -> str:
    """A processor's text, if it can be committed.

    Raises:
        ValueError: it is too long, or Kafka's client cannot carry it.
    """
    size = len(noted.encode())
    if size > NOTED_BYTES_MAX:
        raise ValueError(f"a note of {size:,} bytes; beside an input offset there is room for {NOTED_BYTES_MAX:,}")
    if "\0" in noted:
        raise ValueError("a note with the character U+0000: no text beside an offset can have it")
    return noted
