"""A feed of one topic: reads Kafka's records in turns and converts them to messages by the subscription engine."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from processor.client.feeds.bookmark import BookmarkTracker
from processor.client.feeds.compact_records import without_collector
from processor.client.feeds.growing_view import ReaderView
from processor.client.feeds.many_feeds import TopicFeed
from processor.client.feeds.snapshot_boundary import SnapshotBoundary
from processor.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DiskUnusable,
    PositionLost,
    SowstreamError,
    StateDamaged,
    Stop,
)
from processor.kafka import errors as kafka_errors
from processor.record import Record
from processor.subscriptions import Engine, EngineSubscription, Message, SubscriptionSpec, Topic
from processor.subscriptions.engine_connection import QUEUE_MAX

log = logging.getLogger("sowstream.client")

_GIVEN_MAX: Final = 1_000
"""Records that the engine processes before their messages are taken."""
_TAKEN_MAX: Final = 1_000
_UNBOUNDED: Final = 2**62  # Without reading ahead nothing is conflated: all messages are taken before the next read.
_AHEAD_S: Final = 0.005  # How often a reader that reads ahead looks for more while messages wait to be taken.
_TURN_S: Final = 0.25  # Longest turn: of reading a snapshot, or records that make no messages.
_REFRESH_S: Final = 600.0
_PAUSE_S: Final = 60.0  # A reader that paused for longer asks whether Kafka may have removed deletes meanwhile.
_SILENT_S: Final = _REFRESH_S * 2  # A partition of which nothing was heard for longer was cut off.
_GONE_PATIENCE_S: Final = 30.0
_GONE_WAIT_S: Final = 0.1


class OpenedTopic(NamedTuple):
    """A topic, opened for one feed."""

    boundary: SnapshotBoundary
    """The boundary between its snapshot and its updates."""
    view: ReaderView
    """The view that keeps its records."""
    begins: dict[int, int]
    """The offsets at which reading begins; at the boundary, updates begin."""
    delivers_past: bool
    """True if the records before the boundary are delivered as updates, after a snapshot of the view."""
    topic_id: str
    """The topic's id, which differs from that of an earlier topic of the same name."""


