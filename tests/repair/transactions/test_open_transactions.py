"""Open transactions: found in the partitions and in the log of transactions, and how they are ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from processor.errors import Stop
from processor.kafka.admin.admin import Admin
from processor.repair.transactions.open_transactions import CLOCKS_MS, are_done_once, decide
from processor.repair.transactions.settlement import Aftermath, KeyInQuestion
from processor.repair.transactions.transaction_admin import CoordinatorState, Marker, OpenProducer
from processor.repair.transactions.transaction_log import (
    Decision,
    OpenRange,
    TransactionLogEntry,
    decisions,
    partition_of,
    read_entry,
)
from tests.endtoend.world import World

if TYPE_CHECKING:
    from pathlib import Path


PLACE = "orders.sow", 1
NOW_MS = 1_000_000
OPEN_RANGE = OpenRange(*PLACE, begin=21, end=23, since_ms=NOW_MS)
PRODUCER = OpenProducer(producer_id=7, epoch=3, coordinator_epoch=-1, begin=21, last_ms=NOW_MS + 50)
DONE = CoordinatorState("CompleteCommit", 7, 4, 10_000, frozenset())
COMMIT = Decision(7, 3, 3, 1, is_commit=True, places=frozenset({PLACE}), decided_ms=NOW_MS + 100)
ABORT = COMMIT._replace(is_commit=False)


def test_what_the_coordinator_committed_is_committed():
    """A transaction that the coordinator committed is committed with its own epoch and a valid coordinator epoch."""
    assert decide(OPEN_RANGE, PRODUCER, DONE, [COMMIT]).marker == Marker(*PLACE, 7, 3, 0, 1, is_commit=True)
    later = PRODUCER._replace(coordinator_epoch=5)
    marker = decide(OPEN_RANGE, later, DONE, [COMMIT]).marker
    assert marker is not None
    assert marker.coordinator_epoch == 5


def test_what_the_coordinator_rolled_back_is_rolled_back():
    """A transaction that the coordinator rolled back is rolled back with the epoch that fenced its producer."""
    marker = decide(OPEN_RANGE, PRODUCER, DONE, [ABORT._replace(marker_epoch=4)]).marker
    assert marker is not None
    assert (marker.is_commit, marker.epoch) == (False, 4)


def test_a_later_transaction_of_the_same_id_decides_nothing():
    """A later transaction of the same id decides nothing: its producer came back, and its end may differ."""
    state = DONE._replace(state="CompleteAbort", epoch=5)
    later = Decision(7, 5, 5, 1, is_commit=False, places=frozenset({PLACE}), decided_ms=NOW_MS + 900)
    elsewhere = ABORT._replace(places=frozenset({("orders.sow", 2)}), decided_ms=NOW_MS + 500)
    marker = decide(OPEN_RANGE, PRODUCER, state, [COMMIT, elsewhere, later]).marker
    assert marker is not None
    assert marker.is_commit


def test_a_decision_from_before_the_records_was_about_others():
    """A decision that is older than the records was about other ones, within the difference of clocks."""
    assert decide(OPEN_RANGE, PRODUCER, DONE, [ABORT._replace(decided_ms=NOW_MS - CLOCKS_MS - 1), COMMIT]).marker
    early = COMMIT._replace(decided_ms=NOW_MS - CLOCKS_MS - 1)
    assert decide(OPEN_RANGE, PRODUCER, DONE, [early]).marker is None


def test_an_abort_shortly_before_was_about_others_where_no_update_was_done_again():
    """An abort shortly before the decision was about other records, if no version among the open ones repeats."""
    both = [ABORT._replace(decided_ms=NOW_MS - 100), COMMIT]
    assert decide(OPEN_RANGE, PRODUCER, DONE, both, are_done_once=lambda: False).marker is None
    marker = decide(OPEN_RANGE, PRODUCER, DONE, both, are_done_once=lambda: True).marker
    assert marker is not None
    assert marker.is_commit


class Message:
    """A record of a SOW or delta topic."""

    def __init__(self, key: bytes, version: int, kind: str = "update"):
        self._key, self._headers = key, [("version", b"%d" % version), ("kind", kind.encode())]

    def key(self):
        """The key."""
        return self._key

    def headers(self):
        """Version and kind."""
        return self._headers

    def value(self):
        """Any value."""
        return b"{}"


@pytest.mark.parametrize(
    ("records", "is_once"),
    [
        ([(b"a", 3), (b"b", 1), (b"a", 4), (b"b", 3)], True),
        ([(b"a", 3), (b"a", 4, "delete"), (b"a", 1, "insert")], True),
        ([(b"a", 3), (b"b", 1), (b"a", 3)], False),
        ([(b"a", 3), (b"a", 4), (b"a", 3)], False),
        ([(b"a", 4, "delete"), (b"a", 4, "delete")], False),
        ([(b"a", 1, "insert"), (b"b", 1, "insert"), (b"a", 1, "insert")], False),
    ],
)
def test_an_update_that_was_done_again_has_its_version_twice(records, is_once):
    """An update that was repeated has its version twice; a record that comes back after a delete starts again."""
    assert are_done_once(Message(*record) for record in records) is is_once


def test_the_end_is_needed_of_an_idle_producer_alone_where_none_has_fenced_it():
    """An idle producer is needed only if no later epoch makes Kafka refuse a late marker."""
    assert not decide(OPEN_RANGE, PRODUCER, DONE, [COMMIT]).needs_idle
    assert decide(OPEN_RANGE, PRODUCER, DONE._replace(epoch=3), [COMMIT]).needs_idle


@pytest.mark.parametrize(
    ("state", "decisions", "why"),
    [
        (None, [], "no coordinator knows"),
        (DONE, [], "no decision"),
        (DONE, [COMMIT._replace(producer_id=8)], "no decision"),
        (DONE, [COMMIT._replace(epoch=2)], "no decision"),
        (DONE, [COMMIT._replace(places=frozenset({("orders.delta", 1)}))], "no decision"),
        (DONE, [COMMIT, ABORT], "a commit and an abort"),
        (DONE._replace(epoch=2), [COMMIT], "another one than wrote here"),
        (DONE._replace(producer_id=9), [COMMIT], "another one than wrote here"),
        (DONE._replace(state="Ongoing", places=frozenset({PLACE})), [COMMIT], "Kafka ends it within 10 s"),
        (DONE._replace(state="PrepareCommit", places=frozenset({PLACE})), [COMMIT], "about to end it"),
    ],
)
def test_what_is_not_known_is_not_touched(state, decisions, why):
    """A transaction with an unknown end is not touched, and the missing fact is named."""
    verdict = decide(OPEN_RANGE, PRODUCER, state, decisions)
    assert verdict.marker is None
    assert why in verdict.why


_PARTITION = 2


def _write(world: World, role: str, records: list[tuple[bytes, int, str]], *, value: bytes | None = b"{}") -> int:
    """Write records of one partition: key, version and kind; returns the offset after them."""
    producer = Producer({"bootstrap.servers": world.bootstrap})
    for key, version, kind in records:
        headers = {"version": str(version), **({"kind": kind} if kind else {})}
        payload = None if kind == "delete" and role == "sow" else value
        producer.produce(f"{world.name}.{role}", payload, key, _PARTITION, headers=headers)
    assert producer.flush(120) == 0
    return Admin(world.config.kafka).end_offsets(f"{world.name}.{role}", [_PARTITION])[_PARTITION]


@pytest.mark.broker
def test_each_key_is_judged_by_its_versions(bootstrap: str, tmp_path: Path, unique: str):
    """A delta that is missing at the end, or in between, is a problem of its key alone."""
    world = World(bootstrap, tmp_path, unique)
    before = [(b"right", 1, "insert"), (b"short", 1, "insert"), (b"gap", 1, "insert"), (b"gone", 1, "insert")]
    begin = _write(world, "sow", before)
    _write(world, "delta", before)
    begin_of_deltas = _write(world, "delta", [])
    end = _write(world, "sow", [(b"right", 2, ""), (b"short", 3, ""), (b"gap", 3, ""), (b"gone", 2, "delete")])
    _write(world, "delta", [(b"right", 2, ""), (b"short", 2, ""), (b"gap", 3, ""), (b"gone", 2, "delete")])
    since_ms = int(time.time() * 1000)
    ranges = [OpenRange(f"{unique}.sow", _PARTITION, begin, end, since_ms)]
    aftermath = Aftermath(world.config, Admin(world.config.kafka), unique, ranges)
    # Versions are not compared in the middle of the next transaction of a worker that goes on.
    _write(world, "sow", [(b"right", 3, "")])
    assert begin_of_deltas == len(before)
    assert aftermath.read_versions() == [
        KeyInQuestion(_PARTITION, b"gap", 3, 3, 3, "a delta for version 2 follows version 1"),
        KeyInQuestion(_PARTITION, b"gone", 0, 0, 0, ""),
        KeyInQuestion(_PARTITION, b"right", 2, 2, 2, ""),
        KeyInQuestion(_PARTITION, b"short", 3, 3, 2, "SOW has version 3, the deltas end with version 2"),
    ]
    world.close()


@pytest.mark.broker
def test_messages_of_a_topic_without_a_sow_have_no_versions(bootstrap: str, tmp_path: Path, unique: str):
    """Messages of a topic without a SOW have no versions; their keys are listed all the same."""
    world = World(bootstrap, tmp_path, unique, sow=False, more={"conflated": {}})
    end = _write(world, "delta", [(b"a", 0, ""), (b"b", 0, "")])
    ranges = [OpenRange(f"{unique}.delta", _PARTITION, 0, end, int(time.time() * 1000))]
    aftermath = Aftermath(world.config, Admin(world.config.kafka), unique, ranges)
    assert [(key.key, key.sow, key.problem) for key in aftermath.read_versions()] == [
        (b"a", None, ""),
        (b"b", None, ""),
    ]
    world.close()


ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE = 1, 2, 3, 4
PLACES = frozenset({("orders.sow", 1)})
# From a real broker: producer 1, epoch 0, PREPARE_COMMIT of four partitions of SOW and delta, and the group's offsets.
SEEN = (
    b"\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x13\x88\x02\x04\x0borders.sow\x05\x00\x00\x00\x03\x00"
    b"\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x00\x00\x13__consumer_offsets\x02\x00\x00\x00\x02\x00\rorders.delta\x05"
    b"\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x01\xa2\x07+!\x83\x00\x00\x01\xa2"
    b"\x07+!\x00\x01\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01"
)


def entry(status: int, epoch: int = 3, producer_id: int = 7) -> TransactionLogEntry:
    """An entry of one producer."""
    return TransactionLogEntry("id", producer_id, epoch, status, PLACES, 1000 * status, 1)


def test_an_entry_of_a_real_broker_is_read():
    """An entry of a real broker is read: producer, epoch, state, partitions and time."""
    read = read_entry("id", SEEN)
    assert (read.producer_id, read.epoch, read.status, read.updated_ms) == (1, 0, PREPARE_COMMIT, 1795416596867)
    assert read.places == {
        *((f"orders.{role}", partition) for role in ("sow", "delta") for partition in range(4)),
        ("__consumer_offsets", 2),
    }
    assert read.transaction_version == 0


def test_the_version_of_the_protocol_is_read_where_it_is_told():
    """The protocol version is read from its tagged field, here after that of the former producer id."""
    tagged = SEEN[:-11] + b"\x02\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01\x02\x02\x00\x02"
    assert read_entry("id", tagged).transaction_version == 2


@pytest.mark.parametrize("value", [b"", SEEN[:40], b"\x00\x02" + SEEN[2:]])
def test_an_entry_that_is_not_understood_is_an_error(value):
    """An entry that is cut off, or of a newer version, is an error: it decides nothing."""
    with pytest.raises(Stop, match="__transaction_state"):
        read_entry("id", value)


def test_a_decision_has_the_epoch_of_the_records_and_that_of_the_markers():
    """A decision has the epoch of the records and that of the markers, which differ after a timeout."""
    entries = [entry(ONGOING), entry(PREPARE_COMMIT), entry(COMPLETE), entry(ONGOING), entry(PREPARE_ABORT, epoch=4)]
    assert list(decisions(entries)) == [
        Decision(7, 3, 3, 1, True, PLACES, 2000),
        Decision(7, 3, 4, 1, False, PLACES, 3000),
    ]


def test_what_another_producer_had_open_says_nothing_of_an_end():
    """The open transaction of a former producer does not affect an end: an id gets a new one after its last epoch."""
    assert [one.epoch for one in decisions([entry(ONGOING, producer_id=6), entry(PREPARE_COMMIT, epoch=0)])] == [0]


@pytest.mark.parametrize(
    ("name", "partitions", "partition"),
    [
        ("", 50, 0),
        ("a", 50, 47),
        ("app-orders.orders.vm-cbc28aa8-0", 4, 1),
        ("grüße", 7, 4),
        ("polygenelubricants", 7, 0),
    ],
)
def test_a_name_has_the_partition_that_java_gives_it(name, partitions, partition):
    """The partition of a transactional id or a group is `abs(hashCode) % partitions`, as in Java."""
    assert partition_of(name, partitions) == partition
