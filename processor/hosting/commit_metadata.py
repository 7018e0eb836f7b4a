"""Reads and writes the metadata of a committed input offset: the ends of the output topics, and the processor's note.

::

    sow 60 mark 7                        without transactions: the ends of the SOW and mark topics
    sowstream noted TEXT                 the processor's note
    sow 60 mark 7 sowstream noted TEXT   both

Offsets that other tools have set carry other metadata, or none, which counts as empty.

The ends serve to find redelivered records: input records whose results are in SOW although their offsets were never
committed. Only a worker without transactions leaves such records, when it dies between the two. With each input offset
it commits the end of SOW at that time. A SOW record behind that end which names an uncommitted input record proves that
the input record has been applied. Without such metadata, as in a new group or after a reset, the worker commits it
first: older SOW records may stem from an earlier run over the same input, which is to be merged again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.wire.record_headers import source_offset

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.record import Record


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
