"""Tests that a broker accepts the unreadable batch, and librdkafka cannot decompress it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.endtoend.raw_batch import batch, crc32c, produce, produce_unreadable, xxh32

if TYPE_CHECKING:
    from tests.endtoend.world import World


def test_checksums_are_those_of_the_specifications() -> None:
    """Known values of less than 16 bytes, and of more, agree."""
    assert (xxh32(b""), xxh32(b"abc")) == (0x02CC5D05, 0x32D153FF)
    assert xxh32(b"Nobody inspects the spammish repetition") == 0xE2293B2F
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.broker
def test_a_wrong_checksum_in_a_frame_is_taken_by_the_broker_and_refused_by_the_client(world: World) -> None:
    """The same batch without the flaw is read."""
    topic = f"{world.name}.publish"
    values = [b'{"id":%d}' % number for number in range(3)]
    assert produce(world.bootstrap, topic, 0, batch(values, checksum_flaw=0)) == 0
    assert produce_unreadable(world.bootstrap, topic, 0, values) == 3
    consumer = Consumer({"bootstrap.servers": world.bootstrap, "group.id": world.name})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(4, 120)
    consumer.close()
    assert [message.value() for message in messages[:3]] == values
    error = messages[3].error()
    assert error is not None
    assert error.code() == KafkaError._BAD_COMPRESSION
