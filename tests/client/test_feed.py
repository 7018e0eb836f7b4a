"""A feed of one partition after the other, and the life of a subscription."""

import subprocess
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message as KafkaMessage

from processor.client.feeds.engine_feed import EngineFeed, OpenedTopic
from processor.client.feeds.growing_view import GrowingView
from processor.client.feeds.snapshot_boundary import FetchedBatches, SnapshotBoundary
from processor.client.subscribe.subscription import Subscription
from processor.codec.json import JsonCodec
from processor.errors import BrokerUnavailable, ConfigurationError, PositionLost, Stop
from processor.kafka.clients.log_reader import Position, ReadResult, read_range
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Message, SubscriptionSpec, Topic, parse_options
from tests.waiting import PATIENCE_S, until

ORDERS = Topic("orders", JsonCodec(), KeyFields(("/id",)))


class Scripted:
    """A fake boundary of a topic with two partitions that returns the test's records, one batch per read."""

    def __init__(self) -> None:
        self.ends = {0: 0, 1: 0}
        self.topic = "orders.sow"
        self.asked: deque[Exception] = deque()
        self._admin = self
        self.looks: deque[list[tuple[int, list[Record]]] | Stop] = deque()
        self._offset = 0
        self.silent_s = 0.0
        """The time for which the partitions of the next reads were not read."""

    def come(self, *partitions: int, n: int) -> None:
        """Let the next read return a record of key 1 in each of these partitions."""
        batches = []
        for partition in partitions:
            self._offset += 1
            batches.append((partition, [Record(b"1", b'{"id":1,"n":%d}' % n, [], self._offset, 0)]))
        self.looks.append(batches)

    def delete_retention_ms(self, _topic: str) -> float:
        """One hour, after raising all scripted errors."""
        if self.asked:
            raise self.asked.popleft()
        return 3_600_000.0

    def follow(self, begins: Mapping[int, int]) -> None:
        """Do nothing: the start is fixed."""

    def after(self, _wait_s: float) -> FetchedBatches:
        """The next batch, or error."""
        look = self.looks.popleft() if self.looks else []
        if isinstance(look, Stop):
            raise look
        return FetchedBatches(look, {}, self.silent_s)

    def between(self, *_args: object, **_options: object) -> Iterator[tuple[int, list[Record]]]:
        """No records: there is no snapshot."""
        yield from ()

    def check_pause(self, paused_s: float) -> None:
        """Check like the real class, for a topic that keeps deletes for an hour."""
        SnapshotBoundary.check_pause(self, paused_s)  # type: ignore[arg-type]

    def close(self) -> None:
        """Do nothing."""


def followed(boundary: Scripted, filter_text: str | None, options: str) -> EngineFeed:
    """A running `subscribe` feed of it."""
    asked = parse_options(options, live=True, delta=False)
    request = SubscriptionSpec(ORDERS, filter_text, asked, snapshot=False, live=True, delta=False)
    opened = OpenedTopic(boundary, GrowingView(2), {0: 0, 1: 0}, delivers_past=True, topic_id="I" * 22)  # type: ignore[arg-type]
    return EngineFeed(ORDERS, lambda _again: opened, request, None, keeps=True)


def test_records_without_messages_share_a_turn():
    """A poll without waiting gets all available messages: records without messages must not delay it for ever."""
    boundary = Scripted()
    feed = followed(boundary, "/n > 0", "")
    for _ in range(50):
        boundary.come(0, 1, n=0)
    boundary.come(0, n=7)
    boundary.come(0, n=8)
    assert [message.data["n"] for message in feed.fetch(0)] == [7]
    assert [message.data["n"] for message in feed.fetch(0)] == [8]
    assert feed.fetch(0) == []


class OneRecord:
    """A fake reader of a partition with one record and then markers: some reads find nothing before its end."""

    def __init__(self) -> None:
        record = KafkaMessage(topic="t", partition=0, offset=0, key=b"1", value=b"{}")
        nothing, end = ReadResult([], []), ReadResult([], [Position("t", 0, 7)])
        self._reads = deque([ReadResult([record], []), *[nothing] * 3, end])

    def add(self, positions: Iterable[Position]) -> None:
        """Begin."""
        list(positions)

    def remove(self, _topic: str, _partition: int) -> None:
        """Do nothing."""

    def bounds(self, *_: object) -> tuple[int, int]:
        """The partition has seven offsets."""
        return 0, 7

    def read(self, _records_max: int, _timeout_s: float) -> ReadResult:
        """The next read."""
        return self._reads.popleft() if self._reads else ReadResult([], [])


