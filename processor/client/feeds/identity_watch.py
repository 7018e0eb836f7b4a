"""Checks that a topic keeps its identity while it is read: a reader itself does not notice a recreated topic.

librdkafka goes on reading a recreated topic at the old offset, without any error.
"""

from __future__ import annotations

import time
from typing import Final

from processor.errors import PositionLost
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.descriptions import TopicQuestion

INTERVAL_S: Final = 5.0
"""Time between two checks; each is one request to one broker."""
_ASK_TIMEOUT_S: Final = 5.0
_CHECKS: Final = 2  # A broker that has just started may still describe the topic as it was before.


class IdentityWatch:
    """Requests the description of a topic now and then, without waiting for the answer. One thread only."""

    def __init__(self, admin: Admin, topic: str, topic_id: str, partitions: int) -> None:
        """Watch a topic.

        Args:
            admin: sends the requests.
            topic: the Kafka topic.
            topic_id: its expected id.
            partitions: its expected number of partitions.
        """
        self._admin = admin
        self._topic = topic
        self._expected = topic_id, partitions
        self._question: TopicQuestion | None = None
        self._next_s = time.monotonic() + INTERVAL_S
        self._others = 0

    def check(self) -> None:
        """Evaluate the answer to the last request, or send the next one when it is due.

        Raises:
            PositionLost: the topic was recreated, or has another number of partitions.
        """
        now_s = time.monotonic()
        if self._question is None:
            if now_s >= self._next_s:
                self._question = self._admin.ask_topic(self._topic, _ASK_TIMEOUT_S)
            return
        if not self._question.is_answered:
            return
        description, self._question = self._question.answer(), None
        self._next_s = now_s + INTERVAL_S
        # No answer is no problem: the reader itself reports a topic that is gone.
        if description is None or description == self._expected:
            self._others = 0
            return
        self._others += 1
        if self._others >= _CHECKS:
            problem = "was recreated" if description[0] != self._expected[0] else f"has {description[1]} partitions now"
            raise PositionLost(f"reading {self._topic}: the topic {problem}; begin again with a snapshot")
        self._next_s = now_s + INTERVAL_S / 5
