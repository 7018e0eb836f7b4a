"""The librdkafka settings of every client; what the user sets beats them, save where a promise hangs on one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from processor.kafka.repeats import Repeats
from processor.topics import MESSAGE_MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

_FRAMING_BYTES: Final = 1024 * 1024  # Keys, headers and protocol round a message of the largest size.

log = logging.getLogger("sowstream.librdkafka")
log.addFilter(Repeats())


def common(kafka: Mapping[str, str]) -> dict[str, Any]:
    """For clients of every kind: the user's properties and our logger."""
    return {
        "bootstrap.servers": "localhost:9092",
        # Seconds of back-off after a lost connection would outlast most restarts of a broker.
        "reconnect.backoff.max.ms": "2000",
        **kafka,
        "logger": log,
    }


def consumer(kafka: Mapping[str, str], *, group: str) -> dict[str, Any]:
    """For every reader: committed records only, offsets only where we say."""
    return {
        "fetch.wait.max.ms": "100",
        # The default of a second stalls a full queue for as long.
        "fetch.queue.backoff.ms": "20",
        "queued.min.messages": "50000",
        "queued.max.messages.kbytes": "65536",
        **common(kafka),
        "group.id": group,
        "isolation.level": "read_committed",
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        # Nothing is skipped or read twice silently: every start offset is given explicitly.
        "auto.offset.reset": "error",
    }


def group_member(kafka: Mapping[str, str], *, group: str, session_timeout_s: float) -> dict[str, Any]:
    """For a worker's input: a member of the group, rebalanced without stopping the others."""
    return {
        "session.timeout.ms": str(int(session_timeout_s * 1000)),
        "heartbeat.interval.ms": str(int(session_timeout_s * 1000 / 4)),
        **consumer(kafka, group=group),
        "partition.assignment.strategy": "cooperative-sticky",
        "enable.partition.eof": "true",
    }


def log_reader(kafka: Mapping[str, str], *, group: str) -> dict[str, Any]:
    """For a reader that assigns itself partitions and must know where they end."""
    return consumer(kafka, group=group) | {"enable.partition.eof": "true"}


def producer(kafka: Mapping[str, str]) -> dict[str, Any]:
    """For every writer: the partitioner of Java and Spark, nothing lost, order kept."""
    return {
        "linger.ms": "5",
        "batch.size": "1000000",
        "compression.type": "lz4",
        "queue.buffering.max.messages": "1000000",
        "queue.buffering.max.kbytes": "262144",
        **common(kafka),
        # librdkafka's own default differs from Java's and would split a key over two workers.
        "partitioner": "murmur2_random",
        "enable.idempotence": "true",
        "message.max.bytes": str(MESSAGE_MAX_BYTES + _FRAMING_BYTES),
    }


def transactional(kafka: Mapping[str, str], *, transactional_id: str, transaction_timeout_s: float) -> dict[str, Any]:
    """For a worker's output."""
    timeout_ms = str(int(transaction_timeout_s * 1000))
    return producer(kafka) | {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "message.timeout.ms": timeout_ms,
        # The topics were there at the start. One that is gone is to be told as that, before the time is over.
        "topic.metadata.propagation.max.ms": str(int(transaction_timeout_s * 1000 / 4)),
        # Back-to-back transactions meet CONCURRENT_TRANSACTIONS, and the default waits 100 ms for each.
        "retry.backoff.ms": "5",
        "retry.backoff.max.ms": "100",
    }
