"""The time to live of records: the topic's own, or that of a publisher's header `expiration`."""

from __future__ import annotations

from typing import Final

from processor.wire.command import TTL_MS_MAX, ttl_ms_of

EXPIRED_MAX: Final = 2_000
"""Most records that expire at once: some 20 ms. When many are due together, input is processed in between."""


def ttl_ms(expiration_s: float | None) -> int:
    """A topic's `expiration` in milliseconds; 0 is for ever."""
    return 0 if expiration_s is None else max(1, round(min(expiration_s * 1000, TTL_MS_MAX)))


class Lifetime:
    """The time to live of a topic's records."""

    def __init__(self, expiration_s: float | None) -> None:
        """Create it from the topic's setting `expiration`; None is for ever."""
        self._topic_ms = ttl_ms(expiration_s)

    def begin(self, now_ms: int, asked: bytes | None, kept: bytes) -> tuple[int, bytes]:
        """The time when a record expires, 0 for never, and its own time to live if that is not the topic's.

        Args:
            now_ms: the time of the update, which it counts from.
            asked: header `expiration` of the update; None where there is none.
            kept: the record's own time to live, for an update that leaves it; empty for the topic's.
        """
        own = kept if asked is None else asked
        own_ms = ttl_ms_of(own) if own else self._topic_ms
        return (now_ms + own_ms if own_ms else 0), (b"" if own_ms == self._topic_ms else own)