class EngineFeed(TopicFeed[SubscriptionSpec]):
    """Feeds the records of a SOW topic to a subscription engine, and returns the engine's messages."""

    def __init__(
        self,
        topic: Topic,
        open_topic: Callable[[bool], OpenedTopic],
        request: SubscriptionSpec,
        sub_id: str | None,
        *,
        keeps: bool,
    ) -> None:
        """Open the topic, and fix the snapshot boundary.

        Args:
            topic: parses the records.
            open_topic: opens the topic; called again, with True, when the next records are not kept any more.
            request: the first subscription.
            sub_id: its name, if it has one.
            keeps: whether the view keeps all records, so that subscriptions that need the state can be added.

        Raises:
            Stop: the error of `open_topic`.
        """
        self._topic = topic
        self._open_topic = open_topic
        self._keeps = keeps
        self._reads_ahead = request.options.conflation == "auto"
        self._replays = request.options.bookmark is not None
        # A bookmark is the place after one message: so the engine gets each record by itself, unless it is conflated.
        self._given_max = 1 if self._replays and request.options.conflation in (None, "none") else _GIVEN_MAX
        self._numbered = 0
        self._wanted: dict[str, SubscriptionSpec] = {}
        name = self._named(sub_id)
        self._unnamed = None if sub_id is not None else name
        self._wanted[name] = request
        self._gone_s: float | None = None
        self._begin(again=False)

    @property
    def is_live(self) -> bool:
        """True if it waits for updates."""
        return self._past is None and self._gone_s is None and not self._connection.has_waiting

    @property
    def is_over(self) -> bool:
        """True if all messages were delivered and no more will come."""
        return self.is_live and not any(request.live for request in self._wanted.values())

    @property
    def matching(self) -> int | None:
        """Of the window of its one subscription, the number of records that match; asked on any thread."""
        running = list(self._running.values())
        window = running[0].window if len(running) == 1 else None
        return None if window is None else len(window.places.sort_keys)

    def fetch(self, wait_s: float) -> list[Message]:
        """Do one turn."""
        try:
            if self._gone_s is not None:
                self._retry_open(wait_s)
                return []
            return self._turn(wait_s)
        except (PositionLost, StateDamaged) as error:
            self._restart(error)
        except ConfigurationError as error:
            if not kafka_errors.is_unknown(error):
                raise
            self._restart(error)
        return []

    def add(self, request: SubscriptionSpec, sub_id: str | None) -> str:
        """Add a subscription, which begins with the current state."""
        if request.options.bookmark is not None:
            raise ConfigurationError(
                "option 'bookmark': the first subscription decides where its stream is replayed from; open this one by "
                "itself"
            )
        if request.needs_view and not self._keeps:
            raise ConfigurationError(
                "the first subscription is read without the state that this one needs: give the first one a sub_id, "
                "or open this one by itself"
            )
        if sub_id in self._wanted:
            raise ConfigurationError(f"there is a subscription {sub_id!r} already")
        name = self._named(sub_id)
        self._wanted[name] = request
        if self._past is None and self._gone_s is None:
            self._running[name] = self._connection.subscribe(request, name)
            self._follow()
        return name

    def remove(self, sub_id: str) -> None:
        """End one subscription."""
        if self._wanted.pop(sub_id, None) is None:
            raise ConfigurationError(f"there is no subscription {sub_id!r}")
        if (running := self._running.pop(sub_id, None)) is not None:
            self._connection.unsubscribe(running)

    def begin_again(self, reason: str) -> None:
        """Read the topic again, and deliver a snapshot to each subscription."""
        if self._gone_s is None:
            self._restart(PositionLost(f"{self._topic.name}: {reason}"))

    def close(self, *, delivered: bool) -> None:
        """End it."""
        if self._gone_s is not None:
            return
        if delivered and self._has_told_all:
            self._view.settle()
        self._release()

    def _begin(self, *, again: bool) -> None:
        """Open the topic, and begin to read its snapshot."""
        opened = self._open_topic(again)
        boundary, view = opened.boundary, opened.view
        self._boundary, self._view = boundary, view
        self._engine = Engine(self._topic, view)
        self._connection = self._engine.connect(QUEUE_MAX if self._reads_ahead else _UNBOUNDED)
        self._running: dict[str, EngineSubscription] = {}
        self._given: deque[tuple[int, list[Record]]] = deque()  # Batches read, but not given to the engine yet.
        self._ends: dict[int, int] = {}
        self._read_s = 0.0
        self._looked_s = time.time()
        self._refresh_s = time.monotonic() + _REFRESH_S
        self._bookmarks = BookmarkTracker(opened.topic_id, opened.begins) if self._replays else None
        self._past: Iterator[tuple[int, list[Record]]] | None = None
        self._failure: Stop | None = None  # Raised when the updates before it, which conflation holds, were taken.
        try:
            if opened.delivers_past:
                self._start(opened.begins, resumes=True)
            else:
                self._past = boundary.between(opened.begins, boundary.ends, breathes=True)
        except BaseException:
            self._release()
            raise

    def _start(self, begins: Mapping[int, int], *, resumes: bool = False) -> None:
        """Begin to deliver: the current state or the kept one, then the updates from these offsets on."""
        self._past = None
        for name, request in list(self._wanted.items()):
            sub_id = None if name == self._unnamed else name
            self._running[name] = self._connection.subscribe(request, sub_id, resumes=resumes)
        self._follows_from: Mapping[int, int] | None = begins
        self._follow()

    def _follow(self) -> None:
        """Follow the updates, if any subscription needs them."""
        if self._follows_from is not None and any(request.live for request in self._wanted.values()):
            self._boundary.follow(self._follows_from)
            self._follows_from = None

    def _turn(self, wait_s: float) -> list[Message]:
        if self._past is not None:
            self._load(self._past)
            return []
        if self._reads_ahead and time.monotonic() - self._read_s > _AHEAD_S and not self.is_over:
            self._read(0)
        if (messages := self._take()) or self.is_over:
            return messages
        until_s = time.monotonic() + _TURN_S
        has_more = True
        # Records without messages share a turn: otherwise a caller who polls rarely would fall behind.
        while not messages and has_more and time.monotonic() < until_s:
            has_more = self._read(wait_s)
            messages = self._take()
            wait_s = 0.0
        return messages

    def _load(self, past: Iterator[tuple[int, list[Record]]]) -> None:
        """Read a part of the snapshot; after the last part, begin to deliver."""
        until_s = time.monotonic() + _TURN_S
        with without_collector():
            for partition, records in past:
                self._engine.load(partition, records)
                self._view.settle()
                if not records or time.monotonic() > until_s:
                    return
        for partition, end in self._boundary.ends.items():
            self._view.reached(partition, end, self._looked_s)
        self._view.settle()
        self._start(self._boundary.ends)

    def _take(self) -> list[Message]:
        """The next messages to deliver."""
        messages = self._connection.take(1 if self._reads_ahead else _TAKEN_MAX)
        if self._bookmarks is None:
            return messages
        return self._bookmarks.marked(
            messages, is_last=not self._connection.has_waiting, held_since_ms=self._connection.held_since_ms
        )

    def _read(self, wait_s: float) -> bool:
        """Give the next records to the engine, and let it emit due messages; returns whether more may be there."""
        if not self._given:
            for partition, end in self._ends.items():
                self._view.reached(partition, end, self._looked_s)  # The reader may have paused since then.
            if self._has_told_all:
                self._view.settle()
            self._look(wait_s)
            self._refresh()
        has_come = bool(self._given)
        for _ in range(len(self._given) if self._reads_ahead else min(1, len(self._given))):
            partition, records = self._given.popleft()
            now_ms = _now_ms()
            if self._bookmarks is not None:
                self._bookmarks.advance(partition, records, now_ms)
            self._engine.take(partition, records, now_ms)
        if self._engine.due_ms is not None:
            self._engine.punctuate(_now_ms())
        return has_come

    def _look(self, wait_s: float) -> None:
        """Read available records, or wait for some, at most until conflated updates are due.

        Raises:
            PositionLost: deletes may have been missed.
            Stop: the next records cannot be read, and all messages of those before were taken.
        """
        if (due_ms := self._engine.due_ms) is not None:
            wait_s = min(wait_s, max(0.0, due_ms / 1000 - time.monotonic()))
        if self._failure is not None:
            if self._has_told_all:
                raise self._failure
            time.sleep(min(wait_s, _GONE_WAIT_S))
            return
        paused_s = time.time() - self._looked_s
        if paused_s > _PAUSE_S and self._keeps and not self._replays:
            try:
                self._boundary.check_pause(paused_s)  # Otherwise the view might keep deleted records for ever.
            except BrokerUnavailable:
                time.sleep(min(wait_s, _GONE_WAIT_S))
                return
        try:
            with without_collector():
                fetched = self._boundary.after(wait_s)
        except Stop as error:
            if self._has_told_all:
                raise
            self._failure = error
            return
        self._read_s, self._looked_s = time.monotonic(), time.time()
        if fetched.silent_s > _SILENT_S and self._keeps and not self._replays:
            try:
                self._boundary.check_pause(fetched.silent_s)
            except BrokerUnavailable as error:
                raise PositionLost(str(error)) from None  # What was read cannot be read again.
        self._ends = fetched.ends
        for partition, records in fetched.batches:
            parts = range(0, len(records), self._given_max)
            self._given.extend((partition, records[begin : begin + self._given_max]) for begin in parts)

    def _refresh(self) -> None:
        """Renew the timestamp of a kept view where nothing arrives: a view with an old timestamp may lack deletes."""
        now_s = time.monotonic()
        if now_s < self._refresh_s:
            return
        self._refresh_s = now_s + _REFRESH_S
        for partition, end in self._boundary.quiet_ends(self._view.positions).items():
            self._view.reached(partition, end, time.time())

    @property
    def _has_told_all(self) -> bool:
        """True if all updates in the view were delivered."""
        return self._past is None and self._engine.due_ms is None and not self._connection.has_waiting

    def _restart(self, error: SowstreamError) -> None:
        """Start again with a snapshot after lost records or a damaged view; raise if a subscription has no snapshot."""
        if self._replays or not all(request.snapshot for request in self._wanted.values()):
            raise error
        with suppress(StateDamaged, DiskUnusable):
            self._view.wipe()
        self._release()
        self._gone_s = time.monotonic()
        log.warning("subscription to %s begins again with a snapshot: %s", self._topic.name, error)

    def _retry_open(self, wait_s: float) -> None:
        """Open the topic again; wait for a topic that is being recreated."""
        assert self._gone_s is not None
        try:
            self._begin(again=True)
        except (ConfigurationError, BrokerUnavailable):
            if time.monotonic() - self._gone_s > _GONE_PATIENCE_S:
                raise
            time.sleep(min(wait_s, _GONE_WAIT_S))
        else:
            self._gone_s = None

    def _release(self) -> None:
        """Close the connection, the reader and the view."""
        try:
            self._connection.close()
            self._boundary.close()
        finally:
            self._view.close()

    def _named(self, sub_id: str | None) -> str:
        """The name of a subscription: its own, or a number."""
        while sub_id is None or sub_id in self._wanted:
            self._numbered += 1
            sub_id = str(self._numbered)
        return sub_id


def _now_ms() -> int:
    """The clock of conflation intervals: monotonic, so that they do not wait for a clock that was set back."""
    return time.monotonic_ns() // 1_000_000
