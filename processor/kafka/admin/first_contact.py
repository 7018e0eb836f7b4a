"""The first request of a client: the brokers and topics of a cluster, or the reason why no broker answers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaException

from processor.errors import ConfigurationError, Stop
from processor.kafka import errors as kafka_errors
from processor.kafka import outage, properties
from processor.kafka.connection_faults import error_of
from processor.kafka.connection_probe import FaultLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._metadata import ClusterMetadata

CONNECT_TIMEOUT_S: Final = 15.0
"""Longest wait for a broker, unless the caller has another limit."""
_TRIES_S: Final = (0.5, 1.5)
"""The first tries; a refused login is known after one of them. Metadata of a large cluster may take longer."""
_TRY_MAX_S: Final = 4.0


class Cluster(NamedTuple):
    """The brokers and topics of a cluster."""

    brokers: list[str]
    """The address of each broker, `host:port`."""
    topics: dict[str, int]
    """Each topic's number of partitions; topics that this user may not describe are missing."""


def check_files(kafka: Mapping[str, str]) -> None:
    """Check that the files of the properties exist: librdkafka's error does not name them.

    Raises:
        ConfigurationError: one does not exist, or must not be read.
    """
    for name, value in kafka.items():
        if not name.endswith(".location") or not value or value == "probe":
            continue
        try:
            if Path(value).is_file():
                Path(value).open("rb").close()
            elif not Path(value).exists():
                raise ConfigurationError(f"kafka.{name}: there is no file {value}")
        except OSError as error:
            raise ConfigurationError(f"kafka.{name}: {value}: {error.strerror}") from None


def fetch_cluster(client: AdminClient, faults: FaultLog, doing: str, timeout_s: float) -> Cluster:
    """Fetch the brokers and topics of the cluster from any broker; a long wait is logged.

    Args:
        client: sends the request.
        faults: the faults of the client, filled while it is polled.
        doing: the action, for the error: "looking at the cluster at HOST:PORT".
        timeout_s: longest wait. A fault that waiting does not mend ends it early.

    Raises:
        ConfigurationError: the settings or the broker must change first, such as a wrong password.
        BrokerUnavailable: no answer in time.
    """
    try:
        metadata = _metadata(client, faults, timeout_s)
    except KafkaException as error:
        raise _failure(error, faults, doing) from error
    faults.clear()
    outage.reached()
    return Cluster(
        [f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()],
        {name: len(topic.partitions) for name, topic in metadata.topics.items()},
    )


def _metadata(client: AdminClient, faults: FaultLog, timeout_s: float) -> ClusterMetadata:
    deadline_s, tries = time.monotonic() + timeout_s, iter(_TRIES_S)
    while True:
        left_s = deadline_s - time.monotonic()
        try_s = next(tries, _TRY_MAX_S)
        try:
            return client.list_topics(timeout=max(0.01, min(try_s, left_s)))
        except KafkaException as error:
            client.poll(0)  # librdkafka delivers its log lines here only.
            if not kafka_errors.is_unreachable(error) or faults.ends_the_wait or time.monotonic() >= deadline_s:
                raise
            if try_s >= _TRIES_S[-1]:
                # librdkafka reports no web server and no port with TLS. On a busy machine one look may be too short.
                reasons = faults.look_closer()
                if faults.ends_the_wait:
                    raise
                if try_s == _TRIES_S[-1] and not outage.is_away():  # During an outage the log has a line a minute.
                    properties.log.warning("waiting for Kafka, up to %g s: %s", timeout_s, reasons)


def _failure(error: KafkaException, faults: FaultLog, doing: str) -> Stop:
    """The error of a request that no broker answered."""
    if not kafka_errors.is_unreachable(error):
        return kafka_errors.stop(error, doing)
    explained = faults.explained()
    if not any(fault.is_final for fault in explained):
        outage.unreachable(doing)
    return error_of(explained, doing)
