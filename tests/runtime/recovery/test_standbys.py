"""Tests of standbys: they contain committed records, are handed over as they are, and block no directory."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from processor.errors import BrokerUnavailable, StateDamaged, StateLocked
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import LogReader, ReadResult
from processor.runtime.recovery import standbys
from processor.runtime.recovery.standbys import Standbys
from processor.store.layered_state import LayeredState
from processor.store.rocksdb import RocksStore
from processor.store.rocksdb_memory import RocksMemory
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.broker
DAY_S = 86_400  # How long deletes stay in a topic, as shipped.


class Shelf:
    """A SOW topic of two partitions with one record each, and a worker that keeps standbys of them."""

    def __init__(self, bootstrap: str, directory: Path, name: str) -> None:
        self.kafka = {"bootstrap.servers": bootstrap}
        self.topic = f"{name}.sow"
        self.directory = directory
        self.opening: Callable[[int], None] = lambda partition: None
        """Called before a directory is opened; it may raise."""
        self._memory = RocksMemory(1 << 20)
        self.admin = Admin(self.kafka)
        client = AdminClient(self.kafka | {"log_level": 0})
        client.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result()
        # A log record that a test keeps may keep the producer until after its broker has ended.
        self.producer = Producer({**self.kafka, "transactional.id": name, "linger.ms": 0, "log_level": 0})
        self.producer.init_transactions(PATIENCE_S)
        self.write({b"a": b"1"})
        self.standbys = Standbys(
            processor=name,
            sow=self.topic,
            group_watcher=None,
            admin=self.admin,
            open_reader=partial(LogReader, self.kafka, group=name),
            open_state=self.open,
        )

    def open(self, partition: int) -> LayeredState:
        """Open the state of a partition."""
        self.opening(partition)
        store = RocksStore(self.directory / str(partition), identity=f"{self.topic}/{partition}", memory=self._memory)
        return LayeredState(store, cache_bytes=1 << 20)

    def write(self, records: dict[bytes, bytes | None], *, commit: bool = True) -> None:
        """Write one transaction, the same to both partitions; None is a tombstone."""
        self.producer.begin_transaction()
        for partition in (0, 1):
            for key, value in records.items():
                headers = None if value is None else {"version": b"1"}
                self.producer.produce(self.topic, value, key, partition, headers=headers)
        self.producer.flush(PATIENCE_S)
        before = self.admin.end_offsets(self.topic, (0, 1))
        (self.producer.commit_transaction if commit else self.producer.abort_transaction)(PATIENCE_S)

        def has_markers() -> bool:
            ends = self.admin.end_offsets(self.topic, (0, 1))
            return all(end > before[partition] for partition, end in ends.items())

        until(has_markers, "the markers, which come after the call has returned")

    def advance_to_end(self, *partitions: int) -> None:
        """Advance until these standbys are complete."""
        ends = self.admin.end_offsets(self.topic, partitions)

        def is_complete() -> bool:
            self.standbys.update(partitions, ())  # Again, if Kafka has not answered in time.
            self.standbys.advance()
            return all(self.position(partition) >= end for partition, end in ends.items())

        until(is_complete, f"{ends}", pause_s=0)

    def advance_until_given_up(self) -> None:
        """Advance until the standby of partition 0 is given up."""
        until(lambda: self.standbys.advance() or self.position(0) < 0, "the end of a standby", pause_s=0)

    def position(self, partition: int) -> int:
        """Return the position of a standby; -1 if there is none."""
        kept = self.standbys._kept.get(partition)
        return -1 if kept is None else kept.state.position


@pytest.fixture
def shelf(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[Shelf]:
    """Create a topic and a worker for one test."""
    created = Shelf(bootstrap, tmp_path, unique)
    yield created
    created.standbys.close()
    created.admin.delete([created.topic])


def held(state: LayeredState) -> dict[bytes, bytes]:
    """Read the keys of these tests from a state."""
    return {key: stored.value for key, stored in state.get_many([b"a", b"b", b"c"]).items() if stored is not None}


def test_a_standby_has_the_committed_records_only(shelf: Shelf) -> None:
    """Inserts, updates and deletes arrive, but no record of an aborted transaction."""
    shelf.standbys.update({0}, ())
    shelf.advance_to_end(0)
    shelf.write({b"a": b"2", b"b": b"1"})
    shelf.write({b"a": b"rolled back", b"c": b"rolled back"}, commit=False)
    shelf.write({b"b": None})
    shelf.advance_to_end(0)
    state = shelf.standbys.take(0)
    assert state is not None
    assert held(state) == {b"a": b"2"}
    assert state.position == shelf.admin.end_offsets(shelf.topic, [0])[0]
    state.close(0)


def test_a_state_that_was_handed_over_is_left_to_its_owner(shelf: Shelf) -> None:
    """Other standbys go on, and the partition may become a standby again."""
    for _ in range(2):
        shelf.standbys.update({0, 1}, ())
    shelf.advance_to_end(0, 1)
    state = shelf.standbys.open_state(0)
    position = state.position
    shelf.standbys.update({1}, {0})
    shelf.write({b"a": b"2"})
    shelf.advance_to_end(1)
    assert state.position == position
    assert held(state) == {b"a": b"1"}
    state.close(0)
    shelf.advance_to_end(0, 1)


def test_a_standby_of_an_owned_partition_waits_to_be_taken(shelf: Shelf) -> None:
    """Between assignment and opening it is neither closed nor opened twice."""
    shelf.standbys.update({0}, ())
    shelf.advance_to_end(0)
    shelf.standbys.update((), {0})
    state = shelf.standbys.take(0)
    assert state is not None
    shelf.standbys.update({0}, {0})
    assert shelf.position(0) == -1
    state.close(0)


def test_a_standby_that_is_not_needed_is_closed_at_once(shelf: Shelf) -> None:
    """Its directory is free for another process, and its records are not read any more."""
    shelf.standbys.update({0}, ())
    shelf.advance_to_end(0)
    with pytest.raises(StateLocked):
        shelf.open(0)
    shelf.standbys.update((), ())
    state = shelf.open(0)
    assert held(state) == {b"a": b"1"}
    assert state.position == shelf.admin.end_offsets(shelf.topic, [0])[0]
    state.close(0)


def test_a_directory_that_is_in_use_is_left_alone(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the owner is a process on the same disk, other standbys go on, and the next try comes after a pause."""
    monkeypatch.setattr(standbys, "_PAUSE_S", 3600.0)
    owners = shelf.open(0)

    def has_met_the_lock() -> bool:
        shelf.standbys.update({0, 1}, ())  # Again, if Kafka has not answered in time: the pause is a short one then.
        return shelf.position(1) >= 0 and shelf.standbys._paused[0] > time.monotonic() + 600

    until(has_met_the_lock, "a standby")
    owners.close(0)
    shelf.standbys.update({0, 1}, ())
    assert (shelf.position(0), shelf.position(1) >= 0) == (-1, True)


