"""Numbers the batches of a query by the times when they were planned, also where the clock goes back.

    <checkpoint>/sowstream/clock_epochs.json   [[number, time], …]: the batches with which the clock had gone back

Workers drop a row whose sequence is not above the earlier ones of its client. A clock goes back when it is corrected,
or when a query goes on at another host. Then a new epoch begins: a client name of its own, and within it times that
grow again. Spark's log of planned batches shows the step, but only for the last hundred batches, so the epochs are kept
next to it. The file is written before the first row of its epoch is sent; a repeated batch finds its epoch in it.
"""

from __future__ import annotations

import json
import logging
from typing import Final

from spark_integration.pyspark_private import MicroBatch
from spark_integration.tables.small_files import SmallFiles

DIRECTORY: Final = "sowstream"
"""The directory below a checkpoint."""
_FILE: Final = "clock_epochs.json"
_KEPT: Final = 100
"""Number of epochs in the file: a repeated batch is in one of the last two."""

log = logging.getLogger("sowstream.spark")


class ClockEpochs:
    """The epochs of one query."""

    def __init__(self, files: SmallFiles) -> None:
        """Read the epochs of a checkpoint.

        Args:
            files: those below `DIRECTORY` of the checkpoint.
        """
        self._files = files
        self._epochs = [(int(number), int(time_ms)) for number, time_ms in json.loads(files.read(_FILE) or "[]")]

    def epoch_of(self, batch: MicroBatch, planned_ms: int) -> int | None:
        """The time with which the epoch of a batch began, in Unix milliseconds; None for the first epoch.

        Args:
            batch: the batch, no earlier one than the batch of the last call.
            planned_ms: the time when it was planned.
        """
        begun = (batch.number, planned_ms)
        if begun not in self._epochs and self._went_back(batch, planned_ms):
            self._epochs = [*self._epochs[1 - _KEPT :], begun]
            self._files.write(_FILE, json.dumps(self._epochs))
        # The latest entry counts: a checkpoint that was set back by hand may have entries of batches to come.
        return next((time_ms for number, time_ms in reversed(self._epochs) if number <= batch.number), None)

    @staticmethod
    def _went_back(batch: MicroBatch, planned_ms: int) -> bool:
        """Return whether a batch was planned no later than the one before it, or nothing shows that it was."""
        if batch.number == 0:
            return False
        before_ms = batch.planned_ms(batch.number - 1)
        if before_ms is not None and planned_ms > before_ms:
            return False
        log.warning(
            "query %s, batch %d: the clock went back by %s ms; from now on its rows have another client name",
            batch.query_id, batch.number, "unknown" if before_ms is None else before_ms - planned_ms,
        )  # fmt: skip
        return True
