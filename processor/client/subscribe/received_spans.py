"""The spans of messages that a subscriber receives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.telemetry.tracing import spans_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.client.subscribe.stream import OnFetched
    from processor.config.runtime import TelemetryConfig
    from processor.subscriptions import Message


def received(settings: TelemetryConfig) -> OnFetched | None:
    """A callback that makes a span for each message with a trace; None: tracing is off.

    Raises:
        ConfigurationError: OpenTelemetry's packages are not installed.
    """
    spans = spans_of(settings)
    if spans is None:
        return None

    def on_fetched(messages: Sequence[Message]) -> None:
        for message in messages:
            if message.headers:
                spans.receive(message.topic, message.headers)

    return on_fetched
