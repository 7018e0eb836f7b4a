"""The rights of this user to topics and groups, as the brokers report them, and rights that it grants to others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from processor.errors import ConfigurationError
from processor.kafka import errors as kafka_errors
from processor.kafka import properties
from processor.kafka.admin.questions import COORDINATOR_TIMEOUT_S, in_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


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


class Right(NamedTuple):
    """One ACL that allows an operation, from any host."""

    principal: str
    """Its owner in Kafka's words: `User:worker`."""
    kind: Literal["topic", "group", "transactional-id", "cluster"]
    """The type of the resource."""
    name: str
    """The resource; empty for the cluster, of which there is only one."""
    is_prefix: bool
    """True if it applies to all names with this prefix."""
    operation: str
    """The operation, by Kafka's name: `DescribeConfigs`."""


_GRANT_TIMEOUT_S: Final = 15.0
_KINDS: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,
}
_CLUSTER: Final = "kafka-cluster"
_OPERATIONS: Final = {operation.name.replace("_", "").lower(): operation for operation in AclOperation}


def grant(client: AdminClient, rights: Sequence[Right]) -> list[Right]:
    """Grant rights; returns those that their owners did not have.

    Raises:
        ConfigurationError: this user may not grant them, or the brokers deny nothing.
        Stop: Kafka refuses one, or does not answer. The others may have been granted.
    """
    wanted = {right: _binding(right) for right in rights}
    present: set[AclBinding] = set()
    for principal in dict.fromkeys(right.principal for right in rights):
        anything: Any = None  # The binding's types lack it.
        owned = AclBindingFilter(
            ResourceType.ANY,
            anything,
            ResourcePatternType.ANY,
            principal,
            anything,
            AclOperation.ANY,
            AclPermissionType.ALLOW,
        )
        asked = client.describe_acls(owned, request_timeout=_GRANT_TIMEOUT_S)
        present.update(_granted(in_time(asked, _GRANT_TIMEOUT_S), f"granting rights to {principal}"))
    missing = {binding: right for right, binding in wanted.items() if binding not in present}
    if missing:
        for binding, done in client.create_acls([*missing], request_timeout=_GRANT_TIMEOUT_S).items():
            right = missing[binding]
            doing = f"granting {right.operation} on the {right.kind} {right.name or _CLUSTER} to {right.principal}"
            _granted(in_time(done, _GRANT_TIMEOUT_S), doing)
    return [*missing.values()]


def _binding(right: Right) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if right.is_prefix else ResourcePatternType.LITERAL
    operation = _OPERATIONS[right.operation.lower()]
    name = right.name or _CLUSTER
    return AclBinding(_KINDS[right.kind], name, pattern, right.principal, "*", operation, AclPermissionType.ALLOW)


def _granted(answer: Any, doing: str) -> Any:
    """The answer, unless it is an error."""
    if not isinstance(answer, KafkaException):
        return answer
    if kafka_errors.of(answer).code() == KafkaError.SECURITY_DISABLED:
        raise ConfigurationError(
            f"{doing}: the brokers have no authorizer (authorizer.class.name), so every user has all rights"
        ) from answer
    raise kafka_errors.stop(answer, doing) from answer
