"""Which dead letters are meant."""

from __future__ import annotations

from typing import NamedTuple

from processor.wire.dead_letter import DeadLetter


class Choice(NamedTuple):
    """All dead letters, those of one reason, or a single one."""

    reason: str | None = None
    """Only those rejected for this."""
    place: tuple[int, int] | None = None
    """Only the one at this partition and offset of the dead-letter topic."""

    def takes(self, letter: DeadLetter) -> bool:
        """Whether it is one of them."""
        if self.reason is not None and letter.reason != self.reason:
            return False
        return self.place is None or self.place == (letter.partition, letter.record.offset)
