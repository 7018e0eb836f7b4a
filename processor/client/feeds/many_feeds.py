"""The contract between a stream of messages and the feeds that fill it, and the source that reads several in turn."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from processor.errors import ConfigurationError

if TYPE_CHECKING:
    from processor.subscriptions import Message


class MessageSource(Protocol):
    """The source of a stream's messages. One thread at a time."""

    @property
    def is_live(self) -> bool:
        """True if it waits for updates: the past is read and delivered."""

    @property
    def is_over(self) -> bool:
        """True if no more messages will come."""

    @property
    def healed(self) -> int:
        """Number of records that were read again because a delta was missing; none can be where deltas are computed."""
        return 0

    @property
    def unchecked(self) -> int:
        """Number of keys that were dropped, so that their next delta was not checked for continuity; 0 as above."""
        return 0

    def fetch(self, wait_s: float) -> list[Message]:
        """Do one turn: return the next messages, if there are any.

        Args:
            wait_s: the longest wait for a message.

        Raises:
            SowstreamError: it cannot go on.
        """

    def close(self, *, delivered: bool) -> None:
        """End it.

        Args:
            delivered: whether all messages that `fetch` returned were taken.
        """


class FeedRequest(Protocol):
    """A subscription as it was asked for, parsed and checked for one kind of feed."""

    @property
    def live(self) -> bool:
        """True if updates follow; False: it ends with its snapshot."""


RequestT = TypeVar("RequestT", bound=FeedRequest)
RequestT_contra = TypeVar("RequestT_contra", bound=FeedRequest, contravariant=True)


class TopicFeed(MessageSource, Protocol[RequestT_contra]):
    """A source of the messages of one topic, for one or several subscriptions."""

    @property
    def matching(self) -> int | None:
        """Of the window of its one subscription, the number of records that match, in it or not; None: not known."""
        return None

    def add(self, request: RequestT_contra, sub_id: str | None) -> str:
        """Add a subscription; returns its name in messages.

        Raises:
            ConfigurationError: the state that it needs is not read.
        """

    def remove(self, sub_id: str) -> None:
        """End one subscription."""

    def begin_again(self, reason: str) -> None:
        """Read the topic again, and deliver a snapshot to each subscription.

        Raises:
            PositionLost: a subscription has no snapshot.
        """


_SLICE_S: Final = 0.005
"""Longest wait for one topic of several: meanwhile the messages of the others wait."""
_NOTHING_S: Final = 0.01  # Longest sleep of a connection without subscriptions.


class ManyFeeds(Generic[RequestT]):
    """One feed per topic; each has its turn. One thread at a time."""

    def __init__(self) -> None:
        """Begin without topics."""
        self._feeds: dict[str, TopicFeed[RequestT]] = {}  # The one whose turn comes next is the first.
        self._topics: dict[str, str] = {}  # By subscription.
        self._queries: set[str] = set()  # Subscriptions that end with their snapshot.
        self._numbered = 0

    @property
    def is_live(self) -> bool:
        """True if all topics wait for updates."""
        return all(feed.is_live for feed in self._feeds.values())

    @property
    def is_over(self) -> bool:
        """Never: subscriptions may be added until the connection is closed."""
        return False

    @property
    def healed(self) -> int:
        """Number of records that were read again because a delta was missing."""
        return sum(feed.healed for feed in self._feeds.values())

    @property
    def unchecked(self) -> int:
        """Number of keys that were dropped, so that their next delta was not checked."""
        return sum(feed.unchecked for feed in self._feeds.values())

    def has(self, topic: str) -> bool:
        """Return whether there is a feed of a topic."""
        return topic in self._feeds

    def name(self, sub_id: str | None) -> str:
        """The name of a new subscription: its own, or a number.

        Raises:
            ConfigurationError: the name is taken.
        """
        if sub_id in self._topics:
            raise ConfigurationError(f"there is a subscription {sub_id!r} on this connection already")
        while sub_id is None or sub_id in self._topics:
            self._numbered += 1
            sub_id = str(self._numbered)
        return sub_id

    def open(self, topic: str, feed: TopicFeed[RequestT], request: RequestT, sub_id: str) -> None:
        """Add the feed of a topic, which was opened with its first subscription."""
        self._feeds[topic] = feed
        self._note(topic, request, sub_id)

    def add(self, topic: str, request: RequestT, sub_id: str) -> None:
        """Add a subscription to the feed of a topic.

        Raises:
            ConfigurationError: the feed cannot serve it.
        """
        self._feeds[topic].add(request, sub_id)
        self._note(topic, request, sub_id)

    def remove(self, sub_id: str) -> None:
        """End a subscription; with the last one of a topic, close its feed.

        Raises:
            ConfigurationError: there is no subscription of this name.
        """
        topic = self._topics.pop(sub_id, None)
        if topic is None:
            raise ConfigurationError(f"there is no subscription {sub_id!r} on this connection")
        self._queries.discard(sub_id)
        if topic in self._topics.values():
            self._feeds[topic].remove(sub_id)
        else:
            self._feeds.pop(topic).close(delivered=True)

    def fetch(self, wait_s: float) -> list[Message]:
        """Do one turn: the next messages of the first topic that has any; the others go first at the next turn."""
        if not self._feeds:
            time.sleep(min(wait_s, _NOTHING_S))
            return []
        until_s = time.monotonic() + wait_s
        slice_s = 0.0
        while True:
            for _ in range(len(self._feeds)):
                topic = next(iter(self._feeds))
                feed = self._feeds[topic] = self._feeds.pop(topic)
                if messages := feed.fetch(slice_s):
                    self._end_queries(messages)
                    return messages
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return []
            slice_s = left_s if len(self._feeds) == 1 else min(_SLICE_S, left_s)

    def close(self, *, delivered: bool) -> None:
        """Close all feeds; the first error is raised when all are closed."""
        feeds, self._feeds, self._topics = self._feeds, {}, {}
        failure: BaseException | None = None
        for feed in feeds.values():
            try:
                feed.close(delivered=delivered)
            except Exception as error:  # noqa: BLE001 - The others are to be ended too.
                failure = failure or error
        if failure is not None:
            raise failure

    def _note(self, topic: str, request: FeedRequest, sub_id: str) -> None:
        self._topics[sub_id] = topic
        if not request.live:
            self._queries.add(sub_id)

    def _end_queries(self, messages: list[Message]) -> None:
        """Remove the queries whose snapshot has ended."""
        if not self._queries:
            return
        for message in messages:
            if message.command == "group_end":
                for sub_id in self._queries.intersection(message.sub_ids):
                    self.remove(sub_id)
