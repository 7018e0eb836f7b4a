"""A short run of a queue under faults, and the faults that its checks must find; `make program` runs it at length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.programs.faults.broker.broker import Broker
from tests.programs.queues.checks import Delivery, Harm, broken_promises, unfair
from tests.programs.queues.run import Plan, run

if TYPE_CHECKING:
    from pathlib import Path

LEASE_S = 5.0
GOOD = [Delivery("a", "1", 10.0, 10.1), Delivery("b", "2", 10.0, 10.1)]


def found(deliveries: list[Delivery], harm: Harm | None = None) -> list[str]:
    """The broken promises about messages 1 and 2."""
    return broken_promises(["1", "2"], deliveries, harm or Harm(), lease_s=LEASE_S)


def test_a_good_run_has_no_broken_promise():
    """Each message was handled once: nothing is wrong."""
    assert found(GOOD) == []


@pytest.mark.parametrize(
    ("deliveries", "promise"),
    [
        (GOOD[:1], "1 messages were never handled: 2"),
        ([GOOD[0], GOOD[1]._replace(done_s=None)], "1 messages were never handled: 2"),
        ([*GOOD, Delivery("b", "3", 10.0, 10.1)], "1 messages were delivered though never committed: 3"),
        ([*GOOD, Delivery("b", "1", 12.0, 12.1)], "1 messages came again while their lease and session lasted: 1"),
        ([GOOD[0]._replace(done_s=16.5), GOOD[1]], "1 messages were held for longer than their lease: 1"),
    ],
)
def test_every_broken_promise_is_found(deliveries, promise):
    """A lost message, one that was rolled back, an early second delivery and a message held too long are found."""
    assert promise in found(deliveries)


@pytest.mark.parametrize(
    ("second_s", "harm"),
    [(15.0, Harm()), (11.0, Harm({"a": 10.9})), (11.0, Harm({}, [10.5]))],
    ids=["lease over", "consumer killed", "broker killed"],
)
def test_a_second_delivery_after_the_end_of_a_lease_or_session_is_allowed(second_s, harm):
    """A message may come again once its lease is over, its consumer was killed, or the broker was."""
    assert found([*GOOD, Delivery("b", "1", second_s, second_s + 0.1)], harm) == []


def test_the_busiest_consumer_is_compared_with_the_median():
    """A consumer with more than one and a half times the median is found; those that were killed do not count."""
    deliveries = [
        Delivery(name, str(n), 1.0, 1.1) for name, count in (("a", 4), ("b", 4), ("c", 7)) for n in range(count)
    ]
    assert unfair(deliveries, Harm(), "abc") == ["the busiest consumer handled 7, the median 4"]
    assert unfair(deliveries, Harm({"c": 1.0}), "abc") == []


@pytest.mark.broker
@pytest.mark.long
def test_no_message_is_lost_or_comes_early_under_kills(tmp_path: Path, unique: str) -> None:
    """A thousand messages reach four consumers under kills of each kind, and no rolled-back one does."""
    # The lease is longer than a busy machine holds up a consumer.
    plan = Plan(seed=23, messages=1_000, rate=200, consumers=4, consumer_kills=1, worker_kills=1, aborts=2, lease_s=20)
    with Broker(tmp_path / "broker") as broker:
        outcome = run(plan, broker, tmp_path, unique, print)
    print(outcome)
    assert outcome.wrong == []
