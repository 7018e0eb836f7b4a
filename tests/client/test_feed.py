import time
from collections import deque
from collections.abc import Iterator, Mapping

import pytest

from processor.client.feeds.feed import EngineFeed, OpenedTopic
from processor.client.feeds.snapshot_boundary import FetchedBatches, SnapshotBoundary
from processor.client.views.growing_view import GrowingView
from processor.codec.json import JsonCodec
from processor.errors import BrokerUnavailable, ConfigurationError, PositionLost
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import SubscriptionSpec, Topic, parse_options

PATIENCE_S = 10.0
ORDERS = Topic("orders", JsonCodec(), KeyFields(("/id",)))


class Scripted:
    """A boundary of a topic with two partitions, behind which comes what a test says, one look after the other."""

    def __init__(self) -> None:
        self.ends = {0: 0, 1: 0}
        self.topic = "orders.sow"
        self.asked: deque[Exception] = deque()
        self._admin = self
        self.looks: deque[list[tuple[int, list[Record]]]] = deque()
        self._offset = 0

    def come(self, *partitions: int, n: int) -> None:
        """Let the next look find a record of key 1 in each of these partitions."""
        batches = []
        for partition in partitions:
            self._offset += 1
            batches.append((partition, [Record(b"1", b'{"id":1,"n":%d}' % n, [], self._offset, 0)]))
        self.looks.append(batches)

    def delete_retention_ms(self, _topic: str) -> float:
        """An hour, once all errors were raised."""
        if self.asked:
            raise self.asked.popleft()
        return 3_600_000.0

    def follow(self, begins: Mapping[int, int]) -> None:
        """It is known where."""

    def after(self, _wait_s: float) -> FetchedBatches:
        """The next look."""
        return FetchedBatches(self.looks.popleft() if self.looks else [], {})

    def between(self, *_args: object, **_options: object) -> Iterator[tuple[int, list[Record]]]:
        """There is no past."""
        yield from ()

    def check_pause(self, paused_s: float) -> None:
        """As a real one, of a topic that keeps deletes for an hour."""
        SnapshotBoundary.check_pause(self, paused_s)  # type: ignore[arg-type]

    def close(self) -> None:
        """Nothing is open."""


def followed(boundary: Scripted, filter_text: str | None, options: str) -> EngineFeed:
    """A `subscribe` to it, which has begun."""
    asked = parse_options(options, live=True, delta=False)
    request = SubscriptionSpec(ORDERS, filter_text, asked, snapshot=False, live=True, delta=False)
    opened = OpenedTopic(boundary, GrowingView(2), {0: 0, 1: 0}, delivers_past=True, topic_id="I" * 22)  # type: ignore[arg-type]
    return EngineFeed(ORDERS, lambda _again: opened, request, None, keeps=True)


def test_what_makes_no_messages_takes_no_turns():
    """Whoever asks now and then, and does not wait, has all that has come: else he would fall behind for ever."""
    boundary = Scripted()
    feed = followed(boundary, "/n > 0", "")
    for _ in range(50):
        boundary.come(0, 1, n=0)
    boundary.come(0, n=7)
    boundary.come(0, n=8)
    assert [message.data["n"] for message in feed.fetch(0)] == [7]
    assert [message.data["n"] for message in feed.fetch(0)] == [8]
    assert feed.fetch(0) == []


def test_a_turn_ends_though_there_is_always_more(monkeypatch: pytest.MonkeyPatch):
    """Somebody else wants a turn too."""
    monkeypatch.setattr("processor.client.feeds.feed._TURN_S", 0.01)
    boundary = Scripted()
    feed = followed(boundary, "/n > 0", "")

    def always(_wait_s: float) -> FetchedBatches:
        boundary.come(0, n=0)
        return FetchedBatches(boundary.looks.pop(), {})

    monkeypatch.setattr(boundary, "after", always)
    assert feed.fetch(0) == []


def test_an_interval_does_not_wait_for_a_clock_that_was_set_back(monkeypatch: pytest.MonkeyPatch):
    """Conflation goes by time that passes, not by what the machine calls it."""
    boundary = Scripted()
    feed = followed(boundary, None, "conflation=100ms")
    boundary.come(0, n=1)
    assert feed.fetch(0) == []
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    until_s = time.monotonic() + PATIENCE_S
    while not (messages := feed.fetch(0)) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert [message.data["n"] for message in messages] == [1]


