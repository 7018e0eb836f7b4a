"""Measures the memory of a pending key: one update of each of very many keys, all within one interval."""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from typing import NamedTuple

import psutil

from processor.builtin.conflate import Conflate
from processor.codec.json import JsonCodec
from processor.config import ConflatedConfig, TopicConfig
from processor.hosting.pipeline import Pipeline
from processor.kafka.message import Message, records
from processor.runtime.task import Task
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from tests.programs.benchmarks.conflation_feed import Price

BATCH = 5_000


class PendingBytes(NamedTuple):
    """Memory of a key with one pending update."""

    value_bytes: float
    """Size of the update's value alone."""
    traced_bytes: float
    """Memory that Python allocates for it."""
    resident_bytes: float
    """Growth of the process's resident memory."""
    counted_bytes: float
    """Size that the worker counts towards `max_pending_bytes`."""


def pending_bytes(keys: int) -> PendingBytes:
    """Measure the memory of many pending keys in one partition, without Kafka."""
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    task, size = _filled(keys)
    resident = process.memory_info().rss - before
    counted = task.gauges["pending_bytes"]
    del task
    gc.collect()
    tracemalloc.start()
    held = _filled(keys)
    traced, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del held
    return PendingBytes(size / keys, traced / keys, resident / keys, counted / keys)


def _filled(keys: int) -> tuple[Task, int]:
    """A task with one pending update of each key, and the size of their values."""
    settings = ConflatedConfig(underlying="prices", interval="1h", max_pending=keys, max_pending_bytes=1 << 40)
    pipeline = Pipeline.of(Conflate, settings, name="copy", topic=TopicConfig(), underlying="prices")
    task = Task(pipeline, 0, JsonCodec())
    task.open(LayeredState(MemoryStore(), cache_bytes=0))
    task.start(0)
    # Each key occurs once, so that no key's last delivery is looked up.
    task.reached_end()
    task.punctuate()
    size = 0
    rng = random.Random(7)
    for begin in range(0, keys, BATCH):
        messages = []
        for number in range(begin, min(keys, begin + BATCH)):
            value, headers = Price(number).moved(rng, number)
            size += len(value)
            # A bytes object of orjson is larger than its size; one of a Kafka client is not.
            exact = memoryview(value).tobytes()
            stamp = (1, int(time.time() * 1000))
            messages.append(Message(key=b"%d" % number, value=exact, headers=headers, offset=number, timestamp=stamp))
        task.process(records(messages))
    task.punctuate()
    return task, size
