"""Requests about the partitions of a topic, repeated until each partition has its answer; they never block."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException

from processor.kafka import errors as kafka_errors
from processor.kafka import outage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.answers import Answers

_T = TypeVar("_T")

_PAUSE_S: Final = 0.05  # Before the first repetition, if Kafka has answered with an error; doubled with each.
_PAUSE_MAX_S: Final = 0.5


class PartitionQuestion(Generic[_T]):
    """A request about many partitions at once, repeated until each has its answer. One thread only.

    A partition without an answer gets requests of its own from then on: librdkafka returns all answers of one request
    together, and one leader that is away would delay all of them.
    """

    def __init__(self, text: str, admin: Admin, ask: Callable[[Sequence[int]], Answers[_T]]) -> None:
        """Send nothing yet.

        Args:
            text: the question in log lines and errors, such as "the end of orders.sow partition {}".
            admin: replaces its client when it gets no answers.
            ask: sends the request once, for these partitions.
        """
        self._text = text
        self._admin = admin
        self._ask = ask
        # By partition, the earliest time of the next request, on the monotonic clock.
        self._wanted: dict[int, float] = {}
        self._pauses: dict[int, float] = {}
        self._tries: list[Answers[_T]] = []
        self._errors: dict[int, KafkaError] = {}

    def want(self, partition: int) -> None:
        """Request the answer for this partition, from the next turn on."""
        self._wanted.setdefault(partition, 0.0)

    def forget(self, partition: int) -> None:
        """Drop the request for this partition, also an answer on its way."""
        self._wanted.pop(partition, None)
        self._pauses.pop(partition, None)
        if self._errors.pop(partition, None) is not None:
            self._admin.renewal.answered(self._name(partition))
        for answers in self._tries:
            answers.drop(partition)

    def unanswered(self, partition: int) -> str | None:
        """The question and the last error; None if there is no open question for this partition."""
        if partition not in self._wanted:
            return None
        error = self._errors.get(partition)
        return self._name(partition) + (f": {error.str()}" if error is not None else "")

    def error(self, partition: int) -> KafkaError | None:
        """The last error for this partition."""
        return self._errors.get(partition)

    def turn(self) -> dict[int, _T]:
        """Return the answers that have arrived, and send the requests that are due.

        Raises:
            ConfigurationError: Kafka refuses.
            Stop: a permanent error.
        """
        ready: dict[int, _T] = {}
        for answers in self._tries:
            for partition, answer in answers.take().items():
                if isinstance(answer, KafkaException):
                    self._failed(partition, answer)
                elif partition in self._wanted:
                    self.forget(partition)
                    outage.reached()
                    ready[partition] = answer
        self._tries = [answers for answers in self._tries if not answers.is_over]
        self._begin()
        return ready

    def _begin(self) -> None:
        now_s = time.monotonic()
        asked = {partition for answers in self._tries for partition in answers.awaited}
        due = [partition for partition, due_s in self._wanted.items() if partition not in asked and due_s <= now_s]
        alone = [partition for partition in due if partition in self._errors]
        together = [partition for partition in due if partition not in self._errors]
        for partitions in ([together] if together else []) + [[partition] for partition in alone]:
            self._tries.append(self._ask(partitions))

    def _failed(self, partition: int, error: KafkaException) -> None:
        if partition not in self._wanted:
            return
        kafka_error = kafka_errors.of(error)
        name = self._name(partition)
        if kafka_errors.is_unanswered(error):
            self._admin.renewal.unanswered(name)
        elif kafka_errors.passes(kafka_error) or kafka_errors.is_leaderless(error) or kafka_errors.is_unknown(error):
            # librdkafka sends to the leader that it has, and does not learn of a newer one from the refusal. The topic
            # exists, as its partitions are assigned to us: a broker that does not know it has just started.
            self._admin.refresh()
        else:
            raise kafka_errors.stop(error, f"asking for {name}") from error
        pause_s = self._pauses[partition] = min(2 * self._pauses.get(partition, _PAUSE_S / 2), _PAUSE_MAX_S)
        self._wanted[partition] = time.monotonic() + pause_s
        self._errors[partition] = kafka_error

    def _name(self, partition: int) -> str:
        return self._text.format(partition)