@pytest.mark.parametrize("error", [BrokerUnavailable("no answer"), StateLocked("taken")])
def test_an_error_in_opening_does_not_reach_the_thread(shelf: Shelf, error: Exception) -> None:
    """The standby is tried again later."""

    def refuse(partition: int) -> None:
        raise error

    shelf.opening = refuse
    shelf.standbys.update({0}, ())
    assert shelf.position(0) == -1


def test_a_damaged_standby_is_wiped_and_given_up(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next standby begins with an empty state, and the worker goes on."""
    shelf.standbys.update({0}, ())
    shelf.advance_to_end(0)
    kept = shelf.standbys._kept[0]
    failing = iter([StateDamaged("a bit flipped")])

    def damaged(*given: object) -> None:
        raise next(failing)

    monkeypatch.setattr(kept.state.store, "apply", damaged)
    shelf.write({b"b": b"1"})
    shelf.advance_until_given_up()
    state = shelf.open(0)
    assert (held(state), state.position) == ({}, 0)
    state.close(0)


def test_a_standby_that_may_have_missed_deletes_is_wiped(shelf: Shelf) -> None:
    """A standby that lags for longer than the retention of deletes is wiped."""
    shelf.standbys.update({0}, ())
    shelf.advance_to_end(0)
    shelf.standbys._kept[0].current_s -= DAY_S + 1
    shelf.write({b"b": b"1"})
    shelf.advance_until_given_up()
    state = shelf.open(0)
    assert state.position == 0
    state.close(0)


def test_a_quiet_standby_stays_young(shelf: Shelf) -> None:
    """A complete standby without new records confirms its age, so that it is not wiped as stale."""
    shelf.standbys.update({0}, ())
    shelf.advance_to_end(0)
    shelf.standbys.advance()
    kept = shelf.standbys._kept[0]
    written_ms = kept.state.store.progress().applied_at_ms
    shelf.standbys._confirm_s, kept.current_s = 0.0, kept.current_s - DAY_S / 2
    shelf.standbys.advance()
    assert kept.state.store.progress().applied_at_ms > written_ms
    assert time.time() - kept.current_s < DAY_S / 4


def test_a_standby_of_a_busy_partition_stays_young(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka reports no end of a partition while records come without a pause: a new record is the sign of its age."""
    shelf.standbys.update({0}, ())
    shelf.advance_to_end(0)
    kept, reader = shelf.standbys._kept[0], shelf.standbys._reader
    assert reader is not None
    read = reader.read
    monkeypatch.setattr(reader, "read", lambda *limits: ReadResult(read(*limits).messages, []))
    kept.current_s -= DAY_S / 2
    shelf.write({b"b": b"1"})
    until(lambda: shelf.standbys.advance() or b"b" in held(kept.state), "the record", pause_s=0)
    assert time.time() - kept.current_s < DAY_S / 4
