"""The start of the producer while Kafka is away."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from processor.errors import BrokerUnavailable
from processor.kafka import outage
from processor.kafka.admin.admin import Admin
from processor.kafka.producers import staged_producer, transactional_producer
from processor.kafka.producers.staged_producer import StagedProducer
from processor.kafka.producers.transactional_producer import TransactionalProducer
from processor.topics.family import TopicSpec
from tests.programs.faults.broker.broker import Broker
from tests.programs.faults.broker.proxy import Proxy


def test_a_worker_that_is_told_to_stop_waits_for_no_broker(monkeypatch):
    """A worker that is stopped during a start gives up after the present try, not after half a minute."""
    monkeypatch.setattr(transactional_producer, "_CALL_TIMEOUT_S", 0.1)
    asked = []
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # Not listening: connections are refused.
        producer = TransactionalProducer(
            {"bootstrap.servers": f"127.0.0.1:{nobody.getsockname()[1]}"},
            transactional_id="t",
            transaction_timeout_s=30.0,
            is_stopping=lambda: bool(asked.append(1)) or len(asked) == 3,
        )
        began_s = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="starting the producer t: Kafka does not answer"):
            producer.start()
        assert len(asked) == 3
        assert time.monotonic() - began_s < 29
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


@pytest.mark.broker
def test_a_transaction_that_is_open_at_the_end_is_rolled_back_at_once(bootstrap: str, unique: str) -> None:
    """Closing rolls an open transaction back at once: readers need not wait until the broker does."""
    kafka, topic = {"bootstrap.servers": bootstrap}, f"{unique}.sow"
    admin = Admin(kafka)
    admin.create([TopicSpec(topic, "sow", 1, {})])
    producer = TransactionalProducer(kafka, transactional_id=unique, transaction_timeout_s=60.0)
    producer.start()
    producer.send(topic, 0, [(b"k", b"v", [])])
    producer.close()
    end = admin.end_offsets(topic, [0])
    assert admin.ask_offsets(topic, [0], "stable_end").wait() == end
    admin.delete([topic])
