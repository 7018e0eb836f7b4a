"""The protocol of a share group, without I/O: the membership, the session with one broker, and the codes of errors.

The membership is the epoch of the member and its partitions, by the coordinator's heartbeats::

    request 0                      error REJOIN
    (new) ------------------------> joined ----------------------> (new), with the same id
    |  request epoch: stays; answers may bring other partitions
    |  request -1
    v
    left

A session is the partitions that one broker knows, and the number of the next request::

    fetch 0, all partitions            fetch or acknowledge 1, 2, …: only the differences
    (closed) --------------------------> open ---------------------------------------------------> open
    ^                                   |
    +--------- restart: the connection or the broker has lost it ---- or acknowledge -1: closed

A member goes on after an error by its code:

| family   | goes on by                                                            |
|----------|------------------------------------------------------------------------|
| `REJOIN` | joining the group again: the coordinator has forgotten the member      |
| `REOPEN` | a new share session: the broker has forgotten it, and the leases in it |
| `MOVED`  | asking where the leader or the coordinator is now                      |
| `FATAL`  | raising `Stop`: a repetition fails again                               |
| others   | trying again, a moment later                                           |
"""

from __future__ import annotations

import base64
import uuid
from typing import TYPE_CHECKING, Any, Final

from kafka import errors

from processor.errors import Stop
from processor.queues.transport.leases import RENEW, ack_batches
from processor.queues.transport.protocol import (
    ACQUIRE_EXACTLY,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupHeartbeatRequest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from processor.queues.transport.leases import Outcomes


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


def error_name(code: int, message: str | None = None) -> str:
    """The name of an error code, and the broker's own words; for a missing right the remedy."""
    if code in _RIGHTS:
        return (
            f"Kafka refuses: this user lacks a right to {_RIGHTS[code]}. `sowstream topics apply --acls` prints the "
            "ACLs of each role, and `sowstream doctor --role consumer` finds the missing ones"
        )
    own_name = {SESSION_LIMIT: "ShareSessionLimitReached"}.get(code)
    title = own_name or errors.for_code(code).__name__.removesuffix("Error")
    return f"{title}: {message}" if message else f"{title} ({code})"


def refusal(error: Exception) -> str | None:
    """The text of an exception of kafka-python that a repetition cannot mend; None: try again."""
    if isinstance(error, errors.IncompatibleBrokerVersion):
        return f"this Kafka has no share groups; queues need Kafka 4.2 or newer ({error})"
    if isinstance(error, errors.BrokerResponseError) and error.errno in FATAL:
        return error_name(error.errno) if error.errno in _RIGHTS else str(error)
    return None


def raise_fatal(code: int, message: str | None, doing: str) -> None:
    """Raise a code that a repetition fails with again.

    Raises:
        Stop: it is one of these.
    """
    if code in FATAL:
        raise Stop(f"{doing}: {error_name(code, message)}")


_JOIN, _LEAVE = 0, -1
_FIRST_INTERVAL_S: Final = 0.1
_INTERVAL_S: Final = 5.0


class Membership:
    """One member of a share group that reads one topic. It sends nothing itself."""

    def __init__(self, group: str, topic: str) -> None:
        """Begin outside the group.

        Args:
            group: the share group.
            topic: the topic that the member reads.
        """
        self.group = group
        self.id = _new_id()
        """The member's id, which it chooses itself and keeps."""
        self.epoch = _JOIN
        """0: it is no member."""
        self.partitions: Mapping[uuid.UUID, frozenset[int]] = {}
        """The partitions that it is to read, by the id of their topic."""
        self.joins = 0
        """How often it has joined."""
        self._topic = topic
        self._interval_s = _INTERVAL_S
        self._waits_s = _FIRST_INTERVAL_S

    @property
    def heartbeat(self) -> Any:
        """The next heartbeat."""
        topics = [self._topic] if self.epoch == _JOIN else None
        return ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self.id, member_epoch=self.epoch, subscribed_topic_names=topics
        )

    @property
    def farewell(self) -> Any:
        """The last heartbeat."""
        return ShareGroupHeartbeatRequest(group_id=self.group, member_id=self.id, member_epoch=_LEAVE)

    @property
    def pause_s(self) -> float:
        """The time to the next heartbeat: short while the coordinator has given no partitions, longer each time."""
        if self.partitions:
            return self._interval_s
        self._waits_s = min(self._interval_s, self._waits_s * 2)
        return self._waits_s

    def answered(self, answer: Any) -> int:
        """Apply an answer.

        Returns:
            The error code, if the heartbeat is to be repeated; 0 otherwise.

        Raises:
            Stop: the coordinator refuses the member.
        """
        code = answer.error_code
        if code:
            raise_fatal(code, answer.error_message, f"the share group {self.group}")
            if code in REJOIN:
                self.leave()
            return int(code)
        self.joins += self.epoch == _JOIN
        self.epoch = answer.member_epoch
        self._interval_s = answer.heartbeat_interval_ms / 1000 or _INTERVAL_S
        if answer.assignment is not None:
            assigned = answer.assignment.topic_partitions
            self.partitions = {each.topic_id: frozenset(each.partitions) for each in assigned if each.partitions}
            if not self.partitions:
                self._waits_s = _FIRST_INTERVAL_S
        return 0

    def leave(self) -> None:
        """Be outside the group, without partitions: the next heartbeat joins."""
        self.epoch, self.partitions, self._waits_s = _JOIN, {}, _FIRST_INTERVAL_S


