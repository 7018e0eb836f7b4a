"""The rights of this user to topics and groups, as the brokers report them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from processor.kafka import errors as kafka_errors
from processor.kafka import properties
from processor.kafka.admin.questions import COORDINATOR_TIMEOUT_S, in_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class AclRights(NamedTuple):
    """The rights to one topic or group."""

    exists: bool
    """True if it exists; a resource without any right counts as existing, as Kafka does not say."""
    operations: frozenset[str] | None
    """The permitted operations in Kafka's words, in lower case: `read`, `describeconfigs`. None: not reported."""

    def missing(self, wanted: Iterable[str]) -> list[str]:
        """The operations of these that are not permitted; none if they are not reported."""
        if self.operations is None:
            return []
        return [operation for operation in wanted if operation.lower() not in self.operations]


_ABSENT = AclRights(exists=False, operations=None)
_NONE = AclRights(exists=True, operations=frozenset())


class RightsInspector:
    """Asks for the rights of the user of these properties."""

    def __init__(self, kafka: Mapping[str, str], timeout_s: float) -> None:
        """Create a client of its own; `timeout_s` is the longest wait for each request."""
        self._client = AdminClient(properties.admin(kafka))
        self._timeout_s = timeout_s

    def topics(self, names: Iterable[str]) -> dict[str, AclRights]:
        """The rights to topics.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        wanted = list(dict.fromkeys(names))
        asked = self._client.describe_topics(
            TopicCollection(wanted), include_authorized_operations=True, request_timeout=self._timeout_s
        )
        absent = KafkaError.UNKNOWN_TOPIC_OR_PART
        return {name: self._rights(future, f"looking at the topic {name}", absent) for name, future in asked.items()}

    def groups(self, names: Iterable[str]) -> dict[str, AclRights]:
        """The rights to consumer groups; of one that does not exist, Kafka reports no operations.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        wanted = list(dict.fromkeys(names))
        asked = self._client.describe_consumer_groups(
            wanted, include_authorized_operations=True, request_timeout=COORDINATOR_TIMEOUT_S
        )
        absent = KafkaError.GROUP_ID_NOT_FOUND
        return {name: self._rights(future, f"looking at the group {name}", absent) for name, future in asked.items()}

    def _rights(self, future: Any, doing: str, absent: int) -> AclRights:
        answer = in_time(future, self._timeout_s)
        if isinstance(answer, KafkaException):
            if kafka_errors.is_forbidden(answer):
                return _NONE
            if kafka_errors.of(answer).code() == absent:
                return _ABSENT
            raise kafka_errors.stop(answer, doing) from answer
        operations = answer.authorized_operations
        if operations is None:
            return AclRights(exists=True, operations=None)
        return AclRights(
            exists=True, operations=frozenset(operation.name.replace("_", "").lower() for operation in operations)
        )
