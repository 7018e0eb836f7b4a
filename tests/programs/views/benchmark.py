"""Speed of views, without the start of processes: throughput beside Kafka Streams, a build, latency, fan-out."""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from processor.config import RuntimeConfig
from processor.kafka.admin.admin import Admin
from processor.runtime.worker import os_process
from processor.topics.family import family_specs
from processor.trial.bench.result import percentile
from processor.trial.broker.java import find_java
from tests.endtoend import world as world_module
from tests.endtoend.world import World
from tests.programs.benchmarks import peers
from tests.programs.benchmarks.restore import streams_jars
from tests.programs.benchmarks.throughput import TIMEOUT_S
from tests.programs.views.latency import Feed, Watch, hop_times

PARTS = ("throughput", "build", "latency", "fanout")
"""What can be measured."""

Say = Callable[[str], None]

_FIELDS = {"/n": "COUNT(*)", "/qty": "SUM(/qty)"}
_HEADERS: list[tuple[str, str | bytes | None]] = [("version", b"1")]
_RUNTIME = {name: RuntimeConfig().model_dump()[name] for name in ("transaction_timeout_s", "internal")}
"""The settings as users have them; `World` has shorter times, for tests of takeovers."""
_LIMIT_S = 3_600.0
_BESIDE_RATE = 1_000  # Updates a second of the topic under a view that is being built.
_BESIDE_S = 15.0
_WARM_UP_S = 30.0  # A broker that has just been started is compiled meanwhile, on the same two cores.
_GOALS = {"throughput": 60_000, "ratio": 1.5, "build_s": 120, "latency_ms": 150, "fanout_ms": 200, "turn_ms": 100}


