"""The producer: its start while Kafka is away, fatal errors, and its renewal after requests that may have been lost."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from processor.errors import BrokerUnavailable, ProducerLost, Stop
from processor.kafka import outage
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.groups import NO_OFFSET
from processor.kafka.clients import staged_producer, transactional_producer
from processor.kafka.clients.log_reader import LogReader
from processor.kafka.clients.staged_producer import StagedProducer
from processor.kafka.clients.transactional_producer import TransactionalProducer
from processor.topics.family import TopicSpec
from tests.programs.faults.broker.broker import Broker
from tests.programs.faults.broker.proxy import Proxy
from tests.waiting import PATIENCE_S, next_message, until


def test_a_worker_that_is_told_to_stop_waits_for_no_broker(monkeypatch):
    """A worker that is stopped during a start gives up after the present try, not after half a minute."""
    monkeypatch.setattr(transactional_producer, "_CALL_TIMEOUT_S", 0.1)
    asked = []
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # Not listening: connections are refused.
        producer = TransactionalProducer(
            {"bootstrap.servers": f"127.0.0.1:{nobody.getsockname()[1]}"},
            transactional_id="t",
            transaction_timeout_s=600.0,
            is_stopping=lambda: bool(asked.append(1)) or len(asked) == 3,
        )
        with pytest.raises(BrokerUnavailable, match="starting the producer t: Kafka does not answer"):
            producer.start()
        assert len(asked) == 3
        producer.close()


@pytest.mark.broker
@pytest.mark.long
@pytest.mark.parametrize("is_transactional", [True, False])
def test_a_producer_waits_for_kafka_as_long_as_it_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_transactional: bool
) -> None:
    """A start waits as long as Kafka is away, reports to the watchdog, and retries seldom."""
    monkeypatch.setattr(transactional_producer, "_CALL_TIMEOUT_S", 1.0)
    monkeypatch.setattr(staged_producer, "_REACH_TRY_S", 1.0)
    calls: list[str] = []
    with Broker(tmp_path / "broker") as broker, Proxy(broker.proxied_port, broker.target_port) as proxy:
        kafka = {"bootstrap.servers": broker.proxied_bootstrap}
        Admin(kafka).create([TopicSpec("orders.sow", "sow", 1, {})])
        proxy.refuse()
        producer: TransactionalProducer | StagedProducer
        if is_transactional:
            producer = TransactionalProducer(
                kafka, transactional_id="t", transaction_timeout_s=1.0, blocked=lambda call, _: calls.append(call)
            )
        else:
            producer = StagedProducer(
                kafka, later=[["orders.sow"]], session_timeout_s=2.0, blocked=lambda call, _: calls.append(call)
            )
        starting = threading.Thread(target=producer.start)
        starting.start()
        starting.join(35)  # An earlier version gave up after 30 s.
        assert starting.is_alive()
        assert outage.is_away()
        assert 10 < len(calls) < 35 / 0.2
        proxy.admit()
        starting.join(60)
        assert not starting.is_alive()
        assert not outage.is_away()
        producer.send("orders.sow", 0, [(b"k", b"v", [])])
        producer.close()


@pytest.fixture
def transaction(bootstrap: str, unique: str) -> Iterator[tuple[Admin, str, TransactionalProducer]]:
    """An admin client, a topic of two partitions, and a producer with two records for the first in a transaction."""
    kafka, topic = {"bootstrap.servers": bootstrap}, f"{unique}.sow"
    admin = Admin(kafka)
    admin.create([TopicSpec(topic, "sow", 2, {})])
    producer = TransactionalProducer(kafka, transactional_id=unique, transaction_timeout_s=60.0)
    producer.start()
    producer.send(topic, 0, [(b"k", b"v", []), (b"k", b"v", [])])
    yield admin, topic, producer
    producer.close()
    admin.delete([topic])


@pytest.mark.broker
def test_a_transaction_that_is_open_at_the_end_is_rolled_back_at_once(transaction) -> None:
    """Closing rolls an open transaction back at once: readers need not wait until the broker does."""
    admin, topic, producer = transaction
    producer.close()
    end = admin.end_offsets(topic, [0])
    stable = admin.ask_offsets(topic, [0], "stable_end")
    assert {partition: question.answer() for partition, question in stable.items()} == end


@pytest.mark.broker
def test_the_first_offset_of_a_time_may_be_of_an_open_transaction(transaction) -> None:
    """The first offset of a time counts records of open transactions, which a reader up to it would get later."""
    admin, topic, _ = transaction
    until(lambda: admin.end_offsets(topic, [0]) == {0: 2})
    later_ms = round((time.time() + 3600) * 1000)
    assert admin.end_offsets(topic, [0, 1], kind=1) == {0: 0, 1: NO_OFFSET}
    assert admin.end_offsets(topic, [0, 1], kind=later_ms) == {0: NO_OFFSET, 1: NO_OFFSET}


FENCED = KafkaError(KafkaError.PRODUCER_FENCED, "fenced", fatal=True)


class Client:
    """A fake of librdkafka's producer that fails fatally at a chosen moment."""

    made = 0
    is_full = False
    is_lost = False

    def __init__(self, properties: object) -> None:
        type(self).made += 1
        self.is_lost = False

    def init_transactions(self, timeout_s: float) -> None:
        """Succeed."""

    def begin_transaction(self) -> None:
        """Do nothing."""

    def produce(self, *_: object, **__: object) -> None:
        """Accept a record, or have no room for it."""
        if self.is_full:
            raise BufferError

    def purge(self, **_: bool) -> None:
        """Drop the waiting records."""

    def poll(self, timeout_s: float) -> int:
        """Raise a fatal error once, as librdkafka's binding does."""
        if self.is_lost:
            self.is_lost = False
            raise KafkaException(FENCED)
        return 0

    def flush(self, timeout_s: float) -> int:
        """Succeed at once; the fatal error is raised here too."""
        return self.poll(timeout_s)

    def __len__(self) -> int:
        return 0

    def list_topics(self, *_: object) -> None:
        """Succeed, as Kafka answers."""

    def send_offsets_to_transaction(self, *_: object) -> None:
        """Succeed."""

    def commit_transaction(self, timeout_s: float) -> None:
        """Commit; another producer fences this one afterwards."""
        self.is_lost = True


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> TransactionalProducer:
    """A producer that is started."""
    monkeypatch.setattr(transactional_producer, "Producer", Client)
    monkeypatch.setattr(Client, "made", 0)
    made = TransactionalProducer({}, transactional_id="t", transaction_timeout_s=10.0)
    made.start()
    return made