def _new_id() -> str:
    """An id as Kafka's own clients make it: brokers read it as a UUID in base 64, and command lines trip on a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


_OPEN, _CLOSE = 0, -1
_EPOCH_MAX: Final = 2**31 - 1
_MIN_BYTES: Final = 1
_BYTES_MAX: Final = 50 * 1024 * 1024


class ShareSession:
    """The share session of one member with one broker. It sends nothing itself; one request at a time."""

    def __init__(self, group: str, member_id: str) -> None:
        self._group, self._member_id = group, member_id
        self._epoch = _OPEN
        self._topic: uuid.UUID | None = None
        self._partitions: frozenset[int] = frozenset()
        self._next: tuple[uuid.UUID | None, frozenset[int]] = None, frozenset()

    @property
    def is_open(self) -> bool:
        """True if the broker knows the session: outcomes need one."""
        return self._epoch != _OPEN

    def fetch(
        self, topic: uuid.UUID, partitions: Iterable[int], outcomes: Outcomes, *, records_max: int, wait_ms: int
    ) -> Any:
        """A request for records, which acknowledges others.

        Args:
            topic: the topic's id.
            partitions: the partitions to read.
            outcomes: outcomes of records of these partitions; none while the session is not open.
            records_max: most records.
            wait_ms: the longest wait for the first record, milliseconds.
        """
        wanted = frozenset(partitions)
        # A topic that was created again is another one to the broker.
        present = self._partitions if topic == self._topic else frozenset()
        named = sorted((wanted - present) | outcomes.keys())
        part = ShareFetchRequest.FetchTopic.FetchPartition
        topics = [
            ShareFetchRequest.FetchTopic(
                topic_id=topic,
                partitions=[
                    part(partition_index=each, acknowledgement_batches=_batches(part, outcomes.get(each, {})))
                    for each in named
                ],
            )
        ]
        forgotten = [] if self._topic is None or not self.is_open else self._forgotten(topic, wanted)
        self._next = topic, wanted
        return ShareFetchRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=self._epoch,
            max_wait_ms=wait_ms,
            min_bytes=_MIN_BYTES,
            max_bytes=_BYTES_MAX,
            max_records=records_max,
            batch_size=records_max,
            share_acquire_mode=ACQUIRE_EXACTLY,
            topics=topics if named else [],
            forgotten_topics_data=forgotten,
        )

    def acknowledge(self, topic: uuid.UUID | None, outcomes: Outcomes, *, closes: bool = False) -> Any:
        """A request that acknowledges only; `closes` ends the session with it, and gives back what is held."""
        part = ShareAcknowledgeRequest.AcknowledgeTopic.AcknowledgePartition
        parts = [
            part(partition_index=each, acknowledgement_batches=_batches(part, outcomes[each]))
            for each in sorted(outcomes)
        ]
        renews = any(code == RENEW for each in outcomes.values() for code in each.values())
        self._next = self._topic, self._partitions
        return ShareAcknowledgeRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=_CLOSE if closes else self._epoch,
            is_renew_ack=renews,
            topics=[ShareAcknowledgeRequest.AcknowledgeTopic(topic_id=topic, partitions=parts)] if parts else [],
        )

    def went_on(self) -> None:
        """The broker has taken the request."""
        self._epoch = self._epoch + 1 if self._epoch < _EPOCH_MAX else 1
        self._topic, self._partitions = self._next

    def restart(self) -> None:
        """Begin again: the next request opens a session."""
        self._epoch, self._topic, self._partitions = _OPEN, None, frozenset()

    def _forgotten(self, topic: uuid.UUID, wanted: frozenset[int]) -> list[Any]:
        gone = self._partitions - wanted if topic == self._topic else self._partitions
        if not gone:
            return []
        return [ShareFetchRequest.ForgottenTopic(topic_id=self._topic, partitions=sorted(gone))]


def _batches(part: Any, outcomes: Mapping[int, int]) -> list[Any]:
    return [
        part.AcknowledgementBatch(first_offset=each.first, last_offset=each.last, acknowledge_types=[each.code])
        for each in ack_batches(outcomes)
    ]
