"""The account of an unreachable Kafka, and the decision to give up a client."""

from __future__ import annotations

import logging

import pytest

from processor.kafka.outage import Outage, Renewal


class Clock:
    """A clock that a test sets."""

    now_s = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s


def test_there_is_a_line_a_minute_and_one_when_kafka_is_back(caplog: pytest.LogCaptureFixture) -> None:
    """An outage is logged once a minute, independently of the number of requests, and so is its end."""
    clock = Clock()
    outage = Outage(clock)
    with caplog.at_level(logging.INFO, logger="sowstream.kafka"):
        for _ in range(150):
            outage.unreachable("starting the producer t")
            clock.now_s += 1
        outage.reached()
        outage.reached()
    assert [(line.message, vars(line)["away_s"]) for line in caplog.records] == [
        ("Kafka does not answer", 0.0),
        ("Kafka does not answer", 60.0),
        ("Kafka does not answer", 120.0),
        ("Kafka answers again", 150.0),
    ]
    assert vars(caplog.records[0])["doing"] == "starting the producer t"


def test_a_connection_that_comes_and_goes_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """A short outage soon after another one appears in the metric only."""
    clock = Clock()
    outage = Outage(clock)
    with caplog.at_level(logging.INFO, logger="sowstream.kafka"):
        for _ in range(10):
            outage.unreachable("reading orders.publish")
            clock.now_s += 1
            outage.reached()
    assert len(caplog.records) == 2


def test_the_seconds_are_those_since_the_first_question_in_vain() -> None:
    """The duration of an outage counts from the first failed request; it is 0 while Kafka is reached."""
    clock = Clock()
    outage = Outage(clock)
    assert (outage.is_away, outage.seconds) == (False, 0.0)
    outage.unreachable("x")
    clock.now_s += 7
    outage.unreachable("x")
    assert (outage.is_away, outage.seconds) == (True, pytest.approx(7.0))
    outage.reached()
    assert (outage.is_away, outage.seconds) == (False, 0.0)


def renewal(clock: Clock) -> tuple[Renewal, list[str]]:
    """A renewal that records its actions."""
    done: list[str] = []
    return Renewal(lambda: done.append("refresh"), lambda: done.append("renew"), clock), done


def test_metadata_is_refreshed_after_two_tries_and_the_client_made_anew_after_three() -> None:
    """Metadata is refreshed after two tries; the client is replaced after three, and then after 5 s, 10 s and so on."""
    clock = Clock()
    made, done = renewal(clock)
    for _ in range(4):
        made.unanswered("the end of orders.sow")
    assert done == ["refresh", "renew", "refresh"]
    clock.now_s += 5
    made.unanswered("the end of orders.sow")
    clock.now_s += 9
    made.unanswered("the end of orders.sow")
    clock.now_s += 1
    made.unanswered("the end of orders.sow")
    assert done[3:] == ["renew", "refresh", "renew"]
    assert made.count == 3


def test_an_answer_to_another_question_does_not_count() -> None:
    """An answer to another request does not count: the coordinator may be dead while the leaders answer."""
    made, done = renewal(Clock())
    for _ in range(3):
        made.unanswered("the committed offset")
        made.answered("the end of orders.sow")
    assert done == ["refresh", "renew"]


def test_an_answer_in_between_begins_the_count_anew() -> None:
    """An answer restarts the count, so that a lost answer now and then costs nothing."""
    made, done = renewal(Clock())
    for _ in range(5):
        made.unanswered("x")
        made.answered("x")
    assert done == []
