"""Questions about the partitions of a topic that are asked again until each is answered, and never waited for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException

from processor.kafka import errors as kafka_errors
from processor.kafka import outage
from processor.topics.family import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from processor.kafka.admin.admin import Admin

_T = TypeVar("_T")

COORDINATOR_TIMEOUT_S: Final = 3600.0
"""What librdkafka is told as the time limit of a question to a group's coordinator: as long as it takes.

It aborts the process when such a question has timed out within it and the coordinator is found after that (assertion
`eonce->refcnt > 0`, its pull request 5397; seen with 2.16.1). So the limit is ours: an answer that is overdue is not
waited for, and the client that is to bring it is given up long before.
"""
ASK_TIMEOUT_S: Final = 2.0
"""Longest that one try may take."""
_OVERDUE_S: Final = 1.0  # Whatever librdkafka does by then: a client that was given up may never tell.
_PAUSE_S, _PAUSE_MAX_S = 0.05, 0.5  # Before another try where Kafka has answered with an error.


class Committed(NamedTuple):
    """A group's committed offset of one partition."""

    offset: int | None
    """The next offset to read; None: the group has none."""
    text: str | None
    """What was committed beside it."""


class Answers(Generic[_T]):
    """The answers to one try of a question, as they come."""

    def __init__(
        self, futures: Mapping[int, Future[Any]], read: Callable[[int, Any], _T], timeout_s: float = ASK_TIMEOUT_S
    ) -> None:
        """Made by `Admin`.

        Args:
            futures: librdkafka's answer for each partition; several may have the same one.
            read: what an answer says of a partition; raises `KafkaException`.
            timeout_s: how long librdkafka tries.
        """
        self._futures = dict(futures)
        self._read = read
        self._until_s = time.monotonic() + timeout_s + _OVERDUE_S

    def take(self) -> dict[int, _T | KafkaException]:
        """Those that have come since the last time; an error stands for an answer that will not come."""
        is_overdue = time.monotonic() > self._until_s
        come = [number for number, future in self._futures.items() if is_overdue or future.done()]
        return {number: self._answer(number, self._futures.pop(number)) for number in come}

    def wait(self) -> dict[int, _T | KafkaException]:
        """All of them; returns in the time that the try may take."""
        answers: dict[int, _T | KafkaException] = {}
        while self._futures:
            answers |= self.take()
            for future in list(self._futures.values())[:1]:
                # Of a cancelled or failed one `take` tells.
                _await(future, self._until_s)
        return answers

    def drop(self, partition: int) -> None:
        """Wait for the answer about this partition no more."""
        self._futures.pop(partition, None)

    @property
    def is_over(self) -> bool:
        """Whether every answer was taken."""
        return not self._futures

    @property
    def awaited(self) -> Iterable[int]:
        """The partitions whose answers have not been taken."""
        return self._futures.keys()

    def _answer(self, partition: int, future: Future[Any]) -> _T | KafkaException:
        if not future.done():
            return KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer in time"))
        try:
            return self._read(partition, future.result(0))
        except KafkaException as error:
            return error


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


def _await(future: Future[Any], until_s: float) -> None:
    try:
        future.exception(max(0.0, until_s - time.monotonic()) + 0.001)
    except TimeoutError:
        return


def retained_ms(config: Mapping[str, str]) -> float:
    """How long deletes stay in a topic with these settings."""
    return float(config.get("delete.retention.ms", DAY_MS))


def values(entries: Mapping[str, Any]) -> dict[str, str]:
    """The settings that have a value."""
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def offset_of(_partition: int, found: Any) -> int:
    """The offset that was asked for; a negative one is no answer."""
    if found.offset < 0:
        raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE, f"Kafka gave the offset {found.offset}"))
    return int(found.offset)


def committed_of(partition: int, found: Any) -> Committed:
    """What is committed for a partition; one that the answer lacks was not answered."""
    place = next((place for place in found.topic_partitions if place.partition == partition), None)
    if place is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the answer lacks this partition"))
    if place.error is not None:
        raise KafkaException(place.error)
    return Committed(place.offset if place.offset >= 0 else None, place.metadata or None)


def in_time(future: Future[Any], timeout_s: float) -> Any:
    """An answer, or Kafka's error; that there was none in time, too."""
    try:
        return future.result(timeout_s + 1.0)
    except TimeoutError:
        return KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer in time"))
    except KafkaException as error:
        return error
