"""A subscription of a session: its request, and the engine's subscription that serves it now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from processor.errors import BrokerUnavailable, ConfigurationError, FilterError, SubscriptionFailed, TopicMoved
from processor.filter import compile_work
from processor.filter.limits import CHARACTERS_MAX, TOKENS_MAX
from processor.gateway.access.requests import BadRequest, arguments_of
from processor.subscriptions import SubscriptionSpec, parse_options
from processor.subscriptions.request.subscribe_options import FORMS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.gateway.access.entitlements import Rights
    from processor.subscriptions import EngineSubscription, Topic


class ClientSubscription:
    """One subscription of a session: its request, and the engine's subscription that serves it now."""

    __slots__ = ("_compiled", "asked", "engine", "is_ending", "op", "options", "query", "rows", "steps", "topic")

    def __init__(self, op: str, topic: str, asked: str | None, options: dict[str, Any]) -> None:
        self.op = op
        self.topic = topic
        self.asked = asked
        """The filter of the client."""
        self.options = options
        self.steps = 0
        """Its work on each update, if it is costly, in steps of about 100 ns."""
        self.query = ""
        """Names the query in bookmarks."""
        self.engine: EngineSubscription | None = None
        """Serves it; None while the topic is not ready."""
        self.rows = -1
        """Of a window, the number of matching records that was sent last."""
        self.is_ending = False
        """True if it ends behind the messages that wait."""
        self._compiled: tuple[str, SubscriptionSpec] | None = None  # By the text of rights.

    @property
    def words(self) -> int:
        """The work to compile it, in words of about 20 µs.

        Raises:
            BadRequest: its options are too large.
        """
        return words_of(self.asked, self.options)

    def change(self, changed: ClientSubscription) -> None:
        """Take the request of another one, which was compiled."""
        self.asked, self.options, self.steps = changed.asked, changed.options, changed.steps
        self._compiled = changed._compiled

    def spec(self, topic: Topic, rights: Rights, *, with_snapshot: bool = False) -> SubscriptionSpec:
        """The request to the engine.

        Args:
            topic: the topic.
            rights: those of the client.
            with_snapshot: whether it begins with a snapshot, even if the request has none.

        Raises:
            ConfigurationError: an option or the filter is wrong.
        """
        if self._compiled is not None and self._compiled[0] == rights.text:
            spec = self._compiled[1]
            return spec.with_snapshot() if with_snapshot else spec
        form = FORMS[self.op]
        options = arguments_of(self.options)
        if "bookmark" in options:
            raise ConfigurationError("option 'bookmark' replays from Kafka; here, `resume` goes on from a bookmark")
        parsed = parse_options(None, **form, **options)
        spec = SubscriptionSpec(topic, self.asked or None, parsed, **form, entitlement=rights.read)
        self._compiled = rights.text, spec
        return spec.with_snapshot() if with_snapshot else spec


def words_of(asked: str | None, options: Mapping[str, Any]) -> int:
    """The work to compile a filter and options, in words of about 20 µs.

    Raises:
        BadRequest: the options are too large.
    """
    values = [part for value in options.values() for part in (value if type(value) is list else (value,))]
    texts = [value for value in values if type(value) is str]
    if sum(map(len, texts)) > CHARACTERS_MAX or len(values) > TOKENS_MAX:
        raise BadRequest("bad_request", f"options have at most {CHARACTERS_MAX} characters and {TOKENS_MAX} values")
    words = sum(map(compile_work, texts))
    if words > TOKENS_MAX:
        raise BadRequest("bad_request", f"options have at most {TOKENS_MAX} words and signs")
    return words + compile_work(asked or "")


def reason_of(error: Exception) -> str:
    """One word for an error."""
    if isinstance(error, BadRequest):
        return error.reason
    if isinstance(error, FilterError):
        return "bad_filter"
    if isinstance(error, TopicMoved):
        return "moved"
    if isinstance(error, BrokerUnavailable):
        return "unavailable"  # The client asks again.
    if isinstance(error, SubscriptionFailed):
        return "internal"
    if isinstance(error, ConfigurationError):
        return "bad_request"
    return type(error).__name__
