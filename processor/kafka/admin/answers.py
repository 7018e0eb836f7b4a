"""Answers of Kafka that arrive later, and the functions that read them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException

from processor.topics.family import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Future

_T = TypeVar("_T")

COORDINATOR_TIMEOUT_S: Final = 3600.0
"""The time limit that librdkafka gets for a request to a group's coordinator: in effect none.

librdkafka aborts the process when such a request has timed out and the coordinator is found after that (assertion
`eonce->refcnt > 0`, its pull request 5397; seen with 2.16.1). So the limit is ours: we stop waiting for an overdue
answer, and give up the client long before librdkafka's limit.
"""
ASK_TIMEOUT_S: Final = 2.0
"""Longest time for one request."""
_OVERDUE_S: Final = 1.0  # Time after librdkafka's own limit; a client that was given up may never answer.


class Committed(NamedTuple):
    """A group's committed offset of one partition."""

    offset: int | None
    """The next offset to read; None: the group has none."""
    text: str | None
    """The offset metadata that was committed with it."""


class Answers(Generic[_T]):
    """The answers to one request about several partitions, as they arrive."""

    def __init__(
        self, futures: Mapping[int, Future[Any]], read: Callable[[int, Any], _T], timeout_s: float = ASK_TIMEOUT_S
    ) -> None:
        """Made by `Admin`.

        Args:
            futures: librdkafka's answer for each partition; several partitions may share one.
            read: reads the value for a partition from an answer; raises `KafkaException`.
            timeout_s: the time limit of librdkafka for the request.
        """
        self._futures = dict(futures)
        self._read = read
        self._until_s = time.monotonic() + timeout_s + _OVERDUE_S

    def take(self) -> dict[int, _T | KafkaException]:
        """The answers that have arrived since the last call; an error stands for an answer that will not arrive."""
        is_overdue = time.monotonic() > self._until_s
        ready = [number for number, future in self._futures.items() if is_overdue or future.done()]
        return {number: self._answer(number, self._futures.pop(number)) for number in ready}

    def wait(self) -> dict[int, _T | KafkaException]:
        """All answers; returns within the time limit of the request."""
        answers: dict[int, _T | KafkaException] = {}
        while self._futures:
            answers |= self.take()
            for future in list(self._futures.values())[:1]:
                # `take` reports one that was cancelled or has failed.
                wait_until(future, self._until_s)
        return answers

    def drop(self, partition: int) -> None:
        """Stop waiting for the answer about this partition."""
        self._futures.pop(partition, None)

    @property
    def is_over(self) -> bool:
        """True if every answer was taken."""
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


def wait_until(future: Future[Any], until_s: float) -> None:
    """Wait for an answer up to a time of the monotonic clock; raises nothing."""
    try:
        future.exception(max(0.0, until_s - time.monotonic()) + 0.001)
    except TimeoutError:
        return


def retained_ms(config: Mapping[str, str]) -> float:
    """Retention time of tombstones in a topic with these settings, in milliseconds."""
    return float(config.get("delete.retention.ms", DAY_MS))


def values(entries: Mapping[str, Any]) -> dict[str, str]:
    """The settings that have a value."""
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def offset_of(_partition: int, answer: Any) -> int:
    """The offset in an answer; a negative one counts as no answer."""
    if answer.offset < 0:
        raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE, f"Kafka gave the offset {answer.offset}"))
    return int(answer.offset)


def committed_of(partition: int, answer: Any) -> Committed:
    """The committed offset of a partition in an answer; a partition that is missing there was not answered."""
    place = next((place for place in answer if place.partition == partition), None)
    if place is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the answer lacks this partition"))
    if place.error is not None:
        raise KafkaException(place.error)
    return Committed(place.offset if place.offset >= 0 else None, place.metadata or None)


def in_time(future: Future[Any], timeout_s: float) -> Any:
    """Wait for an answer and return it, or Kafka's error; a timeout is such an error, too."""
    try:
        return future.result(timeout_s + 1.0)
    except TimeoutError:
        return KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer in time"))
    except KafkaException as error:
        return error
