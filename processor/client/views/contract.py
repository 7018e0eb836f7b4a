"""The view that a feed fills: the engine's contract, and the additions for views that are kept between runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from processor.subscriptions.record_view import NoRecords, RecordView


class ReaderView(RecordView, Protocol):
    """A view that is closed, and that may be kept for the next run."""

    @property
    def positions(self) -> Mapping[int, int]:
        """The next offset of each partition of a kept view; empty for other views."""

    def settle(self) -> None:
        """Mark all records as delivered: the next run does not deliver them again."""

    def reached(self, partition: int, position: int, as_of_s: float) -> None:
        """Move a partition to an offset before which nothing is left to put.

        Args:
            partition: the number.
            position: the offset.
            as_of_s: when that was known, seconds since the epoch.
        """

    def wipe(self) -> None:
        """Forget everything."""

    def close(self) -> None:
        """Release the resources of the view."""


class NothingKept(NoRecords):
    """A view without records, for feeds that deliver each update by itself."""

    @property
    def positions(self) -> Mapping[int, int]:
        """Always empty."""
        return {}

    def settle(self) -> None:
        """Nothing is kept."""

    def reached(self, partition: int, position: int, as_of_s: float) -> None:
        """Nothing is kept."""

    def wipe(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is released."""
