"""Requests to Kafka whose answers are read later, by a caller that goes on meanwhile.

A `Question` is one request: librdkafka's future, our own time limit, and the function that reads the answer. A
`PartitionQuestion` is a request about many partitions, repeated until each has its answer. The ways around librdkafka's
silence are here only: limits of our own, requests one by one, and clients that are replaced.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException

from processor.kafka import errors as kafka_errors
from processor.kafka import outage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.kafka.outage import Renewal

_T = TypeVar("_T")

COORDINATOR_TIMEOUT_S: Final = 3600.0
"""The time limit that librdkafka gets for a request to a group's coordinator: in effect none.

librdkafka aborts the process when such a request has timed out and the coordinator is found after that (assertion
`eonce->refcnt > 0`, its pull request 5397; seen with 2.16.1). So the limit is ours: we stop waiting for an overdue
answer, and give up the client long before librdkafka's limit.
"""
ASK_TIMEOUT_S: Final = 2.0
"""Longest time for one request."""
OVERDUE_S: Final = 1.0
"""Time after librdkafka's own limit until an answer is overdue; a client that was given up may never answer."""


class Question(Generic[_T]):
    """One request whose answer is read later. Any thread."""

    def __init__(
        self,
        doing: str,
        future: Future[Any],
        timeout_s: float,
        read: Callable[[Future[Any]], _T] = Future.result,
        *,
        on_overdue: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the time limit.

        Args:
            doing: the action, for the error: "looking at the group desk.orders".
            future: librdkafka's answer.
            timeout_s: time after which the answer is overdue.
            read: reads a future that is done; raises `KafkaException`.
            on_overdue: called when an overdue answer is read.
        """
        self._doing = doing
        self._future = future
        self._until_s = time.monotonic() + timeout_s
        self._read = read
        self._on_overdue = on_overdue

    @property
    def is_answered(self) -> bool:
        """True if the answer is there or overdue, so that `answer` does not wait."""
        return self._future.done() or time.monotonic() > self._until_s

    def answer(self) -> _T:
        """Wait for the answer up to the time limit, and return it.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka refused.
        """
        try:
            return self.result()
        except KafkaException as error:
            raise kafka_errors.stop(error, self._doing) from error

    def result(self) -> _T:
        """As `answer`, but Kafka's own error.

        Raises:
            KafkaException: Kafka refused, or sent no answer in time.
        """
        try:
            self._future.exception(max(0.0, self._until_s - time.monotonic()))
        except TimeoutError:
            self._on_overdue()
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer in time")) from None
        return self._read(self._future)


def in_time(future: Future[Any], timeout_s: float) -> Any:
    """Wait for an answer and return it, or Kafka's error; a timeout is such an error, too."""
    try:
        return Question("", future, timeout_s + OVERDUE_S).result()
    except KafkaException as error:
        return error


def values(entries: Mapping[str, Any]) -> dict[str, str]:
    """The settings that have a value."""
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


_PAUSE_S: Final = 0.05  # Before the first repetition, if Kafka has answered with an error; doubled with each.
_PAUSE_MAX_S: Final = 0.5


class PartitionQuestion(Generic[_T]):
    """A request about many partitions at once, repeated until each has its answer. One thread only.

    A partition without an answer gets requests of its own from then on: librdkafka returns all answers of one request
    together, and one leader that is away would delay all of them.
    """

    def __init__(
        self,
        text: str,
        renewal: Renewal,
        ask: Callable[[Sequence[int]], Mapping[int, Question[_T]]],
        *,
        pause_max_s: float | None = None,
    ) -> None:
        """Send nothing yet.

        Args:
            text: the question in log lines and errors, such as "the end of orders.sow partition {}".
            renewal: that of the client, which is replaced when it gets no answers.
            ask: sends the request once, for these partitions.
            pause_max_s: longest time before a repetition; None: half a second.
        """
        self._text = text
        self._renewal = renewal
        self._ask = ask
        self._pause_max_s = _PAUSE_MAX_S if pause_max_s is None else pause_max_s
        # By partition, the earliest time of the next request, on the monotonic clock.
        self._wanted: dict[int, float] = {}
        self._pauses: dict[int, float] = {}
        self._open: dict[int, Question[_T]] = {}
        self._errors: dict[int, KafkaError] = {}
        self.answers: dict[int, _T] = {}
        """The last answer for each partition, until it is forgotten."""

    def want(self, partition: int) -> None:
        """Request the answer for this partition, from the next turn on."""
        self._wanted.setdefault(partition, 0.0)

    def forget(self, partition: int) -> None:
        """Drop the request for this partition, also an answer that is there or on its way."""
        self.answers.pop(partition, None)
        self._end(partition)

    def _end(self, partition: int) -> None:
        self._wanted.pop(partition, None)
        self._pauses.pop(partition, None)
        self._open.pop(partition, None)
        if self._errors.pop(partition, None) is not None:
            self._renewal.answered(self._name(partition))

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
        for partition, question in list(self._open.items()):
            if not question.is_answered:
                continue
            del self._open[partition]
            try:
                self.answers[partition] = ready[partition] = question.result()
            except KafkaException as error:
                self._retry_later(partition, error)
            else:
                self._end(partition)
                outage.reached()
        self._send()
        return ready

    def _send(self) -> None:
        now_s = time.monotonic()
        due = [number for number, due_s in self._wanted.items() if number not in self._open and due_s <= now_s]
        alone = [partition for partition in due if partition in self._errors]
        together = [partition for partition in due if partition not in self._errors]
        for partitions in ([together] if together else []) + [[partition] for partition in alone]:
            self._open |= self._ask(partitions)

    def _retry_later(self, partition: int, error: KafkaException) -> None:
        kafka_error = kafka_errors.of(error)
        name = self._name(partition)
        if kafka_errors.is_unanswered(error):
            self._renewal.unanswered(name)
        elif kafka_errors.passes(kafka_error) or kafka_errors.is_leaderless(error) or kafka_errors.is_unknown(error):
            # librdkafka sends to the leader that it has, and does not learn of a newer one from the refusal. The topic
            # exists, as its partitions are assigned to us: a broker that does not know it has just started.
            self._renewal.refresh()
        else:
            raise kafka_errors.stop(error, f"asking for {name}") from error
        pause_s = self._pauses[partition] = min(2 * self._pauses.get(partition, _PAUSE_S / 2), self._pause_max_s)
        self._wanted[partition] = time.monotonic() + pause_s
        self._errors[partition] = kafka_error

    def _name(self, partition: int) -> str:
        return self._text.format(partition)
