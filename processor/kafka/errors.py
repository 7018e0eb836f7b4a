"""Maps confluent_kafka's errors to Sowstream's; no other file does so."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

from processor.errors import (
    BrokerUnavailable,
    ConfigurationError,
    OutputTooLarge,
    PartitionHeld,
    PositionLost,
    ProducerLost,
    Stop,
    TransactionAborted,
)
from processor.kafka.connection_faults import error_of, fault_in

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from processor.errors import SowstreamError

_COMMIT_TRY_S = 0.1  # librdkafka's binding takes 0 as no limit.
_UNREACHABLE = frozenset(
    (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE)
)
_MOVED = frozenset(
    (
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,  # A new leader does not yet know how far its followers are.
    )
)
"""The request went to a partition's former leader, or to a very new one, as after a restart of the broker."""
_UNKNOWN = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION))
_OUT_OF_RANGE = frozenset((KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE))
_FENCED = frozenset((KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH))
_RIGHTS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the consumer group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the transactional id",
}
"""Refused for lack of an ACL, by the kind of the resource."""
_OPERATIONS: Final = {
    "reading the settings": "DescribeConfigs",
    "setting up": "AlterConfigs",
    "creating": "Create",
    "granting": "Alter",
    "deleting": "Delete",
    "looking": "Describe, which Read and Write include",
    "asking": "Describe, which Read and Write include",
    "reading": "Read",
    "joining": "Read",
    "committing": "Read",
    "setting the offsets": "Read",
}
"""The operation that an action needs, by the words that it begins with; all others send records: `Write`."""
_LOGIN: Final = frozenset(
    (
        KafkaError._SSL,
        KafkaError._AUTHENTICATION,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    )
)
_REFUSED = (_LOGIN - {KafkaError._SSL}) | frozenset(_RIGHTS)

_GOES_BY = (
    _UNREACHABLE
    | _MOVED
    | frozenset(
        (
            KafkaError._MAX_POLL_EXCEEDED,
            KafkaError._ASSIGNMENT_LOST,
            KafkaError.REBALANCE_IN_PROGRESS,
            KafkaError.UNKNOWN_MEMBER_ID,
            KafkaError.ILLEGAL_GENERATION,
            KafkaError.STALE_MEMBER_EPOCH,
            KafkaError.FENCED_MEMBER_EPOCH,
            KafkaError.COORDINATOR_NOT_AVAILABLE,
            KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
            KafkaError.NOT_COORDINATOR,
            KafkaError._WAIT_COORD,
            KafkaError._DESTROY_BROKER,  # The request went to a broker that librdkafka has just removed.
            KafkaError.UNSTABLE_OFFSET_COMMIT,
            # Outside a transaction librdkafka marks none of these as retriable.
            KafkaError.KAFKA_STORAGE_ERROR,
            KafkaError.REQUEST_TIMED_OUT,
            KafkaError.NETWORK_EXCEPTION,
        )
    )
)

_UNANSWERED = _UNREACHABLE | frozenset(
    (
        KafkaError._DESTROY,  # The client was given up.
        KafkaError._DESTROY_BROKER,
        KafkaError._WAIT_COORD,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    )
)
_UNREADABLE = frozenset((KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG))

# A repetition fails again: the topic does not accept the record, or is gone.
_STAYS = frozenset(
    (
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.OFFSET_METADATA_TOO_LARGE,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    )
)

_TOO_LARGE = frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE))
_PLACE: Final = re.compile(r"ProduceRequest for (\S+) \[(\d+)\]")
"""Finds the topic and partition that refused a record: a failed transaction names them in librdkafka's text only."""

_INSTANCE = (KafkaError.FENCED_INSTANCE_ID, KafkaError.UNRELEASED_INSTANCE_ID)


def of(error: KafkaException | KafkaError) -> KafkaError:
    """The error inside an exception."""
    return error.args[0] if isinstance(error, KafkaException) else error


def code_of(error: KafkaException | KafkaError) -> int:
    """The code of an error; a fatal error, as of a member or producer with a successor, is an envelope around it."""
    kafka_error = of(error)
    if kafka_error.code() == KafkaError._FATAL:
        for code in (*_INSTANCE, *_FENCED):
            if KafkaError(code).str() in kafka_error.str():
                return code
    return kafka_error.code()


def is_unreleased(error: KafkaException | KafkaError) -> bool:
    """Return whether a static member must wait because the group still keeps its predecessor of the same name."""
    return code_of(error) == KafkaError.UNRELEASED_INSTANCE_ID


def passes(error: KafkaError) -> bool:
    """Return whether librdkafka recovers by itself from a reader's error."""
    return not error.fatal() and (error.retriable() or error.code() in _GOES_BY)


