"""The producer is replaced after a transaction with requests that may have been sent twice (KAFKA-17754)."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from processor.errors import Stop
from processor.kafka.admin.admin import Admin
from processor.kafka.clients import transactional_producer
from processor.kafka.clients.log_reader import LogReader
from processor.kafka.clients.transactional_producer import TransactionalProducer
from processor.topics.family import TopicSpec
from tests.waiting import PATIENCE_S, next_message, until

pytestmark = pytest.mark.broker


class Writer:
    """A producer on a topic of its own, whose connections can be cut."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.kafka = {"bootstrap.servers": bootstrap}
        Admin(self.kafka).create([TopicSpec(topic, "publish", 1, {})])
        self.calls: list[str] = []
        self._reader = LogReader(self.kafka, group=topic)
        others = _connections(bootstrap)
        self.producer = TransactionalProducer(
            self.kafka,
            transactional_id=topic,
            transaction_timeout_s=60.0,
            blocked=lambda call, _: self.calls.append(call),
        )
        self.producer.start()
        self._others = others

    def send(self, value: bytes) -> None:
        """Send one record in the open transaction."""
        self.producer.send(self.topic, 0, [(None, value, [])])

    def commit(self) -> None:
        """Commit, with an input offset of a group without members."""
        self.producer.commit(self.topic, {0: 1}, self._reader.group_metadata())

    def cut(self) -> None:
        """Break the producer's connections, as a network would."""
        mine = [
            number
            for local, number in _connections(self.kafka["bootstrap.servers"]).items()
            if local not in self._others
        ]
        assert mine
        for number in mine:
            # librdkafka may have closed it meanwhile: that is a break too.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                connection.shutdown(socket.SHUT_RDWR)

    def read(self) -> list[bytes]:
        """Every committed record, once the marker of the last commit is there."""
        admin = Admin(self.kafka)

        def is_stable() -> bool:
            stable = admin.ask_offsets(self.topic, [0], "stable_end")
            with contextlib.suppress(Stop):  # No answer in time.
                return {0: stable[0].answer()} == admin.end_offsets(self.topic, [0])
            return False

        until(is_stable, "the marker of the last transaction")
        reader = Consumer(
            {**self.kafka, "group.id": "reader", "isolation.level": "read_committed", "enable.partition.eof": True}
        )
        reader.assign([TopicPartition(self.topic, 0, 0)])
        values: list[bytes] = []
        while (message := next_message(reader)).error() is None:
            values.append(message.value())
        reader.close()
        return values

    def close(self) -> None:
        """Close everything."""
        self.producer.close()
        self._reader.close()
        Admin(self.kafka).delete([self.topic])


def _connections(bootstrap: str) -> dict[int, int]:
    """This process' connections to a broker: local port and file number."""
    port = int(bootstrap.rpartition(":")[2])
    found = {}
    for number in [int(file.name) for file in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # Closed meanwhile, or not connected.
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as connection:
                    if connection.family == socket.AF_INET and connection.getpeername()[1] == port:
                        found[connection.getsockname()[1]] = number
    return found


@pytest.fixture
def writer(bootstrap: str, unique: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writer]:
    """A started producer."""
    monkeypatch.setattr(transactional_producer, "_SLOW_S", 600.0)  # A slow commit costs the producer.
    made = Writer(bootstrap, f"{unique}.publish")
    yield made
    made.close()


def test_an_undisturbed_producer_stays(writer):
    """A producer without trouble stays over commits and aborts; every call is reported with its duration."""
    for value in (b"a", b"b"):
        writer.send(value)
        writer.commit()
        writer.send(b"dropped")
        writer.producer.abort()
    assert writer.producer.renewals == 0
    assert writer.calls == ["init", *(["begin", "send_offsets", "commit", "begin", "abort"] * 2)]
    assert writer.read() == [b"a", b"b"]


def send_late(producer, topic):
    """Send in a transaction with an old epoch."""
    producer.begin_transaction()
    producer.produce(topic, b"late", partition=0)
    producer.commit_transaction(PATIENCE_S)


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_connection_that_breaks_during_a_transaction_costs_the_producer(writer, end):
    """A connection that breaks during a transaction costs the producer; a late copy of a request has an old epoch."""
    writer.send(b"a")
    writer.commit()
    writer.send(b"b")
    former = writer.producer._producer
    writer.cut()
    if end == "commit":
        writer.commit()
    else:
        writer.producer.abort()
    # An abort that the broker receives twice fails the second time, and a failed abort leads to a new producer anyway.
    renewals = writer.producer.renewals
    assert renewals == 1 or end == "abort"
    assert writer.producer._producer is not former
    # A producer whose abort was received twice may fail to begin.
    with pytest.raises(KafkaException, match="fenced" if end == "commit" else "fenced|invalid state"):
        send_late(former, writer.topic)
    with contextlib.suppress(KafkaException):
        former.poll(0)
    writer.send(b"c")
    writer.commit()
    assert writer.producer.renewals == renewals, "what broke before the new producer is forgotten"
    assert writer.read() == ([b"a", b"b", b"c"] if end == "commit" else [b"a", b"c"])


def test_a_slow_commit_costs_the_producer(writer, monkeypatch):
    """A slow commit costs the producer, as it may have been sent twice; in this test every commit counts as slow."""
    monkeypatch.setattr(transactional_producer, "_SLOW_S", 0.0)
    writer.send(b"a")
    writer.commit()
    assert writer.producer.renewals == 1
    assert writer.read() == [b"a"]
