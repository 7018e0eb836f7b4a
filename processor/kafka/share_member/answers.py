"""Error codes of brokers, and how a member of a share group goes on after each.

| family   | goes on by                                                            |
|----------|------------------------------------------------------------------------|
| `REJOIN` | joining the group again: the coordinator has forgotten the member      |
| `REOPEN` | a new share session: the broker has forgotten it, and the leases in it |
| `MOVED`  | asking where the leader or the coordinator is now                      |
| `FATAL`  | raising `Stop`: a repetition fails again                               |
| others   | trying again, a moment later                                           |
"""

from __future__ import annotations

from typing import Final

from kafka import errors

from processor.errors import Stop

REJOIN: Final = frozenset((25, 69, 110, 113))
"""UNKNOWN_MEMBER_ID, GROUP_ID_NOT_FOUND, FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH."""
REOPEN: Final = frozenset((122, 123))
"""SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH."""
MOVED: Final = frozenset((3, 5, 6, 9, 15, 16, 56, 74, 76, 100, 103))
"""UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, REPLICA_NOT_AVAILABLE,
COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID."""
SESSION_LIMIT: Final = 133
"""SHARE_SESSION_LIMIT_REACHED: the broker has no room for a further session now."""
FATAL: Final = frozenset((2, 17, 23, 24, 29, 30, 31, 33, 34, 35, 42, 58, 81))
"""CORRUPT_MESSAGE, INVALID_TOPIC_EXCEPTION, INCONSISTENT_GROUP_PROTOCOL, INVALID_GROUP_ID, failed authorizations,
UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE, UNSUPPORTED_VERSION, INVALID_REQUEST, SASL_AUTHENTICATION_FAILED,
GROUP_MAX_SIZE_REACHED."""

_RIGHTS: Final = {29: "the topic: Read", 30: "the consumer group: Read"}
"""TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED: what a member of a share group needs."""


def name(code: int, message: str | None = None) -> str:
    """The name of an error code, and the broker's own words; for a missing right the remedy."""
    if code in _RIGHTS:
        return (
            f"Kafka refuses: this user lacks a right to {_RIGHTS[code]}. `sowstream topics apply --acls` prints the "
            "ACLs of each role, and `sowstream doctor --role consumer` finds the missing ones"
        )
    known = {SESSION_LIMIT: "ShareSessionLimitReached"}.get(code)
    title = known or errors.for_code(code).__name__.removesuffix("Error")
    return f"{title}: {message}" if message else f"{title} ({code})"


def refusal(error: Exception) -> str | None:
    """The text of an exception of kafka-python that a repetition cannot mend; None: try again."""
    if isinstance(error, errors.IncompatibleBrokerVersion):
        return f"this Kafka has no share groups; queues need Kafka 4.2 or newer ({error})"
    if isinstance(error, errors.BrokerResponseError) and error.errno in FATAL:
        return name(error.errno) if error.errno in _RIGHTS else str(error)
    return None


def raise_fatal(code: int, message: str | None, doing: str) -> None:
    """Raise a code that a repetition fails with again.

    Raises:
        Stop: it is one of these.
    """
    if code in FATAL:
        raise Stop(f"{doing}: {name(code, message)}")
