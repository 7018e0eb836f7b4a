"""Speed of views, without the start of processes: throughput beside Kafka Streams, a build, latency, fan-out."""

from __future__ import annotations

import json
import random
import secrets
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from processor.config import RuntimeConfig
from processor.trial.bench.result import percentile
from tests.endtoend.world import World
from tests.programs.benchmarks.peers import kafka_streams_view
from tests.programs.views.latency import Feed, Watch, hop_times

PARTS = ("throughput", "build", "latency", "fanout")
"""What can be measured."""

Say = Callable[[str], None]
Running = AbstractContextManager[tuple[str, int] | None]
"""A view that runs: the topic of its rows and its process id; None if it cannot run here."""

KINDS = {
    "sums": {"/n": "COUNT(*)", "/qty": "SUM(/qty)"},
    "extremes": {"/low": "MIN(/qty)", "/high": "MAX(/qty)"},
    "latest": {"/number": "MAX(/number)"},
    "join": {"/id": "/id", "/qty": "/qty", "/name": "[{lookup}]./name"},
}
"""The fields of a view by its kind; of a join, with the topic of the partners."""

_HEADERS: list[tuple[str, str | bytes | None]] = [("version", b"1")]
_RUNTIME = {name: RuntimeConfig().model_dump()[name] for name in ("transaction_timeout_s", "internal")}
"""The settings as users have them; `World` has shorter times, for tests of takeovers."""
_LIMIT_S = 3_600.0
_BESIDE_RATE = 1_000  # Updates a second of the topic under a view that is being built.
_BESIDE_S = 15.0
_WARM_UP_S = 30.0  # A broker that has just been started is compiled meanwhile, on the same two cores.
_GOALS = {"throughput": 60_000, "build_s": 120, "latency_ms": (60, 150), "fanout_ms": 150, "turn_ms": 50}
RATIOS = {"sums": 2.0, "extremes": 1.5, "join": 1.5}  # To Kafka Streams; sums by 50,000 groups 1.5, too.
_STREAMS_MS = {"as shipped": (100, 100), "tuned": (25, 5)}  # Time between commits and linger time, for the latency.


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
        join_method: str = "auto",
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
            join_method: of a view that joins.
        """
        self._settings = {"partial_aggregation": is_combined}
        self._join_method = join_method
        self._bootstrap, self._directory, self._say = bootstrap, directory, say
        self._keys, self._groups, self._processes = keys, groups, processes

    def throughput(self, records: int, kind: str = "sums", rounds: int = 1) -> None:
        """Updates a second of a view that runs, and of Kafka Streams, in turn.

        Each has read a record of each key. The updates are written in one transaction while it waits: all can be
        read at once, and nothing else takes processor time meanwhile. The time begins with that transaction's commit,
        and ends when the last row is read.
        """
        figures: list[dict[str, tuple[float, float]]] = []
        for _ in range(rounds):
            figures.append({})
            for name, start in (("view", self._view), ("Kafka Streams", self._streams)):
                figure = self._updates_per_s(records, kind, start)
                if figure is None:
                    self._say(f"{name}: cannot run here")
                    continue
                figures[-1][name] = figure
                self._say(f"{name}, {kind}: {figure[0]:,.0f} updates/s, {figure[1]:.1f} us CPU")
        if "Kafka Streams" in figures[0]:
            ratios = [figure["view"][0] / figure["Kafka Streams"][0] for figure in figures]
            speed = statistics.median(figure["view"][0] for figure in figures)
            self._say(f"medians: {speed:,.0f} updates/s (goal of sums by 1,000 groups {_GOALS['throughput']:,}), "
                      f"{statistics.median(ratios):.2f} times Kafka Streams, {min(ratios):.2f} to {max(ratios):.2f} "
                      f"(goal {RATIOS[kind]})")  # fmt: skip

    def _updates_per_s(
        self, records: int, kind: str, start: Callable[[World, str, str], Running]
    ) -> tuple[float, float] | None:
        """Measure one view: updates a second, and microseconds of processor time an update."""
        with self._world("throughput", kind) as (world, view):
            updates = _Updates(self._groups)
            if kind == "join":
                self._write(f"{world.names[1]}.sow", updates.partners())
            self._write(f"{world.name}.sow", updates.of_keys(self._keys))
            with start(world, view, kind) as running:
                if running is None:
                    return None
                topic, pid = running
                watch = Watch(self._bootstrap, topic, "id" if kind == "join" else "group")
                self._wait(world, watch, updates.rows(kind))
                cpu_s = watch.cpu_s(pid)
                began_s = self._write(f"{world.name}.sow", updates.at_random(records, self._keys), is_at_once=True)
                self._wait(world, watch, updates.rows(kind))
                cpu_s = watch.cpu_s(pid) - cpu_s
                return records / (watch.read_s - began_s), cpu_s / records * 1e6

    @contextmanager
    def _view(self, world: World, view: str, kind: str) -> Iterator[tuple[str, int]]:
        """Run the view."""
        viewer = world.start("view", [view, "--processes", str(self._processes)])
        yield f"{view}.sow", viewer.process.pid
        assert viewer.stop() == 0

    def _streams(self, world: World, view: str, kind: str, times_ms: tuple[int, int] = (200, 25)) -> Running:
        """Kafka Streams with the same view; the time between commits and its linger time are in milliseconds."""
        return kafka_streams_view(
            self._bootstrap, self._directory, kind, [f"{name}.sow" for name in world.names],
            commit_ms=times_ms[0], linger_ms=times_ms[1],
        )  # fmt: skip

    @staticmethod
    def _wait(world: World, watch: Watch, rows: dict[Any, dict[str, Any]]) -> None:
        """Read until these are the rows."""

        def are_there() -> bool:
            watch.count()
            return all(row.items() <= watch.rows.get(key, {}).items() for key, row in rows.items())

        world.wait(are_there, "the rows of all records", patience_s=_LIMIT_S)

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
        """Milliseconds until the row of a record can be read.

        From a publish, through the worker of the topic and the two stages of the view; then from a record of the SOW
        topic, through the two stages, and through Kafka Streams, as shipped and with shorter times.
        """
        with self._world("latency", "latest") as (world, view):
            world.start("worker", world.name)
            world.start("view", view)
            delays_s, first = self._delays(world, f"{world.name}.publish", f"{view}.delta", seconds, rate)
            hops = hop_times(world, view, first)
        p50, p99 = _GOALS["latency_ms"]
        self._say(f"publish to view delta at {rate:,}/s: {delays_s} (goals {p50} and {p99})")
        for role, times_ms in hops.items():
            p50, p99 = (percentile(times_ms, part) for part in (0.5, 0.99))
            self._say(f"of these until the {role} record: p50 {p50} ms, p99 {p99} ms, of {len(times_ms):,} records")
        starts = {"view": self._view} | {
            f"Kafka Streams {name}": partial(self._streams, times_ms=times_ms) for name, times_ms in _STREAMS_MS.items()
        }
        for name, start in starts.items():
            with self._world("latency", "latest") as (world, view), start(world, view, "latest") as running:
                if running is not None:
                    sow = f"{world.name}.sow"
                    delays_s, _ = self._delays(world, sow, running[0], seconds, rate)
                    self._say(f"SOW record to row at {rate:,}/s, {name}: {delays_s}")

    def _delays(self, world: World, topic: str, rows: str, seconds: float, rate: int) -> tuple[str, int]:
        """Feed a topic and watch rows; returns the delays, and the number of the first record that counts."""
        watch = Watch(self._bootstrap, rows, "group")
        feed = Feed(self._bootstrap, topic, self._keys, self._groups, is_sow=topic.endswith(".sow"))
        feed.warm_up(watch, world)
        feed.run(watch, _WARM_UP_S, rate)
        first = feed.number + 1
        delays_s = feed.run(watch, seconds, rate)
        p50, p99 = (percentile(delays_s, part) * 1000 for part in (0.5, 0.99))
        return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms", first

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
            world.wait(lambda: watch.count() >= references, "the view having all rows", patience_s=_LIMIT_S)
            feed = Feed(self._bootstrap, f"{name}.sow", 1_000, 1_000, is_sow=True, by="id")
            feed.warm_up(watch, world)
            feed.run(watch, _WARM_UP_S, rate)
            self._write(f"{lookup}.sow", iter([("big", {"id": "big", "name": "after"})]))
            began_s, before = time.monotonic(), watch.count("after")
            delays_s = feed.run(watch, max(10.0, references / 10_000), rate)
            world.wait(lambda: watch.count("after") - before >= references, "all rows following", patience_s=_LIMIT_S)
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
    def _world(self, measure: str, kind: str = "sums") -> Iterator[tuple[World, str]]:
        """A topic family for a measurement, whose settings have a view of this kind; the second name is the view's."""
        name = f"{measure[0]}{secrets.token_hex(3)}"
        view, lookup = f"{name}_rows", f"{name}_partners"
        fields = {member: text.format(lookup=lookup) for member, text in KINDS[kind].items()}
        section: dict[str, Any] = {"underlying": name, "fields": fields}
        others = None
        if kind == "join":
            others = {lookup: {"key": ["/id"], "partitions": 4}}
            section["join"] = [{"topic": lookup, "on": {"/group": "/id"}}]
            section["join_method"] = self._join_method
        else:
            section |= {"group_by": ["/group"]} | self._settings
        world = World(
            self._bootstrap, self._directory, name, others=others, sections={"views": {view: section}},
            runtime=_RUNTIME, partitions=4,
        )  # fmt: skip
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
        self._wait(world, watch, updates.rows("sums"))
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

    def rows(self, kind: str) -> dict[Any, dict[str, Any]]:
        """Compute the rows of a view of this kind: by its group, or of a join by its key."""
        if kind == "join":
            return {key: {"qty": qty, "name": f"name of g{group}"} for key, (group, qty) in self._last.items()}
        groups: dict[str, list[int]] = {}
        for group, qty in self._last.values():
            groups.setdefault(f"g{group}", []).append(qty)
        if kind == "extremes":
            return {group: {"low": min(all_qty), "high": max(all_qty)} for group, all_qty in groups.items()}
        return {group: {"n": len(all_qty), "qty": sum(all_qty)} for group, all_qty in groups.items()}

    def partners(self) -> Iterator[tuple[str, Any]]:
        """Make the record that each group's records are joined with."""
        return ((f"g{group}", {"id": f"g{group}", "name": f"name of g{group}"}) for group in range(self._groups))

    def of_keys(self, keys: int) -> Iterator[tuple[str, Any]]:
        """Make the first record of each key."""
        return (self._next(key, key) for key in range(keys))

    def at_random(self, records: int, keys: int) -> Iterator[tuple[str, Any]]:
        """Make records of any keys."""
        return (self._next(self._rng.randrange(keys), number) for number in range(records))

    def _next(self, key: int, number: int) -> tuple[str, Any]:
        group = key % self._groups if self._rng.random() < 0.9 else self._rng.randrange(self._groups)
        qty = number % 1000
        self._last[key] = group, qty
        return str(key), {"id": key, "group": f"g{group}", "qty": qty, "note": "-" * 20}


def _assigned_s(text: str, topic: str) -> float:
    """Return the time at which a log says that partitions of a topic were assigned, seconds since the epoch."""
    for line in text.splitlines():
        if '"assigned"' in line and (event := json.loads(line))["topic"] == topic:
            return datetime.fromisoformat(event["timestamp"]).timestamp()
    raise AssertionError(f"no partition of {topic} was assigned")
