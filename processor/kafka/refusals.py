"""What brokers refuse a client before it can ask anything: wrong credentials, a certificate that cannot be verified."""

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
    """The last refusal that a client was told of.

    librdkafka goes on trying, and its calls end with "timed out" as if nobody were there: why is told to `error_cb` and
    nowhere else. What a client hears is known once it was polled.
    """

    def __init__(self) -> None:
        """Nothing was refused yet."""
        self.error: KafkaError | None = None

    def listening(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """A client's properties, so that it tells us."""
        return {**properties, "error_cb": self._hear}

    def _hear(self, error: KafkaError) -> None:
        is_unverified = error.code() == KafkaError._SSL and "verify failed" in error.str()
        if error.code() in _LOGIN or is_unverified:
            self.error = error
