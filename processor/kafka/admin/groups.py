"""Fetches the members and committed offsets of consumer groups, and the ends of the partitions that they read.

Committed offsets are asked for by consumers that never join a group.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from processor.errors import Stop
from processor.kafka import errors as kafka_errors
from processor.kafka import properties
from processor.kafka.admin.answers import in_time
from processor.kafka.admin.descriptions import ask_groups
from processor.kafka.outage import leave

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from processor.kafka.admin.descriptions import ConsumerGroup


FutureOffsets: TypeAlias = Future[list[TopicPartition]]
"""The partitions with their committed offsets, or the `KafkaException` of the whole request."""

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
        answer: FutureOffsets = Future()
        asked = (group, [TopicPartition(*place) for place in places], timeout_s, answer)
        threading.Thread(target=self._answer, args=asked, name="committed offsets", daemon=True).start()
        return answer

    def renew(self) -> None:
        """Have the next requests sent on new connections; requests under way end on the present ones."""
        with self._lock:
            former, self._consumers = self._consumers, {}
        if former:
            leave(former, former.clear)

    def _answer(self, group: str, places: list[TopicPartition], timeout_s: float, answer: FutureOffsets) -> None:
        try:
            if self._is_stable:
                answer.set_result(self._stable(group, places, timeout_s / 2))
            else:
                answer.set_result(self._consumer(group, is_stable=False).committed(places, timeout_s))
        except Exception as error:  # noqa: BLE001 - the caller raises it.
            answer.set_exception(error)

    def _stable(self, group: str, places: list[TopicPartition], timeout_s: float) -> list[TopicPartition]:
        """The offsets after the end of every transaction; each of two requests has this time limit."""
        try:
            return self._consumer(group, is_stable=True).committed(places, timeout_s)
        except KafkaException as error:
            if not kafka_errors.is_unanswered(error):
                raise
        # Kafka is away, or librdkafka repeats the request because an offset is undecided: the answer without waiting
        # for transactions shows which.
        self._consumer(group, is_stable=False).committed(places, timeout_s)
        raise KafkaException(KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT))

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
