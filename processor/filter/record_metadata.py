"""The metadata of a record that a filter may use besides its values."""

from __future__ import annotations

from typing import Final, NamedTuple

from processor.filter.limits import FREE_CHARACTERS, FREE_STEPS


class OverBudget(Exception):
    """An evaluation takes more work than it may; of one that is not counted yet, more than may go uncounted."""


class RecordMetadata(NamedTuple):
    """The metadata of one record; fields left out are NULL."""

    message_bytes: int | None = None
    """Length of the encoded record, for MESSAGE_SIZE."""
    sow_key: str = ""
    """Its key as text, for SOW_KEY."""
    topic: str = ""
    """The topic's name, as settings have it, for TOPIC_NAME."""
    correlation_id: str = ""
    """The publisher's, for CORRELATION_ID."""
    last_updated_ms: int | None = None
    """Time of its last change, milliseconds since the epoch, for LAST_UPDATED."""
    now_ms: int | None = None
    """The time of UNIX_TIMESTAMP; None: the wall clock."""

    def spend(self, steps: int) -> None:
        """Take steps of the evaluation's budget. Here none are counted, and few may be taken at once.

        Raises:
            OverBudget: evaluate again, and count (`budget.evaluate`).
        """
        if steps > FREE_STEPS:
            raise OverBudget

    def make(self, characters: int) -> None:
        """Take characters of the evaluation's budget, for a text that is made; likewise."""
        if characters > FREE_CHARACTERS:
            raise OverBudget


NO_METADATA: Final = RecordMetadata()
"""No metadata: every field is NULL."""


class _Uncounted(RecordMetadata):
    """No budget."""

    def spend(self, steps: int) -> None:
        """Count nothing."""

    def make(self, characters: int) -> None:
        """Count nothing."""


UNCOUNTED: Final = _Uncounted()
"""For a path alone, which takes no more time than its record was read in."""
