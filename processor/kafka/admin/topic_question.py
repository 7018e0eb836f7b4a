"""A question about a topic whose answer is looked for later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka.admin._topic import TopicDescription


class TopicQuestion:
    """What a topic is."""

    def __init__(self, future: Future[TopicDescription]) -> None:
        """Made by `Admin.ask_topic`."""
        self._future = future

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer, or will be none."""
        return self._future.done()

    def answer(self) -> tuple[str, int] | None:
        """Its id and its number of partitions; None if Kafka did not say."""
        try:
            found = self._future.result(0)
        except (KafkaException, TimeoutError):
            return None
        return str(found.topic_id), len(found.partitions)