def is_unreachable(error: KafkaException | KafkaError) -> bool:
    """Return whether no broker answered; one may answer later."""
    return of(error).code() in _UNREACHABLE


def is_unanswered(error: KafkaException | KafkaError) -> bool:
    """Return whether a request did not reach the responsible broker: it is away, or another one is responsible now."""
    return of(error).code() in _UNANSWERED


def is_forbidden(error: KafkaException | KafkaError) -> bool:
    """Return whether this user lacks an ACL for the request."""
    return of(error).code() in _RIGHTS


def is_unreadable(error: KafkaException | KafkaError) -> bool:
    """Return whether a batch of records cannot be unpacked; fetching it again returns the same bytes."""
    return of(error).code() in _UNREADABLE


def is_out_of_range(error: KafkaException | KafkaError) -> bool:
    """Return whether the offset to be read next is not in the partition."""
    return of(error).code() in _OUT_OF_RANGE


def is_unstable(error: KafkaException | KafkaError) -> bool:
    """Return whether an undecided transaction holds a committed offset."""
    return of(error).code() == KafkaError.UNSTABLE_OFFSET_COMMIT


def is_moved(error: KafkaException | KafkaError) -> bool:
    """True if the client's metadata about a partition's leader is out of date; it must refresh them and try again."""
    return of(error).code() in _MOVED


def is_leaderless(error: KafkaException | KafkaError) -> bool:
    """Return whether the client has no leader for a partition: the topic was just created, or does not exist."""
    return of(error).code() == KafkaError._NOENT


def is_unknown(error: BaseException) -> bool:
    """Return whether the broker does not know the topic: it does not exist, or the broker has just started."""
    cause = error if isinstance(error, KafkaException) else error.__cause__
    return isinstance(cause, KafkaException) and of(cause).code() in _UNKNOWN


def is_fenced(error: BaseException) -> bool:
    """Return whether a transaction failed because another producer has started with the same transactional id."""
    cause = error if isinstance(error, KafkaException) else error.__cause__
    return isinstance(cause, KafkaException) and code_of(cause) in _FENCED


def stop(error: KafkaException | KafkaError, doing: str) -> Stop:
    """The error that ends a command or stops a pipeline; its text names the failed action and the remedy."""
    kafka_error = of(error)
    code = code_of(error)
    fault = fault_in(kafka_error.str()) if code in _UNREACHABLE or code in _LOGIN else None
    # Without a look at the address the other faults are guesses.
    if fault is not None and (fault.is_final or fault.kind in ("unknown_host", "refused")):
        return error_of([fault], doing)
    if code in _UNREACHABLE:
        return BrokerUnavailable(
            f"{doing}: Kafka does not answer ({kafka_error.str()}). Is it running at kafka.bootstrap.servers "
            "(or --bootstrap)? `sowstream doctor` looks closer"
        )
    if code in _MOVED:
        return BrokerUnavailable(f"{doing}: the leader is changing ({kafka_error.str()}); try again in a moment")
    if code == KafkaError.CLUSTER_AUTHORIZATION_FAILED and "idempotence PID" in kafka_error.str():
        return _forbidden(doing, "lacks Write on any topic")
    if code in _RIGHTS:
        return _forbidden(doing, f"lacks a right to {_RIGHTS[code]}: {_operation(code, doing)}")
    if code in _REFUSED:
        return ConfigurationError(
            f"{doing}: Kafka refuses the login: {kafka_error.str().rstrip('.')}. Check kafka.sasl.username, "
            "kafka.sasl.password and kafka.sasl.mechanism"
        )
    if code in _UNKNOWN:
        return ConfigurationError(f"{doing}: the topic does not exist; `sowstream topics apply` creates it")
    if code in _OUT_OF_RANGE:
        return PositionLost(
            f"{doing}: what was to be read next is not there ({kafka_error.str()}). Records were deleted before they "
            "were read, or the topic was made anew; begin again with a snapshot"
        )
    if code in _TOO_LARGE:
        return Stop(
            f"{doing}: Kafka refuses a record: {kafka_error.str()}. Has a topic's max.message.bytes been lowered? "
            "`sowstream topics check` tells"
        )
    if code == KafkaError.OFFSET_METADATA_TOO_LARGE:
        return Stop(
            f"{doing}: the brokers refuse the note beside an input offset; their offset.metadata.max.bytes must be "
            "1,100 at least (4,096 as shipped)"
        )
    if code in _INSTANCE:
        return Stop(
            f"{doing}: another process is a member of the group under this one's name ({kafka_error.str()}). With "
            "runtime.static_membership every process needs a host name or a state_dir of its own"
        )
    if code in (KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE):
        return ConfigurationError(
            f"{doing}: the brokers do not have what is asked of them ({kafka_error.str()}). The group protocol "
            "`consumer` needs Kafka 4.0; without kafka.group.protocol the classic one is used"
        )
    if code == KafkaError.INVALID_SESSION_TIMEOUT:
        return ConfigurationError(
            f"{doing}: the brokers refuse runtime.session_timeout_s; it must lie between their "
            "group.min.session.timeout.ms (6 s as shipped) and group.max.session.timeout.ms"
        )
    return Stop(f"{doing}: {kafka_error.str()} ({kafka_error.name()})")


