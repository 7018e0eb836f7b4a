"""Reads and writes the metadata of a committed input offset: the ends of the output topics, and the processor's note.

::

    sow 60 mark 7                        without transactions: the ends of the SOW and mark topics
    sowstream noted TEXT                 the processor's note
    sow 60 mark 7 sowstream noted TEXT   both

Offsets that other tools have set carry other metadata, or none, which counts as empty.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

NOTE_BYTES_MAX: Final = 1_000
"""Limit of a processor's note, in UTF-8. By default Kafka takes 4,096 in all (`offset.metadata.max.bytes`)."""

_FORMAT: Final = re.compile(
    r"(?:sow ([0-9]{1,18}) mark ([0-9]{1,18}))?(?:(?(1) )sowstream noted (.*))?", flags=re.DOTALL
)


class Ends(NamedTuple):
    """The ends of the output topics when all input before an offset was processed."""

    sow: int
    """End offset of the SOW topic."""
    mark: int
    """End offset of the mark topic."""


class CommitMetadata(NamedTuple):
    """The metadata of a committed input offset."""

    ends: Ends | None
    """None after a commit with a transaction, and in metadata of other tools."""
    note: str
    """The processor's note; empty if there is none."""

    @classmethod
    def read(cls, text: str | None) -> CommitMetadata:
        """Parse the metadata; a text of another tool counts as empty."""
        match = _FORMAT.fullmatch(text or "")
        if match is None:
            return cls(None, "")
        return cls(Ends(int(match[1]), int(match[2])) if match[1] else None, match[3] or "")

    def __str__(self) -> str:
        """Format the metadata as it is committed."""
        ends = [] if self.ends is None else [f"sow {self.ends.sow} mark {self.ends.mark}"]
        return " ".join(ends + ([f"sowstream noted {self.note}"] if self.note else []))


def checked_note(note: str) -> str:
    """Return a processor's note if it can be committed.

    Raises:
        ValueError: it is too long, or has a character that Kafka's client cannot send.
    """
    size = len(note.encode())
    if size > NOTE_BYTES_MAX:
        raise ValueError(f"a note of {size:,} bytes; beside an input offset there is room for {NOTE_BYTES_MAX:,}")
    if "\0" in note:
        raise ValueError("a note with the character U+0000: no text beside an offset can have it")
    return note
