"""Looks whether a topic is still the one that is read: a reader itself does not hear of it.

librdkafka goes on in a topic that was made anew, at the old offset, as if nothing had happened.
"""

from __future__ import annotations

import time
from typing import Final

from processor.errors import PositionLost
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.descriptions import TopicQuestion

INTERVAL_S: Final = 5.0
"""Time between two looks: one question to one broker each."""
_ASK_TIMEOUT_S: Final = 5.0
_LOOKS: Final = 2  # A broker that has just started may know the topic as it was when it went down.


class TopicWatch:
    """Asks now and then, and never waits for the answer. One thread only."""

    def __init__(self, admin: Admin, topic: str, topic_id: str, partitions: int) -> None:
        """Watch a topic.

        Args:
            admin: is asked.
            topic: the Kafka topic.
            topic_id: what it is supposed to be.
            partitions: how many it is supposed to have.
        """
        self._admin = admin
        self._topic = topic
        self._expected = topic_id, partitions
        self._question: TopicQuestion | None = None
        self._next_s = time.monotonic() + INTERVAL_S
        self._others = 0

    def look(self) -> None:
        """Look at the answer to the last question, or ask the next one if it is time.

        Raises:
            PositionLost: the topic is another one, or has other partitions.
        """
        now_s = time.monotonic()
        if self._question is None:
            if now_s >= self._next_s:
                self._question = self._admin.ask_topic(self._topic, _ASK_TIMEOUT_S)
            return
        if not self._question.is_answered:
            return
        found, self._question = self._question.answer(), None
        self._next_s = now_s + INTERVAL_S
        # No answer is no news: of a topic that is gone the reader hears.
        if found is None or found == self._expected:
            self._others = 0
            return
        self._others += 1
        if self._others >= _LOOKS:
            what = "was made anew" if found[0] != self._expected[0] else f"has {found[1]} partitions now"
            raise PositionLost(f"reading {self._topic}: the topic {what}; begin again with a snapshot")
        self._next_s = now_s + INTERVAL_S / 5