def _operation(code: int, doing: str) -> str:
    """The operation, by Kafka's name, for lack of which an action was refused."""
    if code == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return "Write"
    for words, operation in _OPERATIONS.items():
        if doing.startswith(words):
            return operation
    return "Read" if code == KafkaError.GROUP_AUTHORIZATION_FAILED else "Write"  # A transaction with input offsets.


def _forbidden(doing: str, lack: str) -> ConfigurationError:
    """The error of a missing ACL."""
    return ConfigurationError(
        f"{doing}: Kafka refuses: this user {lack}. `sowstream topics apply --acls` prints the ACLs of each role, and "
        "`sowstream doctor --role ROLE` finds the missing ones"
    )


def of_partition(
    error: KafkaError, topic: str | None, partition: int | None, offset: int | None, group: str = ""
) -> PartitionHeld | Stop:
    """The error for one partition that cannot be read on while the others can.

    librdkafka fetches a batch that cannot be unpacked again and again, with the same result (its #5260).
    """
    if is_unreadable(error):
        return PartitionHeld(
            "unreadable_batch",
            f"{topic} partition {partition}: the batch of records at offset {offset} cannot be read ({error.str()}). "
            "Is it damaged, or compressed in a way that this build of librdkafka does not know?",
        )
    # A lookup of the group's coordinator, as of readers that join no group, is about no partition.
    return stop(
        error,
        f"looking up the group {group or 'of a reader'}" if topic is None else f"reading {topic} partition {partition}",
    )


def of_commit(error: KafkaException, doing: str) -> SowstreamError:
    """The error for a failed commit of offsets outside a transaction; processing goes on from the committed offsets."""
    if code_of(error) in _REFUSED | {KafkaError.OFFSET_METADATA_TOO_LARGE}:
        return stop(error, doing)
    return TransactionAborted(f"{doing}: {of(error).str()} ({of(error).name()})")


def in_transaction(error: KafkaException, doing: str, place: tuple[str, int | None] | None = None) -> SowstreamError:
    """The error for a failed transaction call, by librdkafka's three flags.

    ========  ====================  =====================================================
    flag      here                  what follows
    ========  ====================  =====================================================
    retry     `ProducerLost`        the caller has repeated it until its time was over
    abort     `TransactionAborted`  abort and rewind, the producer stays
    fatal     `ProducerLost`        a new producer and rewind: fenced, or timed out
    none      `ProducerLost`        the same: what became of the transaction is not known
    ========  ====================  =====================================================

    Args:
        error: the error that the call raised.
        doing: the action that failed, such as "commit (orders.0)".
        place: topic and partition of the record at hand, if there is one; partition None: its key's hash chooses.

    Independently of the flags, an error that would recur stops the pipeline. A record that is too large is an
    exception: the input record that caused it can be put aside (`OutputTooLarge`). Source: librdkafka's
    INTRODUCTION.md, "Transactional producer", error handling.
    """
    kafka_error = of(error)
    text = f"{doing}: {kafka_error.str()} ({kafka_error.name()})"
    if kafka_error.code() == KafkaError.INVALID_TIMESTAMP:
        text += (
            f". Kafka takes no record with a time so far from its own: it is {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC "
            "by the clock of this machine, which is to be set right, or that of the broker"
        )
    if kafka_error.code() in _TOO_LARGE:
        if (refused := _PLACE.search(kafka_error.str())) is not None:
            place = refused[1], int(refused[2])
        return OutputTooLarge(text, *(place or (None, None)))
    if kafka_error.code() in _REFUSED | _STAYS:
        return stop(error, doing)
    if kafka_error.txn_requires_abort() and not kafka_error.fatal():
        return TransactionAborted(text)
    return ProducerLost(text)


def of_record(producer: Producer, error: KafkaException, topic: str, partition: int) -> SowstreamError:
    """The error for a record that librdkafka does not accept in a transaction; partition -1: the key's hash chooses."""
    if code_of(error) == KafkaError._STATE:
        # An earlier record has failed, and this error does not contain the reason. A commit fails at once, with the
        # reason.
        try:
            producer.commit_transaction(_COMMIT_TRY_S)
        except KafkaException as first:
            error = first
    return in_transaction(error, f"sending to {topic}", (topic, None if partition < 0 else partition))
