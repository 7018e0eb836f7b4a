"""Fetches the members and committed offsets of consumer groups, and the ends of the partitions that they read.

Committed offsets are asked for by consumers that never join a group.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from processor.errors import Stop
from processor.kafka import errors as kafka_errors
from processor.kafka import properties
from processor.kafka.admin.questions import COORDINATOR_TIMEOUT_S, OVERDUE_S, Question, in_time
from processor.kafka.background_calls import call_in_background
from processor.kafka.outage import leave

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from confluent_kafka.admin._group import ConsumerGroupDescription


FutureOffsets: TypeAlias = Future[list[TopicPartition]]
"""The partitions with their committed offsets, or the `KafkaException` of the whole request."""


class Member(NamedTuple):
    """A member of a consumer group."""

    member_id: str
    """The name that Kafka gave it."""
    client_id: str
    """The name that it gave itself."""
    host: str
    """The address that it comes from."""
    instance: str | None
    """The name of a static member."""
    partitions: frozenset[tuple[str, int]]
    """The topics and partitions that are assigned to it."""

    def __str__(self) -> str:
        return f"{self.client_id} at {self.host}"


class ConsumerGroup(NamedTuple):
    """A consumer group at one moment."""

    state: str
    """Kafka's word: `stable`, `empty`, `dead` …"""
    assignor: str
    """The name of the assignor: `cooperative-sticky` in the members, `uniform` or `range` in Kafka."""
    members: tuple[Member, ...]
    """Its members."""

    @property
    def assigned(self) -> dict[str, frozenset[int]]:
        """The partition numbers of each member, by member id."""
        return {one.member_id: frozenset(number for _, number in one.partitions) for one in self.members}

    @property
    def owners(self) -> dict[tuple[str, int], Member]:
        """The member that owns each partition, by topic and number."""
        return {place: one for one in self.members for place in one.partitions}

    @property
    def hosts(self) -> dict[str, str]:
        """The address of each member, by member id."""
        return {one.member_id: one.host for one in self.members}


def ask_groups(
    client: AdminClient,
    groups: Iterable[str],
    timeout_s: float,
    *,
    topic: str | None = None,
    on_overdue: Callable[[str], None] = lambda _group: None,
) -> dict[str, Question[ConsumerGroup]]:
    """Request the descriptions of groups; one that Kafka does not know is `dead`.

    Args:
        client: sends the request.
        groups: the consumer groups.
        timeout_s: time after which an answer is overdue.
        topic: the only topic whose partitions are wanted; None: all topics of a group.
        on_overdue: called with a group whose answer is overdue.
    """
    names = list(groups)
    futures = client.describe_consumer_groups(names, request_timeout=COORDINATOR_TIMEOUT_S) if names else {}
    return {
        name: Question(
            f"looking at the group {name}",
            future,
            timeout_s,
            partial(_group_in, topic),
            on_overdue=partial(on_overdue, name),
        )
        for name, future in futures.items()
    }


def _group_in(topic: str | None, future: Future[ConsumerGroupDescription]) -> ConsumerGroup:
    try:
        description = future.result()
    except KafkaException as error:
        if kafka_errors.of(error).code() == KafkaError.GROUP_ID_NOT_FOUND:
            return ConsumerGroup("dead", "", ())
        raise
    state = description.state.name.lower()
    return ConsumerGroup(state, description.partition_assignor, tuple(_members(description, topic)))


def _members(description: ConsumerGroupDescription, topic: str | None) -> Iterable[Member]:
    for member in description.members:
        partitions = frozenset(
            (place.topic, place.partition)
            for place in member.assignment.topic_partitions
            if topic in (None, place.topic)
        )
        host = member.host.lstrip("/")
        yield Member(member.member_id, member.client_id, host, member.group_instance_id, partitions)


class Committed(NamedTuple):
    """A group's committed offset of one partition."""

    offset: int | None
    """The next offset to read; None: the group has none."""
    text: str | None
    """The offset metadata that was committed with it."""


