"""The turns of several topics that share one stream."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from processor.client.feeds.many_feeds import ManyFeeds
from processor.codec.json import JsonCodec
from processor.merge import KeyFields
from processor.subscriptions import Message, Options, SubscriptionSpec, Topic

if TYPE_CHECKING:
    from collections.abc import Sequence

ORDERS = Topic("orders", JsonCodec(), KeyFields(("/id",)))
LIVE = SubscriptionSpec(ORDERS, None, Options(), snapshot=False, live=True, delta=False)
QUERY = SubscriptionSpec(ORDERS, None, Options(), snapshot=True, live=False, delta=False)


class Scripted:
    """A feed with scripted messages for each turn."""

    is_live = True
    is_over = False
    healed = 2
    unchecked = 1

    def __init__(self, *turns: Sequence[Message]) -> None:
        self.turns = [list(turn) for turn in turns]
        self.asked: list[str] = []
        self.waits: list[float] = []

    def fetch(self, wait_s: float) -> list[Message]:
        """The next turn."""
        self.waits.append(wait_s)
        if self.turns:
            return self.turns.pop(0)
        time.sleep(wait_s)
        return []

    def add(self, _request: SubscriptionSpec, sub_id: str | None) -> str:
        """Record the call."""
        self.asked.append(f"add {sub_id}")
        return sub_id or ""

    def remove(self, sub_id: str) -> None:
        """Record the call."""
        self.asked.append(f"remove {sub_id}")

    def begin_again(self, reason: str) -> None:
        """Fail: it is never called."""

    def close(self, *, delivered: bool) -> None:
        """Record the call."""
        self.asked.append(f"close {delivered}")


def of(topic: str, command: str = "publish", *sub_ids: str) -> Message:
    """A message of a topic."""
    return Message(command, topic, sub_ids=sub_ids)  # type: ignore[arg-type]


def together(**feeds: Scripted) -> ManyFeeds:
    """The feeds of some topics, each with a subscription of the topic's name."""
    many = ManyFeeds()
    for topic, feed in feeds.items():
        many.open(topic, feed, LIVE, topic)
    return many


def test_a_topic_that_never_rests_leaves_the_others_their_turn():
    """With messages of two topics waiting, the turns alternate."""
    many = together(busy=Scripted(*[[of("busy")]] * 9), calm=Scripted([of("calm")], [of("calm")]))
    turns = [[message.topic for message in many.fetch(0)] for _ in range(6)]
    assert turns == [["busy"], ["calm"], ["busy"], ["calm"], ["busy"], ["busy"]]


def test_no_topic_is_waited_for_while_another_may_have_messages():
    """A single topic is waited for as long as asked; several for a moment each, in turn, until the time is over."""
    alone, first, second = Scripted([], [of("alone")]), Scripted(), Scripted()
    assert [message.topic for message in together(alone=alone).fetch(60)] == ["alone"]
    assert alone.waits[0] == 0
    assert 5 < alone.waits[1] <= 60
    began_s = time.monotonic()
    assert together(first=first, second=second).fetch(0.05) == []
    assert time.monotonic() - began_s >= 0.05
    assert max(first.waits + second.waits) <= 0.005
    assert first.waits[0] == second.waits[0] == 0
    second.turns = [[], [], [of("second")]]
    assert [message.topic for message in together(first=first, second=second).fetch(60)] == ["second"]


def test_the_last_subscription_of_a_topic_closes_its_feed():
    """Names belong to the connection: numbers continue over its topics, and a name may be used again."""
    orders, customers = Scripted(), Scripted()
    many = ManyFeeds()
    many.open("orders", orders, LIVE, many.name(None))
    many.open("customers", customers, LIVE, many.name(None))
    many.add("orders", LIVE, many.name("desk"))
    assert many.name(None) == "3"
    assert (many.healed, many.unchecked, many.is_live, many.is_over) == (4, 2, True, False)
    many.remove("1")
    assert many.has("orders")
    many.remove("desk")
    assert not many.has("orders")
    assert many.name("desk") == "desk"
    assert orders.asked == ["add desk", "remove 1", "close True"]
    assert customers.asked == []


def test_a_query_is_removed_behind_its_last_message():
    """The end of a group ends the subscriptions without updates, and no others."""
    feed = Scripted([of("orders", "group_begin", "query")], [of("orders", "group_end", "live")])
    many = together(orders=feed)
    many.add("orders", LIVE, "live")
    many.add("orders", QUERY, "query")
    feed.turns.append([of("orders", "group_end", "query")])
    for _ in range(3):
        assert "remove query" not in feed.asked
        many.fetch(0)
    assert feed.asked[-1] == "remove query"


def test_all_feeds_are_closed_though_one_fails():
    """The first error is raised after every feed was closed."""

    class Failing(Scripted):
        """A feed whose close fails."""

        def close(self, *, delivered: bool) -> None:
            raise ValueError("no")

    last = Scripted()
    with pytest.raises(ValueError, match="no"):
        together(bad=Failing(), last=last).close(delivered=False)
    assert last.asked == ["close False"]


def test_without_subscriptions_there_is_nothing_to_read():
    """A connection without subscriptions returns soon, so that one can be added, and does not end."""
    began_s = time.monotonic()
    many = ManyFeeds()
    assert many.fetch(600) == []
    assert time.monotonic() - began_s < 60
    assert not many.is_over