@pytest.mark.parametrize("is_full", [False, True])
def test_the_end_that_is_told_while_records_are_sent_costs_the_producer_only(producer, monkeypatch, is_full):
    """A fatal error during sending costs the producer only: a new one goes on, with or without room for the record."""
    monkeypatch.setattr(Client, "is_full", is_full)
    producer._producer.is_lost = True
    with pytest.raises(ProducerLost, match=r"sending to orders\.sow: .*fenced"):
        producer.send_marked("orders.sow", 0, [(b"key", b"value", [])], print)


def test_the_end_that_is_told_after_a_commit_undoes_nothing(producer):
    """A fatal error after a commit undoes nothing: the state follows, and a new producer goes on."""
    producer.send("orders.delta", 0, [(b"key", b"value", [])])
    producer.commit("orders.publish", {0: 1}, None)
    assert (producer.renewals, Client.made, producer.is_open) == (1, 2, False)


@pytest.mark.parametrize(("commit_s", "settling_s"), [(0.001, 0.008), (0.007, 0.014), (0.05, 0.02)])
def test_kafka_has_a_moment_to_end_a_transaction(producer, monkeypatch, commit_s, settling_s):
    """It begins with a commit, and is longer after a long one; neither before it nor in a transaction does it count."""
    now_s = [0.0]
    monkeypatch.setattr(transactional_producer, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(Client, "commit_transaction", lambda *_: now_s.__setitem__(0, now_s[0] + commit_s))
    assert producer.settling_s == 0.0
    producer.send("orders.delta", 0, [(b"key", b"value", [])])
    producer.commit("orders.publish", {0: 1}, None)
    assert producer.settling_s == pytest.approx(settling_s)
    producer.send("orders.delta", 0, [(b"key", b"value", [])])
    assert producer.settling_s == 0.0


@pytest.mark.parametrize("is_before", [False, True])
def test_the_end_of_a_producer_without_transactions_costs_no_more(monkeypatch, is_before):
    """A fatal error of a producer without transactions commits no offset; the thread starts again."""
    monkeypatch.setattr(staged_producer, "Producer", Client)
    commits: list[None] = []
    producer = StagedProducer({}, later=[["orders.sow"]], session_timeout_s=10.0)
    producer.start()
    try:
        producer._producer.is_lost = is_before
        producer.send("orders.delta", 0, [(b"key", b"value", [])])
        producer._producer.is_lost = not is_before
        with pytest.raises(ProducerLost, match="fenced"):
            producer.begin_commit(lambda: commits.append(None))
        assert commits == []
    finally:
        producer.close()


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


@pytest.mark.broker
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


@pytest.mark.broker
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


@pytest.mark.broker
def test_a_slow_commit_costs_the_producer(writer, monkeypatch):
    """A slow commit costs the producer, as it may have been sent twice; in this test every commit counts as slow."""
    monkeypatch.setattr(transactional_producer, "_SLOW_S", 0.0)
    writer.send(b"a")
    writer.commit()
    assert writer.producer.renewals == 1
    assert writer.read() == [b"a"]
