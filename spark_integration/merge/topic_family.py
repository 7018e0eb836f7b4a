"""Answers the driver's questions to Kafka about a family of topics and the group of its workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from processor.errors import BrokerUnavailable, ConfigurationError
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import LogReader
from processor.wire.control import OF_SPARK

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from processor.topics.family import Role
    from spark_integration.foundation.settings import TopicSettings

_Answer = TypeVar("_Answer")

_TIMEOUT_S: Final = 15.0


class Bounds(NamedTuple):
    """A range of offsets in each partition of a topic."""

    begins: dict[int, int]
    """The first offset of each partition."""
    ends: dict[int, int]
    """The offset after the last one of each partition."""


class TopicFamily:
    """A family of topics and its workers' group in Kafka; close it after use."""

    def __init__(self, settings: TopicSettings, kafka: Mapping[str, str]) -> None:
        """Connect to Kafka.

        Args:
            settings: the settings of the topic.
            kafka: librdkafka properties, see `client_properties`.

        Raises:
            ConfigurationError: a property cannot be used.
        """
        self.kafka: Final = kafka
        self.group: Final = f"{settings.group_prefix}.{settings.name}"
        """The workers' consumer group."""
        self.source: Final = settings.kafka_topic("publish")
        """Their input topic."""
        self.admin: Final = Admin(kafka, awaits_names=True)
        self._settings, self._kafka_topic = settings, settings.kafka_topic
        self._reader = LogReader(kafka, group=self.group)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._reader.close()

    def partitions(self, role: Role) -> int:
        """The number of partitions of a topic of the family.

        Raises:
            ConfigurationError: the topic does not exist.
        """
        topic = self._kafka_topic(role)
        count = self.admin.cluster().topics.get(topic)
        if count is None:
            where = self.kafka["bootstrap.servers"]
            raise ConfigurationError(f"no topic {topic} at {where}: `sowstream topics apply` makes it")
        return count

    def bounds(self, role: Role, partitions: int) -> Bounds:
        """The range of committed records of a topic: it ends before the first open transaction.

        Raises:
            BrokerUnavailable: no answer in time; also raised by the methods below.
        """
        topic = self._kafka_topic(role)
        bounds = _answer(
            topic, lambda: [self._reader.bounds(topic, partition, _TIMEOUT_S) for partition in range(partitions)]
        )
        return Bounds(
            {partition: begin for partition, (begin, _) in enumerate(bounds)},
            {partition: end for partition, (_, end) in enumerate(bounds)},
        )

    def at_time(self, role: Role, bounds: Bounds, time_ms: int) -> dict[int, int]:
        """The offset of the first record of each partition at this time or later; its end where there is none."""
        topic = self._kafka_topic(role)
        offsets = _answer(topic, lambda: self._reader.at_time(topic, bounds.ends, time_ms, _TIMEOUT_S))
        return {
            partition: end if (at := offsets.get(partition)) is None else min(at, end)
            for partition, end in bounds.ends.items()
        }

    def committed(self, partitions: int) -> dict[int, int]:
        """The offsets that the workers' group has committed; partitions without one are left out."""
        return {number: offset for number, (offset, _) in self.committed_with_notes(partitions).items()}

    def committed_with_notes(self, partitions: int) -> dict[int, tuple[int, str | None]]:
        """The same offsets, each with its metadata."""
        found = _answer(
            self.source,
            lambda: [self._reader.committed_with_note(self.source, at, _TIMEOUT_S) for at in range(partitions)],
        )
        return {number: (offset, note) for number, (offset, note) in enumerate(found) if offset is not None}

    def refuse_fenced(self, why: str) -> None:
        """Make sure that no move to Spark has raised a fence, by which `sowstream-spark` alone changes who merges.

        Raises:
            ConfigurationError: the fence is up.
        """
        from processor.installation.control_topic import ControlTopic  # noqa: PLC0415 - Spark's tasks import this module

        entries = ControlTopic(self.kafka, self.admin, prefix=self._settings.names.prefix).read(
            self._settings.application_id
        )
        fence = None if entries is None else entries.fences.get(self._settings.name)
        if fence is not None and fence.is_up:
            raise ConfigurationError(f"{self._settings.name}: {why}: {fence.sentence(self._settings.name)}")

    def refuse_members(self, why: str) -> None:
        """Make sure that no worker is in the group.

        Raises:
            ConfigurationError: the group has a member.
        """
        if members := self.admin.ask_group(self.group, self.source, _TIMEOUT_S).answer().hosts:
            raise ConfigurationError(
                f"the group {self.group} has {len(members)} living members, such as one at "
                f"{next(iter(members.values()))}: {why}; stop the workers first"
            )


def sparks_id(settings: TopicSettings) -> str:
    """The application id of input positions while Spark writes the outputs; no settings can have it, for the `@`."""
    return f"{settings.application_id}{OF_SPARK}"


def _answer(topic: str, ask: Callable[[], _Answer]) -> _Answer:
    try:
        return ask()
    except TimeoutError:
        raise _silent(topic) from None


def _silent(topic: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"asking about {topic}: no answer in {_TIMEOUT_S:g} s")
