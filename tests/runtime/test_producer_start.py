"""A start of the producer while Kafka is away."""

from __future__ import annotations

import socket
import time

import pytest

from processor.errors import BrokerUnavailable
from processor.kafka import transactional_producer
from processor.kafka.transactional_producer import TransactionalProducer


def test_a_worker_that_is_told_to_stop_waits_for_no_broker(monkeypatch):
    """It gives up after the try at hand, not after the half minute it would wait else."""
    monkeypatch.setattr(transactional_producer, "_CALL_TIMEOUT_S", 0.1)
    asked = []
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # Not listening: whoever connects is refused.
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
        assert time.monotonic() - began_s < 10
        producer.close()
