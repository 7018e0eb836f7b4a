"""Figures that benchmarks share: how they are written, the records of a load, and the memory of a tree of processes."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Self, TypeAlias

import psutil

from processor.trial.bench import setup as bench
from processor.trial.bench.setup import SEED, Write, messages

__all__ = ["Write", "load", "messages"]


PLACE = Path("build/benchmarks")
"""The suite's directory for figures and charts."""
SUITE_FILE = PLACE / "figures.json"

Figures: TypeAlias = dict[str, list[dict[str, float]]]
"""The rounds of each series, in the order in which they ran; rounds with the same index were run in turn."""


def write(file: Path | None, figures: Figures) -> None:
    """Write all figures, if a file was requested."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def read(file: Path) -> Figures:
    """Read the figures of a program."""
    return dict(json.loads(file.read_text(encoding="utf-8")))


def load(bootstrap: str, topic: str, count: int, keys: int, *, seed: int = SEED, write: Write | None = None) -> None:
    """Publish `count` records over `keys` keys, as JSON without headers by default."""
    bench.load({"bootstrap.servers": bootstrap}, topic, count, keys, seed=seed, write=write)


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
