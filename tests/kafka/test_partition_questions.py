"""Questions to Kafka about partitions, and calls that run in the background."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from processor.errors import BrokerUnavailable, ConfigurationError
from processor.kafka.admin import questions
from processor.kafka.admin.groups import offset_in
from processor.kafka.admin.questions import PartitionQuestion, Question
from processor.kafka.background_calls import BackgroundCalls
from processor.kafka.clients.log_reader import patiently
from processor.kafka.outage import Renewal
from tests.waiting import until


class Kafka:
    """A fake of Kafka: the test answers its requests, by try and partition."""

    def __init__(self) -> None:
        self.tries: list[dict[int, Future[Any]]] = []
        self.refreshed = 0
        self.renewal = Renewal(self.refresh, lambda: None)

    def ask(self, partitions: Sequence[int]) -> dict[int, Question[int]]:
        """Record one request."""
        self.tries.append({partition: Future() for partition in partitions})
        return {number: Question("", future, 0.05, offset_in) for number, future in self.tries[-1].items()}

    def refresh(self) -> None:
        """Count a refresh of the leaders."""
        self.refreshed += 1

    def answer(self, partition: int, offset: int) -> None:
        """Answer the latest request."""
        self.tries[-1][partition].set_result(SimpleNamespace(offset=offset))

    def fail(self, partition: int, code: int) -> None:
        """Fail the latest request."""
        self.tries[-1][partition].set_exception(KafkaException(KafkaError(code)))


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """A fake for which a request is repeated at once."""
    monkeypatch.setattr(questions, "_PAUSE_MAX_S", 0.0)
    return Kafka()


def question(kafka: Kafka, *partitions: int) -> PartitionQuestion[int]:
    """A question with its first request sent."""
    asked = PartitionQuestion("the end of orders.sow partition {}", kafka.renewal, kafka.ask)
    for partition in partitions:
        asked.want(partition)
    assert asked.turn() == {}
    return asked


def test_all_partitions_are_asked_of_at_once_and_taken_as_they_are_answered(kafka: Kafka) -> None:
    """All partitions are requested at once and taken as they are answered: a missing answer delays no other."""
    asked = question(kafka, 0, 1, 2)
    kafka.answer(0, 7)
    kafka.answer(2, 9)
    assert asked.turn() == {0: 7, 2: 9}
    assert asked.unanswered(1) == "the end of orders.sow partition 1"
    assert asked.unanswered(0) is None
    assert [sorted(each) for each in kafka.tries] == [[0, 1, 2]]


@pytest.mark.parametrize("offset", [-1001, -1, -2])
def test_a_negative_offset_is_no_answer(kafka: Kafka, offset: int) -> None:
    """The offset -1001, which librdkafka returns while a leader is changing, counts as no answer."""
    asked = question(kafka, 0, 1)
    kafka.answer(0, offset)
    kafka.answer(1, 5)
    assert asked.turn() == {1: 5}
    assert kafka.refreshed == 1
    kafka.answer(0, 40)
    assert asked.turn() == {0: 40}


def test_what_was_not_answered_is_asked_by_itself(kafka: Kafka) -> None:
    """An unanswered partition gets a request of its own: a dead leader would delay all answers of a common request."""
    asked = question(kafka, 0, 1, 2)
    kafka.fail(0, KafkaError._TIMED_OUT)
    kafka.answer(1, 5)
    kafka.fail(2, KafkaError.NOT_LEADER_FOR_PARTITION)
    assert asked.turn() == {1: 5}
    assert [sorted(each) for each in kafka.tries[1:]] == [[0], [2]]


def test_a_client_that_never_tells_is_given_up(kafka: Kafka) -> None:
    """A client that does not answer is given up: each request ends at its limit, and the third replaces the client."""
    asked = question(kafka, 0)
    until(lambda: asked.turn() or len(kafka.tries) >= 4, "four requests")
    assert kafka.renewal.count == 1
    assert "no answer in time" in (asked.unanswered(0) or "")


def test_a_partition_that_has_left_is_asked_of_no_more(kafka: Kafka) -> None:
    """A partition that was forgotten is not requested again, and its late answer is dropped."""
    asked = question(kafka, 0, 1)
    asked.forget(0)
    kafka.answer(0, 7)
    kafka.answer(1, 8)
    assert asked.turn() == {1: 8}
    assert asked.turn() == {}
    assert len(kafka.tries) == 1


def test_a_patient_question_is_repeated_less_and_less_often(kafka: Kafka) -> None:
    """A question that is asked all the time burdens no cluster in which a leader is away for long."""
    asked = PartitionQuestion("the end of orders.sow partition {}", kafka.renewal, kafka.ask, pause_max_s=10.0)
    pauses = []
    for _ in range(10):
        asked._wanted[0] = 0.0
        assert asked.turn() == {}
        kafka.fail(0, KafkaError.NOT_LEADER_FOR_PARTITION)
        assert asked.turn() == {}
        pauses.append(asked._pauses[0])
    assert pauses[:3] == [0.05, 0.1, 0.2]
    assert pauses[-2:] == [10.0, 10.0]
    assert len(kafka.tries) == 10


def test_what_is_refused_is_not_asked_again(kafka: Kafka) -> None:
    """A refused request is not repeated: waiting does not grant a missing ACL."""
    asked = question(kafka, 0)
    kafka.fail(0, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ConfigurationError, match=r"the end of orders.sow partition 0: Kafka refuses.*ACLs"):
        asked.turn()


def test_an_overdue_answer_is_an_error_that_names_the_request() -> None:
    """A request without an answer ends at its own limit: the error names it, and the client learns of the silence."""
    overdue: list[str] = []
    asked = Question[int]("looking at the group desk", Future(), 0.0, on_overdue=lambda: overdue.append("desk"))
    with pytest.raises(BrokerUnavailable, match="looking at the group desk: Kafka does not answer"):
        asked.answer()
    assert asked.is_answered
    assert overdue == ["desk"]


def test_a_request_that_is_refused_for_now_is_repeated_with_a_pause() -> None:
    """An undecided transaction holds an offset for seconds: asking without a pause would be a busy loop."""
    asked_s: list[float] = []

    def ask() -> int:
        asked_s.append(time.monotonic())
        if len(asked_s) < 3:
            raise TimeoutError
        return 7

    assert patiently(ask, "asking about orders.publish") == 7
    assert all(later - earlier >= 0.09 for earlier, later in pairwise(asked_s))


def test_a_request_without_an_answer_is_given_up() -> None:
    """The error says which request had no answer, and what to do."""

    def ask() -> int:
        raise TimeoutError

    with pytest.raises(BrokerUnavailable, match=r"^asking about orders: no answer in 0 s; `sowstream doctor`"):
        patiently(ask, "asking about orders", 0.0)


@pytest.fixture
def calls() -> Iterator[BackgroundCalls]:
    """A thread that ends with the test."""
    made = BackgroundCalls("calls of a test")
    yield made
    made.close()
    made.join()


def of_tests() -> list[threading.Thread]:
    """The threads of the fixture's name."""
    return [thread for thread in threading.enumerate() if thread.name == "calls of a test"]


