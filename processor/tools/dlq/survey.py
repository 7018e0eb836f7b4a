"""Looks through the dead letters that wait, before any of them is sent: how many there are, and how far to go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from processor.tools.dlq.choice import Choice
from processor.wire.dead_letter import DeadLetter


@dataclass(slots=True)
class Survey:
    """What was found."""

    waiting: Counter[str] = field(default_factory=Counter)
    """All that wait, by reason."""
    chosen: int = 0
    """Those that are to be sent back."""
    others: int = 0
    """Those before the last chosen one of their partition: they are to be put at the end again."""
    until: dict[int, int] = field(default_factory=dict)
    """The offset after the last chosen one of each partition: what lies behind stays where it is."""


def survey(
    batches: Iterable[tuple[int, list[DeadLetter]]], choice: Choice, on_seen: Callable[[int], None] = lambda _: None
) -> Survey:
    """Look through dead letters in order per partition.

    Args:
        batches: the dead letters, with the number of their partition.
        choice: which are to be sent back.
        on_seen: told how many were looked at.
    """
    found = Survey()
    behind: Counter[int] = Counter()  # Others of a partition since its last chosen one.
    for partition, letters in batches:
        for letter in letters:
            found.waiting[letter.reason or "unknown"] += 1
            if choice.takes(letter):
                found.chosen += 1
                found.others += behind.pop(partition, 0)
                found.until[partition] = letter.record.offset + 1
            else:
                behind[partition] += 1
        on_seen(len(letters))
    return found