@pytest.mark.parametrize("first", ["", "bookmark=epoch"])
def test_only_the_first_subscription_says_where_a_replay_begins(first: str):
    """Another one has the same stream: its bookmark could only be ignored."""
    feed = followed(Scripted(), None, first)
    asked = parse_options("bookmark=epoch", live=True, delta=False)
    with pytest.raises(ConfigurationError, match="the first subscription says from where its stream is replayed"):
        feed.add(SubscriptionSpec(ORDERS, None, asked, snapshot=False, live=True, delta=False), None)


def kept(boundary: Scripted, *, snapshot: bool) -> EngineFeed:
    """A subscription that needs the state of the world, and has begun; it begins anew if it is given up."""
    request = SubscriptionSpec(
        ORDERS, None, parse_options("oof", live=True, delta=True), snapshot=snapshot, live=True, delta=True
    )

    def look(_again: bool) -> OpenedTopic:
        return OpenedTopic(boundary, GrowingView(2), {}, delivers_past=False, topic_id="I" * 22)  # type: ignore[arg-type]

    feed = EngineFeed(ORDERS, look, request, None, keeps=True)
    feed.fetch(0)
    assert [message.command for message in feed.fetch(0)] == ["group_begin", "group_end"][: 2 * snapshot]
    return feed


def test_whoever_pauses_for_longer_than_deletes_are_kept_begins_again(monkeypatch: pytest.MonkeyPatch):
    """A record whose delete is gone would stay for ever; a shorter pause costs one question."""
    now_s = time.time()
    boundary = Scripted()
    feed, without = kept(boundary, snapshot=True), kept(boundary, snapshot=False)
    monkeypatch.setattr(time, "time", lambda: now_s + 3500)
    boundary.asked.append(BrokerUnavailable("not now"))
    boundary.come(0, n=1)
    assert feed.fetch(0) == []
    assert [message.data["n"] for message in feed.fetch(0)] == [1]
    monkeypatch.setattr(time, "time", lambda: now_s + 3500 + 3700)
    assert [[message.command for message in feed.fetch(0)] for _ in range(4)] == [
        [],
        [],
        [],
        ["group_begin", "group_end"],
    ]
    with pytest.raises(PositionLost, match=r"orders.sow: nothing was read for 7,20\d s, longer than .* deletes may be"):
        without.fetch(0)


def test_whoever_may_not_ask_how_long_deletes_are_kept(monkeypatch: pytest.MonkeyPatch):
    """Goes by a day, which is what topics are made with."""
    now_s = time.time()
    boundary = Scripted()
    feed = kept(boundary, snapshot=False)
    for paused_s in (80_000, 160_000):
        monkeypatch.setattr(time, "time", lambda: now_s + paused_s)  # noqa: B023
        boundary.asked.append(ConfigurationError("refused"))
        assert feed.fetch(0) == []
    monkeypatch.setattr(time, "time", lambda: now_s + 160_000 + 90_000)
    boundary.asked.append(ConfigurationError("refused"))
    with pytest.raises(PositionLost):
        feed.fetch(0)


def test_a_query_that_runs_lets_others_follow_its_topic(monkeypatch: pytest.MonkeyPatch):
    """A topic that was opened for a query is read on as soon as a subscription wants updates, from where it ended."""
    followed: list[Mapping[int, int]] = []
    boundary = Scripted()
    monkeypatch.setattr(boundary, "follow", followed.append)
    query = SubscriptionSpec(
        ORDERS, None, parse_options(None, live=False, delta=False), snapshot=True, live=False, delta=False
    )
    live = SubscriptionSpec(
        ORDERS, None, parse_options(None, live=True, delta=False), snapshot=False, live=True, delta=False
    )
    opened = OpenedTopic(boundary, GrowingView(2), {}, delivers_past=False, topic_id="I" * 22)  # type: ignore[arg-type]
    feed = EngineFeed(ORDERS, lambda _again: opened, query, "query", keeps=True)
    assert feed.fetch(0) == []
    assert followed == []
    for sub_id in ("first", "second"):
        feed.add(live, sub_id)
    assert followed == [boundary.ends]
