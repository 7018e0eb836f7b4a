"""Offsets and settings of a topic, requested by librdkafka: for processes without a JVM, such as a data source's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from processor.errors import BrokerUnavailable, ConfigurationError
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import LogReader

_Answer = TypeVar("_Answer")

_ANSWER_TIMEOUT_S: Final = 30.0
_WAIT_S: Final = 0.05


class LogFacts:
    """The current offsets and settings of one topic."""

    def __init__(self, topic: str, kafka: Mapping[str, str], *, group: str) -> None:
        """Connect to Kafka and look up the topic.

        Args:
            topic: its Kafka name.
            kafka: librdkafka properties.
            group: the name of a consumer group; nothing joins it.

        Raises:
            ConfigurationError: the topic does not exist, or librdkafka rejects a property.
            BrokerUnavailable: Kafka did not answer in time.
        """
        self.topic = topic
        try:
            self._admin = Admin(kafka)
        except ConfigurationError as error:
            problem = str(error).partition(": ")[2]
            raise ConfigurationError(
                f"the options that begin with 'kafka.': {problem}; these go to librdkafka"
            ) from None
        description = self._admin.describe_topics([topic]).get(topic)
        if description is None:
            raise ConfigurationError(
                f"the Kafka topic {topic} does not exist; check the name, or create it: `sowstream topics apply`"
            )
        self._settings = description.config
        self.partitions = range(description.partitions)
        self._log = LogReader(kafka, group=group)

    def begins(self) -> dict[int, int]:
        """The oldest offset kept of each partition."""
        return {partition: bounds[0] for partition, bounds in self._bounds().items()}

    def ends(self) -> dict[int, int]:
        """The next offset of each partition, after open transactions."""
        return self._admin.end_offsets(self.topic, self.partitions)

    def committed_ends(self) -> dict[int, int]:
        """The last stable offset of each partition: the beginning of the first open transaction, else the end."""
        return {partition: bounds[1] for partition, bounds in self._bounds().items()}

    def at_time(self, time_ms: int) -> dict[int, int]:
        """The first offset of each partition with a record of this time or later; its end where there is none."""
        ends = self.ends()
        offsets = self._answer(lambda: self._log.at_time(self.topic, self.partitions, time_ms, _ANSWER_TIMEOUT_S))
        return {partition: ends[partition] if offset is None else offset for partition, offset in offsets.items()}

    def setting(self, name: str) -> str | None:
        """A setting of the topic; None where access is denied."""
        return self._settings.get(name)

    def close(self) -> None:
        """Close the connection."""
        self._log.close()

    def _bounds(self) -> dict[int, tuple[int, int]]:
        return {
            partition: self._answer(lambda at=partition: self._log.bounds(self.topic, at, _ANSWER_TIMEOUT_S))  # type: ignore[misc]
            for partition in self.partitions
        }

    def _answer(self, ask: Callable[[], _Answer]) -> _Answer:
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        while True:
            try:
                return ask()
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(
                        f"asking about {self.topic}: Kafka did not answer within {_ANSWER_TIMEOUT_S:g} s; check the "
                        "option 'kafka.bootstrap.servers' and those of TLS and SASL, and whether the brokers run"
                    ) from None
                time.sleep(_WAIT_S)
