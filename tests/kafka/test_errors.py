"""Kafka's errors as Sowstream's, the account of an unreachable Kafka, and the decision to give up a client."""

from __future__ import annotations

import logging
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
from processor.kafka.outage import Outage, Renewal


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


@pytest.mark.parametrize("code", [KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH])
def test_a_producer_with_a_successor_is_recognised_in_a_fatal_error(code):
    """Where a record meets the newer producer first, librdkafka reports the end of the instance, with the reason."""
    error = KafkaException(KafkaError(KafkaError._FATAL, f"Fatal error: {KafkaError(code).str()}: epoch 3", fatal=True))
    assert kafka_errors.is_fenced(error)
    assert not kafka_errors.is_fenced(KafkaException(KafkaError(KafkaError._FATAL, "something else", fatal=True)))


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


class Clock:
    """A clock that a test sets."""

    now_s = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s


def test_there_is_a_line_a_minute_and_one_when_kafka_is_back(caplog: pytest.LogCaptureFixture) -> None:
    """An outage is logged once a minute, independently of the number of requests, and so is its end."""
    clock = Clock()
    outage = Outage(clock)
    with caplog.at_level(logging.INFO, logger="sowstream.kafka"):
        for _ in range(150):
            outage.unreachable("starting the producer t")
            clock.now_s += 1
        outage.reached()
        outage.reached()
    assert [(line.message, vars(line)["away_s"]) for line in caplog.records] == [
        ("Kafka does not answer", 0.0),
        ("Kafka does not answer", 60.0),
        ("Kafka does not answer", 120.0),
        ("Kafka answers again", 150.0),
    ]
    assert vars(caplog.records[0])["doing"] == "starting the producer t"


def test_a_connection_that_comes_and_goes_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """A short outage soon after another one appears in the metric only."""
    clock = Clock()
    outage = Outage(clock)
    with caplog.at_level(logging.INFO, logger="sowstream.kafka"):
        for _ in range(10):
            outage.unreachable("reading orders.publish")
            clock.now_s += 1
            outage.reached()
    assert len(caplog.records) == 2


def test_the_seconds_are_those_since_the_first_question_in_vain() -> None:
    """The duration of an outage counts from the first failed request; it is 0 while Kafka is reached."""
    clock = Clock()
    outage = Outage(clock)
    assert (outage.is_away, outage.seconds) == (False, 0.0)
    outage.unreachable("x")
    clock.now_s += 7
    outage.unreachable("x")
    assert (outage.is_away, outage.seconds) == (True, pytest.approx(7.0))
    outage.reached()
    assert (outage.is_away, outage.seconds) == (False, 0.0)


def renewal(clock: Clock) -> tuple[Renewal, list[str]]:
    """A renewal that records its actions."""
    done: list[str] = []
    return Renewal(lambda: done.append("refresh"), lambda: done.append("renew"), clock), done


def test_metadata_is_refreshed_after_two_tries_and_the_client_made_anew_after_three() -> None:
    """Metadata is refreshed after two tries; the client is replaced after three, and then after 5 s, 10 s and so on."""
    clock = Clock()
    made, done = renewal(clock)
    for _ in range(4):
        made.unanswered("the end of orders.sow")
    assert done == ["refresh", "renew", "refresh"]
    clock.now_s += 5
    made.unanswered("the end of orders.sow")
    clock.now_s += 9
    made.unanswered("the end of orders.sow")
    clock.now_s += 1
    made.unanswered("the end of orders.sow")
    assert done[3:] == ["renew", "refresh", "renew"]
    assert made.count == 3


def test_an_answer_to_another_question_does_not_count() -> None:
    """An answer to another request does not count: the coordinator may be dead while the leaders answer."""
    made, done = renewal(Clock())
    for _ in range(3):
        made.unanswered("the committed offset")
        made.answered("the end of orders.sow")
    assert done == ["refresh", "renew"]


def test_an_answer_in_between_begins_the_count_anew() -> None:
    """An answer restarts the count, so that a lost answer now and then costs nothing."""
    made, done = renewal(Clock())
    for _ in range(5):
        made.unanswered("x")
        made.answered("x")
    assert done == []
