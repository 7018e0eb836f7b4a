"""The parts of a gateway that a session uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from processor.config.gateway import GatewayLimits
    from processor.gateway.access.allowances import Allowance
    from processor.gateway.access.entitlements import Rights
    from processor.gateway.access.identity import Identity
    from processor.gateway.feeds.kafka_feed import KafkaFeed
    from processor.gateway.sessions.frames import FrameEncoder
    from processor.gateway.sessions.slices import Slices
    from processor.subscriptions import SubscriptionSpec
    from processor.subscriptions.resume import Bookmark


class Waiting(Protocol):
    """A session with messages for the next tick."""

    flush: Callable[[], None]
    """Called with each tick when messages wait."""

    @property
    def is_catching_up(self) -> bool:
        """True if the next messages must be read or computed first."""


class SessionHost(Protocol):
    """The feeds, rights and limits of a gateway."""

    ready_timeout_s: float
    """Longest wait of a request for a topic's view."""
    waiting: list[Waiting]
    """Sessions with messages for the next tick."""

    slices: Slices
    """Gives turns to the work of queries."""

    @property
    def feeds(self) -> Mapping[str, KafkaFeed]:
        """The feed of each topic."""

    @property
    def limits(self) -> GatewayLimits:
        """The limits."""

    @property
    def encoder(self) -> FrameEncoder:
        """Encodes messages for all sessions."""

    async def compiled(
        self,
        words: int,
        compile: Callable[[], SubscriptionSpec],  # noqa: A002
        allowance: Allowance | None,
    ) -> SubscriptionSpec:
        """Compile a request of so many words, on a thread if that takes long."""

    def rights(self, identity: Identity, topic: str) -> Rights:
        """The rights of an identity on a topic."""

    def places_text(self, feed: KafkaFeed, bookmark: Bookmark) -> str:
        """The part of a bookmark's text that all queries of a topic share."""

    def count_resume(self, outcome: str) -> None:
        """Count a request to resume."""