@pytest.mark.parametrize("way", ["between", "read_range"])
def test_the_time_of_the_caller_is_no_stall(monkeypatch: pytest.MonkeyPatch, way: str):
    """A caller who is busy for a minute between two batches does not end a read that goes on."""
    clock_s = [0.0]
    for module in ("client.feeds.snapshot_boundary", "kafka.clients.log_reader"):
        monkeypatch.setattr(f"processor.{module}.time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    reader: Any = OneRecord()
    if way == "read_range":
        batches: Iterator[tuple[int, list[Any]]] = read_range(reader, "t", {0: 0}, {0: 7}, stall_timeout_s=60)
    else:
        boundary = SnapshotBoundary.__new__(SnapshotBoundary)
        boundary.topic, boundary._reader, boundary._lasts = "t", reader, {}
        boundary._make, boundary._has_marks = lambda _: [Record(b"1", b"{}", [], 0, 0)], False
        batches = boundary.between({}, {0: 7})
    assert next(batches)[0] == 0
    clock_s[0] += 61
    assert list(batches) == []


def test_a_turn_ends_though_there_is_always_more(monkeypatch: pytest.MonkeyPatch):
    """A turn ends while there is always more to read, so that other threads get a turn."""
    monkeypatch.setattr("processor.client.feeds.engine_feed._TURN_S", 0.01)
    boundary = Scripted()
    feed = followed(boundary, "/n > 0", "")

    def always(_wait_s: float) -> FetchedBatches:
        boundary.come(0, n=0)
        return Scripted.after(boundary, 0)

    monkeypatch.setattr(boundary, "after", always)
    assert feed.fetch(0) == []


def test_an_interval_does_not_wait_for_a_clock_that_was_set_back(monkeypatch: pytest.MonkeyPatch):
    """Conflation is measured by elapsed time, not by the machine's clock."""
    boundary = Scripted()
    feed = followed(boundary, None, "conflation=100ms")
    boundary.come(0, n=1)
    assert feed.fetch(0) == []
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert [message.data["n"] for message in until(lambda: feed.fetch(0))] == [1]


def test_an_error_waits_for_the_updates_that_conflation_holds():
    """The updates before an error are delivered at the end of their interval, and then the error is raised."""
    boundary = Scripted()
    feed = followed(boundary, None, "conflation=100ms")
    boundary.come(0, n=1)
    boundary.looks.append(Stop("the topic has moved"))
    assert [message.data["n"] for message in until(lambda: feed.fetch(0))] == [1]
    with pytest.raises(Stop, match="the topic has moved"):
        feed.fetch(0)


@pytest.mark.parametrize("first", ["", "bookmark=epoch"])
def test_only_the_first_subscription_has_a_bookmark(first: str):
    """A later subscription shares the stream, so its bookmark is rejected."""
    feed = followed(Scripted(), None, first)
    asked = parse_options("bookmark=epoch", live=True, delta=False)
    with pytest.raises(ConfigurationError, match="the first subscription decides where its stream is replayed from"):
        feed.add(SubscriptionSpec(ORDERS, None, asked, snapshot=False, live=True, delta=False), None)


def kept(boundary: Scripted, *, snapshot: bool) -> EngineFeed:
    """A running subscription that needs the state of the world, and starts again after an error."""
    request = SubscriptionSpec(
        ORDERS, None, parse_options("oof", live=True, delta=True), snapshot=snapshot, live=True, delta=True
    )

    def look(_again: bool) -> OpenedTopic:
        return OpenedTopic(boundary, GrowingView(2), {}, delivers_past=False, topic_id="I" * 22)  # type: ignore[arg-type]

    feed = EngineFeed(ORDERS, look, request, None, keeps=True)
    feed.fetch(0)
    assert [message.command for message in feed.fetch(0)] == ["group_begin", "group_end"][: 2 * snapshot]
    return feed


def test_a_pause_beyond_the_delete_retention_causes_a_new_snapshot(monkeypatch: pytest.MonkeyPatch):
    """A record whose delete is gone would stay for ever; a shorter pause costs one request."""
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


@pytest.mark.parametrize("error", [None, BrokerUnavailable("not now")])
def test_a_partition_that_was_cut_off_for_long_is_read_again(error: BrokerUnavailable | None):
    """After longer than the topic's delete retention, or if that cannot be asked, deletes may be missing."""
    boundary = Scripted()
    feed = kept(boundary, snapshot=False)
    boundary.silent_s = 3_500.0
    boundary.come(0, n=1)
    assert [message.data["n"] for message in feed.fetch(0)] == [1]
    boundary.come(0, n=2)
    if error is None:
        boundary.silent_s = 3_700.0
    else:
        boundary.asked.append(error)
    with pytest.raises(PositionLost):
        feed.fetch(0)


def test_the_time_without_a_read_is_that_of_each_partition(monkeypatch: pytest.MonkeyPatch):
    """A partition is silent since its last record or end, or since it was known to have nothing more."""
    now_s = [1_000.0]
    monkeypatch.setattr(time, "time", lambda: now_s[0])
    reads: list[ReadResult] = []
    boundary = SnapshotBoundary.__new__(SnapshotBoundary)
    boundary.topic, boundary.ends, boundary._lasts, boundary._current_s = "t", {0: 0, 1: 0}, {}, {}
    boundary._make, boundary._has_marks, boundary._watch = lambda _: [Record(b"1", b"{}", [], 0, 0)], False, None
    boundary._reader = SimpleNamespace(add=list, read=lambda *_: reads.pop() if reads else ReadResult([], []))  # type: ignore[assignment]
    boundary._admin = SimpleNamespace(end_offsets=lambda *_: {0: 9, 1: 7})  # type: ignore[assignment]
    boundary.follow()

    def silent_s(partition: int, *, is_end: bool = False) -> float:
        """The time that a read of a record of a partition, or of its end, returns 100 s later."""
        now_s[0] += 100
        record = KafkaMessage(topic="t", partition=partition, offset=0, key=b"1", value=b"{}")
        reads.append(ReadResult([], [Position("t", partition, 1)]) if is_end else ReadResult([record], []))
        return boundary.after(0).silent_s

    assert [silent_s(0), silent_s(0), silent_s(1), silent_s(0, is_end=True)] == [100, 100, 300, 200]
    assert boundary.quiet_ends({0: 8, 1: 7}) == {1: 7}
    assert [silent_s(1), silent_s(0)] == [100, 200]


def test_without_the_right_to_ask_a_day_of_delete_retention_is_assumed(monkeypatch: pytest.MonkeyPatch):
    """Without the right to ask, a day is assumed, with which topics are created."""
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
    """A topic opened for a query continues from its end as soon as a subscription needs updates."""
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


class Quiet:
    """A feed without messages that counts its turns."""

    is_live = True
    is_over = False

    def __init__(self) -> None:
        self.turns = 0
        self.added_at: list[int] = []
        self.delivered: bool | None = None
        self.busy = threading.Event()

    def fetch(self, wait_s: float) -> list[Message]:
        """Do a turn."""
        self.turns += 1
        self.busy.set()
        time.sleep(wait_s)
        return []

    def add(self, _request: object, _sub_id: str | None) -> str:
        """Record the time."""
        self.added_at.append(self.turns)
        return "1"

    def remove(self, sub_id: str) -> None:
        """Do nothing."""

    def close(self, *, delivered: bool) -> None:
        """Record the argument."""
        self.delivered = delivered


def opened(feed: Quiet, **arguments: object) -> Subscription:
    """A subscription to the feed."""
    wanted = {"timeout_s": None, "on_message": None} | arguments
    return Subscription(feed, lambda *_: None, on_close=lambda _: None, **wanted)  # type: ignore[arg-type, return-value]


def test_adding_waits_for_one_turn_only():
    """With a plain lock the reader would often take it again before other threads have woken up."""
    adding: list[threading.Thread] = []
    wanted_at: list[int] = []

    class Crowded(Quiet):
        """A feed with another waiting thread in each of its turns."""

        def fetch(self, wait_s: float) -> list[Message]:
            self.turns += 1
            if self.turns <= 20:
                adding.append(threading.Thread(target=subscription.add))
                adding[-1].start()
                while is_free(subscription._door):
                    time.sleep(0.001)
                wanted_at.append(self.turns)
            return []

    feed = Crowded()
    subscription = opened(feed)
    reader = threading.Thread(target=subscription.next_within, args=(None,))
    reader.start()
    until(lambda: len(feed.added_at) >= 20)
    subscription.close()
    for thread in (reader, *adding):
        thread.join(PATIENCE_S)
    assert feed.added_at == wanted_at == list(range(1, 21))


def is_free(door: threading.RLock) -> bool:  # type: ignore[valid-type]
    """Return whether no thread waits for it."""
    if door.acquire(blocking=False):  # type: ignore[attr-defined]
        door.release()  # type: ignore[attr-defined]
        return True
    return False


def test_messages_of_a_turn_during_a_close_count_as_undelivered():
    """The reader takes at most the first message: the feed must keep the others for the next run."""

    class Late(Quiet):
        """A feed that returns two messages while the subscription is being closed."""

        def fetch(self, wait_s: float) -> list[Message]:
            self.busy.set()
            while not subscription._is_closed:
                time.sleep(0.001)
            return [Message("publish", "orders")] * 2

    feed = Late()
    subscription = opened(feed)
    reader = threading.Thread(target=subscription.next_within, args=(None,))
    reader.start()
    assert feed.busy.wait(PATIENCE_S)
    subscription.close()
    reader.join(PATIENCE_S)
    assert feed.delivered is False


def test_a_program_ends_with_an_open_async_subscription():
    """A program can end while a subscription is open and waits without a timeout."""
    program = """
        import asyncio
        from tests.client.test_feed import Quiet, opened

        async def read() -> None:
            await asyncio.wait_for(anext(opened(Quiet())), 0.1)

        try:
            asyncio.run(read())
        except TimeoutError:
            print("nothing came")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert (ended.stdout, ended.stderr) == ("nothing came\n", "")