def committed_in(partition: int, future: FutureOffsets) -> Committed:
    """The committed offset of a partition in an answer; a partition that is missing there was not answered."""
    position = next((position for position in future.result() if position.partition == partition), None)
    if position is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the answer lacks this partition"))
    if position.error is not None:
        raise KafkaException(position.error)
    return Committed(position.offset if position.offset >= 0 else None, position.metadata or None)


OffsetKind: TypeAlias = Literal["oldest", "end", "stable_end"]
"""The oldest offset kept, the true end, or the last stable offset: the end for readers of committed records."""
NO_OFFSET: Final = -1
"""Kafka's answer if no record has the time or a later one."""


def ask_offsets(
    client: AdminClient, places: Iterable[tuple[str, int]], kind: OffsetKind | int, timeout_s: float
) -> dict[tuple[str, int], Question[int]]:
    """Request the first or last offsets of partitions, by topic and number; or the first ones of a time, -1 for none.

    While a leader is changing, librdkafka may answer with an invalid offset (-1001); it counts as no answer.
    """
    spec: Any
    if isinstance(kind, int):
        spec, least, what = OffsetSpec.for_timestamp(kind), NO_OFFSET, f"offset of the time {kind}"
    else:
        spec, least, what = OffsetSpec.earliest() if kind == "oldest" else OffsetSpec.latest(), 0, kind  # type: ignore[no-untyped-call]
    level = IsolationLevel.READ_COMMITTED if kind == "stable_end" else IsolationLevel.READ_UNCOMMITTED
    positions = {TopicPartition(*place): spec for place in places}
    futures = client.list_offsets(positions, isolation_level=level, request_timeout=timeout_s) if positions else {}
    limit_s = timeout_s + OVERDUE_S
    return {
        (at.topic, at.partition): Question(
            f"asking for the {what} of {at.topic} partition {at.partition}",
            future,
            limit_s,
            partial(offset_in, least=least),
        )
        for at, future in futures.items()
    }


def offset_in(future: Future[Any], *, least: int = 0) -> int:
    """The offset in an answer; one below `least` counts as no answer."""
    offset = int(future.result().offset)
    if offset < least:
        raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE, f"Kafka gave the offset {offset}"))
    return offset


# Every consumer of ours reads committed records only, and then librdkafka waits for stable offsets, too.
_WITHOUT_WAITING: Final = {"isolation.level": "read_uncommitted"}


class CommittedOffsets:
    """Asks for the committed offsets of groups, by a consumer for each; connects with the first request.

    An admin client could ask too, but the answer of a broker that is no longer the group's coordinator makes librdkafka
    read a null pointer, and the process dies (its issue 5040; seen with 2.16 when two brokers of three were killed).
    """

    def __init__(self, kafka: Mapping[str, str], *, is_stable: bool) -> None:
        """Create it, without connecting.

        Args:
            kafka: librdkafka properties.
            is_stable: whether to wait for the end of a transaction that commits offsets of the group.
        """
        self._kafka = kafka
        self._is_stable = is_stable
        self._lock = threading.Lock()
        self._consumers: dict[tuple[str, bool], Consumer] = {}

    def ask(self, group: str, places: Iterable[tuple[str, int]], timeout_s: float) -> FutureOffsets:
        """Request the offsets of partitions, `(topic, number)`, on a thread of its own.

        If a transaction of the group stays undecided for one of them, the answer is `UNSTABLE_OFFSET_COMMIT` for all:
        librdkafka waits in silence until all are stable. A request for one partition alone gets its own answer.
        """
        positions = [TopicPartition(*place) for place in places]
        fetch = self._stable if self._is_stable else self._undecided
        return call_in_background("committed offsets", partial(fetch, group, positions, timeout_s))

    def renew(self) -> None:
        """Have the next requests sent on new connections; requests under way end on the present ones."""
        with self._lock:
            former, self._consumers = self._consumers, {}
        if former:
            leave(former, former.clear)

    def _stable(self, group: str, positions: list[TopicPartition], timeout_s: float) -> list[TopicPartition]:
        """The offsets after the end of every transaction; each of two requests has half the time."""
        try:
            return self._consumer(group, is_stable=True).committed(positions, timeout_s / 2)
        except KafkaException as error:
            if not kafka_errors.is_unanswered(error):
                raise
        # Kafka is away, or librdkafka repeats the request because an offset is undecided: the answer without waiting
        # for transactions shows which.
        self._undecided(group, positions, timeout_s / 2)
        raise KafkaException(KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT))

    def _undecided(self, group: str, positions: list[TopicPartition], timeout_s: float) -> list[TopicPartition]:
        """The offsets without waiting for transactions."""
        return self._consumer(group, is_stable=False).committed(positions, timeout_s)

    def _consumer(self, group: str, *, is_stable: bool) -> Consumer:
        with self._lock:
            if (group, is_stable) not in self._consumers:
                own = {} if is_stable else _WITHOUT_WAITING
                self._consumers[group, is_stable] = Consumer(properties.log_reader(self._kafka, group=group) | own)
            return self._consumers[group, is_stable]