def test_a_call_is_as_if_made_here(calls):
    """A call has run after the wait for it, its error is raised there, and one thread makes all calls."""
    names = []
    for _ in range(3):
        calls.begin(lambda: names.append(threading.current_thread().name))
        calls.wait(60)
        calls.begin(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            calls.wait(60)
    assert names == ["calls of a test"] * 3
    assert len(of_tests()) == 1


def test_the_caller_goes_on_meanwhile(calls):
    """The caller runs on while a call is made, and may wait for it late: the outcome is kept."""
    may_end, has_ended = threading.Event(), threading.Event()

    def call() -> None:
        may_end.wait(60)
        has_ended.set()

    calls.begin(call)
    assert not has_ended.is_set()
    may_end.set()
    assert has_ended.wait(60)
    calls.wait(0.0)


def test_a_call_that_does_not_come_back_is_left_behind(calls):
    """A call that hangs is abandoned at its limit; the next call gets a thread of its own."""
    forever = threading.Event()
    try:
        calls.begin(forever.wait)
        with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
            calls.wait(0.05)
        calls.begin(lambda: None)
        calls.wait(60)
        [left, used] = of_tests()
    finally:
        forever.set()
    left.join(60)
    calls.close()
    used.join(60)
    assert not of_tests()


def test_nothing_of_a_call_is_kept_until_the_next(calls):
    """A thread keeps no reference to a finished call, which may refer to a large batch of records."""

    class Batch:
        """An object with weak references."""

    batch = Batch()
    watched = weakref.ref(batch)
    calls.begin(lambda batch=batch: None)
    del batch
    calls.wait(60)
    calls.begin(lambda: None)  # The thread has dropped the first call when it has taken this one.
    calls.wait(60)
    assert watched() is None
