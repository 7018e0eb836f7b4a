"""What Kafka's errors mean for us."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from processor.errors import (
    BrokerUnavailable,
    ConfigurationError,
    OutputTooLarge,
    ProducerLost,
    Stop,
    TransactionAborted,
)
from processor.kafka import errors as kafka_errors


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError._TRANSPORT,
    ],
)
def test_a_broker_that_restarts_does_not_stop_a_reader(code):
    """Leaders and coordinators move; librdkafka gets over it, though it does not call these errors retriable."""
    assert kafka_errors.passes(KafkaError(code))


@pytest.mark.parametrize("code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.OFFSET_NOT_AVAILABLE])
def test_a_leader_that_is_changing_is_asked_again(code):
    """One that is new answers only when it knows how far its followers are; whoever gives up on it may come again."""
    assert kafka_errors.is_moved(KafkaError(code))
    assert type(kafka_errors.stop(KafkaError(code), "asking")) is BrokerUnavailable


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, OutputTooLarge),
        (KafkaError.POLICY_VIOLATION, Stop),
        (KafkaError.OFFSET_METADATA_TOO_LARGE, Stop),
        (KafkaError._UNKNOWN_TOPIC, ConfigurationError),
        (KafkaError._UNKNOWN_PARTITION, ConfigurationError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ConfigurationError),
        (KafkaError._FENCED, ProducerLost),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, ProducerLost),
    ],
)
def test_only_what_may_go_well_the_next_time_is_tried_again(code, meaning):
    """A transaction that Kafka refuses for good would be rolled back and tried for ever."""
    assert type(kafka_errors.in_transaction(KafkaException(KafkaError(code)), "committing")) is meaning


@pytest.mark.parametrize(
    ("flags", "meaning"),
    [
        ({"retriable": True}, ProducerLost),
        ({"txn_requires_abort": True}, TransactionAborted),
        ({"fatal": True}, ProducerLost),
        ({"fatal": True, "txn_requires_abort": True}, ProducerLost),
        ({}, ProducerLost),
    ],
)
def test_librdkafkas_flags_decide_whether_the_producer_stays(flags, meaning):
    """It does only where an abort is asked for; what the caller could not repeat in time is not known."""
    error = KafkaError(KafkaError.CONCURRENT_TRANSACTIONS, "said", **flags)
    assert type(kafka_errors.in_transaction(KafkaException(error), "committing")) is meaning


@pytest.mark.parametrize(
    "code", [KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.STALE_MEMBER_EPOCH]
)
def test_a_member_whose_group_has_gone_on_aborts(code):
    """Both protocols: the offsets of a zombie are refused, and a change of the assignment may look the same."""
    error = KafkaError(code, "said", txn_requires_abort=True)
    assert type(kafka_errors.in_transaction(KafkaException(error), "send_offsets")) is TransactionAborted


@pytest.mark.parametrize("code", [KafkaError.FENCED_INSTANCE_ID, KafkaError.UNRELEASED_INSTANCE_ID])
def test_two_processes_of_one_name_are_told_apart_from_other_fatal_errors(code):
    """The reason is hidden in the text of a fatal error."""
    error = KafkaError(KafkaError._FATAL, f"Fatal error: {KafkaError(code).str()}: Fatal consumer error")
    assert kafka_errors.is_unreleased(error) is (code == KafkaError.UNRELEASED_INSTANCE_ID)
    assert "runtime.static_membership" in str(kafka_errors.stop(error, "reading"))
    assert not kafka_errors.is_unreleased(KafkaError(KafkaError._FATAL, "something else"))


def test_brokers_that_are_away_are_not_a_wrong_setting():
    """A supervisor may start the process again after the one, and not after the other."""
    assert type(kafka_errors.stop(KafkaError(KafkaError._TRANSPORT), "reading")) is BrokerUnavailable
    assert type(kafka_errors.stop(KafkaError(KafkaError.UNSUPPORTED_VERSION), "reading")) is ConfigurationError
