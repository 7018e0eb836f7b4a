"""The mapping of Kafka's errors to ours."""

from datetime import UTC, datetime

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
    """A restarting broker does not stop a reader: librdkafka recovers from these errors by itself."""
    assert kafka_errors.passes(KafkaError(code))


@pytest.mark.parametrize("code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.OFFSET_NOT_AVAILABLE])
def test_a_leader_that_is_changing_is_asked_again(code):
    """A new leader answers only when it knows the offsets of its followers; a request that it refused is repeated."""
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
    """Only an error that may pass is retried: a transaction that Kafka refuses for good would be repeated for ever."""
    assert type(kafka_errors.in_transaction(KafkaException(KafkaError(code)), "committing")) is meaning


def test_a_refused_timestamp_names_the_clock():
    """Kafka says "Invalid timestamp" only: the message names the clock that is wrong, and its time."""
    before = datetime.now(UTC)
    error = kafka_errors.in_transaction(KafkaException(KafkaError(KafkaError.INVALID_TIMESTAMP)), "commit (orders.0)")
    assert any(f"{moment:%Y-%m-%d}" in str(error) for moment in (before, datetime.now(UTC)))
    assert "by the clock of this machine" in str(error)


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
    """The producer stays only if librdkafka asks for an abort; the outcome of a call that timed out is unknown."""
    error = KafkaError(KafkaError.CONCURRENT_TRANSACTIONS, "said", **flags)
    assert type(kafka_errors.in_transaction(KafkaException(error), "committing")) is meaning


@pytest.mark.parametrize(
    "code", [KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.STALE_MEMBER_EPOCH]
)
def test_a_member_whose_group_has_gone_on_aborts(code):
    """A member with an outdated assignment aborts, in both protocols: its offsets are refused."""
    error = KafkaError(code, "said", txn_requires_abort=True)
    assert type(kafka_errors.in_transaction(KafkaException(error), "send_offsets")) is TransactionAborted


@pytest.mark.parametrize("code", [KafkaError.FENCED_INSTANCE_ID, KafkaError.UNRELEASED_INSTANCE_ID])
def test_two_processes_of_one_name_are_told_apart_from_other_fatal_errors(code):
    """A second process of the same name is recognised by the text of a fatal error."""
    error = KafkaError(KafkaError._FATAL, f"Fatal error: {KafkaError(code).str()}: Fatal consumer error")
    assert kafka_errors.is_unreleased(error) is (code == KafkaError.UNRELEASED_INSTANCE_ID)
    assert "runtime.static_membership" in str(kafka_errors.stop(error, "reading"))
    assert not kafka_errors.is_unreleased(KafkaError(KafkaError._FATAL, "something else"))


def test_brokers_that_are_away_are_not_a_wrong_setting():
    """Absent brokers and wrong settings are different errors: a restart of the process helps against the first only."""
    assert type(kafka_errors.stop(KafkaError(KafkaError._TRANSPORT), "reading")) is BrokerUnavailable
    assert type(kafka_errors.stop(KafkaError(KafkaError.UNSUPPORTED_VERSION), "reading")) is ConfigurationError


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "lacks a right to the topic"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "lacks a right to the consumer group"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "lacks a right to the transactional id"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "lacks a right to the cluster"),
    ],
)
def test_a_missing_right_is_named_by_its_resource(code, said):
    """An error for lack of an ACL names the kind of resource, and the command that prints the ACLs."""
    error = kafka_errors.stop(KafkaError(code), "reading")
    assert type(error) is ConfigurationError
    assert said in str(error)
    assert "topics apply --acls" in str(error)
    assert ".." not in str(error)


def test_a_lost_connection_is_not_explained_by_a_guess():
    """A connection that breaks while it is used has no fault of the settings: the broker may restart."""
    text = "k:9/1: Disconnected: connection reset by peer (after 5ms in state APIVERSION_QUERY)"
    error = kafka_errors.stop(KafkaError(KafkaError._TRANSPORT, text), "reading")
    assert type(error) is BrokerUnavailable
    assert "security.protocol" not in str(error)


def test_a_lookup_of_a_coordinator_is_about_no_partition():
    """An error without topic and partition names neither."""
    error = kafka_errors.of_partition(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED), None, 0, None)
    assert "None" not in str(error)


@pytest.mark.parametrize(
    ("code", "doing", "operation"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "reading a.publish partition 0", "the topic: Read"),
        (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "reading the settings of the topic a.sow",
            "the topic: DescribeConfigs",
        ),
        (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "looking at the topic a.sow",
            "the topic: Describe, which Read and Write include",
        ),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "sending to a.sow", "the topic: Write"),
        (
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            "looking up the group a.client.x",
            "the consumer group: Describe, which Read and Write include",
        ),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "send offsets (a.0)", "the consumer group: Read"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "starting the producer a.0", "transactional id: Write"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "creating the topic a.sow", "the cluster: Create"),
    ],
)
def test_a_missing_right_is_named(code, doing, operation):
    """The message has the operation that the refused action needs, by Kafka's name."""
    error = kafka_errors.stop(KafkaError(code), doing)
    assert isinstance(error, ConfigurationError)
    assert f"lacks a right to {operation}. `sowstream" in str(error).replace("the transactional", "transactional")


def test_a_publisher_without_any_right_to_write_lacks_write():
    """An idempotent producer is refused as a whole where it may write nowhere; the message has the topic's action."""
    text = "Failed to acquire idempotence PID from broker k:9/1: Broker: Cluster authorization failed"
    error = kafka_errors.stop(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, text), "publishing to a.publish")
    assert "publishing to a.publish: Kafka refuses: this user lacks Write on any topic" in str(error)