_TIMEOUT_S = 15.0


class GroupInspector:
    """Requests about several groups at once; connects with the first request."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._kafka = kafka
        self._committed = CommittedOffsets(kafka, is_stable=False)

    @cached_property
    def _client(self) -> AdminClient:
        return AdminClient(properties.admin(self._kafka))

    def rest(self) -> None:
        """Close the connections for offsets of groups, of which there is one a group, until the next request."""
        self._committed.renew()

    def groups(self, names: Sequence[str]) -> dict[str, ConsumerGroup]:
        """Fetch the members of these groups; a group that Kafka does not know is `dead`.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka refuses.
        """
        try:
            return {name: question.answer() for name, question in ask_groups(self._client, names, _TIMEOUT_S).items()}
        except Stop:
            # The next request is sent by a new client: this one may still wait for a coordinator.
            leave(self.__dict__.pop("_client", None))
            raise

    def offsets(
        self, places_of: Mapping[str, Iterable[tuple[str, int]]], timeout_s: float = _TIMEOUT_S
    ) -> dict[str, dict[tuple[str, int], int | None]]:
        """Fetch the committed offsets of groups, by topic and partition; None where a group has none.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka refuses.
        """
        asked = {group: self._committed.ask(group, places, timeout_s) for group, places in places_of.items()}
        offsets: dict[str, dict[tuple[str, int], int | None]] = {}
        for group, future in asked.items():
            answer = in_time(future, timeout_s)
            if isinstance(answer, KafkaException):
                self._committed.renew()
                raise kafka_errors.stop(answer, f"asking for the offsets of the group {group}") from answer
            offsets[group] = {
                (place.topic, place.partition): place.offset if place.offset >= 0 else None for place in answer
            }
        return offsets

    def bounds(
        self, places: Iterable[tuple[str, int]], kind: OffsetKind, timeout_s: float = _TIMEOUT_S
    ) -> dict[tuple[str, int], int | None]:
        """Fetch the first or last offsets of partitions; None where Kafka has no answer at present.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka refuses.
        """
        what = "oldest offsets" if kind == "oldest" else "ends"
        offsets: dict[tuple[str, int], int | None] = {}
        for (topic, partition), question in ask_offsets(self._client, places, kind, timeout_s).items():
            try:
                offsets[topic, partition] = question.result()
            except KafkaException as error:
                is_changing = kafka_errors.is_moved(error) or kafka_errors.is_leaderless(error)
                if not is_changing and not kafka_errors.is_unknown(error):
                    raise kafka_errors.stop(error, f"asking for the {what} of {topic}") from error
                offsets[topic, partition] = None
        return offsets
