"""Under which name and number a batch is published: those of the streaming query, of the caller, or of this process."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession

from processor.errors import ConfigurationError
from processor.wire.ack import TEXT_BYTES_MAX
from spark_integration.publishing.sequence import BATCH_MAX, Sender

CLIENT: Final = "spark"
"""What names begin with where the caller gives none."""

# What comes behind a given name: the query's or the process's id, a call, a digest, a writer.
_OURS_BYTES: Final = 96


def check_client(client: str | None, batch_id: int | None) -> None:
    """Refuse a name or a number that cannot be used.

    Raises:
        ConfigurationError: it says which.
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


def recipe(key: Sequence[str], order_by: Sequence[str], writers: int) -> str:
    """What the numbers of rows depend on besides the rows, in short: under another recipe they are another client's."""
    text = json.dumps([list(key), list(order_by), writers]).encode()
    return hashlib.sha256(text).hexdigest()[:8]


@contextmanager
def sender(spark: SparkSession, topic: str, way: str, client: str | None, batch_id: int | None) -> Iterator[Sender]:
    """Who publishes a batch, as long as it does.

    Within a streaming query that is the query, whose id and whose batches' numbers its checkpoint keeps: a batch that
    is written again is sent under the same name and number. Elsewhere it is the caller, who numbers the batches, or
    this process: then only what Spark itself repeats is recognised.

    Args:
        spark: the session that the batch belongs to.
        topic: the family's name.
        way: the `recipe`.
        client: the caller's name for it.
        batch_id: the caller's number.
    """
    name = CLIENT if client is None else client
    if batch_id is not None:
        yield Sender(f"{name}/{way}", batch_id)
    elif (query := _Query.of(spark)) is not None:
        yield Sender(f"{name}/{query.id}/{_calls.next(query, topic)}/{way}", query.batch_id)
    else:
        with _process.turn() as (slot, number):
            yield Sender(f"{name}/{slot}/{way}", number)


class _Query:
    """The streaming query in whose batch this thread is."""

    def __init__(self, context: Any, query_id: str, batch_id: str) -> None:
        self.id = query_id
        self.batch_id = int(batch_id)
        # A run has one thread, and Java gives no thread's number twice.
        self.run = int(context._jvm.java.lang.Thread.currentThread().getId())  # noqa: SLF001 - there is no public way

    @classmethod
    def of(cls, spark: SparkSession) -> _Query | None:
        context = spark.sparkContext
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        return None if query_id is None or batch_id is None else cls(context, query_id, batch_id)


class _Calls:
    """Counts the calls for one topic within one batch: each numbers rows of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], tuple[int, int, int]] = {}

    def next(self, query: _Query, topic: str) -> int:
        """The number of this call: the same when the batch is done again, from 0 in each run."""
        with self._lock:
            run, batch_id, call = self._last.get((query.id, topic), (-1, -1, -1))
            call = call + 1 if (run, batch_id) == (query.run, query.batch_id) else 0
            self._last[query.id, topic] = query.run, query.batch_id, call
            return call


class _Process:
    """Names of this process, each for one call at a time: workers keep what they know of a name, so they are few."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._id = uuid.uuid4()
        self._free: dict[str, int] = {}
        self._made = 0

    @contextmanager
    def turn(self) -> Iterator[tuple[str, int]]:
        """A name that nobody uses now, and a number above those it was used with."""
        with self._lock:
            if self._pid != os.getpid():  # A fork has the memory of its parent, and must not have its names.
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


_calls: Final = _Calls()
_process: Final = _Process()
