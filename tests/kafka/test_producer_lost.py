"""A producer with a fatal error, which may be raised by any call that serves callbacks."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from processor.errors import ProducerLost
from processor.kafka.producers import staged_producer, transactional_producer
from processor.kafka.producers.staged_producer import StagedProducer
from processor.kafka.producers.transactional_producer import TransactionalProducer

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


@pytest.mark.parametrize("is_before", [False, True])
def test_the_end_of_a_producer_without_transactions_costs_no_more(monkeypatch, is_before):
    """A fatal error of a producer without transactions commits no offset; the thread starts again."""
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
