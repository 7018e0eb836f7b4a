"""Fetches the members and committed offsets of consumer groups, and the ends of the partitions that they read."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from processor.errors import Stop
from processor.kafka import errors as kafka_errors
from processor.kafka import properties
from processor.kafka.admin.answers import in_time
from processor.kafka.admin.committed_offsets import CommittedOffsets
from processor.kafka.admin.descriptions import ask_groups
from processor.kafka.renewal import leave

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from processor.kafka.admin.descriptions import ConsumerGroup

_TIMEOUT_S = 15.0


class GroupInspector:
    """Requests about several groups at once; connects with the first request."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._kafka = kafka
        self._committed = CommittedOffsets(kafka, is_stable=False)

    @cached_property
    def _client(self) -> AdminClient:
        return AdminClient(properties.common(self._kafka))

    def _give_up(self) -> None:
        """Have the next request sent by a new client: this one may still wait for a coordinator."""
        leave(self.__dict__.pop("_client", None))

    def rest(self) -> None:
        """Close the connections for offsets of groups, of which there is one a group, until the next request."""
        self._committed.renew()

    def groups(self, names: Sequence[str], timeout_s: float = _TIMEOUT_S) -> dict[str, ConsumerGroup]:
        """Fetch the members of these groups; a group that Kafka does not know is `dead`.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka refuses.
        """
        try:
            return {name: question.wait() for name, question in ask_groups(self._client, names, timeout_s).items()}
        except Stop:
            self._give_up()
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

    def ends(
        self, places: Iterable[tuple[str, int]], *, is_committed: bool, timeout_s: float = _TIMEOUT_S
    ) -> dict[tuple[str, int], int | None]:
        """Fetch the ends of partitions, by topic and number; None where Kafka has no answer at present.

        Args:
            places: topics and partitions.
            is_committed: whether the last stable offset is wanted, and not the true end.
            timeout_s: longest wait.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka refuses.
        """
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets_at(places, latest, level, "ends", timeout_s)

    def begins(
        self, places: Iterable[tuple[str, int]], *, timeout_s: float = _TIMEOUT_S
    ) -> dict[tuple[str, int], int | None]:
        """Fetch the oldest offsets of partitions; the answers and errors are those of `ends`."""
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        return self._offsets_at(places, earliest, IsolationLevel.READ_UNCOMMITTED, "oldest offsets", timeout_s)

    def _offsets_at(
        self,
        places: Iterable[tuple[str, int]],
        spec: OffsetSpec,
        level: IsolationLevel,
        what: str,
        timeout_s: float,
    ) -> dict[tuple[str, int], int | None]:
        """Fetch the offset of each partition that this specification names."""
        requested = {TopicPartition(*place): spec for place in places}
        asked = (
            self._client.list_offsets(requested, isolation_level=level, request_timeout=timeout_s) if requested else {}
        )
        offsets: dict[tuple[str, int], int | None] = {}
        for place, future in asked.items():
            try:
                offsets[place.topic, place.partition] = future.result().offset
            except KafkaException as error:
                kafka_error = kafka_errors.of(error)
                is_changing = kafka_errors.is_moved(error) or kafka_errors.is_leaderless(error)
                if not is_changing and not kafka_errors.is_unknown(error):
                    raise kafka_errors.stop(kafka_error, f"asking for the {what} of {place.topic}") from error
                offsets[place.topic, place.partition] = None
        return offsets
