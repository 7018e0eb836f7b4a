"""What a Kafka error means for us: the only place that maps confluent_kafka's errors to our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from processor.errors import BrokerUnavailable, ConfigurationError, ProducerLost, Stop, TransactionAborted

if TYPE_CHECKING:
    from processor.errors import SowstreamError

_UNREACHABLE = frozenset(
    (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE)
)
_REFUSED = frozenset(
    (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)

_GOES_BY = _UNREACHABLE | frozenset(
    (
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    )
)


def of(error: KafkaException | KafkaError) -> KafkaError:
    """The error inside an exception."""
    return error.args[0] if isinstance(error, KafkaException) else error


def passes(error: KafkaError) -> bool:
    """Whether a reader's error is news of a trouble that librdkafka itself gets over."""
    return not error.fatal() and (error.retriable() or error.code() in _GOES_BY)


def stop(error: KafkaException | KafkaError, doing: str) -> Stop:
    """The error that ends the process, with what was being done and what to do about it."""
    kafka_error = of(error)
    code = kafka_error.code()
    if code in _UNREACHABLE:
        return BrokerUnavailable(
            f"{doing}: Kafka does not answer ({kafka_error.str()}). Is it running at kafka.bootstrap.servers "
            "(or --bootstrap)? `sowstream doctor` looks closer"
        )
    if code in _REFUSED:
        return ConfigurationError(f"{doing}: Kafka refuses: {kafka_error.str()}. Check the credentials and ACLs")
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
        return ConfigurationError(f"{doing}: the topic does not exist; `sowstream topics apply` creates it")
    if code == KafkaError.INVALID_SESSION_TIMEOUT:
        return ConfigurationError(
            f"{doing}: the brokers refuse runtime.session_timeout_s; it must lie between their "
            "group.min.session.timeout.ms (6 s as shipped) and group.max.session.timeout.ms"
        )
    return Stop(f"{doing}: {kafka_error.str()} ({kafka_error.name()})")


def in_transaction(error: KafkaException, doing: str) -> SowstreamError:
    """What a failed transaction call asks for, by librdkafka's three flags.

    A retriable error is the caller's to repeat; this is for what is left.
    Source: librdkafka's INTRODUCTION.md, "Transactional producer", error handling.
    """
    kafka_error = of(error)
    said = f"{doing}: {kafka_error.str()} ({kafka_error.name()})"
    if kafka_error.code() in _REFUSED:
        return stop(error, doing)
    if kafka_error.txn_requires_abort() and not kafka_error.fatal():
        return TransactionAborted(said)
    return ProducerLost(said)
