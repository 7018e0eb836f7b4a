"""Reads and sets the settings that brokers keep of share groups."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from processor.errors import ConfigurationError
from processor.kafka import errors as kafka_errors
from processor.kafka import properties
from processor.kafka.admin.answers import in_time, values

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_S: Final = 15.0
_PAUSE_S: Final = 0.1


class ShareGroups:
    """Requests about the settings of share groups."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        """Connect with the first request."""
        self._client = AdminClient(properties.common(kafka))

    def settings(self, group: str, timeout_s: float = _TIMEOUT_S) -> dict[str, str]:
        """Fetch the settings in force of a group, also of one that does not exist yet.

        A Kafka that knows no settings of groups gives none.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka refuses.
        """
        resource = ConfigResource(ResourceType.GROUP, group)
        asked = self._client.describe_configs([resource], request_timeout=timeout_s)
        answer = in_time(asked[resource], timeout_s)
        if not isinstance(answer, KafkaException):
            return values(answer)
        if kafka_errors.of(answer).code() in (KafkaError.INVALID_REQUEST, KafkaError.UNSUPPORTED_VERSION):
            return {}
        raise kafka_errors.stop(answer, f"reading the settings of the share group {group}") from answer

    def set(self, group: str, wanted: Mapping[str, str], timeout_s: float = _TIMEOUT_S) -> list[str]:
        """Set those settings of a group that differ, wait until they are in force, and return their names.

        Raises:
            ConfigurationError: Kafka does not allow a value.
            BrokerUnavailable: no answer in time.
            Stop: Kafka refuses.
        """
        actual = self.settings(group, timeout_s)
        changes = {name: value for name, value in wanted.items() if name in actual and actual[name] != value}
        if not changes:
            return []
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in changes.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
        asked = self._client.incremental_alter_configs([resource], request_timeout=timeout_s)
        answer = in_time(asked[resource], timeout_s)
        if isinstance(answer, KafkaException):
            error = kafka_errors.of(answer)
            if error.code() == KafkaError.INVALID_CONFIG:
                raise ConfigurationError(f"the share group {group}: {error.str()}") from answer
            raise kafka_errors.stop(answer, f"setting up the share group {group}") from answer
        until_s = time.monotonic() + timeout_s
        # The brokers learn of it from the controller, a moment later.
        while any(self.settings(group, timeout_s).get(name) != value for name, value in changes.items()):
            if time.monotonic() > until_s:
                raise kafka_errors.stop(
                    KafkaError(KafkaError._TIMED_OUT, "the brokers do not show them"),
                    f"setting up the share group {group}",
                )
            time.sleep(_PAUSE_S)
        return sorted(changes)
