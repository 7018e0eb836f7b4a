"""Reads every topic of the demo from the beginning, committed records only, and runs the checks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, cast

from processor.errors import Stop
from processor.hosting.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from processor.kafka.readers.log_reader import OFFSET_BEGINNING, LogReader, Position
from processor.record import Headers
from processor.tools.demo.check import (
    CheckResult,
    TopicRecord,
    check_conflated,
    check_topic,
    check_view,
    conflated_family,
    topic_family,
    view_family,
)
from processor.tools.demo.settings import CLOSED, CONFLATED, PARTITIONS, TOPICS, VIEW
from processor.tools.demo.spark_table import TOPIC as TABLE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from processor.kafka.message import Message
    from processor.tools.demo.settings import DemoSetup
    from processor.tools.demo.spark_table import SparkTable

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
