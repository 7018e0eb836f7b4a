"""A subscription of a session: its request, and the engine's subscription that serves it now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from processor.errors import ConfigurationError, FilterError
from processor.gateway.sessions.requests import SUBSCRIBING, BadRequest, arguments_of
from processor.subscriptions import SubscriptionSpec, parse_options

if TYPE_CHECKING:
    from processor.gateway.access.entitlements import Rights
    from processor.subscriptions import EngineSubscription, Topic


class ClientSubscription:
    """One subscription of a session: its request, and the engine's subscription that serves it now."""

    __slots__ = ("asked", "engine", "is_ending", "op", "options", "query", "rows", "topic")

    def __init__(self, op: str, topic: str, asked: str | None, options: dict[str, Any]) -> None:
        self.op = op
        self.topic = topic
        self.asked = asked
        """The filter of the client."""
        self.options = options
        self.query = ""
        """Names the query in bookmarks."""
        self.engine: EngineSubscription | None = None
        """Serves it; None while the topic is not ready."""
        self.rows = -1
        """Of a window, the number of matching records that was sent last."""
        self.is_ending = False
        """True if it ends behind the messages that wait."""

    def spec(self, topic: Topic, rights: Rights, *, with_snapshot: bool = False) -> SubscriptionSpec:
        """The request to the engine.

        Args:
            topic: the topic.
            rights: those of the client.
            with_snapshot: whether it begins with a snapshot, even if the request has none.

        Raises:
            ConfigurationError: an option or the filter is wrong.
        """
        form = dict(SUBSCRIBING[self.op])
        options = arguments_of(self.options)
        if "bookmark" in options:
            raise ConfigurationError("option 'bookmark' replays from Kafka; here, `resume` goes on from a bookmark")
        parsed = parse_options(None, **form, **options)
        if with_snapshot:
            form["snapshot"] = True
        return SubscriptionSpec(topic, self.asked or None, parsed, **form, entitlement=rights.read)


def reason_of(error: Exception) -> str:
    """One word for an error."""
    if isinstance(error, BadRequest):
        return error.reason
    if isinstance(error, FilterError):
        return "bad_filter"
    if isinstance(error, ConfigurationError):
        return "bad_request"
    return type(error).__name__
