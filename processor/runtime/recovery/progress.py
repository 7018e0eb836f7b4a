"""Shows the progress of restores: in metrics, and as a bar on a terminal."""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from processor.runtime.metrics import RESTORED

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_S: Final = 1.0  # A shorter restore has no bar.


class RestoreBar:
    """The progress bars of a process, one for each restoring processor; none without a terminal."""

    def __init__(self, console: Console | None = None, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Create the object without bars.

        Args:
            console: the output; standard error by default.
            clock_s: the monotonic clock.
        """
        self._console = console or Console(stderr=True)
        # A dumb terminal gets empty lines of a bar, and several processes would write over one another.
        can_draw = self._console.is_terminal and not self._console.is_dumb_terminal
        self._is_shown = can_draw and multiprocessing.parent_process() is None
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._begun: dict[str, tuple[float, int]] = {}  # Start time and largest number of remaining offsets.
        self._tasks: dict[str, TaskID] = {}
        self._progress: Progress | None = None

    def update(self, processor: str, left: int) -> None:
        """Show the number of remaining offsets of a processor; 0: it is done. Any thread may call it."""
        if not self._is_shown:
            return
        with self._lock:
            if left == 0:
                self._begun.pop(processor, None)
                self._remove(processor)
                return
            began_s, most = self._begun.get(processor, (self._clock_s(), 0))
            most = max(most, left)
            self._begun[processor] = began_s, most
            if self._clock_s() - began_s > _PATIENCE_S:
                self._draw(processor, most - left, most)

    def _draw(self, processor: str, done: int, total: int) -> None:
        if self._progress is None:
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._progress.start()
        if processor not in self._tasks:
            self._tasks[processor] = self._progress.add_task(f"restoring {processor}")
        self._progress.update(self._tasks[processor], completed=done, total=total)

    def _remove(self, processor: str) -> None:
        task = self._tasks.pop(processor, None)
        if self._progress is None or task is None:
            return
        self._progress.remove_task(task)
        if not self._tasks:
            self._progress.stop()
            self._progress = None


class RestoreProgress:
    """The progress of one restorer: restored records go to the metrics, remaining offsets to the bar."""

    def __init__(self, processor: str, bar: RestoreBar) -> None:
        self._processor = processor
        self._bar = bar
        self._restored = RESTORED.labels(processor)

    def took(self, records: int) -> None:
        """Count restored records."""
        self._restored.inc(records)

    def left(self, offsets: int) -> None:
        """Show the remaining offsets of all partitions."""
        self._bar.update(self._processor, offsets)
