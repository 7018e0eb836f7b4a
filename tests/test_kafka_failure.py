"""What Kafka's errors mean for us."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from processor.errors import ConfigurationError, ProducerLost, Stop
from processor.kafka import failure


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError._TRANSPORT,
    ],
)
def test_a_broker_that_restarts_does_not_stop_a_reader(code):
    """Leaders and coordinators move; librdkafka gets over it, though it does not call these errors retriable."""
    assert failure.passes(KafkaError(code))


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, Stop),
        (KafkaError.POLICY_VIOLATION, Stop),
        (KafkaError._UNKNOWN_TOPIC, ConfigurationError),
        (KafkaError._UNKNOWN_PARTITION, ConfigurationError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ConfigurationError),
        (KafkaError._FENCED, ProducerLost),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, ProducerLost),
    ],
)
def test_only_what_may_go_well_the_next_time_is_tried_again(code, meaning):
    """A transaction that Kafka refuses for good would be rolled back and tried for ever."""
    assert type(failure.in_transaction(KafkaException(KafkaError(code)), "committing")) is meaning
