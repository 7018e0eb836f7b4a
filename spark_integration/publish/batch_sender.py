"""Finds the client name and the number of a batch: those of the streaming query, of the caller, or of this process.

Numbers the batches of a query by the times when they were planned, also where the clock goes back.

    <checkpoint>/sowstream/clock_epochs.json   [[number, time], …]: the batches with which the clock had gone back

Workers drop a row whose sequence is not above the earlier ones of its client. A clock goes back when it is corrected,
or when a query goes on at another host. Then a new epoch begins: a client name of its own, and within it times that
grow again. Spark's log of planned batches shows the step, but only for the last hundred batches, so the epochs are kept
next to it. The file is written before the first row of its epoch is sent; a repeated batch finds its epoch in it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

from processor.errors import ConfigurationError
from processor.wire.ack import TEXT_BYTES_MAX
from spark_integration.foundation.pyspark_private import MicroBatch, is_remote_batch, micro_batch
from spark_integration.foundation.small_files import SmallFiles, small_files
from spark_integration.publish.sequence import BATCH_MAX, Sender

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


CLIENT: Final = "spark"
"""The default client name."""

# For the suffixes of a client name: the id of the query or the process, a call, a digest, a writer.
_OURS_BYTES: Final = 96


def check_client(client: str | None, batch_id: int | None) -> None:
    """Refuse a client name or a batch number that cannot be used.

    Raises:
        ConfigurationError: one cannot be used.
    """
    if client is not None and not 1 <= len(client.encode()) <= TEXT_BYTES_MAX - _OURS_BYTES:
        raise ConfigurationError(
            f"client has {len(client.encode())} bytes; it is a name of 1 to {TEXT_BYTES_MAX - _OURS_BYTES}"
        )
    if batch_id is None:
        return
    if client is None:
        raise ConfigurationError("batch_id counts the batches of a client; give its name too, client='...'")
    if not 0 <= batch_id <= BATCH_MAX:
        raise ConfigurationError(f"batch_id is {batch_id}; it is 0 to {BATCH_MAX}")


def recipe(key: Sequence[str], order_by: Sequence[str], writers: int, function: str | None = None) -> str:
    """A digest of the arguments that the numbers of rows depend on; it is a part of the client name.

    Args:
        key: the key columns.
        order_by: the columns that order the rows of a key.
        writers: the number of writers.
        function: the function that is called, where its calls are not counted; None: they are, or it publishes deltas.
    """
    text = json.dumps([list(key), list(order_by), writers, *([function] if function else [])]).encode()
    return hashlib.sha256(text).hexdigest()[:8]


@contextmanager
def sender(
    spark: SparkSession, topic: str, way: str, client: str | None, batch_id: int | None, planned_ms: int | None = None
) -> Iterator[Sender]:
    """Find the sender of a batch, for as long as the batch is published.

    Within a streaming query it is the query: its checkpoint keeps its id and the time when each batch was planned, so a
    repeated batch has the same name and number. A checkpoint that was set back plans its batches again, with later
    times: they are published again, and never taken for repeats. A clock that goes back begins a new epoch, with a name
    of its own, see `clock_epochs`. Elsewhere it is the caller, who numbers the batches: a second call with one number
    is a repeat, as far as workers can see. Or it is this process: then workers recognise only the records that Spark
    itself repeats.

    Args:
        spark: the session of the batch.
        topic: the family's name.
        way: the `recipe`.
        client: the client name of the caller.
        batch_id: the batch number of the caller.
        planned_ms: the time when the batch was planned, of a stream on Spark Connect, in Unix milliseconds.

    Raises:
        ConfigurationError: a `foreachBatch` on Spark Connect has no `client` and `batch_id`.
    """
    name = CLIENT if client is None else client
    if batch_id is not None:
        by = Sender(f"{name}/{way}", batch_id)
        if _written.get((topic, by.client)) == batch_id:
            log.warning(
                "client %s: this process has written its batch %d to %s already, so workers drop the rows of this call "
                "as repeats; if they are others, give the call a client of its own", name, batch_id, topic,
            )  # fmt: skip
        yield by
        _written[topic, by.client] = batch_id
    elif planned_ms is not None:
        yield Sender.planned(f"{name}/{way}", planned_ms)
    elif (batch := micro_batch(spark)) is not None:
        yield _streams.sender(spark, name, batch, topic, way)
    elif is_remote_batch():
        raise ConfigurationError(
            "on Spark Connect, foreachBatch does not know its query: give client='...', another one for each "
            "checkpoint, and batch_id, the number that Spark passes to the function; or publish the stream itself"
        )
    else:
        with _process.turn() as (slot, number):
            yield Sender(f"{name}/{slot}/{way}", number)


class _Run:
    """One run of a streaming query in this process."""

    def __init__(self, spark: SparkSession, batch: MicroBatch) -> None:
        self.number = batch.run
        files = small_files(f"{batch.checkpoint.rstrip('/')}/{DIRECTORY}", spark)
        assert files is not None, "a session opens every directory"
        self._epochs = ClockEpochs(files)
        self._batch: int | None = None
        self._calls: dict[str, int] = {}
        self._planned_ms, self._epoch = 0, ""

    def begin(self, batch: MicroBatch) -> None:
        """Look at a batch, once."""
        if self._batch == batch.number:
            return
        planned_ms = batch.planned_ms()
        assert planned_ms is not None, "Spark plans a batch before it runs"
        epoch = self._epochs.epoch_of(batch, planned_ms)
        self._epoch = "" if epoch is None else f"/{epoch}"
        self._batch, self._planned_ms, self._calls = batch.number, planned_ms, {}

    def sender(self, name: str, topic: str, way: str) -> Sender:
        """The sender of the next call for a topic within the batch, as each call numbers its own rows."""
        call = self._calls[topic] = self._calls.get(topic, -1) + 1
        return Sender.planned(f"{name}/{call}/{way}{self._epoch}", self._planned_ms)


class _Streams:
    """The streaming queries that publish in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}

    def sender(self, spark: SparkSession, name: str, batch: MicroBatch, topic: str, way: str) -> Sender:
        """The sender of a call within a batch; a repeated batch gets the same ones, call by call."""
        with self._lock:
            run = self._runs.get(batch.query_id)
            if run is None or run.number != batch.run:
                run = self._runs[batch.query_id] = _Run(spark, batch)
            run.begin(batch)
            return run.sender(f"{name}/{batch.query_id}", topic, way)


class _Process:
    """Client names of this process, one for each concurrent call; reused, as workers keep a mark for each name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._id = uuid.uuid4()
        self._free: dict[str, int] = {}
        self._made = 0

    @contextmanager
    def turn(self) -> Iterator[tuple[str, int]]:
        """An unused client name, and a number above its earlier ones."""
        with self._lock:
            if self._pid != os.getpid():  # A forked process must not use the names of its parent.
                self._pid, self._id, self._free, self._made = os.getpid(), uuid.uuid4(), {}, 0
            if not self._free:
                self._free[f"{self._id}.{self._made}"] = 0
                self._made += 1
            slot, number = self._free.popitem()
        try:
            yield slot, number
        finally:
            with self._lock:
                if slot.startswith(str(self._id)):
                    self._free[slot] = number + 1


_written: Final[dict[tuple[str, str], int]] = {}
"""By topic and client: the last batch of a caller's numbers that this process has written."""
_streams: Final = _Streams()
_process: Final = _Process()
