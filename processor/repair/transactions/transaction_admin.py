"""Asks brokers about transactions, and writes the marker that ends one in a partition."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from processor.errors import BrokerUnavailable, ConfigurationError, Stop
from processor.kafka.python_client import client_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Result = TypeVar("Result")

_BOOTSTRAP_TIMEOUT_MS: Final = 15_000
_REQUEST_TIMEOUT_MS: Final = 15_000


class OpenProducer(NamedTuple):
    """A producer with an open transaction in a partition, as the partition's leader knows it."""

    producer_id: int
    """Kafka's number of the producer."""
    epoch: int
    """The epoch of the producer that wrote last."""
    coordinator_epoch: int
    """The epoch of the coordinator that wrote this producer's last marker here; -1: there is no marker."""
    begin: int
    """The first offset of the transaction."""
    last_ms: int
    """Timestamp of its last batch, milliseconds since the epoch."""


class CoordinatorState(NamedTuple):
    """The coordinator's present state of a transactional id."""

    state: str
    """Kafka's word: `Empty`, `Ongoing`, `PrepareCommit`, `PrepareAbort`, `CompleteCommit`, `CompleteAbort` ..."""
    producer_id: int
    """Kafka's number of the producer."""
    epoch: int
    """The newest epoch of the producer."""
    timeout_ms: int
    """The transaction timeout of the producer."""
    places: frozenset[tuple[str, int]]
    """Topics and partitions of the running transaction; empty if there is none."""


class Marker(NamedTuple):
    """The record that ends a transaction in one partition."""

    topic: str
    """The Kafka topic."""
    partition: int
    """The partition number."""
    producer_id: int
    """Kafka's number of the producer whose transaction it ends."""
    epoch: int
    """The producer epoch in the coordinator's decision."""
    coordinator_epoch: int
    """Not below the one of this producer's last marker in the partition."""
    transaction_version: int
    """The version of the transaction protocol: 0 or 1, or 2 if each transaction has an epoch of its own (KIP-890)."""
    is_commit: bool
    """True if the records become visible, or are dropped."""


class TransactionAdmin:
    """Requests about transactions, and the marker that ends one. One thread only."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        """Connect.

        Args:
            kafka: librdkafka properties.

        Raises:
            BrokerUnavailable: no answer in time.
            ConfigurationError: the properties cannot be used, or kafka-python is not installed.
        """
        settings = client_settings(kafka)
        try:
            from kafka import KafkaAdminClient, errors  # noqa: PLC0415 - Nobody else needs it.
        except ModuleNotFoundError:
            raise ConfigurationError(
                "`sowstream transactions` needs the package kafka-python: pip install 'sowstream[worker]'"
            ) from None
        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # Its log lines are raised as errors as well.
        self._errors = errors
        self._where = kafka.get("bootstrap.servers", "localhost:9092")
        self._client: Any = self._asked(
            "looking at the cluster",
            lambda: KafkaAdminClient(
                **settings, bootstrap_timeout_ms=_BOOTSTRAP_TIMEOUT_MS, request_timeout_ms=_REQUEST_TIMEOUT_MS
            ),
        )

    def open_producers(self, topic: str, partition: int) -> list[OpenProducer]:
        """Fetch the producers with an open transaction in a partition, the one that began first in front.

        Raises:
            Stop: Kafka refuses, or does not answer.
        """
        from kafka.structs import TopicPartition  # noqa: PLC0415

        place = TopicPartition(topic, partition)
        answer = self._asked(
            f"asking who writes to {topic} partition {partition}", lambda: self._client.describe_producers([place])
        )
        producers = [
            OpenProducer(
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.current_transaction_start_offset,
                producer.last_timestamp,
            )
            for producer in answer[place].active_producers
            if producer.current_transaction_start_offset >= 0
        ]
        return sorted(producers, key=lambda producer: producer.begin)

    def transactional_ids(self, producer_ids: Iterable[int]) -> dict[int, str]:
        """Fetch the transactional id of each producer that a coordinator still knows, by producer number.

        Raises:
            Stop: Kafka refuses, or does not answer.
        """
        numbers = sorted(set(producer_ids))
        answer = self._asked(
            "asking for transactional ids", lambda: self._client.list_transactions(producer_id_filters=numbers)
        )
        return {
            listed.producer_id: listed.transactional_id
            for listings in answer.values()
            for listed in listings
            if listed.producer_id in numbers
        }

    def coordinator_state(self, transactional_id: str) -> CoordinatorState:
        """Fetch the coordinator's state of a transactional id.

        Raises:
            Stop: Kafka refuses, does not know it, or does not answer.
        """
        answer = self._asked(
            f"asking for the transaction of {transactional_id}",
            lambda: self._client.describe_transactions([transactional_id]),
        )
        description = answer[transactional_id]
        return CoordinatorState(
            str(description.state.value),
            description.producer_id,
            description.producer_epoch,
            description.transaction_timeout_ms,
            frozenset((place.topic, place.partition) for place in description.topic_partitions),
        )

    def write(self, marker: Marker) -> None:
        """End a transaction in one partition, as its coordinator would have.

        The leader of the partition refuses an epoch below that of the last writer: a transaction that has begun there
        since is never touched. `kafka-transactions abort` sends the same request, to roll back.

        Raises:
            Stop: Kafka refuses, or does not answer.
        """
        doing = f"ending the transaction in {marker.topic} partition {marker.partition}"
        self._asked(doing, lambda: self._client._manager.run(self._write, marker))

    async def _write(self, marker: Marker) -> None:
        from kafka.protocol.producer.transaction import WriteTxnMarkersRequest  # noqa: PLC0415
        from kafka.structs import TopicPartition  # noqa: PLC0415

        one = WriteTxnMarkersRequest.WritableTxnMarker
        request = WriteTxnMarkersRequest(
            markers=[
                one(
                    producer_id=marker.producer_id,
                    producer_epoch=marker.epoch,
                    transaction_result=marker.is_commit,
                    topics=[one.WritableTxnMarkerTopic(name=marker.topic, partition_indexes=[marker.partition])],
                    coordinator_epoch=marker.coordinator_epoch,
                    transaction_version=marker.transaction_version,
                )
            ]
        )
        place = TopicPartition(marker.topic, marker.partition)
        (leader,) = await self._client._async_get_leader_for_partitions([place])
        answer = await self._client._manager.send(request, node_id=leader)
        codes = [
            partition.error_code
            for result in answer.markers
            for topic in result.topics
            for partition in topic.partitions
            if partition.error_code
        ]
        if codes:
            raise self._errors.for_code(codes[0])

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(self._errors.KafkaError):
            self.close()

    def _asked(self, doing: str, ask: Callable[[], Result]) -> Result:
        """Send a request, and map its failure to our errors."""
        errors = self._errors
        try:
            return ask()
        except (errors.AuthorizationError, errors.SaslAuthenticationFailedError) as error:
            raise ConfigurationError(
                f"{doing}: Kafka refuses ({type(error).__name__}). `sowstream topics apply --acls` prints what the "
                "principal of `sowstream transactions` needs"
            ) from error
        except (errors.KafkaTimeoutError, errors.KafkaConnectionError, errors.NodeNotReadyError, TimeoutError) as error:
            raise BrokerUnavailable(
                f"{doing}: Kafka does not answer at {self._where} ({error}); `sowstream doctor` looks closer"
            ) from error
        except errors.KafkaError as error:
            raise Stop(f"{doing}: {type(error).__name__}: {error}") from error
