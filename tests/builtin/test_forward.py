"""Forwarding the input of a topic that has moved: in order, to the right partition, and repeats stay repeats."""

from __future__ import annotations

import json
import random
import struct
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.builtin.forward import OUTPUT, Forward, ForwardSettings
from processor.config import TopicConfig
from processor.kafka.partitioner import partition_for
from processor.record import Record
from processor.testing import ProcessorTestDriver
from processor.wire.ack import MOVED_ACKS

if TYPE_CHECKING:
    from collections.abc import Mapping

OLD, NEW = 3, 5
SUMS = {"merge_rules": {"/total": "sum"}}


def forwarder(
    partition: int = 0, *, waiting: frozenset[int] = frozenset(), new: int = NEW, old: int = OLD, **topic: Any
) -> ProcessorTestDriver:
    """A partition of the topic that has moved."""
    settings = ForwardSettings(moved_to="orders_5", kafka_topic="orders_5.publish", waiting=waiting)
    return ProcessorTestDriver(
        Forward, settings, name="orders", topic=TopicConfig.model_validate(topic), partition=partition,
        partitions=old, outlets={OUTPUT: new},
    )  # fmt: skip


def merger(partition: int, *, new: int = NEW, old: int = OLD, **topic: Any) -> ProcessorTestDriver:
    """A partition of the topic that has taken its place."""
    settings = TopicConfig.model_validate({"partitions": new, "moved_from": "orders", **topic})
    return ProcessorTestDriver(
        DeltaMerge, settings, name="orders_5", topic=settings, partition=partition, partitions=new,
        outlets={MOVED_ACKS: old},
    )  # fmt: skip


def sent(driver: ProcessorTestDriver) -> list[tuple[int, Record]]:
    """What is sent on: the partition there, and the record."""
    driver.commit()
    return [(number, record) for number in range(NEW) for record in driver.read_output(f"{OUTPUT}@{number}")]


def test_a_plain_record_is_sent_on_as_it_came() -> None:
    """Key, value and headers stay, so that the merge of plain records is as fast as it was."""
    driver = forwarder()
    driver.pipe_input("7", {"id": 7, "a": 1})
    driver.pipe_input("7", None, {"traceparent": "00-1"})
    assert [(number, record.key, record.value, record.headers) for number, record in sent(driver)] == [
        (partition_for(b"7", NEW), b"7", b'{"id":7,"a":1}', []),
        (partition_for(b"7", NEW), b"7", None, [("traceparent", b"00-1")]),
    ]
    assert driver.events == {"forwarded": 2}


def test_partitions_of_an_input_that_grew_wait() -> None:
    """Nothing of a waiting partition is sent on, and its position stays."""
    driver = forwarder(2, waiting=frozenset({2}))
    driver.pipe_input("7", {"id": 7})
    assert sent(driver) == []


def test_a_key_in_another_format_is_a_text_from_then_on() -> None:
    """The new topic's worker takes the key as it is: it is not read twice."""
    driver = forwarder(key_format="int")
    driver.pipe_input(struct.pack(">i", 7), {"id": 7})
    ((number, record),) = sent(driver)
    assert (number, record.key) == (partition_for(b"7", NEW), b"7")
    new = merger(number, key_format="int")
    new.pipe_input(record.key, json.loads(record.value or b""), record.headers)
    new.commit()
    assert [row.key for row in new.read_output("sow")] == [b"7"]
    assert not new.rejections


@pytest.mark.parametrize(
    ("key", "headers", "reason"),
    [
        (None, {"command": "sow_delete", "filter": "/a = 1"}, "moved"),
        ("7", {"command": "sow_delete", "expect_version": "3", "source": "orders.publish/heal"}, "moved"),
    ],
    ids=["delete by filter", "heal"],
)
def test_a_command_for_the_records_of_one_partition_is_refused(
    key: str | None, headers: dict[str, str], reason: str
) -> None:
    """It would be for other records there: its publisher hears of it, and it is a dead letter."""
    driver = forwarder()
    driver.pipe_input(key, None, headers | {"ack_type": "persisted", "client": "desk", "command_id": "c"})
    assert sent(driver) == []
    assert driver.rejections == {reason: 1}
    (ack,) = driver.read_output("ack")
    assert b"orders_5" in (ack.value or b"")


