"""The contract between a stream of messages and the feeds that fill it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from processor.subscriptions import Message, SubscriptionSpec


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
        """Number of records that were read again because a delta was missing."""

    @property
    def unchecked(self) -> int:
        """Number of keys that were dropped, so that their next delta was not checked for continuity."""

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


class TopicFeed(MessageSource, Protocol):
    """A source of the messages of one topic, for one or several subscriptions."""

    def add(self, request: SubscriptionSpec, sub_id: str | None) -> str:
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
