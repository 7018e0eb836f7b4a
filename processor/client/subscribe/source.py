"""The contract between a stream of messages and the feeds that fill it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from processor.subscriptions import Message, SubscriptionSpec


class Source(Protocol):
    """Where the messages of a stream come from. One thread at a time."""

    @property
    def is_live(self) -> bool:
        """Whether it waits for what comes: the past is read, and what was there has been told."""

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more."""

    @property
    def healed(self) -> int:
        """How many times a record was read again because a delta of it was missing."""

    @property
    def unchecked(self) -> int:
        """How many times a key was forgotten, so that its next delta was not checked."""

    def fetch(self, wait_s: float) -> list[Message]:
        """Do one turn: the next messages, if there are any.

        Args:
            wait_s: how long to wait for something to come.

        Raises:
            SowstreamError: it cannot go on.
        """

    def close(self, *, told: bool) -> None:
        """End it.

        Args:
            told: whether all that `fetch` gave was taken.
        """


class Feed(Source, Protocol):
    """The messages of one topic: of one or several subscriptions."""

    def add(self, request: SubscriptionSpec, sub_id: str | None) -> str:
        """Add a subscription; its name in messages.

        Raises:
            ConfigurationError: what is read does not have what it needs.
        """

    def remove(self, sub_id: str) -> None:
        """End one subscription."""

    def begin_again(self, reason: str) -> None:
        """Read the topic again, and deliver a snapshot to each subscription.

        Raises:
            PositionLost: one of them has none.
        """