def test_acks_go_where_the_publisher_waits() -> None:
    """The ack of a forwarded command is sent to the old topic's acks, that of another one to the own."""
    driver = forwarder(1)
    headers = {"ack_type": "persisted", "client": "desk", "sequence": "1", "command_id": "c"}
    driver.pipe_input("7", {"id": 7}, headers)
    ((number, record),) = sent(driver)
    new = merger(number)
    new.pipe_input("7", {"id": 7}, record.headers)
    new.pipe_input("7", {"id": 7}, headers | {"client": "other"})
    new.commit()
    acks = [new.read_output(f"{MOVED_ACKS}@{place}") for place in range(OLD)]
    assert [len(each) for each in acks] == [0, 1, 0]
    assert len(new.read_output("ack")) == 1


@pytest.mark.parametrize(("old", "new"), [(3, 5), (5, 2)])
@pytest.mark.parametrize("seed", range(8))
def test_numbered_commands_are_merged_once_whatever_the_interleaving(seed: int, old: int, new: int) -> None:
    """One publisher numbers its commands over all keys, repeats some and leaves out keys: each counts once, in order.

    The old partitions are forwarded in any interleaving; what a partition has is forwarded in its order.
    """
    rng = random.Random(seed)
    keys = [f"{number}" for number in range(12)]
    places = {key: (partition_for(key.encode(), old) if rng.random() < 0.7 else rng.randrange(old)) for key in keys}
    keyless = {key for key in keys if rng.random() < 0.3}
    logs: defaultdict[int, list[tuple[str | None, Any, dict[str, str]]]] = defaultdict(list)
    wanted: dict[str, dict[str, Any]] = {}
    for sequence in range(150):
        key = rng.choice(keys)
        body = {"id": key, "total": 1, "n": sequence}
        known = wanted.setdefault(key, {"id": key, "total": 0, "n": 0})
        known["total"], known["n"] = known["total"] + 1, sequence
        command = (None if key in keyless else key, body, {"client": "desk", "sequence": f"{sequence}"})
        logs[places[key]] += [command] * (2 if rng.random() < 0.2 else 1)
    olds = {number: forwarder(number, old=old, new=new, **SUMS) for number in range(old)}
    news = [merger(number, old=old, new=new, **SUMS) for number in range(new)]
    for each in olds.values():
        each.on_commit = partial(_deliver, news)
    for each in news:
        each.on_commit = partial(_rekey, news)
    for log in logs.values():
        log.reverse()
    while waiting := [number for number, log in logs.items() if log]:
        number = rng.choice(waiting)
        olds[number].pipe_input(*logs[number].pop())
        olds[number].commit()
    records: dict[str, Any] = {}
    for each in news:
        records |= {(row.key or b"").decode(): json.loads(row.value or b"null") for row in each.read_output("sow")}
    assert records == wanted


def _deliver(news: list[ProcessorTestDriver], committed: Mapping[str, list[Record]]) -> None:
    """Bring what was sent on to the partitions of the new topic."""
    for output, records in committed.items():
        if output.startswith(f"{OUTPUT}@"):
            _take(news[int(output.partition("@")[2])], records)


def _rekey(news: list[ProcessorTestDriver], committed: Mapping[str, list[Record]]) -> None:
    """Bring records to the partitions of the keys that were found for them."""
    for record in committed.get("publish", ()):
        _take(news[partition_for(record.key or b"", len(news))], [record])


def _take(new: ProcessorTestDriver, records: list[Record]) -> None:
    for record in records:
        new.pipe_input(record.key, json.loads(record.value or b"null"), record.headers)
    new.commit()
