"""A producer that librdkafka gives up: the news of it may come at any call that serves callbacks."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from processor.errors import ProducerLost
from processor.kafka.producers import staged_producer, transactional_producer
from processor.kafka.producers.staged_producer import StagedProducer
from processor.kafka.producers.transactional_producer import TransactionalProducer

FENCED = KafkaError(KafkaError.PRODUCER_FENCED, "fenced", fatal=True)


class Client:
    """What librdkafka's producer does as far as it is needed here, with the moment of its end chosen."""

    made = 0
    is_full = False
    is_lost = False

    def __init__(self, properties: object) -> None:
        type(self).made += 1
        self.is_lost = False

    def init_transactions(self, timeout_s: float) -> None:
        """Nobody is in the way."""

    def begin_transaction(self) -> None:
        """Nothing to do."""

    def produce(self, *_: object, **__: object) -> None:
        """Take a record, or have no room for it."""
        if self.is_full:
            raise BufferError

    def purge(self, **_: bool) -> None:
        """Drop what waits."""

    def poll(self, timeout_s: float) -> int:
        """Raise a fatal error that nobody has heard of, once, as librdkafka's binding does."""
        if self.is_lost:
            self.is_lost = False
            raise KafkaException(FENCED)
        return 0

    def flush(self, timeout_s: float) -> int:
        """Nothing waits; the error is told here too."""
        return self.poll(timeout_s)

    def __len__(self) -> int:
        return 0

    def list_topics(self, *_: object) -> None:
        """Kafka answers."""

    def send_offsets_to_transaction(self, *_: object) -> None:
        """Taken."""

    def commit_transaction(self, timeout_s: float) -> None:
        """Committed; and then somebody fences us."""
        self.is_lost = True


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> TransactionalProducer:
    """One that is started."""
    monkeypatch.setattr(transactional_producer, "Producer", Client)
    monkeypatch.setattr(Client, "made", 0)
    made = TransactionalProducer({}, transactional_id="t", transaction_timeout_s=10.0)
    made.start()
    return made


@pytest.mark.parametrize("is_full", [False, True])
def test_the_end_that_is_told_while_records_are_sent_costs_the_producer_only(producer, monkeypatch, is_full):
    """The thread begins again with a new one, and goes on, whether or not there is room for the record."""
    monkeypatch.setattr(Client, "is_full", is_full)
    producer._producer.is_lost = True
    with pytest.raises(ProducerLost, match=r"sending to orders\.sow: .*fenced"):
        producer.send_marked("orders.sow", 0, [(b"key", b"value", [])], print)


def test_the_end_that_is_told_after_a_commit_undoes_nothing(producer):
    """Kafka has said that it is committed: the state follows, and a new producer goes on."""
    producer.send("orders.delta", 0, [(b"key", b"value", [])])
    producer.commit("orders.publish", {0: 1}, None)
    assert (producer.renewals, Client.made, producer.is_open) == (1, 2, False)


@pytest.mark.parametrize("is_before", [False, True])
def test_the_end_of_a_producer_without_transactions_costs_no_more(monkeypatch, is_before):
    """Told while records are sent or while they are waited for: no offset is committed, and the thread begins again."""
    monkeypatch.setattr(staged_producer, "Producer", Client)
    offsets: list[object] = []
    producer = StagedProducer({}, later=[["orders.sow"]], session_timeout_s=10.0)
    producer.commit_offsets = offsets.append
    producer.start()
    try:
        producer._producer.is_lost = is_before
        producer.send("orders.delta", 0, [(b"key", b"value", [])])
        producer._producer.is_lost = not is_before
        with pytest.raises(ProducerLost, match="fenced"):
            producer.begin_commit("orders.publish", {0: 1}, None)
        assert offsets == []
    finally:
        producer.close()
