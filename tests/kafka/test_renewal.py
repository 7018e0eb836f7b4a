"""The decision to give up a client."""

from __future__ import annotations

from processor.kafka.renewal import Renewal
from tests.kafka.test_outage import Clock


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
