"""What Kafka says of a consumer group: who is in it, and which partitions each member has."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import ConsumerGroupState, KafkaException

from processor.kafka import failure

if TYPE_CHECKING:
    from collections.abc import Mapping
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

    def __init__(self, future: Future[ConsumerGroupDescription], topic: str) -> None:
        self._future = future
        self._topic = topic

    @property
    def is_answered(self) -> bool:
        """Whether `answer` has something to say."""
        return self._future.done()

    def answer(self) -> Group:
        """The group, as to the topic asked for.

        Raises:
            Stop: Kafka refused, or did not answer in time.
        """
        try:
            found = self._future.result(0)
        except KafkaException as error:
            raise failure.stop(error, f"looking who reads {self._topic}") from error
        assigned = {
            member.member_id: frozenset(
                place.partition for place in member.assignment.topic_partitions if place.topic == self._topic
            )
            for member in found.members
        }
        hosts = {member.member_id: member.host for member in found.members}
        clients = {member.member_id: member.client_id for member in found.members}
        return Group(found.state is ConsumerGroupState.STABLE, found.partition_assignor, assigned, hosts, clients)