class Benchmark:
    """The programs of one run, on one broker."""

    def __init__(
        self,
        bootstrap: str,
        directory: Path,
        say: Say,
        *,
        keys: int,
        groups: int,
        processes: int = 1,
        is_combined: bool = True,
    ) -> None:
        """Create it.

        Args:
            bootstrap: the broker.
            directory: for settings, states and logs.
            say: prints a line.
            keys: the number of records' keys.
            groups: the number of groups.
            processes: those of the view, for the throughput and the build.
            is_combined: whether that view combines, or sends a part for each record.
        """
        self._settings = {"partial_aggregation": is_combined}
        self._bootstrap, self._directory, self._say = bootstrap, directory, say
        self._keys, self._groups, self._processes = keys, groups, processes
        world_module.PATIENCE_S = _LIMIT_S

    def throughput(self, records: int) -> None:
        """Updates a second of a view that runs, beside Kafka Streams.

        The view has a record of each key. The updates are written in one transaction while it waits: all of them can be
        read at once, and nothing else takes processor time meanwhile. The time begins with that transaction's commit.
        """
        with self._world("throughput") as (world, view):
            updates = _Updates(self._groups)
            self._write(f"{world.name}.sow", updates.of_keys(self._keys))
            viewer = world.start("view", [view, "--processes", str(self._processes)])
            watch = Watch(self._bootstrap, f"{view}.sow", "group")
            world.wait(lambda: updates.are_rows_of(watch), "the view counting all keys")
            cpu_s = watch.cpu_s(viewer.process.pid)
            began_s = self._write(f"{world.name}.sow", updates.at_random(records, self._keys), is_at_once=True)
            world.wait(lambda: updates.are_rows_of(watch), "the view counting all updates")
            cpu_s = watch.cpu_s(viewer.process.pid) - cpu_s
            assert viewer.stop() == 0
            ours = records / (watch.last_ms / 1000 - began_s)
            totals = updates.totals
            records += self._keys  # Kafka Streams begins with the first record.
            cost = f"{cpu_s / (records - self._keys) * 1e6:.1f} us CPU in {self._processes} process(es)"
            self._say(f"view: {ours:,.0f} updates/s (goal {_GOALS['throughput']:,}), {cost}")
            both = [sum(column) for column in zip(*totals.values(), strict=True)]
            streams = aggregate_seconds(self._bootstrap, self._directory, world.name, records, (both[0], both[1]))
        if streams is None:
            self._say("Kafka Streams: no javac here")
            return
        theirs = records / streams[0]
        self._say(f"Kafka Streams: {theirs:,.0f} updates/s, {streams[1] / records * 1e6:.1f} us CPU")
        self._say(f"ratio: {ours / theirs:.2f} (goal {_GOALS['ratio']})")

    def build(self, records: int) -> None:
        """Seconds for the rows of a view over a topic that has so many records, each under a key of its own.

        Meanwhile a worker merges updates of the topic: the time that one takes, before the build and during it.
        """
        with self._world("build") as (world, view):
            updates = _Updates(self._groups)
            self._write(f"{world.name}.sow", updates.of_keys(records))  # About 200 bytes of memory for each.
            adopt = ["offsets", "adopt", world.name, "--from", "earliest", "--yes", "-c", str(world.file)]
            # A worker holds partitions whose SOW topic has records that no offset accounts for.
            subprocess.run([sys.executable, "-m", "processor.cli.main", *adopt], check=True, capture_output=True)
            world.start("worker", world.name)
            watch = Watch(self._bootstrap, f"{world.name}.delta", "id")
            feed = Feed(self._bootstrap, f"{world.name}.publish", 1_000, 100, by="id")
            feed.warm_up(watch, world)
            delays_s = {"before": feed.run(watch, _BESIDE_S, _BESIDE_RATE)}
            is_built = threading.Event()
            with ThreadPoolExecutor(1) as pool:
                beside = pool.submit(feed.run, watch, _LIMIT_S, _BESIDE_RATE, is_built.is_set)
                try:
                    seconds, cpu_s = self._rows_built(world, view, updates)
                finally:
                    is_built.set()
                delays_s["during"] = beside.result()
        self._say(
            f"build of {records:,} records: {seconds:.1f} s, {cpu_s:.1f} s CPU (goal {_GOALS['build_s']} for 10M)"
        )
        for when, delays in delays_s.items():
            p50, p99 = (percentile(delays, part) * 1000 for part in (0.5, 0.99))
            self._say(
                f"publish to delta of the topic at {_BESIDE_RATE:,}/s {when} it: p50 {p50:.1f} ms, p99 {p99:.1f} ms"
            )

    def latency(self, seconds: float, rate: int) -> None:
        """Milliseconds from a publish until the view's delta can be read, through the worker of the topic."""
        fields = {"/number": "MAX(/number)"}
        with self._world("latency", fields=fields) as (world, view):
            world.start("worker", world.name)
            world.start("view", view)
            watch = Watch(self._bootstrap, f"{view}.delta", "group")
            feed = Feed(self._bootstrap, f"{world.name}.publish", self._keys, self._groups)
            feed.warm_up(watch, world)
            feed.run(watch, _WARM_UP_S, rate)
            first = feed.number + 1
            delays_s = feed.run(watch, seconds, rate)
            hops = hop_times(world, view, first)
        p50, p99 = (percentile(delays_s, part) * 1000 for part in (0.5, 0.99))
        self._say(
            f"publish to view delta at {rate:,}/s: p50 {p50:.1f} ms, p99 {p99:.1f} ms (goal {_GOALS['latency_ms']})"
        )
        for role, times_ms in hops.items():
            p50, p99 = (percentile(times_ms, part) for part in (0.5, 0.99))
            self._say(f"of these until the {role} record: p50 {p50} ms, p99 {p99} ms, of {len(times_ms):,} records")

    def fanout(self, references: int, rate: int = 200) -> None:
        """Milliseconds of other rows while a lookup record with so many references changes, and the longest turn."""
        name = f"f{secrets.token_hex(3)}"
        view, lookup = f"{name}_joined", f"{name}_customers"
        section = {
            "underlying": name,
            "join": [{"topic": lookup, "on": {"/customer": "/id"}}],
            "fields": {"/id": "/id", "/number": "/number", "/name": f"[{lookup}]./name"},
        }
        others = {lookup: {"key": ["/id"], "partitions": 1}}
        views = {view: section}
        world = World(
            self._bootstrap, self._directory, name, others=others, sections={"views": views}, runtime=_RUNTIME
        )
        file = self._directory / "turns.json"
        try:
            self._write(f"{lookup}.sow", iter([("big", {"id": "big", "name": "before"})]))
            bodies = (
                (f"o{number}", {"id": f"o{number}", "number": 0, "customer": "big"}) for number in range(references)
            )
            self._write(f"{name}.sow", bodies)
            viewer = world.start("view", view, program=["tests.programs.views.timed_view", str(file)], is_forked=False)
            watch = Watch(self._bootstrap, f"{view}.delta", "id")
            world.wait(lambda: watch.count() >= references, "the view having all rows")
            feed = Feed(self._bootstrap, f"{name}.sow", 1_000, 1_000, is_sow=True)
            feed.warm_up(watch, world)
            self._write(f"{lookup}.sow", iter([("big", {"id": "big", "name": "after"})]))
            began_s, before = time.monotonic(), watch.count("after")
            delays_s = feed.run(watch, max(10.0, references / 10_000), rate)
            world.wait(lambda: watch.count("after") - before >= references, "all rows following")
            took_s = watch.last_s("after") - began_s
            viewer.stop()
        finally:
            world.close()
        turns_ms: dict[str, tuple[int, int]] = {}
        for stage, ended_s, *seconds in json.loads(file.read_text()):
            if ended_s > began_s:
                wall_ms, cpu_ms = (round(each * 1000) for each in seconds)
                before_ms = turns_ms.get(stage, (0, 0))
                turns_ms[stage] = max(before_ms[0], wall_ms), max(before_ms[1], cpu_ms)
        p99, most = percentile(delays_s, 0.99) * 1000, max(delays_s) * 1000
        self._say(f"{references:,} references follow in {took_s:.1f} s")
        self._say(
            f"other rows at {rate}/s meanwhile: p99 {p99:.1f} ms (goal {_GOALS['fanout_ms']}), most {most:.1f} ms"
        )
        self._say(f"longest turns, ms on the clock and of the processor (goal {_GOALS['turn_ms']}): {turns_ms}")

    @contextmanager
    def _world(self, kind: str, fields: Mapping[str, str] = _FIELDS) -> Iterator[tuple[World, str]]:
        name = f"{kind[0]}{secrets.token_hex(3)}"
        view = f"{name}_by_group"
        section = {"underlying": name, "group_by": ["/group"], "fields": dict(fields)}
        views = {view: section | (self._settings if fields == _FIELDS else {})}
        world = World(self._bootstrap, self._directory, name, sections={"views": views}, runtime=_RUNTIME, partitions=4)
        try:
            yield world, view
        finally:
            world.close()

    def _write(self, topic: str, records: Iterator[tuple[str, Any]], *, is_at_once: bool = False) -> float:
        """Write SOW records as a worker would; returns the time of the end, seconds since the epoch.

        Args:
            topic: the SOW topic.
            records: key and body of each.
            is_at_once: whether readers of committed records see them together, at that time.
        """
        transaction = {"transactional.id": secrets.token_hex(4), "transaction.timeout.ms": 900_000}
        producer = Producer({"bootstrap.servers": self._bootstrap, "partitioner": "murmur2_random", "linger.ms": 20,
                             "compression.type": "lz4", "queue.buffering.max.kbytes": 100_000}
                            | (transaction if is_at_once else {}))  # fmt: skip
        if is_at_once:
            producer.init_transactions(60)
            producer.begin_transaction()
        for key, body in records:
            value = json.dumps(body, separators=(",", ":")).encode()
            while True:
                try:
                    producer.produce(topic, value, key.encode(), headers=_HEADERS)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        assert producer.flush(300) == 0
        ended_s = time.time()
        if is_at_once:
            producer.commit_transaction(60)
        return ended_s

    def _rows_built(self, world: World, view: str, updates: _Updates) -> tuple[float, float]:
        """Run a view until its rows are right; returns the seconds until the last row, and processor time.

        The seconds begin when the first stage has its partitions: the start of the process does not count.
        """
        viewer = world.start("view", [view, "--processes", str(self._processes)])
        watch = Watch(self._bootstrap, f"{view}.sow", "group")
        world.wait(lambda: updates.are_rows_of(watch), "the view counting all keys")
        cpu_s = watch.cpu_s(viewer.process.pid)
        assert viewer.stop() == 0
        began_s = _assigned_s(viewer.file.read_text(), f"{world.name}.sow")
        return watch.last_ms / 1000 - began_s, cpu_s


