"""What Kafka says of a consumer group: who is in it, and which partitions each member has."""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from processor.kafka import errors as kafka_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from confluent_kafka.admin._group import ConsumerGroupDescription


class Group(NamedTuple):
    """A group at one moment."""

    is_stable: bool
    """Whether the assignment is settled; while it is not, `assigned` may lack partitions."""
    assignor: str
    """The name of what assigns the partitions: `cooperative-sticky` at the members, `uniform` or `range` at Kafka."""
    assigned: dict[str, frozenset[int]]
    """The partitions of each member, by member id."""
    hosts: dict[str, str]
    """The address that each member comes from, by member id."""
    clients: Mapping[str, str] = MappingProxyType({})
    """The client id of each member, by member id."""


class GroupQuestion:
    """A question on its way; whoever asked goes on and looks again later."""

    def __init__(
        self,
        future: Future[ConsumerGroupDescription],
        topic: str,
        timeout_s: float,
        on_overdue: Callable[[], None] = lambda: None,
    ) -> None:
        """Made by `Admin.ask_group`.

        Args:
            future: librdkafka's answer, which has no time limit of its own (`COORDINATOR_TIMEOUT_S`).
            topic: of which the partitions are wanted.
            timeout_s: how long it is waited for.
            on_overdue: called when it has not come by then.
        """
        self._future = future
        self._topic = topic
        self._until_s = time.monotonic() + timeout_s
        self._on_overdue = on_overdue

    @property
    def is_answered(self) -> bool:
        """Whether `answer` has something to say."""
        return self._future.done() or time.monotonic() > self._until_s

    def answer(self) -> Group:
        """The group, as to the topic asked for.

        Raises:
            Stop: Kafka refused, or did not answer in time.
        """
        try:
            found = self._future.result(0)
        except TimeoutError:
            self._on_overdue()
            silence = KafkaError(KafkaError._TIMED_OUT, "no answer in time")
            raise kafka_errors.stop(silence, f"looking who reads {self._topic}") from None
        except KafkaException as error:
            raise kafka_errors.stop(error, f"looking who reads {self._topic}") from error
        assigned = {
            member.member_id: frozenset(
                place.partition for place in member.assignment.topic_partitions if place.topic == self._topic
            )
            for member in found.members
        }
        hosts = {member.member_id: member.host for member in found.members}
        clients = {member.member_id: member.client_id for member in found.members}
        return Group(found.state is ConsumerGroupState.STABLE, found.partition_assignor, assigned, hosts, clients)
