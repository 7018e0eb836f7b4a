"""Stand-in until the merge."""

from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.runtime.holds import Hold, Resume


class ControlThread:
    """Stand-in until the merge."""

    def __init__(self, kafka: Mapping[str, str], application_id: str, prefix: str = "") -> None:
        """Stand-in."""

    def start(self) -> None:
        """Stand-in."""

    def stop(self) -> None:
        """Stand-in."""

    def orders(self, pipeline: str) -> SimpleQueue[Resume]:
        """Stand-in."""
        return SimpleQueue()

    def tell(self, pipeline: str, partition: int, hold: Hold | None) -> None:
        """Stand-in."""

    def tell_failed(self, pipeline: str, message: str | None) -> None:
        """Stand-in."""
