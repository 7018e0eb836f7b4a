"""Waits until all published records have passed all stages, then reads every topic of the demo and runs the checks."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final, cast

from processor.errors import Stop
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import OFFSET_BEGINNING, LogReader, Position
from processor.record import Headers
from processor.trial.demo.check import (
    CheckResult,
    TopicRecord,
    check_conflated,
    check_topic,
    check_view,
    conflated_family,
    topic_family,
    view_family,
)
from processor.trial.demo.processes import TOPIC as TABLE_TOPIC
from processor.trial.demo.settings import CLOSED, CONFLATED, PARTITIONS, TOPICS, VIEW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from processor.kafka.message import Message
    from processor.trial.demo.processes import SparkTable
    from processor.trial.demo.settings import DemoSetup
    from processor.trial.demo.watcher import Watcher


_ASK_S: Final = 0.5


class Drain:
    """Compares committed offsets with the ends, stage by stage; used when the feeds have stopped.

    A publish topic has only plain records, so the committed offset reaches its end. A SOW topic also has transaction
    markers, which no commit passes: the target is the offset after its last record.
    """

    def __init__(self, setup: DemoSetup, watcher: Watcher) -> None:
        self._setup = setup
        self._watcher = watcher
        self._admin = Admin(setup.config.kafka)
        # The input of each stage: its topic's name and role, in the order in which records pass.
        self._inputs: dict[str, tuple[str, str]] = {name: (name, "publish") for name in TOPICS}
        self._inputs |= {name: (underlying, "sow") for name, (underlying, _) in CONFLATED.items()}
        self._inputs |= {f"{VIEW}.split": ("orders", "sow"), VIEW: (VIEW, "parts")}
        self._readers = {name: LogReader(setup.config.kafka, group=setup.group(name)) for name in self._inputs}
        self._waiting = list(self._readers)

    def outstanding(self) -> str | None:
        """A description of the work that is left; None when there is none."""
        while self._waiting:
            name = self._waiting[0]
            source, role = self._inputs[name]
            aims = self._input_ends(name) if role == "publish" else self.last_records(source, role)
            if aims is None:
                return f"reading {source}.{role} to its end"
            if left := self._left(name, aims):
                return f"{name}: {left:,} records to go"
            self._waiting.pop(0)
        return None

    def last_records(self, name: str, role: str = "sow") -> dict[tuple[str, int], int] | None:
        """The offset behind the last record of each partition of a topic; None until the watcher has read it."""
        topic = self._setup.topic(name, role)
        ends = self._ends(topic)
        with self._watcher.lock:
            seen = self._watcher.seen
            if any(seen.ends.get((topic, partition), 0) < end for partition, end in ends.items()):
                return None
            return {place: offset + 1 for place, offset in seen.last.items() if place[0] == topic}

    def close(self) -> None:
        """Close the connections."""
        for reader in self._readers.values():
            reader.close()

    def _left(self, name: str, aims: Mapping[tuple[str, int], int]) -> int:
        left = 0
        for (topic, partition), aim in aims.items():
            committed = 0
            with contextlib.suppress(TimeoutError):
                committed = self._readers[name].committed(topic, partition, _ASK_S) or 0
            left += max(0, aim - committed)
        return left

    def _input_ends(self, name: str) -> dict[tuple[str, int], int]:
        topic = self._setup.topic(name, "publish")
        return {(topic, partition): end for partition, end in self._ends(topic).items() if end}

    def _ends(self, topic: str) -> dict[int, int]:
        return self._admin.end_offsets(topic, range(PARTITIONS))


_BATCH_MAX: Final = 2_000
_POLL_S: Final = 0.2
_STALL_S: Final = 30.0


def audit(
    setup: DemoSetup,
    sent: Mapping[str, int],
    on_progress: Callable[[int, int], None],
    table: SparkTable | None = None,
) -> list[CheckResult]:
    """Check all topics.

    Args:
        setup: the demo's configuration.
        sent: the number of records that each feed published.
        on_progress: called with the number of records read, and their total.
        table: the table on Spark, if there is one.

    Raises:
        Stop: a topic could not be read to its end.
    """
    families = {setup.family(name): topic_family(key.removeprefix("/")) for name, key in TOPICS.items()}
    families |= {setup.family(name): conflated_family(interval_s) for name, (_, interval_s) in CONFLATED.items()}
    families[setup.family(VIEW)] = view = view_family()
    roles = {spec.name: (spec.family, spec.role) for spec in specs(setup.config)}
    for topic, entry in _entries(setup, on_progress):
        family, role = roles[topic]
        if family in families:  # Not a stage of the view, whose records are nobody's.
            families[family].take(role, entry)
    named = {name: families[setup.family(name)] for name in (*TOPICS, *CONFLATED)}
    findings = [finding for name in TOPICS for finding in check_topic(name, named[name], sent[name])]
    for name, (underlying, interval_s) in CONFLATED.items():
        findings += check_conflated(name, named[name], underlying, named[underlying], interval_s)
    findings += check_view(VIEW, view, "orders", named["orders"], CLOSED)
    if table is not None:
        findings.append(table.check(named[TABLE_TOPIC].sow))
    return findings


def _entries(setup: DemoSetup, on_progress: Callable[[int, int], None]) -> Iterator[tuple[str, TopicRecord]]:
    """Every committed record of every topic, in order within each partition."""
    admin, reader = Admin(setup.config.kafka), LogReader(setup.config.kafka, group=setup.group("audit"))
    topics = setup.kafka_topics()
    ends = {
        (topic, partition): end
        for topic in topics
        for partition, end in admin.end_offsets(topic, range(PARTITIONS)).items()
    }
    total, done = sum(ends.values()), 0
    moved_s = time.monotonic()
    try:
        reader.add(Position(topic, partition, OFFSET_BEGINNING) for topic, partition in ends)
        while ends:
            read = reader.read(_BATCH_MAX, _POLL_S)
            for message in read.messages:
                yield cast("str", message.topic()), _entry(message)
            for topic, partition, offset in read.ends:
                if offset >= ends.get((topic, partition), offset + 1):
                    del ends[topic, partition]
            done += len(read.messages)
            on_progress(done, total)
            if read.messages or read.ends:
                moved_s = time.monotonic()
            elif time.monotonic() - moved_s > _STALL_S:
                raise Stop(
                    f"nothing came for {_STALL_S:g} s from {_places(ends)}; does a transaction stand open? "
                    "`sowstream transactions list` finds it"
                )
    finally:
        reader.close()


def _entry(message: Message) -> TopicRecord:
    """A Kafka message as the checks need it."""
    headers = {
        name: (value or b"").decode(errors="replace") for name, value in cast("Headers", message.headers() or [])
    }
    return TopicRecord(
        (message.key() or b"").decode(),
        message.value(),
        headers,
        f"{message.topic()}/{message.partition()}/{message.offset()}",
        message.timestamp()[1],
    )


def _places(ends: Mapping[tuple[str, int], int]) -> str:
    return ", ".join(f"{topic} partition {partition}" for topic, partition in sorted(ends)[:3])
