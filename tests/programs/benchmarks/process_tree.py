"""Time, processor time and memory of a process and its children."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Self

import psutil

_SAMPLE_S = 0.2


class Measured:
    """Time, processor time and memory of a process and its children, as long as the block lasts."""

    def __init__(self, pid: int | None = None) -> None:
        """Measure a process; None: this one."""
        self._root = psutil.Process(pid)

    def __enter__(self) -> Self:
        self._cpu: dict[int, float] = {}
        self._peak = {"python_bytes": 0, "jvm_bytes": 0}
        self._is_over = threading.Event()
        self._began = self._look()
        self._started_s = time.monotonic()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.monotonic() - self._started_s
        self._is_over.set()
        self._thread.join()
        self.figures = {"seconds": seconds, "cpu_s": self._look() - self._began, **self._peak}

    def _watch(self) -> None:
        while not self._is_over.wait(_SAMPLE_S):
            self._look()

    def _look(self) -> float:
        for process in (self._root, *self._root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                self._cpu[process.pid] = times.user + times.system
                kind = "jvm_bytes" if process.name() == "java" else "python_bytes"
                self._peak[kind] = max(self._peak[kind], process.memory_info().rss)
        return sum(self._cpu.values())
