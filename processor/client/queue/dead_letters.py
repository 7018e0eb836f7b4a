"""Writes the dead letters of a queue: messages that were rejected, or delivered too often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.errors import Stop
from processor.wire.dead_letter import reason_headers

if TYPE_CHECKING:
    from processor.kafka.clients.publisher import Publisher
    from processor.kafka.share_member.lease import Lease

_DETAIL_BYTES_MAX: Final = 1000


class QueueDeadLetters:
    """The dead-letter topic of one queue.

    Kafka has a letter before its message is rejected there: a consumer that dies in between leaves the message to
    another one, which writes the letter again. So a letter may come twice, and none is lost.
    """

    def __init__(self, publisher: Publisher, *, queue_topic: str, topic: str) -> None:
        """Create it.

        Args:
            publisher: sends the letters.
            queue_topic: the Kafka topic of the messages.
            topic: the Kafka topic of the letters.
        """
        self._publisher = publisher
        self._queue_topic = queue_topic
        self._topic = topic

    def write(self, lease: Lease, reason: str, detail: str) -> None:
        """Write one letter, and wait until Kafka has it.

        Args:
            lease: the message.
            reason: a word.
            detail: a sentence.

        Raises:
            Stop: Kafka does not take it; the message is not lost.
        """
        record = lease.record
        source = f"{self._queue_topic}/{lease.partition}/{record.offset}"
        cut = detail.encode()[:_DETAIL_BYTES_MAX].decode(errors="ignore").encode()
        headers = [*(record.headers or ()), *reason_headers(reason, cut, source)]
        errors: list[Stop | None] = []
        self._publisher.send(self._topic, record.key, record.value, headers, errors.append, partition=lease.partition)
        self._publisher.flush()
        if errors and errors[0] is not None:
            raise errors[0]
