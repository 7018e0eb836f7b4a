"""Conflation of many pending keys, and of a quiet key."""

from __future__ import annotations

import contextlib
import gc
import random
import time
import tracemalloc
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from processor.builtin.conflate import Conflate
from processor.codec.json import JsonCodec
from processor.config import ConflatedConfig, TopicConfig
from processor.hosting.pipeline import Pipeline
from processor.kafka.message import Message, records
from processor.kafka.partitioner import partition_for
from processor.runtime.task import Task
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from tests.programs.benchmarks.conflation_feed import Price, load
from tests.programs.benchmarks.conflation_programs import sowstream, suppress, underlying
from tests.programs.benchmarks.throughput import PARTITIONS, TIMEOUT_S, print_progress

if TYPE_CHECKING:
    from pathlib import Path

    from tests.programs.benchmarks.conflation_programs import Running, Underlying


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


KEYS = 100
UPDATES = 1_000
INTERVALS = 10
"""Largest waiting time for the quiet key, in intervals."""
QUIET = b"quiet"
PARTITION = partition_for(QUIET, PARTITIONS)
ANOTHER = next(key for number in count() if partition_for(key := b"another%d" % number, PARTITIONS) == PARTITION)
"""A key of the same partition, as `suppress` has a time for each partition."""


class Quiet(NamedTuple):
    """The delays of the quiet key's last update."""

    ours_s: float
    """Time from its update until a reader of the conflated topic received it."""
    waited_s: float
    """Time for which Kafka Streams was waited for."""
    theirs_s: float | None
    """Time from the update of another key after that; None: not measured."""


def quiet(bootstrap: str, directory: Path, interval_s: float, streams: str | None) -> Quiet:
    """Give both programs the same small feed, and then the same update of one idle key."""
    with contextlib.ExitStack() as cleanup:
        family = cleanup.enter_context(underlying(bootstrap, directory, interval_s))
        last = load(bootstrap, f"{family.name}.sow", UPDATES, KEYS, rate=UPDATES, began_ms=(time.time() - 1) * 1000)
        print_progress("a quiet key")
        ours = _Watch(family, cleanup.enter_context(sowstream(family)), cleanup)
        theirs = None
        if streams is not None:
            running = cleanup.enter_context(suppress(streams, family, UPDATES))
            assert running.process.stdout is not None
            running.process.stdout.readline()
            theirs = _Watch(family, running, cleanup)
        ours.await_all({key: value for key, value in last.items() if partition_for(key, PARTITIONS) == PARTITION})
        began_s = _publish(family, QUIET)
        ours_s = ours.seconds_until(QUIET, began_s, TIMEOUT_S)
        assert ours_s is not None, ours.running.log.read_text()[-3000:]
        if theirs is None:
            return Quiet(ours_s, 0.0, None)
        waited_s = interval_s * INTERVALS
        if (early_s := theirs.seconds_until(QUIET, began_s, waited_s)) is not None:
            raise SystemExit(f"Kafka Streams did deliver the quiet key, after {early_s:.2f} s")
        theirs_s = theirs.seconds_until(QUIET, _publish(family, ANOTHER), TIMEOUT_S)
        assert theirs_s is not None, theirs.running.log.read_text()[-3000:]
        return Quiet(ours_s, waited_s, theirs_s)


class _Watch:
    """A reader of a program's deliveries."""

    def __init__(self, family: Underlying, running: Running, cleanup: contextlib.ExitStack) -> None:
        self.running = running
        self._reader = Consumer({"bootstrap.servers": family.bootstrap, "group.id": running.output,
                                 "enable.auto.commit": False, "isolation.level": "read_committed"})  # fmt: skip
        cleanup.callback(self._reader.close)
        self._reader.assign([TopicPartition(f"{running.output}.sow", PARTITION, 0)])

    def await_all(self, last: dict[bytes, bytes]) -> None:
        """Read until the last value of every key was delivered."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while last:
            assert time.monotonic() < deadline_s, self.running.log.read_text()[-3000:]
            message = self._reader.poll(0.1)
            if message is not None and last.get(message.key() or b"") == message.value():
                del last[message.key() or b""]

    def seconds_until(self, key: bytes, began_s: float, limit_s: float) -> float | None:
        """The time until a key was delivered; None: not within the limit."""
        while (left_s := began_s + limit_s - time.monotonic()) > 0:
            message = self._reader.poll(min(left_s, 0.1))
            if message is not None and message.error() is None and message.key() == key:
                return time.monotonic() - began_s
        return None


def _publish(family: Underlying, key: bytes) -> float:
    """Publish one update of a new key; returns the time of sending."""
    producer = Producer({"bootstrap.servers": family.bootstrap, "linger.ms": 0})
    headers: list[tuple[str, bytes]] = [("version", b"1"), ("kind", b"insert")]
    began_s = time.monotonic()
    producer.produce(f"{family.name}.sow", b'{"id":"%s"}' % key, key, PARTITION, headers=headers)
    producer.flush(10)
    return began_s
