"""What a reader asks of the view that it fills, besides what the engine asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from processor.subscriptions.record_view import NoRecords, RecordView


class ReaderView(RecordView, Protocol):
    """A view that is closed, and that may be kept for the next run."""

    @property
    def positions(self) -> Mapping[int, int]:
        """The next offset of each partition, of a view that is kept; else nothing."""

    def settle(self) -> None:
        """All that was put has been told: a next run need not be told of it again."""

    def reached(self, partition: int, position: int, as_of_s: float) -> None:
        """There was nothing of a partition before this offset that was not put.

        Args:
            partition: the number.
            position: the offset.
            as_of_s: when that was known, seconds since the epoch.
        """

    def wipe(self) -> None:
        """Forget everything."""

    def close(self) -> None:
        """Let go of whatever it uses."""


class NothingKept(NoRecords):
    """For readers that tell each update as it comes."""

    @property
    def positions(self) -> Mapping[int, int]:
        """None."""
        return {}

    def settle(self) -> None:
        """Nothing is kept."""

    def reached(self, partition: int, position: int, as_of_s: float) -> None:
        """Nothing is kept."""

    def wipe(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is used."""
