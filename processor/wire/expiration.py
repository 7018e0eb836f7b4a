"""How long a record lives: from the topic's setting or its publisher's header to milliseconds."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from functools import lru_cache
from typing import Final

from processor.api import Name, RecordRejected

TTL_MS_MAX: Final = 100 * 365 * 86_400_000
"""Longest life of a record that is not for ever: a hundred years."""

EXPIRED_MAX: Final = 2_000
"""Most records that expire at once: some 20 ms. When many are due together, input is processed in between."""

_SECONDS = re.compile(rb"[0-9]{1,12}(?:\.[0-9]{1,9})?")


def ttl_ms(expiration_s: float | None) -> int:
    """A topic's `expiration` in milliseconds; 0 is for ever."""
    return 0 if expiration_s is None else max(1, round(min(expiration_s * 1000, TTL_MS_MAX)))


@lru_cache(maxsize=256)
def ttl_ms_of(header: bytes) -> int:
    """A header `expiration` in milliseconds, never rounded down: nothing expires early.

    Raises:
        RecordRejected: `bad_header`: not a number of seconds, or too many.
    """
    if _SECONDS.fullmatch(header) is None:
        raise RecordRejected(
            "bad_header",
            f"header {Name.EXPIRATION} is {header!r:.100}; it is a number of seconds such as 60 or 0.5, or 0 for ever",
        )
    milliseconds = math.ceil(Decimal(header.decode()) * 1000)
    if milliseconds > TTL_MS_MAX:
        raise RecordRejected(
            "bad_header",
            f"header {Name.EXPIRATION} is {header.decode()}; at most {TTL_MS_MAX // 1000} seconds, or 0 for ever",
        )
    return milliseconds


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
