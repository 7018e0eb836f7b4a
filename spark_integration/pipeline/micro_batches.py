"""The micro-batches of a job: each is counted, and none begins after the pipeline has been asked to stop."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from spark_integration.tables.small_files import SmallFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILE: Final = "sowstream-progress.json"
"""The name of the file with the counts, in the directory of the checkpoint."""

Counts: TypeAlias = Mapping[str, int]
"""Rows of a micro-batch: `published`, `written`, and `quarantined.<reason>`."""

BatchFunction: TypeAlias = Callable[["DataFrame", int], Counts]
"""Processes a micro-batch with its number, and returns its counts; of a repeated batch the same ones."""


class Draining(Exception):
    """A micro-batch did not begin, as the pipeline is ending; the next start processes it."""


class MicroBatches:
    """Counts the micro-batches of one job, and keeps new ones from beginning while it drains."""

    def __init__(self, name: str, files: SmallFiles, on_counts: Callable[[str, Counts], None] | None = None) -> None:
        """Begin with the counts of earlier runs.

        Args:
            name: the name of the job.
            files: the files in the directory of its checkpoint.
            on_counts: called with the job's name and the counts of each micro-batch.
        """
        self._name, self._files, self._on_counts = name, files, on_counts
        self._draining = threading.Event()
        content = json.loads(files.read(FILE) or "{}")
        self._last_batch: int = content.get("batch", -1)
        self.totals: Counter[str] = Counter(content.get("totals", {}))
        """The counts of all micro-batches since the checkpoint was created."""
        self.error: BaseException | None = None
        """The error with which the last micro-batch ended; None after a good end."""

    @property
    def is_draining(self) -> bool:
        """True if `drain` was called."""
        return self._draining.is_set()

    def drain(self) -> None:
        """Let the running micro-batch end, and no other begin."""
        self._draining.set()

    def counted(self, process: BatchFunction) -> Callable[[DataFrame, int], None]:
        """Create a function for `foreachBatch`.

        Args:
            process: processes one micro-batch.
        """

        def run(batch: DataFrame, batch_id: int) -> None:
            # Kept, as Spark turns an error of Python into text.
            self.error = None
            try:
                if self._draining.is_set():
                    raise Draining(f"{self._name}: batch {batch_id} is left to the next start")
                began = time.time()
                counts = process(batch, batch_id)
                self._record(batch_id, counts, began)
            except BaseException as error:
                self.error = error
                raise

        return run

    def _record(self, batch_id: int, counts: Counts, began: float) -> None:
        if batch_id > self._last_batch:  # A repeated batch is counted once.
            self.totals.update(counts)
            self._last_batch = batch_id
            if self._on_counts is not None:
                self._on_counts(self._name, counts)
        content = {"batch": batch_id, "at": time.time(), "took_s": round(time.time() - began, 3),
                   "counts": dict(counts), "totals": dict(self.totals)}  # fmt: skip
        self._files.write(FILE, json.dumps(content, indent=1))
