"""Selects and counts the waiting dead letters before any is sent, and finds the end of the replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from processor.wire.dead_letter import DeadLetter


class LetterSelection(NamedTuple):
    """A selection of dead letters: all, those of one reason, or a single one."""

    reason: str | None = None
    """Only those with this reason."""
    place: tuple[int, int] | None = None
    """Only the one at this partition and offset of the dead-letter topic."""

    def takes(self, letter: DeadLetter) -> bool:
        """Return whether a dead letter is selected."""
        if self.reason is not None and letter.reason != self.reason:
            return False
        return self.place is None or self.place == (letter.partition, letter.record.offset)


@dataclass(slots=True)
class Survey:
    """The counts of waiting dead letters."""

    waiting: Counter[str] = field(default_factory=Counter)
    """All waiting letters, by reason."""
    selected: int = 0
    """The number of letters to send back."""
    others: int = 0
    """The number of other letters before the last selected one of their partition: they are appended again."""
    until: dict[int, int] = field(default_factory=dict)
    """The offset after the last selected letter of each partition: later ones stay in place."""


def survey(
    batches: Iterable[tuple[int, list[DeadLetter]]],
    selection: LetterSelection,
    on_seen: Callable[[int], None] = lambda _: None,
) -> Survey:
    """Count dead letters, in order per partition.

    Args:
        batches: the dead letters, with their partition numbers.
        selection: the letters to send back.
        on_seen: called with the number of letters seen so far.
    """
    counts = Survey()
    behind: Counter[int] = Counter()  # Other letters of a partition since its last selected one.
    for partition, letters in batches:
        for letter in letters:
            counts.waiting[letter.reason or "unknown"] += 1
            if selection.takes(letter):
                counts.selected += 1
                counts.others += behind.pop(partition, 0)
                counts.until[partition] = letter.record.offset + 1
            else:
                behind[partition] += 1
        on_seen(len(letters))
    return counts
