"""Reads every topic of the demo from the beginning, committed records only, and lets the checks judge."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, cast

from processor.errors import Stop
from processor.hosting.pipeline import specs
from processor.kafka.admin.admin import Admin
from processor.kafka.readers.log_reader import OFFSET_BEGINNING, LogReader, Position
from processor.record import Headers
from processor.tools.demo.check import Entry, Finding
from processor.tools.demo.judge import conflated_family, judge_conflated, judge_topic, topic_family
from processor.tools.demo.settings import CONFLATED, PARTITIONS, TOPICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from processor.kafka.message import Message
    from processor.tools.demo.settings import Setup

_BATCH_MAX: Final = 2_000
_POLL_S: Final = 0.2
_STALL_S: Final = 30.0


def audit(setup: Setup, sent: Mapping[str, int], tell: Callable[[int, int], None]) -> list[Finding]:
    """Check everything.

    Args:
        setup: what is configured.
        sent: how many records each feed published.
        tell: told how many records were read, and of how many.

    Raises:
        Stop: a topic could not be read to its end.
    """
    families = {setup.family(name): topic_family(key.removeprefix("/")) for name, key in TOPICS.items()}
    families |= {setup.family(name): conflated_family(interval_s) for name, (_, interval_s) in CONFLATED.items()}
    roles = {spec.name: (spec.family, spec.role) for spec in specs(setup.config)}
    for topic, entry in _entries(setup, tell):
        family, role = roles[topic]
        families[family].take(role, entry)
    named = {name: families[setup.family(name)] for name in (*TOPICS, *CONFLATED)}
    findings = [finding for name in TOPICS for finding in judge_topic(name, named[name], sent[name])]
    for name, (underlying, interval_s) in CONFLATED.items():
        findings += judge_conflated(name, named[name], underlying, named[underlying], interval_s)
    return findings


def _entries(setup: Setup, tell: Callable[[int, int], None]) -> Iterator[tuple[str, Entry]]:
    """Every committed record of every topic, in order within each partition."""
    admin, reader = Admin(setup.config.kafka), LogReader(setup.config.kafka, group=setup.group("audit"))
    topics = setup.kafka_topics()
    wanted = {
        (topic, partition): end
        for topic in topics
        for partition, end in admin.end_offsets(topic, range(PARTITIONS)).items()
    }
    total, done = sum(wanted.values()), 0
    moved_s = time.monotonic()
    try:
        reader.add(Position(topic, partition, OFFSET_BEGINNING) for topic, partition in wanted)
        while wanted:
            read = reader.read(_BATCH_MAX, _POLL_S)
            for message in read.messages:
                yield cast("str", message.topic()), _entry(message)
            for topic, partition, offset in read.ends:
                if offset >= wanted.get((topic, partition), offset + 1):
                    del wanted[topic, partition]
            done += len(read.messages)
            tell(done, total)
            if read.messages or read.ends:
                moved_s = time.monotonic()
            elif time.monotonic() - moved_s > _STALL_S:
                raise Stop(
                    f"nothing came for {_STALL_S:g} s from {_places(wanted)}; does a transaction stand open? "
                    "`sowstream transactions list` finds it"
                )
    finally:
        reader.close()


def _entry(message: Message) -> Entry:
    """A Kafka message as the checks take it."""
    headers = {
        name: (value or b"").decode(errors="replace") for name, value in cast("Headers", message.headers() or [])
    }
    return Entry(
        (message.key() or b"").decode(),
        message.value(),
        headers,
        f"{message.topic()}/{message.partition()}/{message.offset()}",
        message.timestamp()[1],
    )


def _places(wanted: Mapping[tuple[str, int], int]) -> str:
    return ", ".join(f"{topic} partition {partition}" for topic, partition in sorted(wanted)[:3])