class _Updates:
    """Makes records, and knows the rows that they lead to."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._rng = random.Random(1)
        self._last: dict[int, tuple[int, int]] = {}
        self._totals: dict[int, tuple[int, int]] = {}

    @property
    def totals(self) -> dict[str, tuple[int, int]]:
        """The count and the sum of each group."""
        return {f"g{group}": total for group, total in self._totals.items() if total[0]}

    def of_keys(self, keys: int) -> Iterator[tuple[str, Any]]:
        """Make the first record of each key."""
        return (self._next(key, key) for key in range(keys))

    def at_random(self, records: int, keys: int) -> Iterator[tuple[str, Any]]:
        """Make records of any keys."""
        return (self._next(self._rng.randrange(keys), number) for number in range(records))

    def are_rows_of(self, watch: Watch) -> bool:
        """Read what is there; return whether these are the rows."""
        watch.count()
        expected = self.totals
        return {group: (row["n"], row["qty"]) for group, row in watch.rows.items() if group in expected} == expected

    def _next(self, key: int, number: int) -> tuple[str, Any]:
        group = key % self._groups if self._rng.random() < 0.9 else self._rng.randrange(self._groups)
        qty = number % 1000
        if (old := self._last.get(key)) is not None:
            self._change(old[0], -1, -old[1])
        self._last[key] = group, qty
        self._change(group, 1, qty)
        return str(key), {"id": key, "group": f"g{group}", "qty": qty, "note": "-" * 20}

    def _change(self, group: int, count: int, qty: int) -> None:
        before = self._totals.get(group, (0, 0))
        self._totals[group] = before[0] + count, before[1] + qty


def _assigned_s(text: str, topic: str) -> float:
    """Return the time at which a log says that partitions of a topic were assigned, seconds since the epoch."""
    for line in text.splitlines():
        if '"assigned"' in line and (event := json.loads(line))["topic"] == topic:
            return datetime.fromisoformat(event["timestamp"]).timestamp()
    raise AssertionError(f"no partition of {topic} was assigned")


_PROGRAM = Path(peers.__file__).with_name("KafkaStreamsAggregate.java")


def aggregate_seconds(
    bootstrap: str, directory: Path, name: str, records: int, totals: tuple[int, int]
) -> tuple[float, float] | None:
    """Return the seconds and the processor time from the first record until all groups are right.

    Args:
        bootstrap: the broker.
        directory: for the program and its state.
        name: the family whose SOW topic is read.
        records: the number of its records.
        totals: the count and the sum that all groups have together at the end.

    Returns:
        None if there is no Java compiler.
    """
    if (compiler := shutil.which("javac")) is None:
        return None
    jars = streams_jars()
    subprocess.run([compiler, "-cp", jars, "-d", directory, _PROGRAM], check=True)
    family = f"{name}_{uuid.uuid4().hex[:4]}"
    admin = Admin({"bootstrap.servers": bootstrap})
    admin.create(family_specs(family, ["sow"], partitions=4))
    state, log = directory / f"{family}.state", directory / f"{family}.log"
    order = [str(find_java()), "-Xmx2G", "-cp", f"{directory}:{jars}", _PROGRAM.stem, bootstrap, f"{name}.sow"]
    order += [f"{family}.sow", str(records), *map(str, totals), str(state)]
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            order, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log_file, env=os_process.whole_environment()
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not (line := process.stdout.readline()):
            raise SystemExit(f"Kafka Streams ended:\n{log.read_text()[-3000:]}")
        result = json.loads(line)
        return result["seconds"], result["cpu_s"]
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(timeout=TIMEOUT_S)
        process.stdout.close()
        # The topics of its stores and its repartitioning begin with its application's name, too.
        names = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
        admin.delete([topic for topic in names if family in topic])
        shutil.rmtree(state, ignore_errors=True)
