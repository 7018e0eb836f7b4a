"""How long a record lives: from the topic's setting or its publisher's header to milliseconds."""

from __future__ import annotations

import math
import re
from decimal import Decimal
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
