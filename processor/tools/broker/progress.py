"""Shows the progress of a download: a bar on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

Advance: TypeAlias = Callable[[int], None]
"""Callback: called with the number of new bytes; negative when a failed file starts again. Any thread."""

LINE_INTERVAL_S = 5.0
"""Time between two plain lines."""


@contextmanager
def shown(title: str, total_bytes: int) -> Iterator[Advance]:
    """Show progress on standard error while the block runs."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task(title, total=total_bytes)
            yield lambda more_bytes: bar.advance(task, more_bytes)
    else:
        yield _PlainProgress(title, total_bytes)


class _PlainProgress:
    """Progress for a log: the start, the state now and then, the end."""

    def __init__(self, title: str, total_bytes: int) -> None:
        self._title = title
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._said_at_s = time.monotonic()
        self._lock = threading.Lock()
        self._say(f"{title}: {total_bytes / 1e6:.0f} MB to fetch")

    def __call__(self, more_bytes: int) -> None:
        with self._lock:
            if more_bytes == 0:
                return
            self._done_bytes += more_bytes
            now_s = time.monotonic()
            if self._done_bytes >= self._total_bytes or now_s - self._said_at_s > LINE_INTERVAL_S:
                self._said_at_s = now_s
                self._say(f"{self._title}: {self._done_bytes / 1e6:.0f} of {self._total_bytes / 1e6:.0f} MB")

    @staticmethod
    def _say(line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
