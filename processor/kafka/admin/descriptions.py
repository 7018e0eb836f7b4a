"""Descriptions of consumer groups and topics, requested at one time and read at a later one."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from processor.kafka import errors as kafka_errors
from processor.kafka.admin.answers import COORDINATOR_TIMEOUT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._group import ConsumerGroupDescription
    from confluent_kafka.admin._topic import TopicDescription


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


class ConsumerGroup(NamedTuple):
    """A consumer group at one moment."""

    state: str
    """Kafka's word: `stable`, `empty`, `dead` …"""
    assignor: str
    """The name of the assignor: `cooperative-sticky` in the members, `uniform` or `range` in Kafka."""
    members: tuple[Member, ...]
    """Its members."""

    @property
    def is_stable(self) -> bool:
        """True if the assignment is settled; while it is not, `assigned` may lack partitions."""
        return self.state == "stable"

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


class GroupQuestion:
    """A request for a group's description; the caller goes on and looks for the answer later."""

    def __init__(
        self,
        future: Future[ConsumerGroupDescription],
        group: str,
        timeout_s: float,
        *,
        topic: str | None = None,
        on_overdue: Callable[[], None] = lambda: None,
    ) -> None:
        """Made by `ask_groups`.

        Args:
            future: librdkafka's answer, which has no time limit of its own (`COORDINATOR_TIMEOUT_S`).
            group: the consumer group.
            timeout_s: time after which the answer is overdue.
            topic: the only topic whose partitions are wanted; None: all topics of the group.
            on_overdue: called when the answer is overdue.
        """
        self._future = future
        self._group = group
        self._until_s = time.monotonic() + timeout_s
        self._topic = topic
        self._on_overdue = on_overdue

    @property
    def is_answered(self) -> bool:
        """True if `answer` returns or raises at once: the answer is there, or overdue."""
        return self._future.done() or time.monotonic() > self._until_s

    def wait(self) -> ConsumerGroup:
        """Wait for the answer, up to the time limit, and return it; see `answer`."""
        wait_until(self._future, self._until_s)
        return self.answer()

    def answer(self) -> ConsumerGroup:
        """The group; one that Kafka does not know is `dead`.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka refused.
        """
        doing = f"looking at the group {self._group}"
        try:
            description = self._future.result(0)
        except TimeoutError:
            self._on_overdue()
            silence = KafkaError(KafkaError._TIMED_OUT, "no answer in time")
            raise kafka_errors.stop(silence, doing) from None
        except KafkaException as error:
            if kafka_errors.of(error).code() == KafkaError.GROUP_ID_NOT_FOUND:
                return ConsumerGroup("dead", "", ())
            raise kafka_errors.stop(error, doing) from error
        state = description.state.name.lower()
        return ConsumerGroup(state, description.partition_assignor, tuple(self._members(description)))

    def _members(self, description: ConsumerGroupDescription) -> Iterable[Member]:
        for member in description.members:
            partitions = frozenset(
                (place.topic, place.partition)
                for place in member.assignment.topic_partitions
                if self._topic in (None, place.topic)
            )
            host = member.host.lstrip("/")
            yield Member(member.member_id, member.client_id, host, member.group_instance_id, partitions)


def ask_groups(
    client: AdminClient,
    groups: Iterable[str],
    timeout_s: float,
    *,
    topic: str | None = None,
    on_overdue: Callable[[str], None] = lambda _group: None,
) -> dict[str, GroupQuestion]:
    """Request the descriptions of groups; the answers are read later.

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
        name: GroupQuestion(future, name, timeout_s, topic=topic, on_overdue=partial(on_overdue, name))
        for name, future in futures.items()
    }


class TopicQuestion:
    """A request for a topic's description; the caller goes on and looks for the answer later."""

    def __init__(self, future: Future[TopicDescription]) -> None:
        """Made by `Admin.ask_topic`."""
        self._future = future

    @property
    def is_answered(self) -> bool:
        """True if the request has ended, with an answer or without."""
        return self._future.done()

    def answer(self) -> tuple[str, int] | None:
        """The topic's id and its number of partitions; None if Kafka sent no answer."""
        try:
            description = self._future.result(0)
        except (KafkaException, TimeoutError):
            return None
        return str(description.topic_id), len(description.partitions)
