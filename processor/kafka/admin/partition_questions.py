"""Questions about the partitions of a topic, repeated until each partition is answered, without waiting."""

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
    """One question, asked of many partitions at once until each has its answer. One thread only.

    A partition that was not answered is asked by itself from then on: librdkafka gives the answers of one request
    together, and one leader that is away would keep all of them back.
    """

    def __init__(self, text: str, admin: Admin, ask: Callable[[Sequence[int]], Answers[_T]]) -> None:
        """Ask nothing yet.

        Args:
            text: the question, for people, as "the end of orders.sow partition {}".
            admin: whose client is given up when it gets no answers.
            ask: tries once.
        """
        self._text = text
        self._admin = admin
        self._ask = ask
        self._wanted: dict[int, float] = {}  # And not before when.
        self._pauses: dict[int, float] = {}
        self._tries: list[Answers[_T]] = []
        self._errors: dict[int, KafkaError] = {}

    def want(self, partition: int) -> None:
        """Ask of this partition, from the next turn on."""
        self._wanted.setdefault(partition, 0.0)

    def forget(self, partition: int) -> None:
        """Ask of it no more; an answer under way is dropped."""
        self._wanted.pop(partition, None)
        self._pauses.pop(partition, None)
        if self._errors.pop(partition, None) is not None:
            self._admin.renewal.answered(self._name(partition))
        for answers in self._tries:
            answers.drop(partition)

    def unanswered(self, partition: int) -> str | None:
        """The question, and what was said instead of an answer; None if it is not asked of this partition."""
        if partition not in self._wanted:
            return None
        error = self._errors.get(partition)
        return self._name(partition) + (f": {error.str()}" if error is not None else "")

    def error(self, partition: int) -> KafkaError | None:
        """What came instead of an answer the last time."""
        return self._errors.get(partition)

    def turn(self) -> dict[int, _T]:
        """Take the answers that have come, and ask again where it is time.

        Raises:
            ConfigurationError: Kafka refuses.
            Stop: an error that does not go by.
        """
        found: dict[int, _T] = {}
        for answers in self._tries:
            for partition, answer in answers.take().items():
                if isinstance(answer, KafkaException):
                    self._failed(partition, answer)
                elif partition in self._wanted:
                    self.forget(partition)
                    outage.reached()
                    found[partition] = answer
        self._tries = [answers for answers in self._tries if not answers.is_over]
        self._begin()
        return found

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
            # librdkafka asks the leader it knows, and learns of no newer one from the refusal. The topic exists, as
            # its partitions are ours: a broker that does not know it has just started.
            self._admin.refresh()
        else:
            raise kafka_errors.stop(error, f"asking for {name}") from error
        pause_s = self._pauses[partition] = min(2 * self._pauses.get(partition, _PAUSE_S / 2), _PAUSE_MAX_S)
        self._wanted[partition] = time.monotonic() + pause_s
        self._errors[partition] = kafka_error

    def _name(self, partition: int) -> str:
        return self._text.format(partition)
