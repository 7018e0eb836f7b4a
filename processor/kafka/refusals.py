"""Collects refusals by brokers before the first request: wrong credentials, a certificate that cannot be verified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_LOGIN: Final = frozenset(
    (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    )
)


class Refusals:
    """The last refusal that a client received.

    librdkafka goes on trying, and its calls end with "timed out" as if no broker were there: only `error_cb` receives
    the reason. It is called while the client is polled.
    """

    def __init__(self) -> None:
        """Start without a refusal."""
        self.error: KafkaError | None = None

    def listening(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """The properties of a client, with the callback that collects refusals."""
        return {**properties, "error_cb": self._on_error}

    def _on_error(self, error: KafkaError) -> None:
        is_unverified = error.code() == KafkaError._SSL and "verify failed" in error.str()
        if error.code() in _LOGIN or is_unverified:
            self.error = error
