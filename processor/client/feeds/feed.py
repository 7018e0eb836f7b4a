"""What fills a subscription: Kafka's records, read in turns, and the messages they make."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from processor.client.feeds.bookmark_tracker import Replay
from processor.client.feeds.compact_records import without_collector
from processor.client.feeds.snapshot_boundary import Cut
from processor.client.views.contract import ReaderView
from processor.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DiskUnusable,
    PositionLost,
    SowstreamError,
    StateDamaged,
)
from processor.kafka import errors as kafka_errors
from processor.record import Record
from processor.subscriptions import Engine, EngineSubscription, Message, SubscriptionSpec, Topic
from processor.subscriptions.connection import QUEUE_MAX

log = logging.getLogger("sowstream.client")

_GIVEN_MAX: Final = 1_000
"""Records that are told of before what they make is taken."""
_TAKEN_MAX: Final = 1_000
_UNBOUNDED: Final = 2**62  # Nothing is folded where nothing is read before all is taken.
_AHEAD_S: Final = 0.005  # How often a reader that folds looks for more while there is something to take.
_TURN_S: Final = 0.25  # How long is read, of the past or of what makes no messages, before others may have a turn.
_REFRESH_S: Final = 600.0
_PAUSE_S: Final = 60.0  # A reader that pauses for longer asks whether Kafka may have dropped deletes meanwhile.
_GONE_PATIENCE_S: Final = 30.0
_GONE_WAIT_S: Final = 0.1


class Opened(NamedTuple):
    """A topic, looked at for one feed."""

    cut: Cut
    """Its past and its future."""
    view: ReaderView
    """What is known of its records."""
    begins: dict[int, int]
    """What is read of its past begins at these offsets; where it ends, at the cut, updates begin."""
    tells_past: bool
    """Whether its past is told as updates, behind the snapshot of what the view has."""
    topic_id: str
    """What tells it from one that had its name before."""


class EngineFeed:
    """Reads a SOW topic into an engine, which says what is told."""

    def __init__(
        self,
        topic: Topic,
        open_topic: Callable[[bool], Opened],
        request: SubscriptionSpec,
        sub_id: str | None,
        *,
        keeps: bool,
    ) -> None:
        """Open it: the cut is made here.

        Args:
            topic: what the records are.
            open_topic: looks at the topic; asked again, with True, when what was to be read is not there any more.
            request: the first subscription.
            sub_id: its name, if it has one.
            keeps: whether the view knows of the past, so that others may be added that need that.

        Raises:
            Stop: what `open_topic` raises.
        """
        self._topic = topic
        self._open_topic = open_topic
        self._keeps = keeps
        self._reads_ahead = request.options.conflation == "auto"
        self._replays = request.options.bookmark is not None
        # A bookmark says where to go on after one message: so each record is told of by itself, unless it is folded.
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
        """Whether it waits for what comes."""
        return self._past is None and self._gone_s is None and not self._connection.has_waiting

    @property
    def is_over(self) -> bool:
        """Whether all has been told and nothing follows."""
        return self.is_live and not any(request.live for request in self._wanted.values())

    @property
    def healed(self) -> int:
        """None: a delta is made of the record before and the record now, so that it spans what is missing."""
        return 0

    @property
    def unchecked(self) -> int:
        """None: see `healed`."""
        return 0

    def fetch(self, wait_s: float) -> list[Message]:
        """Do one turn."""
        try:
            if self._gone_s is not None:
                self._try_again(wait_s)
                return []
            return self._turn(wait_s)
        except (PositionLost, StateDamaged) as error:
            self._give_up(error)
        except ConfigurationError as error:
            if not kafka_errors.is_unknown(error):
                raise
            self._give_up(error)
        return []

    def add(self, request: SubscriptionSpec, sub_id: str | None) -> str:
        """Tell of another subscription too, beginning with the state of this moment."""
        if request.options.bookmark is not None:
            raise ConfigurationError(
                "option 'bookmark': the first subscription says from where its stream is replayed; open this one by "
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
        """Tell no more of one."""
        if self._wanted.pop(sub_id, None) is None:
            raise ConfigurationError(f"there is no subscription {sub_id!r}")
        if (running := self._running.pop(sub_id, None)) is not None:
            self._connection.unsubscribe(running)

    def begin_again(self, reason: str) -> None:
        """Read the topic again, and deliver a snapshot to each subscription."""
        if self._gone_s is None:
            self._give_up(PositionLost(f"{self._topic.name}: {reason}"))

    def close(self, *, told: bool) -> None:
        """End it."""
        if self._gone_s is not None:
            return
        if told and self._has_told_all:
            self._view.settle()
        self._let_go()

    def _begin(self, *, again: bool) -> None:
        """Look at the topic, and begin with its past."""
        opened = self._open_topic(again)
        cut, view = opened.cut, opened.view
        self._cut, self._view = cut, view
        self._engine = Engine(self._topic, view)
        self._connection = self._engine.connect(QUEUE_MAX if self._reads_ahead else _UNBOUNDED)
        self._running: dict[str, EngineSubscription] = {}
        self._given: deque[tuple[int, list[Record]]] = deque()  # Read, and not given to the engine yet.
        self._ends: dict[int, int] = {}
        self._read_s = 0.0
        self._looked_s = time.time()
        self._refresh_s = time.monotonic() + _REFRESH_S
        self._replay = Replay(opened.topic_id, opened.begins) if self._replays else None
        self._past: Iterator[tuple[int, list[Record]]] | None = None
        try:
            if opened.tells_past:
                self._start(opened.begins, resumes=True)
            else:
                self._past = cut.between(opened.begins, cut.ends, breathes=True)
        except BaseException:
            self._let_go()
            raise

    def _start(self, begins: Mapping[int, int], *, resumes: bool = False) -> None:
        """Begin to tell: the state of now, or the one that was kept, and what comes from these offsets on."""
        self._past = None
        for name, request in list(self._wanted.items()):
            sub_id = None if name == self._unnamed else name
            self._running[name] = self._connection.subscribe(request, sub_id, resumes=resumes)
        self._follows_from: Mapping[int, int] | None = begins
        self._follow()

    def _follow(self) -> None:
        """Read what comes, if any subscription wants it."""
        if self._follows_from is not None and any(request.live for request in self._wanted.values()):
            self._cut.follow(self._follows_from)
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
        # What makes no messages is not to take a turn each: whoever asks now and then would fall behind.
        while not messages and has_more and time.monotonic() < until_s:
            has_more = self._read(wait_s)
            messages = self._take()
            wait_s = 0.0
        return messages

    def _load(self, past: Iterator[tuple[int, list[Record]]]) -> None:
        """Read a part of the past; behind the last of it, begin to tell."""
        until_s = time.monotonic() + _TURN_S
        with without_collector():
            for partition, records in past:
                self._engine.load(partition, records)
                self._view.settle()
                if not records or time.monotonic() > until_s:
                    return
        for partition, end in self._cut.ends.items():
            self._view.reached(partition, end, self._looked_s)
        self._view.settle()
        self._start(self._cut.ends)

    def _take(self) -> list[Message]:
        """What is to be told next."""
        messages = self._connection.take(1 if self._reads_ahead else _TAKEN_MAX)
        if self._replay is None:
            return messages
        return self._replay.marked(
            messages, is_last=not self._connection.has_waiting, held_since_ms=self._connection.held_since_ms
        )

    def _read(self, wait_s: float) -> bool:
        """Give the engine what comes next, and let it tell what is due; whether more may be there already."""
        if not self._given:
            for partition, end in self._ends.items():
                self._view.reached(partition, end, self._looked_s)  # The reader may have paused since.
            if self._has_told_all:
                self._view.settle()
            self._look(wait_s)
            if not self._given:
                self._refresh()
        has_come = bool(self._given)
        for _ in range(len(self._given) if self._reads_ahead else min(1, len(self._given))):
            partition, records = self._given.popleft()
            now_ms = _now_ms()
            if self._replay is not None:
                self._replay.give(partition, records, now_ms)
            self._engine.take(partition, records, now_ms)
        if self._engine.due_ms is not None:
            self._engine.punctuate(_now_ms())
        return has_come

    def _look(self, wait_s: float) -> None:
        """Read what is there, or wait for it, no longer than until something is due.

        Raises:
            PositionLost: deletes may have gone unread.
        """
        if (due_ms := self._engine.due_ms) is not None:
            wait_s = min(wait_s, max(0.0, due_ms / 1000 - time.monotonic()))
        paused_s = time.time() - self._looked_s
        if paused_s > _PAUSE_S and self._keeps and not self._replays:
            try:
                self._cut.check_pause(paused_s)  # Else the view might keep for ever what was deleted.
            except BrokerUnavailable:
                time.sleep(min(wait_s, _GONE_WAIT_S))
                return
        with without_collector():
            arrived = self._cut.after(wait_s)
        self._read_s, self._looked_s = time.monotonic(), time.time()
        self._ends = arrived.ends
        for partition, records in arrived.batches:
            parts = range(0, len(records), self._given_max)
            self._given.extend((partition, records[begin : begin + self._given_max]) for begin in parts)

    def _refresh(self) -> None:
        """Let a view that is kept know that it is not old where nothing comes: it might lack deletes if it were."""
        now_s = time.monotonic()
        if now_s < self._refresh_s:
            return
        self._refresh_s = now_s + _REFRESH_S
        for partition, end in self._cut.quiet_ends(self._view.positions).items():
            self._view.reached(partition, end, time.time())

    @property
    def _has_told_all(self) -> bool:
        """Whether all that the view has was told."""
        return self._past is None and self._engine.due_ms is None and not self._connection.has_waiting

    def _give_up(self, error: SowstreamError) -> None:
        """What was to be read is not there, or what was kept cannot be read: begin anew, where that can be told."""
        if self._replays or not all(request.snapshot for request in self._wanted.values()):
            raise error
        with suppress(StateDamaged, DiskUnusable):
            self._view.wipe()
        self._let_go()
        self._gone_s = time.monotonic()
        log.warning("subscription to %s begins again with a snapshot: %s", self._topic.name, error)

    def _try_again(self, wait_s: float) -> None:
        """Begin anew; a topic that is being made anew is waited for."""
        assert self._gone_s is not None
        try:
            self._begin(again=True)
        except (ConfigurationError, BrokerUnavailable):
            if time.monotonic() - self._gone_s > _GONE_PATIENCE_S:
                raise
            time.sleep(min(wait_s, _GONE_WAIT_S))
        else:
            self._gone_s = None

    def _let_go(self) -> None:
        """Close what is open."""
        try:
            self._connection.close()
            self._cut.close()
        finally:
            self._view.close()

    def _named(self, sub_id: str | None) -> str:
        """The name of a subscription: its own, or a number."""
        while sub_id is None or sub_id in self._wanted:
            self._numbered += 1
            sub_id = str(self._numbered)
        return sub_id


def _now_ms() -> int:
    """The time that intervals of conflation are measured by: they must not wait for a clock that was set back."""
    return time.monotonic_ns() // 1_000_000
