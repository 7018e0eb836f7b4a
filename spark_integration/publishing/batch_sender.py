"""Finds the client name and the number of a batch: those of the streaming query, of the caller, or of this process."""

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


def recipe(key: Sequence[str], order_by: Sequence[str], writers: int) -> str:
    """A digest of the arguments that the numbers of rows depend on; it is a part of the client name."""
    text = json.dumps([list(key), list(order_by), writers]).encode()
    return hashlib.sha256(text).hexdigest()[:8]


@contextmanager
def sender(spark: SparkSession, topic: str, way: str, client: str | None, batch_id: int | None) -> Iterator[Sender]:
    """Find the sender of a batch, for as long as the batch is published.

    Within a streaming query it is the query: its checkpoint keeps its id and the numbers of its batches, so a repeated
    batch has the same name and number. Elsewhere it is the caller, who numbers the batches, or this process: then
    workers recognise only the records that Spark itself repeats.

    Args:
        spark: the session of the batch.
        topic: the family's name.
        way: the `recipe`.
        client: the client name of the caller.
        batch_id: the batch number of the caller.
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
    """The streaming query whose batch runs in this thread."""

    def __init__(self, context: Any, query_id: str, batch_id: str) -> None:
        self.id = query_id
        self.batch_id = int(batch_id)
        # Each run of a query has one thread, and Java never reuses a thread's number.
        self.run = int(context._jvm.java.lang.Thread.currentThread().getId())  # noqa: SLF001 - there is no public way

    @classmethod
    def of(cls, spark: SparkSession) -> _Query | None:
        context = spark.sparkContext
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        return None if query_id is None or batch_id is None else cls(context, query_id, batch_id)


class _Calls:
    """Counts the calls for one topic within one batch, as each call numbers its own rows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], tuple[int, int, int]] = {}

    def next(self, query: _Query, topic: str) -> int:
        """The number of this call, from 0 in each run; a repeated batch gets the same numbers."""
        with self._lock:
            run, batch_id, call = self._last.get((query.id, topic), (-1, -1, -1))
            call = call + 1 if (run, batch_id) == (query.run, query.batch_id) else 0
            self._last[query.id, topic] = query.run, query.batch_id, call
            return call


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


_calls: Final = _Calls()
_process: Final = _Process()
