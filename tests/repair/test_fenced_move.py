"""A move that cannot begin: the writer of the fence leaves nothing open."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from processor.config.kafka_names import KafkaNames
from processor.errors import Stop
from processor.repair.fenced_move import FencedMove

if TYPE_CHECKING:
    from processor.kafka.clients.log_reader import LogReader
    from processor.kafka.clients.transactional_producer import TransactionalProducer


class Connection:
    """A connection that notes its end."""

    def __init__(self, problem: str = "") -> None:
        self._problem = problem
        self.is_closed = False

    def start(self) -> None:
        """Fail, as where Kafka does not answer."""
        raise Stop(self._problem)

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


def test_a_move_that_cannot_fence_earlier_ones_closes_its_connections() -> None:
    """A producer that stays open would go on asking Kafka until the end of the process."""
    move = FencedMove(
        {"bootstrap.servers": "127.0.0.1:9"},
        KafkaNames(),
        "sowstream",
        "orders",
        1,
        group="sowstream.orders",
        command="resharding",
        producer="reshard",
        transaction_timeout_s=10.0,
        remedy="",
    )
    move._reader.close()
    producer, reader = Connection("no coordinator"), Connection()
    move._producer = cast("TransactionalProducer", producer)
    move._reader = cast("LogReader", reader)
    with pytest.raises(Stop, match="no coordinator"), move:
        pytest.fail("the move begins without its fence")
    assert (producer.is_closed, reader.is_closed) == (True, True)
