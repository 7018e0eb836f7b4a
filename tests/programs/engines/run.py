"""One run: the same commands to three engines, and the comparison of their outputs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

from processor.config import load
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from spark_integration import hand_over, merge_batch, merge_stream
from tests.programs.engines.commands import KINDS, Commands
from tests.programs.engines.kept import PARTITIONS, Kept, differences, kept
from tests.spark.functions_job import LATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from tests.programs.engines.commands import Command

ENGINES = ("worker", "batch", "stream")
PATIENCE_S = 1_800


class Plan(NamedTuple):
    """The sizes of a run."""

    seed: int
    commands: int = 2_000_000
    """Number of commands, over all topics."""
    keys: int = 25_000
    """Number of keys of each topic."""
    expiring: int = 500
    """Number of further keys of each topic, whose records expire half-way."""

    def __str__(self) -> str:
        return f"{self.commands:,} commands, {len(KINDS)} topics of {self.keys:,} keys, seed {self.seed}"


def run(
    plan: Plan, spark: SparkSession, bootstrap: str, directory: Path, name: str, report: Callable[[str], None]
) -> list[str]:
    """Run the plan; returns the differences, one a line."""
    families = {(engine, kind): f"{name}_{engine}_{kind}" for engine in ENGINES for kind in KINDS}
    settings = directory / "sowstream.yaml"
    settings.write_text(yaml.safe_dump(_settings(bootstrap, directory, families)))
    config = load(settings)
    Admin(config.kafka).create(specs(config))
    history = {kind: Commands(kind, plan.seed, plan.keys) for kind in KINDS}
    options = {"kafka.bootstrap.servers": bootstrap}
    publisher = Publisher(bootstrap, families)
    half = plan.commands // len(KINDS) // 2
    with contextlib.ExitStack() as running:
        watched = [families["worker", kind] for kind in KINDS]
        running.enter_context(_worker(settings, watched, directory))
        streams = [
            running.enter_context(_stream(spark, families["stream", kind], settings, options, directory))
            for kind in KINDS
        ]
        publisher.send({kind: commands.take(half) for kind, commands in history.items()})
        report(f"{publisher.sent:,} commands published")
        _catch_up(config.kafka, watched, streams)
        report("worker and stream have them all")
        alive = {families[engine, kind] for engine in ("worker", "stream") for kind in KINDS}
        expired = _Expired(bootstrap, alive)
        publisher.send({kind: commands.expiring(plan.expiring) for kind, commands in history.items()})
        expired.wait(plan.expiring)
        report("what was to expire has expired")
        publisher.send({kind: commands.again(plan.expiring) for kind, commands in history.items()})
        publisher.send({kind: commands.take(half) for kind, commands in history.items()})
        report(f"{publisher.sent:,} commands published")
        _catch_up(config.kafka, watched, streams)
        report("worker and stream have them all")
    for kind in KINDS:
        family = families["batch", kind]
        begun = time.monotonic()
        with merge_batch(spark, family, config=settings, options=options, deltas=True, partitions=4) as merged:
            hand_over(merged, options=options, deltas=True)
        report(f"merged {family} in {time.monotonic() - begun:.0f} s")
    wrong: list[str] = []
    for kind in KINDS:
        outputs = {engine: kept(bootstrap, families[engine, kind], kind) for engine in ENGINES}
        report(f"{kind}: {_figures(outputs)}")
        wrong += [line for one in outputs.values() for line in one.wrong[:3]]
        for engine in ENGINES[1:]:
            wrong += differences(f"{kind}: worker and {engine}", outputs["worker"], outputs[engine])
        wrong += _proves_nothing(kind, outputs["worker"])
    return wrong


class Publisher:
    """Sends each command to the topic of each engine."""

    def __init__(self, bootstrap: str, families: dict[tuple[str, str], str]) -> None:
        self.sent = 0
        self._families = families
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "partitioner": "murmur2_random",
                # Else a batch that is sent again could overtake another one, for one engine and not for the others.
                "enable.idempotence": True,
                "linger.ms": 20,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 500_000,
            }
        )

    def send(self, commands: dict[str, Iterable[Command]]) -> None:
        """Send the commands, the topics in turn, and wait until the broker has them."""
        left = {kind: iter(of_kind) for kind, of_kind in commands.items()}
        while left:
            for kind, of_kind in [*left.items()]:
                part = [*islice(of_kind, 10_000)]
                if not part:
                    del left[kind]
                    continue
                for engine in ENGINES:
                    self._send(f"{self._families[engine, kind]}.publish", part)
                self.sent += len(part)
        assert self._producer.flush(60) == 0, "the broker did not take the commands in time"

    def _send(self, topic: str, commands: Iterable[Command]) -> None:
        for key, value, headers in commands:
            while True:
                try:
                    self._producer.produce(topic, value, key, headers=headers or None)
                    break
                except BufferError:
                    self._producer.poll(0.1)
        self._producer.poll(0)


class _Expired:
    """Waits until families have reported the expiry of records."""

    def __init__(self, bootstrap: str, families: Iterable[str]) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "watch", "isolation.level": "read_committed"}
        )
        places = [
            TopicPartition(f"{family}.delta", partition) for family in families for partition in range(PARTITIONS)
        ]
        for place in places:
            place.offset = self._consumer.get_watermark_offsets(place, timeout=30)[1]
        self._consumer.assign(places)
        self._expired_counts = dict.fromkeys((f"{family}.delta" for family in families), 0)

    def wait(self, keys: int) -> None:
        """Wait until each family has reported the given number of keys."""
        deadline = time.monotonic() + PATIENCE_S
        while any(count < keys for count in self._expired_counts.values()):
            assert time.monotonic() < deadline, f"told of so many expiries, of {keys} each: {self._expired_counts}"
            for message in self._consumer.consume(10_000, 0.5):
                assert message.error() is None, message.error()
                self._expired_counts[message.topic()] += ("kind", b"expire") in (message.headers() or [])
        self._consumer.close()


def _settings(bootstrap: str, directory: Path, families: dict[tuple[str, str], str]) -> dict[str, Any]:
    return {
        "kafka": {"bootstrap.servers": bootstrap},
        "state_dir": str(directory / "state"),
        "topics": {
            family: {"key": ["/id"], "partitions": PARTITIONS, **KINDS[kind]} for (_, kind), family in families.items()
        },
    }


@contextlib.contextmanager
def _worker(settings: Path, families: list[str], directory: Path) -> Iterator[None]:
    """One worker process for all topics."""
    with (directory / "worker.log").open("w") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "processor.cli.main", "worker", *families, "-c", str(settings)],
            stdout=log,
            stderr=log,
        )
        try:
            yield
            assert worker.poll() is None, f"the worker ended with {worker.returncode}: see {log.name}"
        finally:
            worker.terminate()
            worker.wait(60)


class Stream:
    """A stream, which is started again where Spark has waited for its Python for ten seconds, as on a busy machine.

    Spark starts that Python before the tasks of a micro-batch, so such a batch has written nothing.
    """

    def __init__(self, writer: DataStreamWriter) -> None:
        self._writer = writer
        self._query = writer.start()

    def query(self) -> StreamingQuery:
        """The query that runs."""
        if not self._query.isActive:
            error = self._query.exception()
            assert LATE in str(error), f"a stream ended: {error}"
            self._query = self._writer.start()
        return self._query

    def stop(self) -> None:
        """End the query."""
        self._query.stop()


@contextlib.contextmanager
def _stream(
    spark: SparkSession, family: str, settings: Path, options: dict[str, str], directory: Path
) -> Iterator[Stream]:
    writer = merge_stream(spark, family, config=settings, options=options, initial=None).option(
        "checkpointLocation", str(directory / "checkpoints" / family)
    )
    stream = Stream(writer.trigger(processingTime="2 seconds"))
    try:
        # One after the other, as each needs its Python in time.
        while stream.query().lastProgress is None:
            time.sleep(0.2)
        yield stream
    finally:
        stream.stop()


def _catch_up(kafka: dict[str, str], families: list[str], streams: list[Stream]) -> None:
    """Wait until the worker and the streams have processed all input."""
    admin = Admin(kafka)
    deadline = time.monotonic() + PATIENCE_S
    for stream in streams:
        _await_stream(stream, admin, deadline)
    for family in families:
        topic = f"{family}.publish"
        ends = admin.end_offsets(topic, range(PARTITIONS))
        group = Consumer({**kafka, "group.id": f"sowstream.{family}"})
        while True:
            places = group.committed([TopicPartition(topic, partition) for partition in range(PARTITIONS)], timeout=30)
            if all(place.offset >= ends[place.partition] or not ends[place.partition] for place in places):
                break
            assert time.monotonic() < deadline, f"the worker of {topic} is at {places} of {ends}"
            time.sleep(0.5)
        group.close()


def _await_stream(stream: Stream, admin: Admin, deadline: float) -> None:
    """Wait until a stream has processed all input, with the records held back until the next micro-batches."""
    done_in: int | None = None
    while True:
        progress = stream.query().lastProgress
        assert time.monotonic() < deadline, f"a stream is at {progress}"
        if progress is not None and progress["sources"][0]["endOffset"]:
            ((topic, offsets),) = json.loads(progress["sources"][0]["endOffset"]).items()
            ends = admin.end_offsets(topic, range(PARTITIONS))
            if done_in is None and all(offsets.get(str(number), 0) >= end for number, end in ends.items()):
                done_in = progress["batchId"]
            if done_in is not None and progress["batchId"] >= done_in + 2:
                return
        time.sleep(0.5)


def _figures(outputs: dict[str, Kept]) -> str:
    return "; ".join(
        f"{engine} {len(one.sow):,} records, {sum(count for count, _ in one.deltas.values()):,} deltas "
        f"({one.kinds['delete']:,} deletes, {one.kinds['expire']:,} expiries), {one.letters.total():,} dead letters"
        for engine, one in outputs.items()
    )


def _proves_nothing(kind: str, one: Kept) -> list[str]:
    """The conditions that a history does not meet, without which its comparison proves nothing."""
    stamped = any(stamps for _, _, stamps in one.sow.values())
    brought: dict[str, Any] = {"records": one.sow, "deletes": one.kinds["delete"], "expiries": one.kinds["expire"]}
    brought["dead letters"] = one.letters
    brought |= {"stamps of sequence groups": stamped} if kind == "groups" else {}
    return [f"{kind}: the history brought no {what}" for what, is_met in brought.items() if not is_met]
